"""The logarithm of a sum of exponentials: from its definition, and with one of its terms subtracted first.

Let y = log Σ exp(z), A = softmax(z), m the largest or the first of z, t = z − m and y′ = log Σ exp(t) = y − m.

1. log has the identity rule: y/s at the sum s, and so at every exponential. exp has it too: exp(z_k)/z_k. Together
   A_k y/z_k arrives at z_k.
2. With m subtracted it is A_k y′/t_k at t_k; at t_k = 0 the rule has a pole, and exp(0) = 1 absorbs what it gets. A
   detached m keeps its share, and the gradient at z equals that at t.
3. If the maximum is not detached, the largest z_k also gets 1 from the sum m + y′, and loses the sum over k of the
   gradients at t.
4. Block-wise LRP gives exp(z) − 1 in place of exp(z), in both forms: exp(0) = 1 is a bias, and log 0 is infinite. It
   does not see that both are one function: a sum with m starts again.

There is no product of data: AttnLRP, CP-LRP and ε-LRP have the same rules.
"""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case
from faithcheck.models.cases import points
from faithcheck.models.expectation import ALL_LRP, Expectations, Predict, expect, expect_lrp
from faithcheck.models.pair import copies, invariance_pair

Form: TypeAlias = Callable[[Tensor], Tensor]
OUTPUTS, TERMS = 3, 4


def from_definition(z: Tensor) -> Tensor:
    return z.exp().sum(-1).log()


def stable_detached(z: Tensor) -> Tensor:
    """M + log Σ exp(z − m), m = max z detached."""
    largest = z.detach().amax(-1, keepdim=True)
    return largest.squeeze(-1) + from_definition(z - largest)


def stable_attached(z: Tensor) -> Tensor:
    """The same with a maximum that gets relevance."""
    largest = z.amax(-1, keepdim=True)
    return largest.squeeze(-1) + from_definition(z - largest)


def shifted_by_first(z: Tensor) -> Tensor:
    """The same with m the first term, detached."""
    first = z.detach()[..., :1]
    return first.squeeze(-1) + from_definition(z - first)


class Energy(nn.Module):
    """log Σ exp of four linear maps, for three outputs: ``(batch, 8)`` to ``(batch, 3)``.

    The maps are near 2, 4, 6 and 8: the rule divides by them and by their differences, which loses digits near 0.
    """

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.form, self.terms = form, nn.Linear(8, OUTPUTS * TERMS)
        with torch.no_grad():
            self.terms.weight.mul_(0.5)
            self.terms.bias.copy_(2 * torch.arange(1.0, TERMS + 1).repeat(OUTPUTS))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.form(self.terms(inputs).view(-1, OUTPUTS, TERMS))


def slope_of_exp(t: Tensor, bias: float) -> Tensor:
    """The modified gradient of exp at t: (exp(t) − bias)/t; at t = 0 its limit 1, or 0 where it has a pole."""
    return torch.where(t == 0, bias, (t.exp() - bias) / t)


def gradient_of(form: Form, z: Tensor, bias: float) -> Tensor:
    """The modified gradient at z of a form, ``(batch, terms)``; ``bias`` is what exp keeps of its value."""
    m = z[..., :1] if form is shifted_by_first else z.amax(-1, keepdim=True)
    t = z if form is from_definition else z - m
    total = t.exp().sum(-1, keepdim=True)
    gradient = total.log() / total * slope_of_exp(t, bias)
    if form is stable_attached:
        gradient = gradient + (z == m) * (1 - gradient.sum(-1, keepdim=True))
    return gradient


def terms_and_rows(f: Energy, case: Case) -> tuple[Tensor, Tensor]:
    """The terms z of the explained output, ``(batch, terms)``, and the rows of W, ``(batch, terms, 8)``."""
    examples = torch.arange(len(case.inputs), device=case.inputs.device)
    z = f.terms(case.inputs).view(-1, OUTPUTS, TERMS)[examples, case.target]
    return z, f.terms.weight.view(OUTPUTS, TERMS, -1)[case.target]


def gap(bias: float) -> Predict:
    """The gap a_f − a_g, ``(batch, 8)``: x ⊙ Wᵀ of the difference of the modified gradients at z."""

    @torch.no_grad()
    def predict(f: Energy, g: Energy, case: Case) -> Tensor:
        z, rows = terms_and_rows(f, case)
        difference = gradient_of(f.form, z, bias) - gradient_of(g.form, z, bias)
        return case.inputs * torch.einsum("bk,bki->bi", difference, rows)

    return predict


@torch.no_grad()
def passed_at_zero(f: Energy, g: Energy, case: Case) -> Tensor:
    """What block-wise LRP passes on at t = 0, where every ε > 0 stops it: nothing in f, y′/s in g, ``(batch, 16)``."""
    z, rows = terms_and_rows(g, case)
    t = z - (z[..., :1] if g.form is shifted_by_first else z.amax(-1, keepdim=True))
    total = t.exp().sum(-1, keepdim=True)
    at_g = case.inputs * torch.einsum("bk,bki->bi", (t == 0) * total.log() / total, rows)
    return torch.cat([torch.zeros_like(at_g), at_g], 1)


AT_ZERO = expect(
    "continuity", "blockwise_lrp", "(exp(t) − 1)/t has the limit 1 at t = z − m = 0, 0 at ε > 0", predict=passed_at_zero
)


def register_form(name: str, form: Form, why: str, *more: Expectations) -> None:
    """Register the pair of the definition and this form; ``why`` proves that they are equal."""
    invariance_pair(
        name,
        copies(lambda: Energy(from_definition), form=form),
        points,
        expect_lrp("y/z at the exponents, and (y − m)/(z − m) in the stable form", predict=gap(0), of=ALL_LRP),
        expect_lrp("the same with exp − 1: exp(0) is a bias in both forms", predict=gap(1), of="blockwise_lrp"),
        *more,
        why=why,
    )


register_form(
    "log_sum_exp.stable",
    stable_detached,
    "log Σ exp(z) = m + log Σ exp(z − m) for every constant m, so for max z",
    AT_ZERO,
)
register_form(
    "log_sum_exp.stable_attached",
    stable_attached,
    "the same; the maximum has no plain gradient, as the slope along a shift of z is 1 in both forms",
)
register_form("log_sum_exp.shifted_by_first", shifted_by_first, "the same for the constant z₁", AT_ZERO)
