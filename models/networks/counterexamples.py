"""The smallest functions on which an explainer depends on how they are written, and by how much.

`faithcheck.axioms.generated` searches for expressions on which LRP does, and `faithcheck.models.pairs.generated`
registers them as pairs. Closed forms, with ε → 0 and y the output; a_f is the map on the left side, a_g that on the
right:

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

The two ReLU networks of Sundararajan, Taly & Yan 2017 (arXiv 1703.01365, §2.2) are one function on ℝ²:

    f = ReLU(x₁ − 1 − ReLU(x₂)),   g = ReLU(ReLU(x₁ − 1) − ReLU(x₂)).

Where x₁ ≥ 1, the inner ReLU of g changes nothing. Where x₁ < 1, both are 0, as −ReLU(x₂) ≤ 0. With y the common value,
r = ReLU(x₂) and the baseline 0:

1. Gradients, and LRP with ε → 0, whose rule for ReLU is its gradient (its output is x or 0): 1[y > 0] (x₁, −r) on both
   networks. Its sum is 1[y > 0] (y + 1): the bias −1 keeps its share.
2. DeepLIFT's rescale rule (arXiv 1704.02685) on f: the outer ReLU goes from −1 to y, slope y/(y + 1), so f gets
   y/(y + 1) · (x₁, −r). On g: the inner ReLU goes from 0 to x₁ − 1 over x₁, and the outer ReLU from 0 to y, slope 1, so
   g gets (x₁ − 1, −r). With y = x₁ − 1 − r the difference is r/(y + 1) · (−1, 1). At (3, 1) it is
   (1.5, −0.5) − (2, −1). Both sum to y. Where y = 0, both are 0.
3. LOO: without x₁ the output is 0, without x₂ it is ReLU(x₁ − 1). The sum of LOO exceeds f(x) by y − ReLU(x₁ − 1).
"""

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


class Sundararajan(nn.Module):
    """ReLU(x₁ − 1 − ReLU(x₂)), or with ``nested`` ReLU(ReLU(x₁ − 1) − ReLU(x₂)): ``(batch, 2)`` to ``(batch, 1)``."""

    def __init__(self, nested: bool) -> None:
        super().__init__()
        self.nested = nested

    def forward(self, inputs: Tensor) -> Tensor:
        first, second = inputs[:, :1] - 1, torch.relu(inputs[:, 1:])
        return torch.relu((torch.relu(first) if self.nested else first) - second)


def output_and_subtrahend(case: Case) -> tuple[Tensor, Tensor]:
    """y and r = ReLU(x₂) of each example, ``(batch,)``."""
    r = case.inputs[:, 1].relu()
    return (case.inputs[:, 0] - 1 - r).relu(), r


def rescale_gap(f: nn.Module, g: nn.Module, case: Case) -> Tensor:
    """DeepLIFT's rescale rule on f minus that on g: r/(y + 1) · (−1, 1) where y > 0, ``(batch, 2)``."""
    y, r = output_and_subtrahend(case)
    return torch.where(y > 0, r / (y + 1), 0).unsqueeze(1) * torch.tensor([-1, 1]).to(r)


def share_of_bias(model: nn.Module, case: Case) -> Tensor:
    """1[y > 0], ``(batch,)``: by how much gradient × input sums to more than y, as the bias keeps −1."""
    return (output_and_subtrahend(case)[0] > 0).to(case.inputs)


def loo_excess(model: nn.Module, case: Case) -> Tensor:
    """y − ReLU(x₁ − 1), ``(batch,)``: by how much LOO sums to more than y."""
    return output_and_subtrahend(case)[0] - (case.inputs[:, 0] - 1).relu()


def grouped_gate_excess(model: nn.Module, case: Case) -> Tensor:
    """The error of completeness of the grouped mask gate with four groups, ``(batch,)``.

    The gate takes gradients at four points: x₁ halved, x₂ halved and, twice, x itself. The outer ReLU is on or off at
    each. A feature's own point has the weight ⅗, the mean of the three others ⅖.
    """
    first, r = case.inputs[:, 0], case.inputs[:, 1].relu()
    y = first - 1 - r
    on_at_half_first, on_at_half_second, on_at_x = ((z > 0).to(y) for z in (first / 2 - 1 - r, first - 1 - r / 2, y))
    share_of_first = first * (3 / 5 * on_at_half_first + 2 / 5 * (on_at_half_second + 2 * on_at_x) / 3)
    share_of_second = -r * (3 / 5 * on_at_half_second + 2 / 5 * (on_at_half_first + 2 * on_at_x) / 3)
    return share_of_first + share_of_second - y.relu()
