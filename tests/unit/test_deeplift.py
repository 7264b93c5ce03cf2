"""DeepLIFT's rescale rule: its closed forms, its completeness, and the operations that it refuses."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from faithcheck.axioms.completeness import completeness
from faithcheck.explainers import AttnLRP, DeepLiftRescale, GradientTimesInput, Unsupported, builtin_explainers
from faithcheck.explainers import deeplift as module
from faithcheck.explainers.lrp.operation_table import operations_with
from faithcheck.explainers.lrp.operations import Trait
from faithcheck.models import Case, registered_pairs
from faithcheck.models.case import output_difference
from faithcheck.models.networks import counterexamples
from faithcheck.models.pairs import relu
from faithcheck.plan import plan
from faithcheck.request import Settings
from faithcheck.tests.helpers.fixtures import double as double  # for every test here

CPU = torch.device("cpu")
DEEPLIFT = DeepLiftRescale()


def at(inputs, baseline=None):
    inputs = torch.as_tensor(inputs, dtype=torch.float64)
    inputs = inputs if inputs.dim() > 1 else inputs.unsqueeze(0)
    baseline = torch.zeros_like(inputs) if baseline is None else torch.as_tensor(baseline).expand_as(inputs)
    return Case(inputs, torch.zeros(len(inputs), dtype=torch.int64), baseline.clone())


class Lambda(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def attribute(function, case):
    return DEEPLIFT.attribute(Lambda(function), case)


# --- attributions ----------------------------------------------------------------------------------------------------


def test_the_two_relu_networks_at_the_papers_point():
    f, g = relu.sundararajan(0, torch.float64, CPU)
    torch.testing.assert_close(DEEPLIFT.attribute(f, at([3.0, 1.0])), torch.tensor([[1.5, -0.5]]))
    torch.testing.assert_close(DEEPLIFT.attribute(g, at([3.0, 1.0])), torch.tensor([[2.0, -1.0]]))
    for explainer in (AttnLRP(), GradientTimesInput()):
        for model in (f, g):
            torch.testing.assert_close(explainer.attribute(model, at([3.0, 1.0])), torch.tensor([[3.0, -1.0]]))


def test_the_two_relu_networks_everywhere():
    """The closed form of the gap holds at any y, not only at the pair's own case."""
    f, g = relu.sundararajan(0, torch.float64, CPU)
    case = at(torch.randn(200, 2) * 4)
    y, r = counterexamples.output_and_subtrahend(case)
    assert ((y > 0) & (r > 0)).sum() > 10
    assert (y == 0).sum() > 10
    difference = DEEPLIFT.attribute(f, case) - DEEPLIFT.attribute(g, case)
    torch.testing.assert_close(difference, counterexamples.rescale_gap(f, g, case))


def test_an_activation_of_a_linear_map_is_shared_by_its_weights():
    """tanh(w·x + b): the slope is Δtanh/Δz, from a baseline other than 0."""
    w, b, baseline = torch.randn(4), 0.3, torch.randn(4)
    case = at(torch.randn(3, 4), baseline)
    z, z_0 = case.inputs @ w + b, baseline @ w + b
    slope = (z.tanh() - z_0.tanh()) / (z - z_0)
    expected = (case.inputs - baseline) * w * slope.unsqueeze(1)
    torch.testing.assert_close(
        attribute(lambda x: torch.tanh(F.linear(x, w.unsqueeze(0), torch.tensor([b]))), case), expected
    )


def test_a_network_by_hand():
    """The multipliers are multiplied as matrices, from the last layer to the first, one example at a time."""
    layers = [nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3)]
    case = at(torch.randn(6, 5), torch.randn(5))
    with torch.no_grad():
        expected = []
        for x, x_0 in zip(case.inputs, case.baseline, strict=True):
            values = [(x, x_0)]
            for layer in layers:
                values.append(tuple(layer(value) for value in values[-1]))
            multiplier = torch.eye(3)[0]
            for layer, before, after in reversed([*zip(layers, values, values[1:], strict=False)]):
                rise, change = after[0] - after[1], before[0] - before[1]
                multiplier = multiplier @ layer.weight if isinstance(layer, nn.Linear) else multiplier * rise / change
            expected.append(multiplier * (x - x_0))
    torch.testing.assert_close(DEEPLIFT.attribute(nn.Sequential(*layers).eval(), case), torch.stack(expected))


def test_equal_inputs_have_the_gradient_for_their_slope():
    """σ(x₁ − x₂) at a point where x₁ − x₂ is as at the baseline: both features have σ′, with opposite signs."""
    attribution = attribute(lambda x: torch.sigmoid(x[:, :1] - x[:, 1:]), at([2.5, 3.0], [0.5, 1.0]))
    slope = torch.tensor(-0.5).sigmoid() * torch.tensor(0.5).sigmoid()
    torch.testing.assert_close(attribution, torch.stack([2 * slope, -2 * slope]).unsqueeze(0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("activation", [torch.sigmoid, torch.exp, torch.tanh, F.gelu])
def test_an_input_that_differs_by_round_off_has_the_slope_of_the_gradient(activation, dtype):
    """The sum is as at the baseline up to round-off, in any order of the terms, with an offset or without."""

    def left(x):
        return activation((x[:, :1] + x[:, 1:2]) + x[:, 2:] + offset)

    def right(x):
        return activation(x[:, :1] + (x[:, 1:2] + x[:, 2:]) + offset)

    def total(x):
        return activation(x.sum(1, keepdim=True) + offset)

    for offset in (0.0, 3.0, -6.0):
        slope = torch.autograd.functional.jacobian(activation, torch.tensor(offset, dtype=dtype))
        for point in ([0.1, 0.3, -0.4], [0.1, 0.2, -0.3], [100.1, -0.3, -99.8]):
            inputs = torch.tensor([point], dtype=dtype)
            case = Case(inputs, torch.tensor([0]), torch.zeros_like(inputs))
            rounding = 10 * torch.finfo(dtype).eps * inputs.abs().max()
            for function in (left, right, total):
                attribution = attribute(function, case)
                # Round-off r of the sum changes the gradient by f″·r, and |f″| ≤ f(3) < 21.
                error = ((attribution - inputs * slope).abs() / inputs.abs()).max()
                assert error <= 21 * rounding, (function, offset, point)


def test_a_step_over_a_kink_keeps_its_slope():
    """From −h to 2h the rectifier rises by 2h: its slope is ⅔, which is no gradient, for every h above round-off."""
    for h in (1e-3, 1e-9, 1e-12):
        attribution = attribute(torch.relu, at([2 * h], [-h]))
        torch.testing.assert_close(attribution, torch.tensor([[2 * h]]))


def test_a_small_step_of_a_steep_function_keeps_its_slope():
    """√ from h to 4h has the slope 1/(3√h), although h is far below √eps."""
    attribution = attribute(torch.sqrt, at([4e-12], [1e-12]))
    torch.testing.assert_close(attribution, torch.tensor([[1e-6]]))


def deep():
    """Convolution, BatchNorm, pooling, residual and dropout, with five kinds of activation."""

    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.pool = nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.AvgPool2d(2)
            self.first, self.second, self.drop = nn.Linear(12, 12), nn.Linear(12, 2), nn.Dropout(0.5)

        def forward(self, x):
            hidden = self.pool(F.gelu(self.norm(self.conv(x.unflatten(1, (1, 4, 4)))))).flatten(1)
            hidden = hidden + F.silu(self.first(hidden)) / 2
            hidden = torch.cat([hidden.abs()[:, 6:], F.relu(hidden)[:, :6]], 1)
            return torch.exp(0.1 * self.second(self.drop(hidden)))

    model = Deep()
    nn.init.uniform_(model.norm.running_var, 0.5, 2)
    nn.init.normal_(model.norm.running_mean)
    return model.eval()


def test_completeness_on_a_network_of_all_supported_kinds():
    model, case = deep(), at(torch.randn(5, 16), torch.randn(16))
    measured = completeness(DEEPLIFT, model, case)
    assert measured.gap < 1e-12
    assert output_difference(model, case).abs().max() > 1e-3


@pytest.mark.parametrize("broken", [lambda slope: slope * 1.001, torch.ones_like], ids=["slopes", "identity"])
def test_a_broken_slope_is_not_complete(monkeypatch, broken):
    def wrong(x, value, gradient):
        return honest(x, value, lambda g: broken(gradient(g)))

    honest = module.modified
    monkeypatch.setattr(module, "modified", wrong)
    assert completeness(DEEPLIFT, deep(), at(torch.randn(5, 16), torch.randn(16))).gap > 1e-4


def test_another_gap_than_the_predicted_one_is_inconclusive():
    """If the bias goes to the first feature, the gap differs from the prediction, and the suite reports it."""

    class BiasToFirstFeature(DeepLiftRescale):
        like = "deeplift_rescale"

        def attribute(self, model, case):
            attribution = super().attribute(model, case)
            if model.nested:
                attribution[:, 0] -= attribution[:, 1]
            return attribution

    (check,) = plan("invariance", [BiasToFirstFeature()], [registered_pairs()["relu.sundararajan"]])
    assert check.run(Settings()).status == "inconclusive"


# --- refusals --------------------------------------------------------------------------------------------------------

REFUSED = {
    "product of data": (lambda x: x[:, :1] * x[:, 1:2], "mul"),
    "matrix product of data": (lambda x: (x @ x.T).sum(1, keepdim=True), "matmul"),
    "quotient by data": (lambda x: torch.div(torch.ones_like(x), x).sum(1, keepdim=True), "div"),
    "rounded quotient": (lambda x: torch.div(x, 0.3, rounding_mode="floor").sum(1, keepdim=True), "div"),
    "softmax": (lambda x: torch.softmax(x, 1), "softmax"),
    "layer_norm": (lambda x: F.layer_norm(x, x.shape[1:]), "layer_norm"),
    "rms_norm": (lambda x: F.rms_norm(x, x.shape[1:]), "rms_norm"),
    "maximum": (lambda x: torch.maximum(x[:, :1], x[:, 1:2]), "maximum"),
    "amax": (lambda x: x.amax(1, keepdim=True), "amax"),
    "max_pool1d": (lambda x: F.max_pool1d(x.unsqueeze(1), 2).flatten(1), "max_pool1d"),
    "in place": (lambda x: F.relu(x + 1, inplace=True), "relu"),
    "infinite slope": (lambda x: torch.sqrt(x - x), "sqrt"),
    # In each of the following the data choose a map: it is linear at every point, but not the same at the baseline.
    "where": (lambda x: torch.where(x > 0.5, x, torch.zeros_like(x)), "where"),
    "mask": (lambda x: x * (x > 0.5), "mul"),
    "detached factor": (lambda x: x * x.detach(), "mul"),
    "number": (lambda x: x * x.sum().item(), "mul"),
    "index": (lambda x: x[:, x[0].argsort()], "getitem"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_operation(name):
    function, operation = REFUSED[name]
    with pytest.raises(Unsupported, match=f"^{operation} in "):
        attribute(function, at([[2.0, 1.5, 0.4]]))


@pytest.mark.parametrize(
    ("at_baseline", "message"),
    [
        (False, "^add in the model .*does not run at the baseline"),
        (True, "operations that run at the baseline only: add$"),
    ],
)
def test_a_model_that_runs_other_operations_at_the_baseline_is_refused(at_baseline, message):
    with pytest.raises(Unsupported, match=message):
        attribute(lambda x: (x + 1 if bool((x == 0).all()) == at_baseline else x).relu(), at([[2.0, 1.5]]))


def test_transformers_are_refused():
    pair = registered_pairs()["control.bert"]
    (check, *_) = plan("invariance", [DEEPLIFT], [pair])
    record = check.run(Settings())
    assert record.status == "unsupported"
    assert "layer_norm" in record.detail["reason"]


def test_an_operation_is_affine_or_a_function_of_one_value_or_a_choice():
    assert not module.AFFINE_RULES.keys() & (module.FUNCTIONS_OF_ONE_VALUE | operations_with(Trait.CHOICE))
    assert "deeplift_rescale" in {explainer.name for explainer in builtin_explainers().values()}
