"""Leave-One-Out: how the output changes when one feature is removed."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from faithcheck.explainers.builtin import builtin
from faithcheck.explainers.loo.outputs import outputs_without
from faithcheck.explainers.loo.removal import Removal, default_removal
from faithcheck.explainers.protocol import Unsupported, in_standard_modes
from faithcheck.models.case import Case


@builtin("removal")
@dataclass(frozen=True)
class LeaveOneOut:
    """LOO_i = f(x) − f(x without i). For a random removal, f(x without i) is the mean over its draws.

    arXiv 2510.18810, §3.1; occlusion, Zeiler & Fergus 2014.

    Attributes:
        removal: how a feature is removed; by default by the attention mask if the case has one, else it takes its
            baseline value.
        max_tokens: the most features, padding included, in one forward pass; bounds memory, not the result.
        by: what is removed at once: "token", a single feature; or a part of a text: a "word", "sentence", "line" or
            "paragraph". The change of the output is then shared equally among the features of the
            part, so that they sum to it.
    """

    label: ClassVar[str] = "Leave-One-Out"
    summary: ClassVar[str] = "how the output changes when one feature is removed; the reference"

    removal: Removal | None = None
    max_tokens: int = 4608  # on a CPU, passes of 2048 take a tenth longer
    name: str = "loo"
    by: str = "token"
    claims: frozenset[str] = frozenset(
        "invariance loo bounds full_removal sensitivity dummy linearity additivity antisymmetry symmetry shift scale "
        "determinism batching randomisation".split()
    )

    @property
    def settings(self) -> str:
        """The settings in words, for reports."""
        by = "" if self.by == "token" else f"{self.by} by {self.by}, the change shared equally among its tokens; "
        if self.removal is None:
            return f"{by}removed by the attention mask where the case has one, else replaced by the baseline"
        return f"{by}removed: {self.removal.description}"

    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """One forward row per example and one per part that is removed: ``(batch, features)``, 0 at padding.

        Raises:
            Unsupported: from the removal, or the case does not say which parts the features belong to.
        """
        return self.attribute_with_output(model, case)[0]

    @in_standard_modes
    def attribute_with_output(self, model: nn.Module, case: Case) -> tuple[Tensor, Tensor]:
        """The attribution ``(batch, features)`` and the explained output f(x), ``(batch,)``, from the same passes."""
        part = parts_of(case, self.by)
        effects, unchanged = effects_of_parts(model, case, part, self.removal or default_removal(case), self.max_tokens)
        return shared_among_features(effects, part).to(case.inputs.dtype), unchanged


def parts_of(case: Case, by: str) -> Tensor:
    """The part that each feature belongs to, ``(batch, features)`` int64: from 0 in each example, −1 at padding.

    Each feature is a part by "token"; ``by`` is else a level of ``case.segments``, or Unsupported.
    """
    if by == "token":
        return torch.where(case.unpadded, case.unpadded.cumsum(1) - 1, -1)
    if by not in case.segments:
        known = ", ".join(case.segments) or "none"
        raise Unsupported(
            f"Leave-One-Out by {by}: case.segments has no {by!r} (it has: {known}); take a case of a "
            "text model, or set case.segments"
        )
    return case.segments[by].masked_fill(~case.unpadded, -1)


def effects_of_parts(
    model: nn.Module, case: Case, part: Tensor, removal: Removal, max_tokens: int
) -> tuple[Tensor, Tensor]:
    """f(x) − f(x without a part), ``(batch, parts)``, and f(x), ``(batch,)``, from the same passes.

    ``part`` is from `parts_of`; the effect is 0 where an example has no such part.
    """
    batch, features = case.shape
    number = torch.arange(max(1, int(part.max()) + 1), device=part.device)
    example, removed = (number < part.amax(1, keepdim=True) + 1).nonzero(as_tuple=True)
    without = part[example] == removed.unsqueeze(1)
    all_examples = torch.arange(batch, device=part.device)
    outputs = outputs_without(
        model,
        case,
        torch.cat([all_examples, example]),
        torch.cat([without.new_zeros(batch, features), without]),
        removal,
        max_tokens,
    )
    unchanged = outputs[:batch]
    effects = unchanged.new_zeros(batch, len(number))
    effects[example, removed] = unchanged[example] - outputs[batch:]
    return effects, unchanged


def shared_among_features(effects: Tensor, part: Tensor) -> Tensor:
    """The effect of each part, shared equally among its features: ``(batch, parts)`` to ``(batch, features)``."""
    is_padding = part < 0
    index = part.masked_fill(is_padding, 0)
    sizes = torch.zeros_like(effects).scatter_add_(1, index, (~is_padding).to(effects.dtype))
    return (effects / sizes.clamp(min=1)).gather(1, index).masked_fill(is_padding, 0)


NO_CLAIMS = frozenset[str]()  # the suite's pairs are no texts with words and sentences
BY_WORD = LeaveOneOut(by="word", name="loo_by_word", claims=NO_CLAIMS)
BY_SENTENCE = LeaveOneOut(by="sentence", name="loo_by_sentence", claims=NO_CLAIMS)
BY_PARAGRAPH = LeaveOneOut(by="paragraph", name="loo_by_paragraph", claims=NO_CLAIMS)
"""On the command line: ``--explainer faithcheck.explainers.loo.leave_one_out:BY_SENTENCE``."""
