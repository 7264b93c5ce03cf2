"""Values whose gradient is modified: how a rule makes relevance travel as gradient × value.

Relevance is carried as gradient: R = z ⊙ (modified gradient at z) for every intermediate z. Let w = ∂z/∂x. Then:

1. the ε-rule (arXiv 2510.18810, Eq. 1)  R_i = Σ_j x_i w_ij R_j / (z_j + ε·sign z_j)  is the plain gradient, where each
   gradient at z is scaled by |z| / (|z| + ε); a bias in z keeps its share;
2. the bilinear rule (Eqs. 3–4)  R_A = A ⊙ (S Vᵀ), R_V = V ⊙ (Aᵀ S), S = R_O / (2O + ε·sign O)  is the plain gradient,
   where the gradient at O is scaled by |O| / (2|O| + ε);
3. the softmax rule (Eq. 5)  R_Z = Z ⊙ (R_A − A Σ R_A)  is the plain gradient of the softmax;
4. an element-wise activation leaves relevance unchanged: its gradient is f(x) / x;
5. LayerNorm and RMSNorm are linear maps if their 1/σ is held constant, and then follow the ε-rule.

In the limit ε → 0 the scalings of 1 and 2 are exactly 1 and ½. One code serves both: ε = 0 stands for the limit.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class _Modified(torch.autograd.Function):
    """A value, as a function of ``x``, with a supplied gradient at ``x``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, value: Callable[[], Tensor], gradient: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.gradient = gradient
        return value()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.gradient(gradients[0]), None, None


def modified(x: Tensor, value: Tensor, gradient: Callable[[Tensor], Tensor]) -> Tensor:
    """``value`` as a function of ``x``; ``gradient`` maps the gradient at the value to the gradient at ``x``."""
    # The value is passed in a closure: autograd makes a view of an input that is returned, and a model may write to
    # its values.
    result: Tensor = _Modified.apply(x, value.detach, gradient)  # type: ignore[no-untyped-call]
    return result


def scale_gradient(x: Tensor, share: float) -> Tensor:
    """The same tensor, with its gradient multiplied by a number."""
    if share == 1:
        return x
    alias = x.view_as(x)
    alias.register_hook(lambda gradient: gradient * share)  # type: ignore[no-untyped-call]
    return alias


def epsilon_over(z: Tensor, epsilon: float) -> Tensor:
    """ε/z, rounded once, so that it is exactly −parts at the pole z = −ε/parts."""
    return torch.full_like(z.detach(), epsilon).div_(z.detach())


def stabilised(z: Tensor, epsilon: float, parts: int = 1, signed: bool = True) -> Tensor:
    """z, with its gradient scaled by |z| / (parts·|z| + ε): the denominators parts·z + ε·sign z of Eqs. 1, 3 and 4.

    Without the sign, the gradient is scaled by z / (parts·z + ε), which has a pole at z = −ε/parts.
    """
    if (epsilon == 0 and parts == 1) or not z.requires_grad:  # without a gradient: computed under no_grad
        return z
    if epsilon > 0:
        # parts + ε/|z| is finite at z = ±∞ (a masked logit), and infinite at z = 0, where relevance stops.
        ratio = z.detach().abs().reciprocal_().mul_(epsilon) if signed else epsilon_over(z, epsilon)
        denominator = ratio.add_(parts)
        z.register_hook(lambda gradient: gradient / denominator)  # type: ignore[no-untyped-call]
    else:
        z.register_hook(lambda gradient: gradient / parts)  # type: ignore[no-untyped-call]
    return z
