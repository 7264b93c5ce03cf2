"""Probes: the smallest models that an axiom needs, each beside its deep copy and measured alone.

Closed forms, with LRP at ε → 0 as input × modified gradient:

* ``saturated``, f = 1 − ReLU(1 − x): above 1 the gradient is 0, so that all that multiply a gradient at x give zero to
  a change of f(x) − f(0) = 1. IG and DeepLIFT look at the way from the baseline, LOO at the baseline.
* ``perceptron``: two inputs with equal weights and one with none. Every rule treats equal weights and values alike, and
  a weight of 0 passes nothing on.
* ``sigmoids``, f = x + σ(u) + σ(−u) = x + 1: the gradients of the two sigmoids cancel, σ′(u) − σ′(−u) = 0, and so do
  their slopes. LRP hands each its whole value, and u gets σ(u) + σ(−u) = 1.
* ``products``, f = x₁ + (x₁x₂)x₃ − x₁(x₂x₃) = x₁: every halving rule gives (¼, ¼, ½)y for the first product and
  (½, ¼, ¼)y for the second, so that x₂ gets 0 and x₃ gets y/4.
* ``attention``, f = Σⱼ A₁ⱼ vⱼxⱼ with attention weights A of the positions alone, and v₄ = 0: f is linear, and all that
  follow the function, or LRP's rules for constants times data, give A₁ⱼ vⱼxⱼ. Rollout gives ½(A + I)₁ⱼ, at 4 too.
* ``tokens``, attention without positions, averaged over tokens: swapping tokens swaps all that is computed of them. But
  Rollout reads one row of ½(A + I), and where all n tokens are equal A is 1/n: the row's own token has ½ more.
* ``softmax``, f = Σᵢ Aᵢxᵢ with A = softmax x: the product gives Aᵢ the gradient xᵢ/2, so that the softmax receives f/2
  and Eq. 5 passes on Σ xᵢAᵢ(xᵢ − f)/2, half of the variance of x under A. CP-LRP holds A constant: x gets f.
* ``constants``, f = w·(x + p) + b: relevance starts as f, of which b stays at the linear map and w·p at the sum.
* ``padded``: sentences of unlike lengths. A masked key weighs exp(−∞) = 0, so that neither a value, a gradient nor
  attention reaches an example's padding, or comes from it.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case
from faithcheck.models.pair import ALL_LRP, Build, Expectations, MakeCase, Pair, expect, random_points, register
from faithcheck.models.pairs.control import ALL, COPIES, GRADIENT, LRP, ROLLOUT, SUNDARARAJAN, WHY, sentences
from faithcheck.models.pairs.control import bert as bert_copies

PATH = "deeplift_rescale"
FOLLOWS = f"loo integrated_gradients {PATH}"
points = partial(random_points, 5)  # of so many features


class Probe(nn.Module):
    """A function of features as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, inputs: Tensor) -> Tensor:
        """``(batch, features)`` to ``(batch, 1)``."""
        return self.function(inputs)


def saturated(inputs: Tensor) -> Tensor:
    """1 − ReLU(1 − x); Sundararajan et al. 2017, §2.1."""
    return 1 - torch.relu(1 - inputs)


def sigmoids(inputs: Tensor) -> Tensor:
    """x + σ(u) + σ(−u) = x + 1."""
    x, u = inputs.unbind(1)
    return (x + torch.sigmoid(u) + torch.sigmoid(-u)).unsqueeze(1)


def products(inputs: Tensor) -> Tensor:
    """x₁ + (x₁x₂)x₃ − x₁(x₂x₃) = x₁."""
    x1, x2, x3 = inputs.unbind(1)
    return (x1 + (x1 * x2) * x3 - x1 * (x2 * x3)).unsqueeze(1)


class PositionalAttention(nn.Module):
    """Attention by positions alone, read at the first; feature 4 is mute: ``(batch, 4)`` to ``(batch, 2)``."""

    def __init__(self) -> None:
        super().__init__()
        self.logits, self.values = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4, 2))
        self.values.data[3] = 0

    def weights(self, batch: int) -> Tensor:
        """A, ``(batch, 4, 4)``."""
        return torch.softmax(self.logits.expand(batch, 4, 4), -1)

    def forward(self, inputs: Tensor) -> Tensor:
        """Σⱼ A₁ⱼ vⱼxⱼ."""
        attended = torch.matmul(self.weights(len(inputs)), inputs.unsqueeze(2) * self.values)
        return attended[:, 0]


class TokenAttention(nn.Module):
    """Softmax attention without positions, averaged over tokens: ``(batch, tokens, 3)`` to ``(batch, 2)``."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(3, 3) for _ in range(3))
        self.head = nn.Linear(3, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        """The logits."""
        weights = torch.softmax(torch.matmul(self.query(inputs), self.key(inputs).transpose(1, 2)) / 3**0.5, -1)
        logits: Tensor = self.head(torch.matmul(weights, self.value(inputs)).mean(1))
        return logits


def self_attention(inputs: Tensor) -> Tensor:
    """Σᵢ Aᵢxᵢ, A = softmax x: one head whose logits are its values."""
    weights = torch.softmax(inputs, -1)
    return (weights * inputs).sum(1, keepdim=True)


class WithConstants(nn.Module):
    """A linear map with a bias after an added embedding: ``(batch, 4)`` to ``(batch, 2)``."""

    def __init__(self) -> None:
        super().__init__()
        self.position, self.linear = nn.Parameter(torch.randn(4)), nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        """W(x + p) + b."""
        logits: Tensor = self.linear(inputs + self.position)
        return logits


def tied() -> nn.Module:
    """A perceptron of four features: the first two enter by equal weights, the third by none."""
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    first = model.get_parameter("0.weight").data
    first[:, 1], first[:, 2] = first[:, 0], 0
    return model


def copies(make: Callable[[], nn.Module]) -> Build:
    """The pair's models: one of random weights, and its deep copy."""

    def build(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = make().to(device, dtype).eval()
        return model, deepcopy(model)

    return build


def saturation(seed: int, dtype: torch.dtype, device: torch.device) -> Case:
    """x = 2, at which the ReLU is off, ½ and −1; baseline 0."""
    inputs = torch.tensor([[2.0], [0.5], [-1.0]]).to(device, dtype)
    return Case(inputs, torch.zeros(3, dtype=torch.int64, device=device), torch.zeros_like(inputs))


def padded(seed: int, dtype: torch.dtype, device: torch.device) -> Case:
    """Sentences of 7, 6, 4 and 2 tokens; what stands at their padding is as large as any token."""
    case = sentences(seed, dtype, device)
    lengths = torch.tensor([7, 6, 4, 2], device=device).unsqueeze(1)
    mask = (torch.arange(case.shape[1], device=device) < lengths).long()
    return Case(case.inputs, case.target, case.baseline, case.special_tokens_mask, {"attention_mask": mask})


def unnoticed(model: nn.Module, case: Case) -> Tensor:
    """f(x) − f(0) = 1 where x > 1, and 0 elsewhere: ``(batch, 1)``."""
    return (case.inputs > 1).to(case.inputs)


def both_sigmoids(model: nn.Module, case: Case) -> Tensor:
    """σ(u) + σ(−u) = 1 at u: ``(batch, 2)``."""
    return torch.ones_like(case.inputs) * case.inputs.new_tensor([0, 1])


def a_quarter(model: nn.Module, case: Case) -> Tensor:
    """y/4 at x₃: ``(batch, 3)``."""
    return case.inputs.prod(1, keepdim=True) * case.inputs.new_tensor([0, 0, 1 / 4])


def mute_attention(model: PositionalAttention, case: Case) -> Tensor:
    """½A₁₄ at the mute feature: ``(batch, 4)``."""
    return model.weights(len(case.inputs)).detach()[:, 0] / 2 * case.inputs.new_tensor([0, 0, 0, 1])


def own_residual(model: nn.Module, case: Case) -> Tensor:
    """−½ at every token but the one that Rollout reads: ``(batch, tokens)``."""
    return -torch.ones(case.shape).to(case.inputs) / 2 * (torch.arange(case.shape[1]).to(case.inputs) > 0)


def half_mean_less_variance(model: nn.Module, case: Case) -> Tensor:
    """(f − Σᵢ Aᵢ(xᵢ − f)²)/2 at the softmax; at the copy of x, the softmax, the product, the sum: ``(batch, 4)``."""
    weights = torch.softmax(case.inputs, -1)
    mean = (weights * case.inputs).sum(1, keepdim=True)
    variance = (weights * (case.inputs - mean) ** 2).sum(1, keepdim=True)
    return (mean - variance) / 2 * case.inputs.new_tensor([0, 1, 0, 0])


def of_constants(model: WithConstants, case: Case) -> Tensor:
    """0, w·p and b, what the copy of x, the sum and the linear map keep: ``(batch, 3)``."""
    position, bias = model.position.detach(), model.linear.bias.detach()[case.target]
    kept = model.linear.weight.detach()[case.target] @ position
    return torch.stack([torch.zeros_like(bias), kept, bias], 1)


def probe(name: str, build: Build, case: MakeCase, axioms: str, expected: Expectations) -> None:
    """Register a model as a control that these axioms are measured on."""
    named = frozenset({"invariance", *axioms.split()})
    register(Pair(f"probe.{name}", build, case, WHY, expected={**COPIES, **expected}, axioms=named, control=True))


probe(
    "saturated",
    copies(lambda: Probe(saturated)),
    saturation,
    "sensitivity",
    {
        **expect("sensitivity", FOLLOWS, "complete: the one feature gets the whole change", cite=SUNDARARAJAN),
        **expect(
            "sensitivity",
            f"{GRADIENT} {ALL_LRP}",
            "the gradient is 0 above 1, ReLU's modified gradient too",
            predict=unnoticed,
            cite=SUNDARARAJAN,
        ),
    },
)
probe(
    "perceptron",
    copies(tied),
    points(4),
    "dummy symmetry",
    {
        **expect("dummy", f"{ALL} {PATH} epsilon_lrp", "a weight of 0 passes nothing on"),
        **expect("symmetry", f"{ALL} {PATH} epsilon_lrp", "equal weights and values are treated alike"),
    },
)
probe(
    "sigmoids",
    copies(lambda: Probe(sigmoids)),
    points(2),
    "dummy",
    {
        **expect("dummy", f"{FOLLOWS} {GRADIENT}", "values, slopes and gradients of the two sigmoids cancel"),
        **expect("dummy", ALL_LRP, "u gets σ(u) + σ(−u) = 1", predict=both_sigmoids),
    },
)
probe(
    "products",
    copies(lambda: Probe(products)),
    points(3),
    "dummy",
    {
        **expect("dummy", f"loo integrated_gradients {GRADIENT}", "values and gradients of the two products cancel"),
        **expect("dummy", LRP, "x₃ gets y/2 of the one product and y/4 of the other", predict=a_quarter),
    },
)
probe(
    "attention",
    copies(PositionalAttention),
    points(4),
    "dummy",
    {
        **expect("dummy", f"{ALL} {PATH} epsilon_lrp", "the function is linear and has no term in the mute feature"),
        **expect("dummy", ROLLOUT, "attention of ½A₁₄ goes to a value of 0", predict=mute_attention),
    },
)
probe(
    "tokens",
    copies(TokenAttention),
    points(4, 3),
    "symmetry",
    {
        **expect("symmetry", ALL, "swapping tokens swaps all that is computed of them"),
        **expect("symmetry", ROLLOUT, "the row that it reads has ½ more of its own token", predict=own_residual),
    },
)
probe(
    "softmax",
    copies(lambda: Probe(self_attention)),
    points(4),
    "conservation",
    {
        **expect("conservation", "attnlrp", "Eq. 5 passes ½Var_A x on, not ½Σ Ax", predict=half_mean_less_variance),
        **expect("conservation", "cplrp", "A is a constant, and x gets all of Σ Ax"),
    },
)
probe(
    "constants",
    copies(WithConstants),
    points(4),
    "conservation",
    expect("conservation", ALL_LRP, "the bias and the embedding keep b and w·p", predict=of_constants),
)
probe(
    "padded",
    bert_copies,
    padded,
    "batching",
    expect("batching", f"{ALL} {ROLLOUT}", "masked keys weigh exactly 0: nothing goes to padding or comes from it"),
)
