"""Models whose right attribution is known: how one is registered, and what each explainer gives there.

A feature is present, as in the inputs x, or removed, as in the baseline x′; v(S) is the output with the features S
present. The right attribution is the Shapley value of v,

    φ_i = Σ_S |S|! (n − |S| − 1)!/n! · (v(S ∪ {i}) − v(S)), over the sets S without i,

the only one with four properties: it is complete, a feature that changes no v(S) gets 0, two features that can take
each other's place in every v(S) get the same, and it is linear in v (Shapley 1953; Lundberg & Lee 2017, arXiv
1705.07874, Theorem 1; with one baseline, Sundararajan & Najmi 2020, arXiv 1908.08474, §3). A subject says why its
answer follows from these properties, and a test computes it from all 2ⁿ sets.

XAI-Units (Lee et al. 2025, arXiv 2506.01059) and Arras et al. 2025 (arXiv 2502.15886) judge explainers by models and
tasks of this kind.
"""

from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor, nn

from faithcheck.models.case import Case
from faithcheck.models.expectation import Expectations, expect
from faithcheck.models.pair import MakeCase, control, copies

Map: TypeAlias = Callable[[Tensor], Tensor]
"""A map in closed form: inputs ``(batch, features, …)`` to ``(batch, features)``."""


class KnownAnswer(nn.Module):
    """A model, its right attribution in closed form, and why it is right."""

    def __init__(self, model: nn.Module, right: Map, why: str) -> None:
        super().__init__()
        self.model, self.right, self.why = model, right, why

    def forward(self, inputs: Tensor, **arguments: Tensor) -> Tensor:
        """The model's outputs."""
        return self.model(inputs, **arguments)

    def right_attribution(self, case: Case) -> Tensor:
        """The right attribution of a case, ``(batch, features)``."""
        return self.right(case.inputs)


def known_answer(
    name: str, case: MakeCase, right: Map, why: str, expected: Expectations, cite: str = ""
) -> Callable[[Callable[[], nn.Module]], Callable[[], nn.Module]]:
    """Register the model that the decorated function makes, as a subject of the axiom ``ground_truth``.

    The pair ``known_answer.name`` is the model and its copy. ``right`` is the right attribution in closed form;
    ``expected`` is what explainers give, see `right_of` and `wrong_of`.
    """

    def decorate(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        build = copies(lambda: KnownAnswer(make(), right, why))
        control(f"known_answer.{name}", build, case, "ground_truth", expected, cite=cite)
        return make

    return decorate


def right_of(explainers: str, why: str) -> Expectations:
    """These explainers, separated by spaces, give the right attribution."""
    return expect("ground_truth", explainers, why)


def wrong_of(explainers: str, given: Map, why: str) -> Expectations:
    """These explainers, separated by spaces, give this map in place of the right one."""

    def predict(model: KnownAnswer, case: Case) -> Tensor:
        return given(case.inputs) - model.right_attribution(case)

    return expect("ground_truth", explainers, why, predict=predict)
