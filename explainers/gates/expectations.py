"""What theory expects of the mask gates in the cells of the suite, beyond what they claim of every model.

All but one of the suite's cases remove by the baseline. There the gates are gradients of the function at x, the tangent
(x − x′) ⊙ ∇f(x), and the grouped gate takes them at points where one group of features in four is half way to the
baseline. They are what they are of the function alone, so that its dummies get 0 and its symmetries are kept; the
grouped gate keeps them where no two features share a group. In the attention neither is so: a token of no value to the
function still takes weight from the others, and tokens that the function lets swap may have unlike weights. Leave-One-
Out by the attention mask is no better there (tests/meta/test_gates_invariance.py has both in closed form).

A gradient is no difference: a product counts once for each of its factors, and beyond a kink nothing is seen of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case, input_gradient, output_difference, select_target
from faithcheck.models.pair import Expectation, Predict

GROUPS = 4


def tangent(model: nn.Module, case: Case) -> Tensor:
    """(x − x′) ⊙ ∇f(x), ``(batch, features)``."""
    share = (case.inputs - case.baseline) * input_gradient(model, case)
    return share.reshape(*case.shape, -1).sum(2)


def alone(model: nn.Module, case: Case, feature: int) -> Tensor:
    """f(x) − f(x without the feature), ``(batch,)``."""
    without = case.inputs.clone()
    without[:, feature] = case.baseline[:, feature]
    return output_difference(model, replace(case, baseline=without))


def halfway(model: nn.Module, case: Case) -> Tensor:
    """The grouped gate by its definition, feature by feature, ``(batch, features)``.

    A special feature gets f(x) as the four points have it, less f without the feature.
    """
    special = [] if case.special_tokens_mask is None else case.special_tokens_mask.any(0).nonzero().flatten().tolist()
    dealt = [i for i in range(case.shape[1]) if i not in special]
    away = (case.inputs - case.baseline) / 2
    points = []
    for group in range(GROUPS):
        inputs = case.inputs.clone()
        inputs[:, dealt[group::GROUPS]] -= away[:, dealt[group::GROUPS]]
        points.append(replace(case, inputs=inputs))
    slopes = [(2 * away * input_gradient(model, point)).reshape(*case.shape, -1).sum(2) for point in points]
    result, whole = torch.zeros(case.shape).to(away), outputs(model, points[0]) * 0
    for turn, i in enumerate(dealt):
        own, *others = (slopes[(turn + k) % GROUPS][:, i] for k in range(GROUPS))
        before = torch.stack(others).mean(0)
        result[:, i] = 3 / 5 * own + 2 / 5 * before
        whole += (own + before) / 4 / GROUPS
    whole += torch.stack([outputs(model, point) for point in points]).mean(0)
    for i in special:
        result[:, i] = whole - (outputs(model, case) - alone(model, case, i))
    return result


@torch.no_grad()
def outputs(model: nn.Module, case: Case) -> Tensor:
    """The explained outputs, ``(batch,)``."""
    return select_target(case.run(model), case.target)


def surplus(gate: Callable[[nn.Module, Case], Tensor]) -> Predict:
    """Σ of the gate − (f(x) − f(x′)), ``(batch,)``."""
    return lambda model, case: gate(model, case).sum(1) - output_difference(model, case)


def disagreement(gate: Callable[[nn.Module, Case], Tensor]) -> Predict:
    """1 − Pearson's r of the gate with what the output loses without each feature, ``(batch,)``."""

    def predict(model: nn.Module, case: Case) -> Tensor:
        lost = torch.stack([alone(model, case, i) for i in range(case.shape[1])], 1)
        a, b = (nn.functional.normalize(values - values.mean(1, keepdim=True)) for values in (gate(model, case), lost))
        return 1 - (a * b).sum(1)

    return predict


def product_surplus(model: nn.Module, case: Case) -> Tensor:
    """(n − 1)·y, ``(batch,)``: every factor gets y."""
    return (case.shape[1] - 1) * case.inputs.prod(1)


def halved_product_surplus(model: nn.Module, case: Case) -> Tensor:
    """Where a group of c factors is halved, a share is y·2^(1 − c) in it and y·2^−c elsewhere: ``(batch,)``."""
    sizes = [len(range(group, case.shape[1], GROUPS)) for group in range(GROUPS)]
    share = 0.0
    for i in range(case.shape[1]):
        others = [2.0**-size for group, size in enumerate(sizes) if group != i % GROUPS]
        share += 3 / 5 * 2.0 ** (1 - sizes[i % GROUPS]) + 2 / 5 * sum(others) / len(others)
    return (share - 1) * case.inputs.prod(1)


def relu_bias(model: nn.Module, case: Case) -> Tensor:
    """1 where y > 0, ``(batch,)``: the bias −1 has no share, and the sum is y + 1."""
    return (outputs(model, case) > 0).to(case.inputs)


def halved_relu_surplus(model: nn.Module, case: Case) -> Tensor:
    """ReLU(x₁ − 1 − r), r = ReLU(x₂): on or off at half of x₁, at half of x₂ and, twice, at x: ``(batch,)``."""
    first, r = case.inputs[:, 0], case.inputs[:, 1].relu()
    y = first - 1 - r
    half_first, half_second, there = ((z > 0).to(y) for z in (first / 2 - 1 - r, first - 1 - r / 2, y))
    shares = (
        first * (3 / 5 * half_first + 2 / 5 * (half_second + 2 * there) / 3),
        -r * (3 / 5 * half_second + 2 / 5 * (half_first + 2 * there) / 3),
    )
    return shares[0] + shares[1] - y.relu()


def unnoticed(least: float) -> Predict:
    """f(x) − f(0) = 1 from this x on, ``(batch, 1)``."""
    return lambda model, case: (case.inputs >= least).to(case.inputs)


def holds(why: str) -> Expectation:
    """What holds beyond the explainer's claims."""
    return Expectation("HOLDS", why)


def violates(why: str, predict: Predict) -> Expectation:
    """A violation in closed form."""
    return Expectation("VIOLATES", why, predict)


def curved(gate: Callable[[nn.Module, Case], Tensor], why: str) -> Mapping[tuple[str, str], Expectation]:
    """The violations of models that are no straight line to the baseline."""
    complete, alike = violates(why, surplus(gate)), violates(why, disagreement(gate))
    return {
        ("completeness", "control.mlp.f"): complete,
        ("completeness", "linear_attention.*"): complete,
        ("loo", "control.mlp.f"): alike,
        ("loo", "control.bert.f"): alike,
        ("loo", "linear_attention.*"): alike,
    }


EVERY: Mapping[tuple[str, str], Expectation] = {
    ("linearity", "*"): holds("removed by the baseline: derivatives are linear in the function"),
    ("symbolic", "*"): holds("the same derivatives, once in SymPy and once in torch"),
    ("sensitivity", "control.*"): holds("analytic gradients are 0 on a set of measure 0 only"),
    ("dummy", "probe.*"): holds("removed by the baseline: the function's own derivatives in a dummy are 0"),
    ("randomisation", "control.*"): holds("random mixtures of the maps of many units: ρ² is one over their number"),
    ("precision", "control.*"): holds("no difference of numbers much larger than itself"),
}
SWAPPED = "derivatives of the function at a point that it lets swap"
TANGENT: Mapping[tuple[str, str], Expectation] = {
    **EVERY,
    **curved(tangent, "the tangent at x is not the chord to where a feature, or all of them, are gone"),
    ("symmetry", "control.product.f"): holds(SWAPPED),
    ("symmetry", "probe.*"): holds(SWAPPED),
    ("completeness", "product.*"): violates("every factor gets all of y: the sum is n·y", product_surplus),
    ("completeness", "relu.*"): violates("the bias −1 has no share where y > 0: the sum is y + 1", relu_bias),
    ("sensitivity", "probe.saturated.f"): violates("the gradient is 0 above 1", unnoticed(1)),
}
"""`MaskGate`, `FiniteMaskGate` and `ReadoutGate`, which by the baseline are one."""

EACH_ITS_OWN = f"{SWAPPED}: no more features than groups, so that each has its own"
HALVED = "where one of four groups is halved, of c factors: ⅗ of y·2^(1 − c) in it, ⅖ of the mean of y·2^−c elsewhere"
GROUPED: Mapping[tuple[str, str], Expectation] = {
    **EVERY,
    **curved(halfway, "slopes half way are not the chord to where a feature, or all of them, are gone"),
    ("symmetry", "control.product.f"): holds(EACH_ITS_OWN),
    ("symmetry", "probe.*"): holds(EACH_ITS_OWN),
    ("completeness", "product.*"): violates(HALVED, halved_product_surplus),
    ("completeness", "relu.*"): violates("the ReLU is on or off at four points", halved_relu_surplus),
    ("sensitivity", "probe.saturated.f"): violates("the gradient is 0 at 2, and half way at the kink", unnoticed(2)),
}
"""`GroupedMaskGate` with four groups."""
