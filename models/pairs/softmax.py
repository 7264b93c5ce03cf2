"""The softmax in one operation and written out: exponentials, their sum, a quotient.

Let A = softmax(z) over the last axis, G the modified gradient at A, and Ḡ = Σ_j A_j G_j.

1. In one operation AttnLRP passes the plain gradient (arXiv 2510.18810, Eq. 5): A_k (G_k − Ḡ) at z_k.
2. Written out, A = e · (1/s) with e_k = exp(t_k), s = Σ e, and t = z up to a shift. The product halves: G_k/2s at e_k
   and ½ Σ_j G_j e_j at 1/s.
3. The reciprocal's identity rule makes the latter Ḡ/2s at s, and so at every e_k.
4. exp has the identity rule e_k/t_k. So ½A_k (G_k + Ḡ)/t_k arrives at t_k: the sign of Ḡ is the opposite of Eq. 5's. At
   t_k = 0 the rule has a pole, and exp(0) = 1 absorbs what it gets.
5. Unlike Eq. 5 this conserves: Σ t_k · … = Ḡ = Σ A_k G_k, unless a t_k is exactly 0.
6. The stable form has t = z − max z. If the maximum is detached, it keeps its share, and the gradient at z equals the
   gradient at t. If not, the largest z_k also loses the sum over k of the gradients at t.

In an attention head A @ V halves once more, which G includes, and V gets the same in both forms. CP-LRP holds A
constant in A @ V, however A was computed: relevance goes through V alone. It recognises attention weights by their
softmax and their matrix product. In a mixture of experts, an element-wise product, it holds a softmax constant and
gives all relevance to the experts; a softmax written out is data and takes half.

ε-LRP refuses all of these. Attention Rollout refuses a model without a softmax operation.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case, select_target
from faithcheck.models.cases import WIDTH, points, sentences
from faithcheck.models.expectation import Expectations, Predict, expect, expect_lrp
from faithcheck.models.pair import copies, invariance_pair

Softmax: TypeAlias = Callable[[Tensor], Tensor]
CITE = "arXiv 2510.18810, Eqs. 3–5"


def one_operation(z: Tensor) -> Tensor:
    return torch.softmax(z, -1)


def normalised(exponentials: Tensor) -> Tensor:
    return exponentials / exponentials.sum(-1, keepdim=True)


def exp_divide(z: Tensor) -> Tensor:
    return normalised(torch.exp(z))


def stable_detached(z: Tensor) -> Tensor:
    """The numerically stable softmax: the largest logit, detached, is subtracted first."""
    return normalised(torch.exp(z - z.detach().amax(-1, keepdim=True)))


def stable_attached(z: Tensor) -> Tensor:
    """The numerically stable softmax with a maximum that gets relevance."""
    return normalised(torch.exp(z - z.amax(-1, keepdim=True)))


def gradient_gap(softmax: Softmax, z: Tensor, at_weights: Tensor) -> Tensor:
    """The modified gradient at the logits z by Eq. 5 minus that of the written-out form; ``at_weights`` is G."""
    weights, largest = torch.softmax(z, -1), z.amax(-1, keepdim=True)
    mean = (weights * at_weights).sum(-1, keepdim=True)
    exponent = z if softmax is exp_divide else z - largest
    slope = torch.where(exponent == 0, 0, 1 / exponent)
    written_out = weights * (at_weights + mean) * slope / 2
    if softmax is stable_attached:
        written_out = written_out - (z == largest) * written_out.sum(-1, keepdim=True)
    return weights * (at_weights - mean) - written_out


class Head(nn.Module):
    """One attention head over the tokens, their mean, a linear map: ``(batch, tokens, 32)`` to ``(batch, 2)``."""

    def __init__(self, softmax: Softmax) -> None:
        super().__init__()
        self.softmax = softmax
        self.query, self.key, self.value = (nn.Linear(WIDTH, 8) for _ in range(3))
        self.head = nn.Linear(8, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.read(self.softmax(self.logits(tokens)), self.value(tokens))

    def logits(self, tokens: Tensor) -> Tensor:
        return self.query(tokens) @ self.key(tokens).transpose(1, 2) / 8**0.5

    def read(self, weights: Tensor, values: Tensor) -> Tensor:
        return self.head((weights @ values).mean(1))


@torch.enable_grad()
def through_logits(f: Head, case: Case, at_logits: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """x ⊙ the gradient of ½ Σ z ⊙ ``at_logits(z, G)``, summed over coordinates, ``(batch, tokens)``.

    ½ is that of QKᵀ; G is half of the plain gradient at A, which A @ V halves.
    """
    point = case.inputs.detach().clone().requires_grad_()
    z = f.logits(point)
    weights = torch.softmax(z, -1).detach().requires_grad_()
    output = select_target(f.read(weights, f.value(case.inputs)), case.target)
    (at_weights,) = torch.autograd.grad(output.sum(), weights)
    (gradient,) = torch.autograd.grad((z * at_logits(z.detach(), at_weights / 2)).sum() / 2, point)
    return (case.inputs * gradient).sum(2)


def head_gap(f: Head, g: Head, case: Case) -> Tensor:
    """AttnLRP's a_f − a_g, ``(batch, tokens)``. Values get the same in f and g."""
    return through_logits(f, case, partial(gradient_gap, g.softmax))


def passed_at_largest(f: Head, g: Head, case: Case) -> Tensor:
    """What block-wise LRP passes on at z − max z = 0, where every ε > 0 stops it: nothing in f, Eq. 5 in g."""

    def at_largest(z: Tensor, at_weights: Tensor) -> Tensor:
        weights = torch.softmax(z, -1)
        mean = (weights * at_weights).sum(-1, keepdim=True)
        return (z == z.amax(-1, keepdim=True)) * weights * (at_weights - mean)

    at_g = through_logits(g, case, at_largest)
    return torch.cat([torch.zeros_like(at_g), at_g], 1)


def register_head(name: str, softmax: Softmax, why: str, gap: str, *more: Expectations) -> None:
    """Register the pair of heads with the softmax in one operation and in this form; ``gap`` is why AttnLRP differs."""
    invariance_pair(
        name,
        copies(lambda: Head(one_operation), softmax=softmax),
        sentences,
        expect_lrp(gap, predict=head_gap, cite=CITE, of="attnlrp"),
        expect_lrp("the weights are constant in A @ V, however computed: only V gets relevance", of="cplrp"),
        *more,
        why=why,
    )


register_head(
    "softmax.exp_divide",
    exp_divide,
    why="softmax(z) = exp(z) / Σ exp(z)",
    gap="A(G − Ḡ) by Eq. 5, ½A(G + Ḡ)/z through exp, sum and quotient",
)
register_head(
    "softmax.stable",
    stable_detached,
    "softmax(z) = softmax(z − c) with c = max z",
    "A(G − Ḡ) by Eq. 5, ½A(G + Ḡ)/(z − max z) written out, 0 for 1/0 at the maximum",
    expect("continuity", "blockwise_lrp", "Eq. 5 at z − max z = 0, nothing at ε > 0", predict=passed_at_largest),
)
register_head(
    "softmax.stable_attached",
    stable_attached,
    why="softmax(z) = softmax(z − max z); the maximum has no plain gradient, as the slope along a shift is 0",
    gap="as with a detached maximum, but the largest logit loses the sum of what all exponents get",
)


class MixtureOfExperts(nn.Module):
    """Σ_e A_e(x) E_e(x), A the softmax of four linear gates, E linear experts: ``(batch, 8)`` to ``(batch, 3)``."""

    def __init__(self, softmax: Softmax) -> None:
        super().__init__()
        self.softmax, self.gate, self.experts = softmax, nn.Linear(8, 4), nn.Linear(8, 4 * 3)

    def forward(self, inputs: Tensor) -> Tensor:
        weights = self.softmax(self.gate(inputs))
        return (weights.unsqueeze(2) * self.experts(inputs).view(-1, 4, 3)).sum(1)


def mixture_gap(more_to_experts: float, gap_at_logits: Callable[[Tensor, Tensor], Tensor]) -> Predict:
    """The gap a_f − a_g on mixtures, ``(batch, 8)``: the shares of the experts, and of the logits z at G = ½E."""

    def predict(f: MixtureOfExperts, g: MixtureOfExperts, case: Case) -> Tensor:
        z, example = f.gate(case.inputs), torch.arange(len(case.inputs), device=case.inputs.device)
        outputs = f.experts(case.inputs).view(-1, 4, 3)[example, :, case.target]
        rows = f.experts.weight.view(4, 3, -1)[:, case.target]  # (4, batch, 8)
        through_experts = torch.einsum("be,ebi->bi", torch.softmax(z, -1), rows)
        return (
            case.inputs * (more_to_experts * through_experts + gap_at_logits(z, outputs / 2) @ f.gate.weight)
        ).detach()

    return predict


def gradient_gap_of_cplrp(z: Tensor, at_weights: Tensor) -> Tensor:
    """CP-LRP: 0 from the softmax in one operation, minus the modified gradient of the written-out softmax."""
    weights = torch.softmax(z, -1)
    return -weights * (at_weights + (weights * at_weights).sum(-1, keepdim=True)) / (2 * z)


invariance_pair(
    "softmax.mixture",
    copies(lambda: MixtureOfExperts(one_operation), softmax=exp_divide),
    points,
    expect_lrp(
        "A(G − Ḡ) by Eq. 5, ½A(G + Ḡ)/z written out; the experts get ½ in both",
        predict=mixture_gap(0, partial(gradient_gap, exp_divide)),
        cite=CITE,
        of="attnlrp",
    ),
    expect_lrp(
        "the softmax is constant and the experts get all; written out, the weights get half of the product",
        predict=mixture_gap(1 / 2, gradient_gap_of_cplrp),
        cite="Ali et al. 2022, arXiv 2202.07304",
        of="cplrp",
    ),
    why="softmax(z) = exp(z) / Σ exp(z)",
)
