"""The softmax in one operation and written out: exponentials, their sum, a quotient.

Let A = softmax(z) over the last axis, G the modified gradient at A, and Ḡ = Σ_j A_j G_j.

* In one operation AttnLRP passes the plain gradient (arXiv 2510.18810, Eq. 5): A_k (G_k − Ḡ) at z_k.
* Written out, A = e · (1/s) with e_k = exp(t_k), s = Σ e, t = z up to a shift. The product halves: G_k/2s at e_k and
  ½ Σ_j G_j e_j at 1/s; the reciprocal's identity rule makes that Ḡ/2s at s and at every e_k. exp has the identity rule
  e_k/t_k. So ½A_k (G_k + Ḡ)/t_k arrives at t_k, the sign of Ḡ turned. At t_k = 0 the rule's gradient is the slope of
  exp, 1, in place of 1/t_k. Unlike Eq. 5 this conserves: Σ t_k · … = Ḡ = Σ A_k G_k, but for a t_k of exactly 0.
* The stable form has t = z − max z. If the maximum is detached, it keeps its share, and the gradient at z is that at t.
  If not, the largest z_k also loses the sum over k of what arrives at t.

In an attention head A @ V halves once more, which G has, and V gets the same either way. CP-LRP holds A constant in
A @ V, whatever A is made of: relevance goes through V alone. But it knows attention weights by their softmax and their
matrix product. Where a mixture multiplies element by element, it holds a softmax constant and gives all to the experts;
the softmax written out is data like any other and takes half.

ε-LRP refuses all of these, and so does Attention Rollout where there is no softmax to see.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import TypeAlias

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case, select_target
from faithcheck.models.pair import INVARIANT_BY_DEFINITION, Expectations, Predict, equivalent_pair, expect_lrp
from faithcheck.models.pairs.control import WIDTH, points, sentences

Softmax: TypeAlias = Callable[[Tensor], Tensor]
CITE = "arXiv 2510.18810, Eqs. 3–5"


def in_one(z: Tensor) -> Tensor:
    """The softmax over the last axis, one operation."""
    return torch.softmax(z, -1)


def divided(exponentials: Tensor) -> Tensor:
    """Exponentials over their sum."""
    return exponentials / exponentials.sum(-1, keepdim=True)


def exp_divide(z: Tensor) -> Tensor:
    """The softmax from its definition."""
    return divided(torch.exp(z))


def stable(z: Tensor) -> Tensor:
    """The softmax as numerical code has it: the largest logit, a constant, is subtracted first."""
    return divided(torch.exp(z - z.detach().amax(-1, keepdim=True)))


def stable_attached(z: Tensor) -> Tensor:
    """The same with a maximum that carries relevance."""
    return divided(torch.exp(z - z.amax(-1, keepdim=True)))


def moved(softmax: Softmax, z: Tensor, at_weights: Tensor) -> Tensor:
    """What Eq. 5 gives to z less what the written-out softmax gives, as gradients, shaped like z.

    Args:
        softmax: the written-out form.
        z: logits ``(…, keys)``.
        at_weights: G, the modified gradient at the weights, shaped like z.
    """
    weights, largest = torch.softmax(z, -1), z.amax(-1, keepdim=True)
    mean = (weights * at_weights).sum(-1, keepdim=True)
    exponent = z if softmax is exp_divide else z - largest
    slope = torch.where(exponent == 0, 1, 1 / exponent)
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
        """The outputs."""
        return self.read(self.softmax(self.logits(tokens)), self.value(tokens))

    def logits(self, tokens: Tensor) -> Tensor:
        """z = QKᵀ/√d, ``(batch, tokens, tokens)``."""
        z: Tensor = self.query(tokens) @ self.key(tokens).transpose(1, 2) / 8**0.5
        return z

    def read(self, weights: Tensor, values: Tensor) -> Tensor:
        """The outputs of attention weights ``(batch, tokens, tokens)`` and values ``(batch, tokens, 8)``."""
        outputs: Tensor = self.head((weights @ values).mean(1))
        return outputs


@torch.enable_grad()
def head_gap(f: Head, g: Head, case: Case) -> Tensor:
    """AttnLRP's gap a_f − a_g, ``(batch, tokens)``: x ⊙ the gradient of ½ Σ z ⊙ `moved`, summed over a token's axes.

    ½ is that of QKᵀ; G is half of the plain gradient at A, which A @ V halves. Values get the same in f and g.
    """
    point = case.inputs.detach().clone().requires_grad_()
    z = f.logits(point)
    weights = torch.softmax(z, -1).detach().requires_grad_()
    output = select_target(f.read(weights, f.value(case.inputs)), case.target)
    (at_weights,) = torch.autograd.grad(output.sum(), weights)
    through_logits = (z * moved(g.softmax, z.detach(), at_weights / 2)).sum() / 2
    (gradient,) = torch.autograd.grad(through_logits, point)
    return (case.inputs * gradient).sum(2)


def heads(seed: int, dtype: torch.dtype, device: torch.device, softmax: Softmax) -> tuple[Head, Head]:
    """A head with the softmax in one operation, and the same with another form of it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        f = Head(in_one).to(device, dtype).eval()
    g = deepcopy(f)
    g.softmax = softmax
    return f, g


def of_heads(why: str) -> Expectations:
    """What is expected of a head with its softmax written out."""
    return {
        **INVARIANT_BY_DEFINITION,
        **expect_lrp(why, predict=head_gap, cite=CITE, of="attnlrp"),
        **expect_lrp("the weights are constant in A @ V, whatever made them: only V carries relevance", of="cplrp"),
    }


@equivalent_pair(
    "softmax.exp_divide",
    case=sentences,
    why="softmax(z) = exp(z) / Σ exp(z)",
    expected=of_heads("A(G − Ḡ) by Eq. 5, ½A(G + Ḡ)/z through exp, sum and quotient"),
    axioms=("invariance",),
)
def definition(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
    """The softmax against its definition."""
    return heads(seed, dtype, device, exp_divide)


@equivalent_pair(
    "softmax.stable",
    case=sentences,
    why="softmax(z) = softmax(z − c) with c = max z",
    expected=of_heads("A(G − Ḡ) by Eq. 5, ½A(G + Ḡ)/(z − max z) written out, 1 for 1/0 at the maximum"),
    axioms=("invariance",),
)
def constant_maximum(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
    """The softmax against its stable form, the maximum detached."""
    return heads(seed, dtype, device, stable)


@equivalent_pair(
    "softmax.stable_attached",
    case=sentences,
    why="softmax(z) = softmax(z − max z), and no gradient goes through the maximum: the slope along a shift is 0",
    expected=of_heads("as with a detached maximum, but the largest logit loses what all exponents get"),
    axioms=("invariance",),
)
def carried_maximum(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
    """The softmax against its stable form, the maximum in sight."""
    return heads(seed, dtype, device, stable_attached)


class Mixture(nn.Module):
    """Σ_e A_e(x) E_e(x), A the softmax of four linear gates, E linear experts: ``(batch, 8)`` to ``(batch, 3)``."""

    def __init__(self, softmax: Softmax) -> None:
        super().__init__()
        self.softmax, self.gate, self.experts = softmax, nn.Linear(8, 4), nn.Linear(8, 4 * 3)

    def forward(self, inputs: Tensor) -> Tensor:
        """The outputs."""
        weights = self.softmax(self.gate(inputs))
        outputs: Tensor = (weights.unsqueeze(2) * self.experts(inputs).view(-1, 4, 3)).sum(1)
        return outputs


def mixture_gap(experts: float, of: Callable[[Tensor, Tensor], Tensor]) -> Predict:
    """The closed form of a_f − a_g on mixtures, ``(batch, 8)``; no autograd.

    Args:
        experts: what the experts get more of their gradient in f.
        of: the difference of gradients at the gate's logits, from these and from G = ½E, both ``(batch, 4)``.
    """

    def predict(f: Mixture, g: Mixture, case: Case) -> Tensor:
        z, example = f.gate(case.inputs), torch.arange(len(case.inputs), device=case.inputs.device)
        outputs = f.experts(case.inputs).view(-1, 4, 3)[example, :, case.target]
        rows = f.experts.weight.view(4, 3, -1)[:, case.target]  # (4, batch, 8)
        through_experts = torch.einsum("be,ebi->bi", torch.softmax(z, -1), rows)
        return (case.inputs * (experts * through_experts + of(z, outputs / 2) @ f.gate.weight)).detach()

    return predict


def softmax_constant(z: Tensor, at_weights: Tensor) -> Tensor:
    """CP-LRP: nothing from the softmax, less what the written-out one gives."""
    weights = torch.softmax(z, -1)
    return -weights * (at_weights + (weights * at_weights).sum(-1, keepdim=True)) / (2 * z)


@equivalent_pair(
    "softmax.mixture",
    case=points,
    why="softmax(z) = exp(z) / Σ exp(z)",
    expected={
        **INVARIANT_BY_DEFINITION,
        **expect_lrp(
            "A(G − Ḡ) by Eq. 5, ½A(G + Ḡ)/z written out; the experts get ½ twice",
            predict=mixture_gap(0, lambda z, at_weights: moved(exp_divide, z, at_weights)),
            cite=CITE,
            of="attnlrp",
        ),
        **expect_lrp(
            "the softmax is constant and the experts get all; written out, the weights get half of the product",
            predict=mixture_gap(1 / 2, softmax_constant),
            cite="Ali et al. 2022, arXiv 2202.07304",
            of="cplrp",
        ),
    },
    axioms=("invariance",),
)
def mixture(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
    """A mixture of experts, its gate's softmax in one operation and from its definition."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        f = Mixture(in_one).to(device, dtype).eval()
    g = deepcopy(f)
    g.softmax = exp_divide
    return f, g
