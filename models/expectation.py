"""Expectations: what theory expects of an explainer under an axiom, and the functions that write them down."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from torch import Tensor

Verdict: TypeAlias = Literal["HOLDS", "VIOLATES", "UNCLAIMED", "ERROR"]
Predict: TypeAlias = Callable[..., Tensor]


@dataclass(frozen=True)
class Expectation:
    """What theory expects of one explainer under one axiom.

    Attributes:
        verdict: ``HOLDS``, ``VIOLATES``, ``UNCLAIMED``, or ``ERROR`` if the explainer must raise an error.
        why: the derivation in a sentence; required.
        predict: for ``VIOLATES``: the closed form of the axiom's ``values``, called with the axiom's models and the
            case: ``predict(f, g, case)`` for a pair, ``predict(model, case)`` for one model.
        floor: for ``VIOLATES`` without a closed form: the least gap that theory allows, above 0.
        ceiling: the largest gap that theory allows: beside a floor, the largest violation; with ``HOLDS``, how far the
            axiom may be missed, such as 1e-3 of an explainer that is complete to 1e-3.
        cite: paper and equation.
        error: for ``ERROR``: a part of the message of the explainer's error.

    Raises:
        ValueError: the reason is missing, a ``VIOLATES`` does not have exactly one of ``predict`` and ``floor``, an
            ``ERROR`` has no ``error``, a floor or ceiling is not a positive finite number, or the ceiling is below the
            floor or beside a closed form.
    """

    verdict: Verdict
    why: str
    predict: Predict | None = None
    floor: float | None = None
    cite: str = ""
    error: str = ""
    ceiling: float | None = None

    def __post_init__(self) -> None:
        if not self.why:
            raise ValueError("an expectation needs a reason: why=…")
        for bound, size, meaning in (("floor", self.floor, "least"), ("ceiling", self.ceiling, "largest")):
            if size is not None and not 0 < size < math.inf:
                raise ValueError(f"a {bound} is the {meaning} gap that theory allows, above 0 and finite, got {size}")
        sizes = (self.predict is not None) + (self.floor is not None)
        if sizes != (1 if self.verdict == "VIOLATES" else 0):
            raise ValueError(
                f"VIOLATES takes one of predict=… and floor=…, other verdicts neither; {self.verdict} got {sizes}"
            )
        if self.ceiling is not None and self.verdict != "HOLDS" and not (self.floor or math.inf) <= self.ceiling:
            raise ValueError(
                f"a ceiling is of HOLDS, or of VIOLATES above its floor; {self.verdict} got floor={self.floor}, "
                f"ceiling={self.ceiling}"
            )
        if bool(self.error) != (self.verdict == "ERROR"):
            raise ValueError(
                f"ERROR takes error=…, a part of the error's message, other verdicts do not; got {self.error!r}"
            )


Expectations: TypeAlias = Mapping[tuple[str, str], Expectation]
"""``{(axiom, explainer): Expectation}``."""

INVARIANT_BY_DEFINITION: Expectations = {
    ("invariance", explainer): Expectation("HOLDS", f"computed from the function's {source} alone, which are equal")
    for explainer, source in {
        "loo": "values",
        "gradient_x_input": "gradients",
        "integrated_gradients": "gradients",
    }.items()
}
"""What every pair expects of the explainers that depend on the model's function alone."""


def with_invariance(*expected: Expectations) -> Expectations:
    """`INVARIANT_BY_DEFINITION` and further expectations; where two are of one explainer, the later one counts."""
    return {key: value for part in (INVARIANT_BY_DEFINITION, *expected) for key, value in part.items()}


PRECISION = "precision precision_bfloat16 precision_float16 precision_int8"
"""The axioms that a type coarser than float64 gives the same attribution."""

ALL_LRP = "epsilon_lrp attnlrp cplrp"
"""The LRP explainers. Without a product of two activations their rules are equal; ε-LRP refuses such a product."""


def expect(
    axioms: str,
    explainers: str,
    why: str,
    *,
    predict: Predict | None = None,
    floor: float | None = None,
    ceiling: float | None = None,
    cite: str = "",
) -> Expectations:
    """The same expectation for several axioms and explainers.

    The verdict is ``VIOLATES`` with ``predict`` or ``floor``, and ``HOLDS`` without.

    Args:
        axioms: their names, separated by spaces.
        explainers: their names, separated by spaces.
        why: the derivation in a sentence.
        predict: the closed form of the axiom's values, see `Expectation`.
        floor: the least gap, if there is no closed form.
        ceiling: the largest gap, beside a floor or of an axiom that holds up to it.
        cite: paper and equation.

    Raises:
        ValueError: see `Expectation`.
    """
    verdict: Verdict = "HOLDS" if predict is None and floor is None else "VIOLATES"
    expectation = Expectation(verdict, why, predict, floor, cite, ceiling=ceiling)
    return {(axiom, explainer): expectation for axiom in axioms.split() for explainer in explainers.split()}


def expect_lrp(
    why: str, *, predict: Predict | None = None, floor: float | None = None, cite: str = "", of: str = "attnlrp cplrp"
) -> Expectations:
    """`expect` for the axiom ``invariance`` and the LRP explainers ``of``; ``predict`` gives a_f − a_g."""
    return expect("invariance", of, why, predict=predict, floor=floor, cite=cite)


LINEAR_WITH_CONSTANT_WEIGHTS: Expectations = {
    **INVARIANT_BY_DEFINITION,
    **expect_lrp(
        "a linear map with constant weights passes the plain gradient on, however it is computed",
        of=f"{ALL_LRP} blockwise_lrp",
    ),
    **expect("invariance", "deeplift_rescale", "the multipliers of a linear map are its gradient"),
}
"""What is expected of two ways to compute a linear map of the inputs whose weights are constants."""

ON_LINEAR_MODELS: Expectations = expect(
    "completeness full_removal local_limit", "probe.linear.f", "f(x) = w·x: feature i has w_i x_i, and nothing else"
)
"""What an explainer by gradients or relevance states of a linear model without bias whose features are removed by 0.

It fixes the scale and the sign of an attribution, which most axioms leave open. Its keys are (axiom, subject).
"""
