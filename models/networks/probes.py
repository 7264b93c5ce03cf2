"""Probes: the smallest models that one axiom needs, and the closed forms of explainers on them.

With LRP at ε → 0 as input × modified gradient:

1. `saturated`, f = 1 − ReLU(1 − x). Above 1 the gradient is 0, so every explainer that multiplies a gradient at x gives
   zero to a change of f(x) − f(0) = 1. IG and DeepLIFT follow the path from the baseline, LOO compares with it.
2. `tied_perceptron`: two inputs with equal weights and one with weights 0. Every rule treats equal weights and values
   alike, and a weight of 0 passes nothing on.
3. `sigmoids`, f = x + σ(u) + σ(−u) = x + 1. The gradients of the two sigmoids cancel, σ′(u) − σ′(−u) = 0, and so do
   their slopes. LRP passes each its whole value, so u gets σ(u) + σ(−u) = 1.
4. `products`, f = x₁ + (x₁x₂)x₃ − x₁(x₂x₃) = x₁. Every halving rule gives (¼, ¼, ½)y for the first product and
   (½, ¼, ¼)y for the second, so x₂ gets 0 and x₃ gets y/4.
5. `PositionalAttention`, f = Σⱼ A₁ⱼ vⱼxⱼ with attention weights A of the positions alone, and v₄ = 0. The function is
   linear: explainers of the function, and LRP's rules for constants times data, give A₁ⱼ vⱼxⱼ. Rollout gives
   ½(A + I)₁ⱼ, at feature 4 too.
6. `TokenAttention`, without positions, averaged over tokens: swapping two tokens swaps everything computed from them.
   Rollout reads one row of ½(A + I). Where all n tokens are equal, A is 1/n, and the row's own token gets ½ more.
7. `self_attention`, f = Σᵢ Aᵢxᵢ with A = softmax x. The product gives Aᵢ the gradient xᵢ/2, so the softmax receives
   f/2. Eq. 5 (arXiv 2510.18810) passes on Σ xᵢAᵢ(xᵢ − f)/2, half of the variance of x under A. CP-LRP holds A
   constant, so x gets f.
8. `WithConstants`, f = w·(x + p) + b. Relevance starts as f; b stays at the linear map, and w·p at the sum.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case


class Probe(nn.Module):
    """A function of features as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, inputs: Tensor) -> Tensor:
        return self.function(inputs)


def saturated(inputs: Tensor) -> Tensor:
    return 1 - torch.relu(1 - inputs)


def sigmoids(inputs: Tensor) -> Tensor:
    x, u = inputs.unbind(1)
    return (x + torch.sigmoid(u) + torch.sigmoid(-u)).unsqueeze(1)


def products(inputs: Tensor) -> Tensor:
    x1, x2, x3 = inputs.unbind(1)
    return (x1 + (x1 * x2) * x3 - x1 * (x2 * x3)).unsqueeze(1)


def self_attention(inputs: Tensor) -> Tensor:
    """Σᵢ Aᵢxᵢ, A = softmax x: one head whose logits are its values."""
    weights = torch.softmax(inputs, -1)
    return (weights * inputs).sum(1, keepdim=True)


class PositionalAttention(nn.Module):
    """Attention by positions alone, read at the first; feature 4 has the value 0: ``(batch, 4)`` to ``(batch, 2)``."""

    def __init__(self) -> None:
        super().__init__()
        self.logits, self.values = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4, 2))
        self.values.data[3] = 0

    def weights(self, batch: int) -> Tensor:
        return torch.softmax(self.logits.expand(batch, 4, 4), -1)

    def forward(self, inputs: Tensor) -> Tensor:
        attended = torch.matmul(self.weights(len(inputs)), inputs.unsqueeze(2) * self.values)
        return attended[:, 0]


class TokenAttention(nn.Module):
    """Softmax attention without positions, averaged over tokens: ``(batch, tokens, 3)`` to ``(batch, 2)``."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(3, 3) for _ in range(3))
        self.head = nn.Linear(3, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        weights = torch.softmax(torch.matmul(self.query(inputs), self.key(inputs).transpose(1, 2)) / 3**0.5, -1)
        return self.head(torch.matmul(weights, self.value(inputs)).mean(1))


class WithConstants(nn.Module):
    """A linear map with a bias after an added embedding: ``(batch, 4)`` to ``(batch, 2)``."""

    def __init__(self) -> None:
        super().__init__()
        self.position, self.linear = nn.Parameter(torch.randn(4)), nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(inputs + self.position)


def even(inputs: Tensor) -> Tensor:
    """|x₁| + x₂², which falls as a negative x rises: ``(batch, 2)`` to ``(batch, 1)``."""
    x1, x2 = inputs.unbind(1)
    return (x1.abs() + x2.square()).unsqueeze(1)


def affine(bias: bool = True) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(24, 2, bias))


def tied_perceptron() -> nn.Module:
    """A perceptron of four features: the first two have equal weights, the third has weights 0."""
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    first = model.get_parameter("0.weight").data
    first[:, 1], first[:, 2] = first[:, 0], 0
    return model


def missed_change(least: float) -> Callable[[nn.Module, Case], Tensor]:
    """f(x) − f(0) = 1 of `saturated` where x ≥ ``least``, from where on the explainer gives 0; ``(batch, 1)``."""
    return lambda model, case: (case.inputs >= least).to(case.inputs)


def relevance_of_both_sigmoids(model: nn.Module, case: Case) -> Tensor:
    """σ(u) + σ(−u) = 1 at u: ``(batch, 2)``."""
    return torch.ones_like(case.inputs) * case.inputs.new_tensor([0, 1])


def quarter_of_third_factor(model: nn.Module, case: Case) -> Tensor:
    """y/4 at x₃: ``(batch, 3)``."""
    return case.inputs.prod(1, keepdim=True) * case.inputs.new_tensor([0, 0, 1 / 4])


def rollout_of_valueless_feature(model: PositionalAttention, case: Case) -> Tensor:
    """½A₁₄ at the feature of value 0: ``(batch, 4)``."""
    return model.weights(len(case.inputs)).detach()[:, 0] / 2 * case.inputs.new_tensor([0, 0, 0, 1])


def loss_at_softmax(model: nn.Module, case: Case) -> Tensor:
    """(f − Σᵢ Aᵢ(xᵢ − f)²)/2 at the softmax of `self_attention`, 0 at copy, product and sum: ``(batch, 4)``."""
    weights = torch.softmax(case.inputs, -1)
    mean = (weights * case.inputs).sum(1, keepdim=True)
    variance = (weights * (case.inputs - mean) ** 2).sum(1, keepdim=True)
    return (mean - variance) / 2 * case.inputs.new_tensor([0, 1, 0, 0])


def loss_to_constants(model: nn.Module, case: Case) -> Tensor:
    """What `WithConstants` keeps: 0 at the copy of x, w·p at the sum, b at the linear map, ``(batch, 3)``."""
    position, weight, bias = (model.get_parameter(p).detach() for p in ("position", "linear.weight", "linear.bias"))
    return torch.stack([torch.zeros_like(case.inputs[:, 0]), weight[case.target] @ position, bias[case.target]], 1)
