"""What theory expects of block-wise LRP in the cells of the suite, beyond what it claims of every model.

It has no rule for what two operations do together that are neither one product nor one function of one value. So, with
y the output and ε → 0:

* exp(x₁ + x₂) is a function of the sum: y − 1 in shares xᵢ/(x₁ + x₂). exp(x₁)·exp(x₂) is a product of two functions,
  and φ(x) − φ(0) is e^xᵢ − 1 in half of the product: ½(y − y·e^−xᵢ).
* x₁(x₂ + 1): the sum starts anew, and x₁ gets half of the product. x₁x₂ + x₁·1: half of the first term, and the second.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case, output_difference, select_target
from faithcheck.models.networks.derived import SHIFT
from faithcheck.models.networks.linear_attention import LinearAttention, path_gradients
from faithcheck.models.pair import Expectation, Predict


def exponentials(f: nn.Module, g: nn.Module, case: Case) -> Tensor:
    """(y − 1)·xᵢ/(x₁ + x₂) − ½(y − y·e^−xᵢ), ``(batch, 2)``."""
    total = case.inputs.sum(1, keepdim=True)
    return total.expm1() * case.inputs / total - (total.exp() - (total - case.inputs).exp()) / 2


def one_more(f: nn.Module, g: nn.Module, case: Case) -> Tensor:
    """(−½x₁, 0), ``(batch, 2)``."""
    return case.inputs * case.inputs.new_tensor([-1 / 2, 0])


def positions(model: LinearAttention, case: Case) -> Tensor:
    """Σ x ⊙ (g_q + g_k + g_v)/3 − (f(x) − f(0)), ``(batch,)``: the sum at the tokens is f(x)."""
    thirds: Tensor = sum(path_gradients(model, case), torch.zeros_like(case.inputs)) / 3
    return (case.inputs * thirds).sum(1) - output_difference(model, case)


@torch.no_grad()
def relu_bias(model: nn.Module, case: Case) -> Tensor:
    """1 where y > 0, ``(batch,)``: the sum is y + 1."""
    return (select_target(model(case.inputs), case.target) > 0).to(case.inputs)


def softmax_loss(model: nn.Module, case: Case) -> Tensor:
    """(f − Var_A x)/2 at the softmax; at the copy of x, the softmax, the product, the sum: ``(batch, 4)``."""
    weights = torch.softmax(case.inputs, -1)
    mean = (weights * case.inputs).sum(1, keepdim=True)
    variance = (weights * (case.inputs - mean) ** 2).sum(1, keepdim=True)
    return (mean - variance) / 2 * case.inputs.new_tensor([0, 1, 0, 0])


def constants_loss(model: nn.Module, case: Case) -> Tensor:
    """0, w·p and b at the copy of x, the sum and the linear map: ``(batch, 3)``."""
    position, weight, bias = (model.get_parameter(p).detach() for p in ("position", "linear.weight", "linear.bias"))
    return torch.stack([torch.zeros_like(case.inputs[:, 0]), weight[case.target] @ position, bias[case.target]], 1)


def above_one(model: nn.Module, case: Case) -> Tensor:
    """f(x) − f(0) = 1 where x > 1: ``(batch, 1)``."""
    return (case.inputs > 1).to(case.inputs)


def shifted_perceptron(model: nn.Module, case: Case) -> Tensor:
    """c ⊙ the modified gradient, tanh z/z for the slope of tanh: ``(batch, 8)``."""
    first, last = (model.get_parameter(name).detach() for name in ("0.weight", "2.weight"))
    z = case.inputs @ first.T
    return SHIFT * (last[case.target] * torch.tanh(z) / z) @ first


def shifted_product(model: nn.Module, case: Case) -> Tensor:
    """c ⊙ ⅓y/x, ``(batch, 3)``."""
    return SHIFT * case.inputs.prod(1, keepdim=True) / case.inputs / 3


def holds(why: str) -> Expectation:
    """What holds beyond the explainer's claims."""
    return Expectation("HOLDS", why)


def violates(why: str, predict: Predict) -> Expectation:
    """A violation in closed form."""
    return Expectation("VIOLATES", why, predict)


SHIFTED = "(x + c) ⊙ gradient − x ⊙ gradient = c ⊙ gradient"
EXPECTED: Mapping[tuple[str, str], Expectation] = {
    ("invariance", "generated.exp_of_sum"): violates("a sum in one exponential, a product of two", exponentials),
    ("invariance", "generated.times_one_more"): violates("a sum with a constant is of degree 1", one_more),
    ("generated", "generated.search"): Expectation(
        "VIOLATES",
        "the smallest pair that it tells apart is exp(x₁ + x₂) and exp(x₁)·exp(x₂); at x₁ = x₂ = x the gap is "
        "1/(1 + eˣ), elsewhere larger (on a grid): at least 1/9, as y = e²ˣ is at most 64 where pairs are compared",
        floor=0.1,
    ),
    ("symbolic", "*"): holds("Integrated Gradients from 0, once in SymPy and once in torch"),
    ("completeness", "product.*"): holds("IG from 0 are complete: n·(y/n)"),
    ("completeness", "control.mlp.f"): holds("no biases, tanh 0 = 0, and f(0) = 0"),
    ("completeness", "linear_attention.*"): violates("the position embeddings keep their part", positions),
    ("completeness", "relu.*"): violates("the bias −1 keeps its share where y > 0", relu_bias),
    ("conservation", "control.mlp.f"): holds("no biases, and tanh 0 = 0"),
    ("conservation", "control.product.f"): holds("shares by degree sum to 1 at each product"),
    ("conservation", "probe.softmax.f"): violates("Eq. 5 passes ½Var_A x on, not ½Σ Ax", softmax_loss),
    ("conservation", "probe.constants.f"): violates("the bias and the embedding keep b and w·p", constants_loss),
    ("sensitivity", "control.*"): holds("an analytic gradient is 0 on a set of measure 0 only"),
    ("sensitivity", "probe.saturated.f"): violates("ReLU has its own gradient, which is 0 above 1", above_one),
    ("dummy", "probe.perceptron.f"): holds("a weight of 0 passes nothing on"),
    ("dummy", "probe.sigmoids.f"): holds("σ(u) − ½ and σ(−u) − ½ cancel: ½ is a bias"),
    ("dummy", "probe.products.f"): holds("both products give y/3 to each factor, and cancel"),
    ("dummy", "probe.attention.f"): holds("the function is linear and has no term in the mute feature"),
    ("symmetry", "control.product.f"): holds("every factor gets y/3"),
    ("symmetry", "probe.*"): holds("equal weights and values are treated alike, tokens too"),
    ("shift", "control.bert.f"): holds("LayerNorm takes a token's mean away: its gradient sums to 0"),
    ("shift", "control.mlp.f"): violates(SHIFTED, shifted_perceptron),
    ("shift", "control.product.f"): violates(SHIFTED, shifted_product),
    ("randomisation", "control.*"): holds("random mixtures of the maps of many units: ρ² is one over their number"),
    ("precision", "control.*"): holds("no difference of numbers much larger than itself"),
}
