"""Every LRP rule against its slow oracle, in both forms, in float64."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks
from transformers.activations import NewGELUActivation

from faithcheck.explainers import CPLRP, LRP, AttnLRP, EpsilonLRP, Unsupported
from faithcheck.explainers.fast.propagation import FastPropagation
from faithcheck.explainers.lrp.attnlrp import ATTNLRP
from faithcheck.explainers.lrp.cplrp import CP_LRP
from faithcheck.explainers.lrp.epsilon_lrp import EPSILON_LRP
from faithcheck.explainers.lrp.operation_call import RuleTrait, traits_of
from faithcheck.explainers.lrp.propagation import Propagation
from faithcheck.models import Case
from faithcheck.tests.helpers import oracles
from faithcheck.tests.helpers.fixtures import double as double  # for every test here
from faithcheck.tests.helpers.relevance_of_operands import CLOSE, both_forms, relevance_of


@both_forms
def test_epsilon_rule_of_a_linear_map(epsilon):
    x, w, bias, relevance = torch.randn(5), torch.randn(5, 4), torch.randn(4), torch.randn(4)
    (actual,) = relevance_of(
        lambda x: F.linear(x, w.T, bias), x, relevance=relevance, epsilon=epsilon, rules=EPSILON_LRP
    )
    torch.testing.assert_close(actual, oracles.linear_map(x, w, bias, relevance, epsilon), **CLOSE)


@both_forms
def test_epsilon_rule_of_a_convolution(epsilon):
    x, kernel, relevance = torch.randn(1, 1, 6), torch.randn(1, 1, 3), torch.randn(1, 1, 4)
    (actual,) = relevance_of(lambda x: F.conv1d(x, kernel), x, relevance=relevance, epsilon=epsilon)
    toeplitz = torch.stack([F.pad(kernel.flatten(), (j, 3 - j)) for j in range(4)], 1)
    expected = oracles.linear_map(x.flatten(), toeplitz, torch.zeros(4), relevance.flatten(), epsilon)
    torch.testing.assert_close(actual.flatten(), expected, **CLOSE)


@both_forms
@pytest.mark.parametrize(("rows", "inner", "columns"), [(3, 4, 2), (7, 2, 5)], ids=["small result", "large result"])
def test_bilinear_rule(epsilon, rows, inner, columns):
    """The ½ stands at the result; if that is larger than the operands together, at the operands."""
    a, v, relevance = torch.randn(rows, inner), torch.randn(inner, columns), torch.randn(rows, columns)
    actual = relevance_of(torch.matmul, a, v, relevance=relevance, epsilon=epsilon)
    for got, expected in zip(actual, oracles.bilinear(a, v, relevance, epsilon), strict=True):
        torch.testing.assert_close(got, expected, **CLOSE)


@both_forms
def test_values_receive_all_relevance_in_cplrp(epsilon):
    a, v, relevance = torch.randn(3, 4), torch.randn(4, 2), torch.randn(3, 2)
    actual = relevance_of(torch.matmul, a, v, relevance=relevance, epsilon=epsilon, rules=CP_LRP)
    for got, expected in zip(actual, oracles.values_only(a, v, relevance, epsilon), strict=True):
        torch.testing.assert_close(got, expected, **CLOSE)


@both_forms
def test_einsum_is_a_matrix_product(epsilon):
    a, v, relevance = torch.randn(3, 4), torch.randn(4, 2), torch.randn(3, 2)
    for rules in (ATTNLRP, CP_LRP):
        einsum = relevance_of(lambda a, v: torch.einsum("ji,ip->jp", a, v), a, v, relevance=relevance, rules=rules)
        matmul = relevance_of(torch.matmul, a, v, relevance=relevance, rules=rules)
        for got, expected in zip(einsum, matmul, strict=True):
            torch.testing.assert_close(got, expected, **CLOSE)


def test_softmax_rule():
    z, relevance = torch.randn(6), torch.randn(6)
    (actual,) = relevance_of(lambda z: torch.softmax(z, -1), z, relevance=relevance)
    torch.testing.assert_close(actual, oracles.softmax(z, relevance), **CLOSE)
    assert abs(float(actual.sum() - relevance.sum())) > 0.01, "Eq. 5 does not conserve relevance"


@both_forms
def test_layer_norm_rule(epsilon):
    x, gamma, beta, relevance = torch.randn(6), torch.randn(6), torch.randn(6), torch.randn(6)
    (actual,) = relevance_of(
        lambda x: F.layer_norm(x, (6,), gamma, beta, 1e-5), x, relevance=relevance, epsilon=epsilon
    )
    torch.testing.assert_close(actual, oracles.layer_norm(x, gamma, beta, 1e-5, relevance, epsilon), **CLOSE)


@both_forms
def test_rms_norm_rule(epsilon):
    x, gamma, relevance = torch.randn(6), torch.randn(6), torch.randn(6)
    (actual,) = relevance_of(lambda x: F.rms_norm(x, (6,), gamma, 1e-5), x, relevance=relevance, epsilon=epsilon)
    torch.testing.assert_close(actual, oracles.rms_norm(x, gamma, 1e-5, relevance, epsilon), **CLOSE)


def test_norms_keep_their_value():
    x, gamma, beta = torch.randn(2, 6), torch.randn(6), torch.randn(6)
    for norm in (lambda x: F.layer_norm(x, (6,), gamma, beta), lambda x: F.rms_norm(x, (6,), gamma)):
        point = x.clone().requires_grad_()
        with Propagation(ATTNLRP, 0.0, point):
            actual = norm(point)
        torch.testing.assert_close(actual.detach(), norm(x), **CLOSE)


@pytest.mark.parametrize(
    "activation",
    [F.gelu, F.silu, F.relu, F.softplus, torch.tanh, torch.sigmoid, torch.erf, torch.exp, torch.square, torch.abs],
    ids=lambda activation: activation.__name__,
)
def test_activations_leave_relevance_unchanged(activation):
    x = torch.randn(6).abs() + 0.1  # positive: where relu's output is 0, so is its relevance
    relevance = torch.randn(6)
    (actual,) = relevance_of(activation, x, relevance=relevance)
    torch.testing.assert_close(actual, oracles.activation(x, relevance), **CLOSE)


def test_an_activation_at_zero_has_its_slope():
    x = torch.tensor([0.0, 0.5]).requires_grad_()
    with Propagation(ATTNLRP, 0.0, x):
        y = F.gelu(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert gradient[0] == 0.5  # gelu'(0)
    assert gradient[1] == F.gelu(torch.tensor(0.5)) / 0.5


def test_an_activation_that_is_not_0_at_0_absorbs_what_arrives_there():
    x = torch.tensor([0.0, 0.5]).requires_grad_()
    with Propagation(ATTNLRP, 0.0, x):
        y = torch.exp(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert gradient[0] == 0  # not 1, the slope: exp(x)/x has a pole
    assert gradient[1] == torch.tensor(0.5).exp() / 0.5


@both_forms
def test_element_wise_product_rule(epsilon):
    a, b, relevance = torch.randn(5), torch.randn(5), torch.randn(5)
    actual = relevance_of(torch.mul, a, b, relevance=relevance, epsilon=epsilon)
    for got, expected in zip(actual, oracles.product_of(a, b, relevance, epsilon), strict=True):
        torch.testing.assert_close(got, expected, **CLOSE)


def test_a_product_with_a_constant_loses_nothing():
    x, relevance = torch.randn(5), torch.randn(5)
    (actual,) = relevance_of(lambda x: 3 * x / torch.full_like(x, 7), x, relevance=relevance, epsilon=1e-2)
    torch.testing.assert_close(actual, relevance, **CLOSE)


def test_a_quotient_is_a_product_with_the_reciprocal():
    a, b, relevance = torch.randn(5), torch.rand(5) + 1, torch.randn(5)
    for got in relevance_of(torch.div, a, b, relevance=relevance):
        torch.testing.assert_close(got, relevance / 2, **CLOSE)
    for rules in (EPSILON_LRP, ATTNLRP):
        (actual,) = relevance_of(lambda b: 2 / b, b, relevance=relevance, rules=rules)
        torch.testing.assert_close(actual, relevance, **CLOSE)
    with pytest.raises(Unsupported, match="both carry relevance"):
        relevance_of(torch.div, a, b, relevance=relevance, rules=EPSILON_LRP)


def test_a_product_in_place_is_a_product():
    a, b, relevance = torch.randn(5), torch.rand(5) + 1, torch.randn(5)
    for operation in (lambda a, b: a.clone().mul_(b), lambda a, b: a.clone().div_(b)):
        for got in relevance_of(operation, a, b, relevance=relevance):
            torch.testing.assert_close(got, relevance / 2, **CLOSE)


def test_weights_that_are_normalised_in_place_are_a_quotient():
    """Routers of mixtures do so: w_i / Σw. Half goes to w_i, half to the sum, which shares it by Eq. 1."""
    w, relevance = torch.rand(4) + 1, torch.randn(4)

    def normalised(w):
        copy = w.clone()
        copy /= copy.sum()
        return copy

    (actual,) = relevance_of(normalised, w, relevance=relevance)
    torch.testing.assert_close(actual, relevance / 2 + relevance.sum() / 2 * w / w.sum(), **CLOSE)


def test_values_chosen_by_topk_carry_all_relevance():
    x, relevance = torch.tensor([3.0, -1.0, 5.0, 4.0]), torch.randn(2)
    (actual,) = relevance_of(lambda x: x.topk(2).values, x, relevance=relevance)
    torch.testing.assert_close(actual, torch.stack([*torch.zeros(2), *relevance]), **CLOSE)


@both_forms
def test_a_sum_with_a_product_of_data_is_a_product_and_a_sum(epsilon):
    bias, a, b, relevance = torch.randn(3, 2), torch.randn(3, 4), torch.randn(4, 2), torch.randn(3, 2)
    product = 2 * a @ b
    z = product + bias / 2
    at_product = relevance * product / (z + epsilon * z.sign())
    expected = oracles.bilinear(a, b, at_product, epsilon)

    def attention_logits(a, b):
        return torch.baddbmm(bias[None], a[None], b[None], beta=0.5, alpha=2)[0]

    for operation in (attention_logits, lambda a, b: torch.addmm(bias, a, b, beta=0.5, alpha=2)):
        for got, oracle in zip(
            relevance_of(operation, a, b, relevance=relevance, epsilon=epsilon), expected, strict=True
        ):
            torch.testing.assert_close(got, oracle, **CLOSE)


def test_logsumexp_has_the_softmax_as_its_gradient():
    x, relevance = torch.randn(5), torch.randn(1)
    exponentials = [math.exp(value) for value in x]
    shares = [value * e / sum(exponentials) for value, e in zip(x.tolist(), exponentials, strict=True)]
    (actual,) = relevance_of(lambda x: x.logsumexp(0, keepdim=True), x, relevance=relevance)
    torch.testing.assert_close(actual, torch.tensor(shares) * relevance / math.log(sum(exponentials)), **CLOSE)


def test_a_part_that_is_written_has_its_own_relevance():
    a, b, relevance = torch.randn(3, 2), torch.randn(3, 4), torch.randn(6, 3)

    def parts(a, b):
        whole = a.new_empty(3, 6)
        whole[:, :2].copy_(a)
        whole[:, 2:].copy_(b)
        return whole.T

    for got, expected in zip(relevance_of(parts, a, b, relevance=relevance), relevance.T.split([2, 4], 1), strict=True):
        torch.testing.assert_close(got, expected, **CLOSE)


def test_another_view_of_what_is_written_is_one_of_the_new_whole():
    """(2x₁, 2x₂, x₃), of which the last two are read."""
    x, relevance = torch.randn(3), torch.randn(2)

    def two_views(x):
        whole = x.clone()
        first, last = whole[:2], whole[1:]
        first.copy_(x[:2] * 2)
        return last * 2

    (actual,) = relevance_of(two_views, x, relevance=relevance)
    torch.testing.assert_close(actual, torch.cat([torch.zeros(1), relevance]), **CLOSE)


def test_complex_numbers_turn_relevance_as_their_matrix_does():
    """(a + bi)(c + di) with constant c + di is the matrix (c, −d; d, c)."""
    x, factor, relevance = torch.randn(2), torch.randn(2), torch.randn(2)
    c, d = factor
    turned = relevance_of(
        lambda x: torch.view_as_real(torch.view_as_complex(x) * torch.view_as_complex(factor)), x, relevance=relevance
    )
    matrix = torch.stack([torch.stack([c, d]), torch.stack([-d, c])])
    torch.testing.assert_close(turned[0], oracles.linear_map(x, matrix, torch.zeros(2), relevance, 0.0), **CLOSE)


@both_forms
def test_residual_sum_rule(epsilon):
    x, y, relevance = torch.randn(5), torch.randn(5), torch.randn(5)
    actual = relevance_of(torch.add, x, y, relevance=relevance, epsilon=epsilon)
    for got, expected in zip(actual, oracles.residual(x, y, relevance, epsilon), strict=True):
        torch.testing.assert_close(got, expected, **CLOSE)


@pytest.mark.parametrize("masking", ["none", "bool", "float", "causal"])
@pytest.mark.parametrize("rules", [ATTNLRP, CP_LRP], ids=["attnlrp", "cplrp"])
@pytest.mark.parametrize("batch", [(1, 2), (5,), ()], ids=["heads", "no heads", "no batch"])
def test_sdpa_has_the_relevance_of_eager_attention(rules, masking, batch):
    q, k, v = torch.randn(3, *batch, 4, 3)
    allowed = torch.ones(4, 4, dtype=torch.bool).tril()
    added = torch.zeros(4, 4).masked_fill(~allowed, -math.inf)
    arguments = {
        "none": {},
        "bool": {"attn_mask": allowed},
        "float": {"attn_mask": added},
        "causal": {"is_causal": True},
    }
    mask = torch.zeros(4, 4) if masking == "none" else added

    def eager(q, k, v):
        return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(3) + mask, -1) @ v

    def fused(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, **arguments[masking])

    relevance = torch.randn(*batch, 4, 3)
    for got, expected in zip(
        relevance_of(fused, q, k, v, relevance=relevance, rules=rules),
        relevance_of(eager, q, k, v, relevance=relevance, rules=rules),
        strict=True,
    ):
        torch.testing.assert_close(got, expected, **CLOSE)


class Cube(torch.autograd.Function):
    """x³; its products are hidden from torch functions."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 3 * x * x * gradient


SCALED_WEIGHT = nn.Parameter(torch.ones(3, dtype=torch.float64)) * 2


class Wrapped(nn.Module):
    """A model that applies one function, in a module with a name."""

    def __init__(self, function):
        super().__init__()
        self.inner = nn.Identity()
        self.inner.forward = function
        self.eval()

    def forward(self, x):
        return self.inner(x)


@pytest.mark.parametrize(
    ("operation", "named"),
    [
        (lambda x: torch.sin(x), "sin in inner"),
        (lambda x: x.sort(-1).values, "sort in inner"),
        (lambda x: torch.cumprod(x, -1), "cumprod in inner"),
        (lambda x: x.clone().pow_(2), "pow_ in inner"),
        (lambda x: F.dropout(x, 0.5, training=True), "dropout in inner.*model.eval"),
        (
            lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.1)[0],
            "scaled_dot_product.*eval",
        ),
        (lambda x: torch.einsum("bi,bi,bi->bi", x, x, x), "einsum in inner.*3 operands"),
        (lambda x: F.silu(x * 1, inplace=True), "silu in inner.*inplace=False"),
        (lambda x: F.layer_norm(x, (3,), x[0]), "layer_norm in inner.*both carry"),
        (lambda x: x * Cube.apply(x), "mul in inner.*CubeBackward.*hides its operations"),
        (lambda x: F.linear(Cube.apply(x), torch.eye(3)), "linear in inner.*CubeBackward.*hides its operations"),
        (lambda x: Cube.apply(x).flip(-1), "flip in inner.*CubeBackward.*hides its operations"),
        (lambda x: Cube.apply(x), "the output.*CubeBackward.*hides its operations"),
        (lambda x: torch.func.vmap(lambda row: row * row)(x), "hides its operations"),
        (lambda x: x * SCALED_WEIGHT, "detach the constant"),
        (lambda x: torch.sqrt(x * 0), "sqrt in inner.*slope at 0 is infinite"),
    ],
    ids=[
        *("sin", "sort", "cumprod", "in place", "dropout", "sdpa dropout", "einsum of three", "activation in place"),
        *(
            "carrying weight",
            "hidden operand",
            "hidden in a map",
            "hidden and moved",
            "hidden output",
            "vmap",
            "non-leaf constant",
            "infinite slope",
        ),
    ],
)
def test_an_operation_without_a_rule_is_named(operation, named):
    x = torch.randn(2, 3)
    case = Case(x, torch.zeros(2, dtype=torch.long), torch.zeros_like(x))
    with pytest.raises(Unsupported, match=named):
        AttnLRP().attribute(Wrapped(operation), case)


@pytest.mark.parametrize("rules", [ATTNLRP, CP_LRP, EPSILON_LRP], ids=["attnlrp", "cplrp", "epsilon_lrp"])
def test_a_rule_that_is_declared_as_the_plain_gradient_is_the_plain_gradient(rules):
    """One operation for each declared rule; attention weights with products of data only where a rule allows them."""
    w, bias, keys = torch.randn(3, 3), torch.randn(3), torch.randn(3, 3)

    def inner(x):
        y = F.linear(x, w, bias) + x.flip(-1)
        if "softmax" in rules:
            y = y * torch.softmax(y @ y.mT, -1).sum(-1, keepdim=True)
        return (y @ keys) * bias / 3 + y.mean(0)

    x = torch.randn(2, 3)
    case, called = Case(x, torch.zeros(2, dtype=torch.long), torch.zeros_like(x)), []
    counted = {name: lambda call, rule=rule: called.append(rule) or rule(call) for name, rule in rules.items()}
    maps = []
    for table, mode in ((rules, FastPropagation), (rules, Propagation), (counted, Propagation)):
        propagation, output = LRP("by a mode", table).propagate(Wrapped(inner), case, mode)
        maps.append(torch.autograd.grad(output.sum(), propagation.point)[0])
    assert torch.equal(maps[0], maps[1])
    assert torch.equal(maps[0], maps[2])
    plain = {RuleTrait.PLAIN_GRADIENT, RuleTrait.PLAIN_GRADIENT_OF_ONE_OPERAND}
    assert len({rule for rule in called if traits_of(rule) & plain}) >= 4, "the model meets the declared rules"


@pytest.mark.parametrize("tokens", [4, 40])
def test_products_larger_than_their_operands_are_halved_alike(tokens):
    x = torch.randn(1, tokens, 3)
    case = Case(x, torch.zeros(1, dtype=torch.long), torch.zeros_like(x))
    gradients = []
    for mode in (FastPropagation, Propagation):
        propagation, output = LRP("by a mode", ATTNLRP).propagate(
            Wrapped(lambda x: (torch.softmax(x @ x.mT, -1) @ x)[:, 0]), case, mode
        )
        gradients.append(torch.autograd.grad(output.sum(), propagation.point)[0])
    torch.testing.assert_close(*gradients, **CLOSE)


def test_epsilon_lrp_refuses_attention():
    x = torch.randn(2, 3)
    case = Case(x, torch.zeros(2, dtype=torch.long), torch.zeros_like(x))
    with pytest.raises(Unsupported, match=r"softmax in inner .*no rule"):
        EpsilonLRP().attribute(Wrapped(lambda x: torch.softmax(x, -1)), case)
    with pytest.raises(Unsupported, match=r"mul in inner .*no rule for a product"):
        EpsilonLRP().attribute(Wrapped(lambda x: x * x), case)


def test_a_module_that_the_model_does_not_list_is_treated_as_one_operation():
    """Some models make the activation anew in each forward pass."""
    x = torch.randn(2, 3)
    case = Case(x, torch.zeros(2, dtype=torch.long), torch.zeros_like(x))
    listed = nn.Sequential(NewGELUActivation())
    expected = AttnLRP().attribute(listed, case)
    torch.testing.assert_close(AttnLRP().attribute(Wrapped(lambda x: NewGELUActivation()(x)), case), expected, **CLOSE)
    by_operations = LRP("by operations", {name: rule for name, rule in ATTNLRP.items() if name[0].islower()})
    assert (by_operations.attribute(listed, case) - expected).abs().max() > 0.01
    assert not _global_forward_hooks
    assert not _global_forward_pre_hooks


class ScaledByActivatedWeight(nn.Module):
    """x ⊙ gelu(w), with a module that has a rule."""

    def __init__(self):
        super().__init__()
        self.weight, self.activation = nn.Parameter(torch.linspace(1, 2, 3)), NewGELUActivation()

    def forward(self, x):
        return x * self.activation(self.weight)


def test_a_module_with_a_rule_that_reads_a_weight_gives_a_constant():
    """As an operation does, whether the weight requires a gradient or not."""
    x, model = torch.randn(2, 3), ScaledByActivatedWeight()
    case = Case(x, torch.zeros(2, dtype=torch.long), torch.zeros_like(x))
    attribution = AttnLRP().attribute(model, case)
    assert torch.equal(attribution, AttnLRP().attribute(model.requires_grad_(False), case))


def test_an_operation_without_relevance_needs_no_rule():
    x = torch.randn(2, 3)
    case = Case(x, torch.zeros(2, dtype=torch.long), torch.zeros_like(x))
    scale = torch.sin(torch.ones(3))
    model = Wrapped(lambda x: x * torch.sin(torch.ones(3)))
    expected = torch.zeros(2, 3)
    expected[:, 0] = x[:, 0] * scale[0]
    torch.testing.assert_close(AttnLRP(epsilon=0).attribute(model, case), expected, **CLOSE)


def test_an_output_without_relevance_is_an_error():
    x = torch.randn(2, 3)
    case = Case(x, torch.zeros(2, dtype=torch.long), torch.zeros_like(x))
    with pytest.raises(Unsupported, match="no relevance reaches the inputs"):
        CPLRP().attribute(Wrapped(lambda x: torch.softmax(x, -1)), case)


def test_epsilon_is_not_negative():
    with pytest.raises(ValueError, match="at least 0"):
        AttnLRP(epsilon=-1e-6)


@pytest.mark.parametrize("epsilon", [1e-6, 1e-3])
def test_the_stabiliser_is_signed(epsilon):
    """At z = −ε the denominator z + ε is zero; z + ε·sign z is −2ε, and halves the relevance."""
    x, relevance = torch.tensor([-epsilon]), torch.tensor([1.0])
    (actual,) = relevance_of(lambda x: F.linear(x, torch.ones(1, 1)), x, relevance=relevance, epsilon=epsilon)
    torch.testing.assert_close(actual, torch.tensor([0.5]), **CLOSE)
