"""The smallest expressions on which LRP depends on how a function is written, and by how much.

`faithcheck.axioms.generated` searches for them; `faithcheck.models.pairs.generated` registers them as pairs. Closed
forms, with ε → 0 and y the output; a_f is the map on the left side, a_g that on the right:

1. exp(x₁ + x₂) = exp(x₁)·exp(x₂).
   AttnLRP: on the left the exponential passes y to the sum, whose shares are xᵢ/(x₁ + x₂). On the right the product
   halves, and each exponential passes ½y to its operand. Gap y·(xᵢ/(x₁ + x₂) − ½).
   Block-wise LRP: the left side is one function of the sum, y − 1 in shares xᵢ/(x₁ + x₂). The right side is a product
   of two functions φ, where φ(x) − φ(0) is e^xᵢ − 1 in half of the product: ½(y − y·e^−xᵢ).
2. x₁(x₂ + 1) = x₁x₂ + x₁·1. On the left x₁ gets half of x₁(x₂ + 1). On the right x₁ gets half of x₁x₂ and all of x₁·1,
   a product with a constant. Gap −½x₁ at x₁; x₂ gets ½x₁x₂ on both sides. Block-wise LRP gives the same: the sum
   with a constant starts a new block.
3. tanh(x) = 2σ(2x) − 1. On the left x gets y; on the right all of 2σ(2x) = y + 1, as the constant gets nothing. Gap −1.
4. σ(x) = ½(1 + tanh(½x)). On the left x gets y; on the right ½·tanh(½x) = y − ½. Gap ½.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case


def exp_of_sum_gap(f: nn.Module, g: nn.Module, case: Case) -> Tensor:
    """AttnLRP on exp(x₁ + x₂) minus that on exp(x₁)·exp(x₂): y·(xᵢ/(x₁ + x₂) − ½), ``(batch, 2)``."""
    total = case.inputs.sum(1, keepdim=True)
    return total.exp() * (case.inputs / total - 0.5)


def exp_of_sum_blockwise_gap(f: nn.Module, g: nn.Module, case: Case) -> Tensor:
    """Block-wise LRP on the same pair: (y − 1)·xᵢ/(x₁ + x₂) − ½(y − y·e^−xᵢ), ``(batch, 2)``."""
    total = case.inputs.sum(1, keepdim=True)
    return total.expm1() * case.inputs / total - (total.exp() - (total - case.inputs).exp()) / 2


def distributed_gap(f: nn.Module, g: nn.Module, case: Case) -> Tensor:
    """LRP on x₁(x₂ + 1) minus that on x₁x₂ + x₁·1: (−½x₁, 0), ``(batch, 2)``."""
    return case.inputs * case.inputs.new_tensor([-0.5, 0.0])


def tanh_by_sigmoid_gap(f: nn.Module, g: nn.Module, case: Case) -> Tensor:
    """LRP on tanh(x) minus that on 2σ(2x) − 1: −1 everywhere, ``(batch, 1)``."""
    return torch.full_like(case.inputs, -1.0)


def sigmoid_by_tanh_gap(f: nn.Module, g: nn.Module, case: Case) -> Tensor:
    """LRP on σ(x) minus that on ½(1 + tanh(½x)): ½ everywhere, ``(batch, 1)``."""
    return torch.full_like(case.inputs, 0.5)
