"""Pairs that write a function out: their closed forms against slow oracles in relevance; a broken rule turns red."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from faithcheck.check import Check
from faithcheck.explainers.gradients import GradientTimesInput
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.explainers.lrp.attnlrp import AttnLRP
from faithcheck.explainers.lrp.cplrp import CPLRP
from faithcheck.explainers.lrp.modified_gradient import modified
from faithcheck.explainers.lrp.rules.products import bilinear_rule
from faithcheck.explainers.lrp.rules.rearrangements import gradient_rule
from faithcheck.explainers.registry import builtin_explainers
from faithcheck.models import Case, registered_pairs
from faithcheck.models.case import output_difference
from faithcheck.models.networks.hidden_layer import HiddenLayer
from faithcheck.models.networks.linear_attention import (
    LinearAttention,
    LinearAttentionBlock,
    association_gap,
    loo_excess,
)
from faithcheck.models.pairs import gated, norm, softmax
from faithcheck.request import Settings
from faithcheck.tests.helpers import oracles

CPU = torch.device("cpu")
SEED = 1
FAMILIES = (
    *("activation.", "degree.", "experts.", "gated.", "kernel_attention.", "linear_recurrence.", "log_probability."),
    *("log_sum_exp.", "norm.", "online_softmax.", "recurrence.", "rollout.", "softmax.", "linear_attention.bert_sized"),
)
PAIRS = {name: pair for name, pair in registered_pairs().items() if name.startswith(FAMILIES)}
EXPECTATIONS = [
    (name, explainer) for name, pair in PAIRS.items() for axiom, explainer in pair.expected if axiom == "invariance"
]
VIOLATED = [key for key in EXPECTATIONS if PAIRS[key[0]].expected["invariance", key[1]].verdict == "VIOLATES"]


def record_of(name, explainer):
    return Check("invariance", explainer, PAIRS[name]).run(Settings(seed=SEED))


def assert_close(computed, wanted, tolerance=1e-12):
    assert wanted.abs().max() > 1e-3
    assert (computed - wanted).abs().max() <= tolerance * wanted.abs().max()


def built(name):
    pair = PAIRS[name]
    f, g = pair.build(SEED, torch.float64, CPU)
    return f, g, pair.case(SEED, torch.float64, CPU)


def predicted(name, explainer="attnlrp"):
    f, g, case = built(name)
    return PAIRS[name].expected["invariance", explainer].predict(f, g, case)


# Every expectation holds, and can turn red.


@pytest.mark.parametrize("name", PAIRS)
def test_building_keeps_the_random_state(name):
    state = torch.get_rng_state()
    built(name)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("name", "explainer"), VIOLATED)
def test_a_violation_that_vanishes_or_has_another_size_is_red(name, explainer):
    expected = PAIRS[name].expected["invariance", explainer]
    invariant = GradientTimesInput(name=explainer)
    assert record_of(name, invariant).status == "violation vanished"

    def slightly_off(f, g, case):
        return expected.predict(f, g, case) * 1.001

    off = {("invariance", explainer): replace(expected, predict=slightly_off)}
    check = Check("invariance", builtin_explainers()[explainer], replace(PAIRS[name], expected=off))
    assert check.run(Settings(seed=SEED)).status == "inconclusive"


def cubed(call):
    """A broken rule of the square: the modified gradient is multiplied by x³ in place of x."""
    x = call.args[0]
    return modified(x, call.value(), lambda gradient: gradient * x.detach() ** 3)


@pytest.mark.parametrize(
    ("name", "method", "broken", "status"),
    [
        ("activation.gelu_ndtr", AttnLRP(), {"special_ndtr": gradient_rule}, "broken claim"),
        ("activation.gelu_ndtr", AttnLRP(), {"special_ndtr": None}, "error"),
        ("activation.gelu_new_class", AttnLRP(), {"NewGELUActivation": None}, "broken claim"),
        ("activation.gelu_new_class", CPLRP(), {"gelu": gradient_rule}, "broken claim"),
        ("activation.gelu_erf", AttnLRP(), {"mul": gradient_rule}, "inconclusive"),
        ("activation.sigmoid_tanh", AttnLRP(), {"tanh": gradient_rule}, "inconclusive"),
        ("gated.silu", CPLRP(), {"sigmoid": gradient_rule}, "broken claim"),
        ("gated.swiglu", AttnLRP(), {"silu": gradient_rule}, "broken claim"),
        ("gated.unit", AttnLRP(), {"mul": gradient_rule}, "violation vanished"),
        ("softmax.exp_divide", AttnLRP(), {"exp": gradient_rule}, "inconclusive"),
        ("softmax.exp_divide", CPLRP(), {"matmul": bilinear_rule}, "broken claim"),
        ("softmax.mixture", CPLRP(), {"softmax": gradient_rule}, "inconclusive"),
        ("norm.layer_norm", AttnLRP(), {"sqrt": gradient_rule}, "inconclusive"),
        ("norm.two_variances", AttnLRP(), {"square": cubed}, "broken claim"),
        ("linear_attention.bert_sized", AttnLRP(), {"matmul": gradient_rule}, "violation vanished"),
        ("linear_attention.bert_sized", CPLRP(), {"matmul": bilinear_rule}, "broken claim"),
    ],
)
def test_a_broken_rule_is_red(name, method, broken, status):
    rules = {key: rule for key, rule in {**method.rules, **broken}.items() if rule is not None}
    assert record_of(name, replace(method, rules=rules)).status == status


# Activations and gates, one operation at a time, in relevance.


def into(layer, x, relevance):
    """Relevance of a linear layer's output to its input, by Eq. 1."""
    return oracles.linear_map(x, layer.weight.T, layer.bias, relevance, 0.0)


def gelu(z, relevance, inner):
    """½z·(1 + t), where t gets its relevance from z alone."""
    to_half, to_factor = oracles.product_of(z / 2, 1 + inner, relevance, 0.0)
    _, to_inner = oracles.residual(torch.ones_like(z), inner, to_factor, 0.0)
    return to_half + to_inner


def gelu_erf(z, relevance):
    return gelu(z, relevance, torch.erf(z / math.sqrt(2)))


def gelu_tanh(z, relevance):
    return gelu(z, relevance, torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))


def sigmoid_tanh(z, relevance):
    return oracles.residual(torch.full_like(z, 0.5), torch.tanh(z / 2) / 2, relevance, 0.0)[1]


def softplus(z, relevance):
    return oracles.residual(torch.ones_like(z), torch.exp(z), relevance, 0.0)[1]


@pytest.mark.parametrize(
    ("name", "written_out"),
    [
        ("activation.gelu_erf", gelu_erf),
        ("activation.gelu_tanh", gelu_tanh),
        ("activation.gelu_new_name", gelu_tanh),
        ("activation.sigmoid_tanh", sigmoid_tanh),
        ("activation.softplus_log_exp", softplus),
    ],
)
def test_the_relevance_that_an_added_constant_keeps(name, written_out):
    f, _, case = built(name)
    gaps = []
    with torch.no_grad():
        for x, target in zip(case.inputs, case.target, strict=True):
            z = f.hidden(x)
            seed = f.head(f.middle(z)) * (torch.arange(3) == target)
            relevance = into(f.head, f.middle(z), seed)
            gaps.append(into(f.hidden, x, relevance) - into(f.hidden, x, written_out(z, relevance)))
    assert_close(predicted(name), torch.stack(gaps))


def test_a_quarter_of_a_gelu_at_a_point():
    """W = 1, b = 0, V = 4 at x = 2: GELU by its formula gives 4·(2Φ(2) − ½), which is 2 less than GELU itself."""
    f = HiddenLayer(nn.functional.gelu).double()
    with torch.no_grad():
        for parameter in f.parameters():
            parameter.zero_()
        f.hidden.weight[0, 0], f.head.weight[1, 0] = 1.0, 4.0
    x = torch.tensor([[2.0, *[0.0] * 7]], dtype=torch.float64)
    case = Case(x, torch.tensor([1]), torch.zeros_like(x))
    expected = PAIRS["activation.gelu_erf"].expected["invariance", "attnlrp"]
    assert expected.predict(f, f, case).tolist() == [[2.0, *[0.0] * 7]]


def test_a_gated_unit_at_a_point():
    """At g = log 3, σ(g) = ¾, and u = 4: y = 3 log 3, of which g gets ¾ against ½."""
    f = gated.GatedUnit(gated.sigmoid_with_input_first).double()
    with torch.no_grad():
        f.head.weight.fill_(1.0)
    x = torch.tensor([[math.log(3), 0, 0, 0, 4, 1, 1, 1]], dtype=torch.float64)
    case = Case(x, torch.tensor([2]), torch.zeros_like(x))
    quarter = 3 * math.log(3) / 4
    wanted = torch.tensor([[quarter, 0, 0, 0, -quarter, 0, 0, 0]], dtype=torch.float64)
    assert_close(gated.gap_at_gates_and_inputs(f, f, case), wanted)
    attribution = AttnLRP().attribute(f, case)
    assert attribution[0, [0, 4]].tolist() == pytest.approx([3 * quarter, quarter])


def gate_last(g, u, relevance):
    to_gate, to_product = oracles.product_of(g, torch.sigmoid(g) * u, relevance, 0.0)
    to_sigmoid, to_up = oracles.product_of(torch.sigmoid(g), u, to_product, 0.0)
    return to_gate + oracles.activation(g, to_sigmoid), to_up


def silu_first(g, u, relevance):
    to_silu, to_up = oracles.product_of(nn.functional.silu(g), u, relevance, 0.0)
    return oracles.activation(g, to_silu), to_up


@torch.no_grad()
def test_swiglu_reassociated_equals_the_oracle():
    f, _, case = built("gated.swiglu_reassociated")
    gaps = []
    for x, target in zip(case.inputs, case.target, strict=True):
        g, u = f.gate_proj(x), f.up_proj(x)
        unit = nn.functional.silu(g) * u
        seed = f.down_proj(unit) * (torch.arange(8) == target)
        relevance = oracles.linear_map(unit, f.down_proj.weight.T, torch.zeros(8), seed, 0.0)
        maps = []
        for rule in (silu_first, gate_last):
            to_gate, to_up = rule(g, u, relevance)
            maps.append(
                oracles.linear_map(x, f.gate_proj.weight.T, torch.zeros(12), to_gate, 0.0)
                + oracles.linear_map(x, f.up_proj.weight.T, torch.zeros(12), to_up, 0.0)
            )
        gaps.append(maps[0] - maps[1])
    assert_close(predicted("gated.swiglu_reassociated"), torch.stack(gaps))


# Softmax.


def softmax_written_out(z, relevance):
    """A = e · (1/s), in relevance: half to e_k; half of all to 1/s, to s unchanged, and to e_k by its share of s."""
    exponentials = [math.exp(float(value)) for value in z]
    total, result = sum(exponentials), torch.zeros_like(z)
    for k, exponential in enumerate(exponentials):
        result[k] = float(relevance[k]) / 2 + exponential / total * float(relevance.sum()) / 2
    return result


def through_head(model, tokens, target, rule):
    """AttnLRP of a head, by Eqs. 1 and 3–5 in relevance; ``rule`` takes a row's logits and the weights' relevance."""
    q, k, v = model.query(tokens), model.key(tokens), model.value(tokens)
    z = q @ k.T / math.sqrt(8)
    weights = z.softmax(-1)
    output = weights @ v
    logits = model.head(output.mean(0))
    to_mean = into(model.head, output.mean(0), logits * (torch.arange(2) == target))
    to_output = output / len(tokens) / output.mean(0) * to_mean
    to_weights, to_v = oracles.bilinear(weights, v, to_output, 0.0)
    to_z = torch.stack([rule(*row) for row in zip(z, to_weights, strict=True)])
    to_q, to_k = oracles.bilinear(q, k.T, to_z, 0.0)
    parts = ((model.query, to_q), (model.key, to_k.T), (model.value, to_v))
    rows = range(len(tokens))
    return torch.stack([sum(into(layer, tokens[i], part[i]).sum() for layer, part in parts) for i in rows])


@torch.no_grad()
def test_a_head_with_its_softmax_written_out_equals_the_oracle():
    f, g, case = built("softmax.exp_divide")
    case = case.select(torch.tensor([0, 1]))
    gaps = [
        through_head(f, tokens, target, oracles.softmax) - through_head(f, tokens, target, softmax_written_out)
        for tokens, target in zip(case.inputs, case.target, strict=True)
    ]
    assert_close(
        softmax.head_gap(f, g, case), torch.stack(gaps), 1e-10
    )  # relevance divides by outputs and logits near 0


def gradients_step_by_step(z, at_weights, shift):
    """The modified gradients of exp and divide at one row of logits, a number at a time.

    ``shift`` is ``none``, or the largest logit is subtracted: ``detached``, or ``attached`` to relevance.
    """
    keys, largest = range(len(z)), max(z)
    t = [value - (0.0 if shift == "none" else largest) for value in z]
    e = [math.exp(value) for value in t]
    s = sum(e)
    at_reciprocal = sum(at_weights[j] * e[j] / 2 for j in keys)
    at_sum = at_reciprocal * (1 / s) / s  # f(s)/s of the reciprocal
    at_e = [at_weights[k] / s / 2 + at_sum for k in keys]
    at_t = [at_e[k] * (e[k] / t[k] if t[k] else 0.0) for k in keys]  # exp(0) absorbs, as at every ε > 0
    subtracted = sum(at_t) if shift == "attached" else 0.0
    return [at_t[k] - (subtracted if z[k] == largest else 0.0) for k in keys]


@pytest.mark.parametrize(
    ("form", "shift"),
    [(softmax.exp_divide, "none"), (softmax.stable_detached, "detached"), (softmax.stable_attached, "attached")],
)
def test_the_softmax_step_by_step(form, shift):
    z, at_weights = torch.randn(2, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(SEED))
    weights = z.softmax(-1)
    eq5 = weights * (at_weights - (weights * at_weights).sum(1, keepdim=True))
    rows = zip(z.tolist(), at_weights.tolist(), strict=True)
    written_out = torch.tensor([gradients_step_by_step(*row, shift) for row in rows], dtype=torch.float64)
    assert_close(softmax.gradient_gap(form, z, at_weights), eq5 - written_out)


def test_two_equal_logits_at_a_point():
    """z = (2, 2) and G = (4, 0): Eq. 5 gives (1, −1), that is z·(1, −1) = (2, −2); written out (¾, ¼), z·… = 2 = Ḡ."""
    z, at_weights = torch.tensor([[2.0, 2.0]]), torch.tensor([[4.0, 0.0]])
    assert softmax.gradient_gap(softmax.exp_divide, z, at_weights).tolist() == [[1 - 0.75, -1 - 0.25]]
    assert softmax_written_out(z[0], torch.tensor([2.0, 0.0])).tolist() == pytest.approx([1.5, 0.5])


@torch.no_grad()
@pytest.mark.parametrize("explainer", ["attnlrp", "cplrp"])
def test_a_mixture_of_experts_equals_the_oracle(explainer):
    f, _, case = built("softmax.mixture")
    gaps = []
    for x, target in zip(case.inputs, case.target, strict=True):
        z, experts = f.gate(x), f.experts(x).unflatten(0, (4, 3))[:, target]
        weights = z.softmax(-1)
        relevance = weights * experts  # of each product; their sum is the output
        to_weights, to_experts = oracles.product_of(weights, experts, relevance, 0.0)
        to_f = {"attnlrp": (oracles.softmax(z, to_weights), to_experts), "cplrp": (torch.zeros(4), relevance)}
        to_g = (softmax_written_out(z, to_weights), to_experts)
        maps = []
        for to_z, to_outputs in (to_f[explainer], to_g):
            spread = torch.zeros(4, 3).double()
            spread[:, target] = to_outputs
            maps.append(into(f.gate, x, to_z) + into(f.experts, x, spread.flatten()))
        gaps.append(maps[0] - maps[1])
    assert_close(predicted("softmax.mixture", explainer), torch.stack(gaps), 1e-10)


# Norms.


def norm_written_out(c, eps, relevance):
    """c/σ in relevance: half stays with c_j, half of all goes through 1/σ, of which eps keeps its share."""
    squares = [float(value) ** 2 for value in c]
    variance = sum(squares) / len(c)
    through_sigma = float(relevance.sum()) / 2 * variance / (variance + eps)
    return c.new_tensor(
        [float(r) / 2 + through_sigma * s / sum(squares) for r, s in zip(relevance, squares, strict=True)]
    )


@torch.no_grad()
@pytest.mark.parametrize("eps", [1e-5, 0.5])
def test_a_layer_norm_equals_the_oracle(eps):
    f, g, case = built("norm.layer_norm")
    f.middle.eps = g.middle.eps = eps
    centring = torch.eye(6).double() - 1 / 6
    gaps = []
    for x, target in zip(case.inputs, case.target, strict=True):
        z = f.hidden(x)
        y, c = f.middle(z), z - z.mean()
        relevance = into(f.head, y, f.head(y) * (torch.arange(3) == target))
        at_once = oracles.layer_norm(z, f.middle.weight, f.middle.bias, eps, relevance, 0.0)
        to_scaled, _ = oracles.residual(y - f.middle.bias, f.middle.bias, relevance, 0.0)
        by_hand = oracles.linear_map(z, centring, torch.zeros(6), norm_written_out(c, eps, to_scaled), 0.0)
        gaps.append(into(f.hidden, x, at_once) - into(f.hidden, x, by_hand))
    assert_close(norm.half_the_gradient(f, g, case), torch.stack(gaps), 1e-10)


@torch.no_grad()
def test_an_rms_norm_equals_the_oracle():
    f, g, case = built("norm.rms_norm")
    gamma = norm.layer_norm(SEED, torch.float64, CPU).weight
    gaps = []
    for x, target in zip(case.inputs, case.target, strict=True):
        z = f.hidden(x)
        y = f.middle(z)
        relevance = into(f.head, y, f.head(y) * (torch.arange(3) == target))
        at_once = oracles.rms_norm(z, gamma, 1e-6, relevance, 0.0)
        gaps.append(into(f.hidden, x, at_once) - into(f.hidden, x, norm_written_out(z, 1e-6, relevance)))
    assert_close(norm.half_the_gradient(f, g, case), torch.stack(gaps), 1e-10)


def test_a_norm_breaks_because_sigma_is_data():
    """With σ detached, the norm by hand gets the map of nn.LayerNorm, but then its plain gradient differs."""
    f, g, case = built("norm.layer_norm")
    by_hand = norm.LayerNormByHand(f.middle, lambda z: norm.centred_variance(z).detach())
    detached = HiddenLayer(by_hand).double()
    detached.hidden, detached.head = f.hidden, f.head
    for method in (AttnLRP(), CPLRP()):
        assert_close(method.attribute(detached, case), method.attribute(f, case))
    gradient_times_input = GradientTimesInput()
    assert (gradient_times_input.attribute(detached, case) - gradient_times_input.attribute(g, case)).abs().max() > 0.01


# Linear attention.


@torch.no_grad()
def test_a_block_of_two_heads_equals_the_oracle():
    torch.manual_seed(SEED)
    left = LinearAttentionBlock("left", width=6, heads=2).double().eval()
    right = LinearAttentionBlock("right", width=6, heads=2).double().eval()
    right.load_state_dict(left.state_dict())
    tokens = torch.randn(1, 3, 6).double()
    case = Case(tokens, torch.tensor([1]), torch.zeros_like(tokens))
    maps = []
    x = tokens[0]
    q, k, v = (layer(x).unflatten(1, (2, 3)) for layer in (left.query, left.key, left.value))
    attended = torch.stack([q[:, h] @ k[:, h].T @ v[:, h] for h in range(2)], 1) / 3
    added = left.output(attended.flatten(1))
    output = (x + added).mean(0)
    to_mean = into(left.head, output, left.head(output) * torch.tensor([0.0, 1.0]))
    to_added = added / 3 / output * to_mean
    to_attended = torch.stack([into(left.output, attended[i].flatten(), to_added[i]) for i in range(3)])
    to_attended = to_attended.unflatten(1, (2, 3))
    for order in ("left", "right"):
        to_q, to_k, to_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for h in range(2):
            relevance = to_attended[:, h]
            if order == "left":
                to_scores, to_v[:, h] = oracles.bilinear(q[:, h] @ k[:, h].T, v[:, h], relevance, 0.0)
                to_q[:, h], to_transposed = oracles.bilinear(q[:, h], k[:, h].T, to_scores, 0.0)
            else:
                to_q[:, h], to_state = oracles.bilinear(q[:, h], k[:, h].T @ v[:, h], relevance, 0.0)
                to_transposed, to_v[:, h] = oracles.bilinear(k[:, h].T, v[:, h], to_state, 0.0)
            to_k[:, h] = to_transposed.T
        parts = ((left.query, to_q), (left.key, to_k), (left.value, to_v))
        maps.append(sum(into_tokens(layer, x, part.flatten(1)) for layer, part in parts))
    assert_close(association_gap(left, right, case)[0], maps[0] - maps[1], 1e-10)


def into_tokens(layer, tokens, relevance):
    return torch.stack([into(layer, x, r).sum() for x, r in zip(tokens, relevance, strict=True)])


@torch.no_grad()
def test_the_paths_of_a_block_and_its_residual_sum_to_its_output():
    torch.manual_seed(SEED)
    block = LinearAttentionBlock("right", width=6, heads=2).double().eval()
    tokens = torch.randn(2, 3, 6).double()
    residual = tokens.mean(1) @ block.head.weight.T
    assert_close(block.forward_paths(tokens, tokens, tokens) + residual, block(tokens))


@torch.no_grad()
def test_the_excess_of_leave_one_out_in_linear_attention():
    torch.manual_seed(SEED)
    model = LinearAttention("left", pixels=5, width=3).double().eval()
    inputs = torch.rand(3, 5).double()
    case = Case(inputs, torch.tensor([0, 4, 9]), torch.zeros_like(inputs))
    wanted = LeaveOneOut().attribute(model, case).sum(1) - output_difference(model, case)
    assert_close(loo_excess(model, case), wanted)


def test_the_excess_of_leave_one_out_at_a_point():
    """Width 1, all weights 1, positions 0: f = Σx Σx²/n², so at (1, 2) f = 15/4 and LOO (7, 14)/4 exceeds it by 6/4."""
    model = LinearAttention("right", pixels=2, width=1).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
        model.position.zero_()
    x = torch.tensor([[1.0, 2.0]]).double()
    case = Case(x, torch.tensor([3]), torch.zeros_like(x))
    assert model(x)[0, 3].item() == 15 / 4
    assert loo_excess(model, case).tolist() == [6 / 4]
