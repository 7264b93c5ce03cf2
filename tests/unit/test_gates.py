"""The mask gates against closed forms and slow oracles on unmodified models, with checks that the tests can fail."""

import copy
import gc
import weakref
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from faithcheck.explainers import LeaveOneOut, Unsupported
from faithcheck.explainers.gates import attention_gates, gate, gate_effects
from faithcheck.explainers.gates.attention_gates import GatedAttention, attention_gate_effects, output_without
from faithcheck.explainers.gates.finite_mask_gate import FiniteMaskGate
from faithcheck.explainers.gates.grouped_mask_gate import GroupedMaskGate, assign_groups
from faithcheck.explainers.gates.mask_gate import MaskGate
from faithcheck.explainers.loo.removal import AttentionMask, Replacement
from faithcheck.explainers.protocol import attribution_of, checked_attribution, input_gradient
from faithcheck.models import Case, select_target
from faithcheck.tests.helpers import hidden_keys
from faithcheck.tests.helpers.attention_models import (
    DECODERS,
    LENGTHS,
    TEXT_MODELS,
    OneLayer,
    PyTorchEncoder,
    case_of,
    embedding_model,
    readout_rows,
    single_example,
    tokens,
    with_other_baseline,
)
from faithcheck.tests.helpers.model_state import assert_same_state, state_of

GATES = (MaskGate("attention_mask"), FiniteMaskGate("attention_mask"), GroupedMaskGate(2, "attention_mask"))
# Round-off of two layers in float64, of outputs of about 1.
EXACT = {"rtol": 1e-10, "atol": 1e-12}

every_gate = pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.name)
every_text = pytest.mark.parametrize("name", TEXT_MODELS)


def without_own_row(changes, read):
    """Sum changes ``(layers, batch, features, queries)``, a token's own row only if it is the readout row."""
    batch, features, queries = changes.shape[1:]
    total = torch.zeros(batch, features, dtype=torch.float64)
    for b in range(batch):
        for i in range(features):
            own = queries - features + i
            for j in range(queries):
                if j != own or read[b, j]:
                    total[b, i] += changes[:, b, i, j].sum()
    return total


# --- the oracle ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*TEXT_MODELS, "vit"])
def test_the_oracle_removes_keys_as_an_attention_mask_does(name):
    model, case = embedding_model(name), case_of(name)
    loo = hidden_keys.leave_one_out(model, case)
    assert loo.abs().max() > 1e-2, "Leave-One-Out is almost 0 everywhere: the tests below would prove nothing"
    if name in TEXT_MODELS:
        torch.testing.assert_close(loo, LeaveOneOut(AttentionMask()).attribute(model, case), **EXACT)
    with torch.no_grad():
        plain = select_target(case.run(model), case.target)
        opened = hidden_keys.gated(model, case, torch.ones(case.shape, dtype=torch.float64))
    torch.testing.assert_close(opened, plain, **EXACT)


# --- the gate at 1 ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", [*TEXT_MODELS, "vit"])
def test_mask_gate_is_the_derivative_at_open_gates(name, side, implementation):
    case = case_of(name, side)
    attribution = checked_attribution(
        MaskGate("attention_mask").attribute(embedding_model(name, implementation), case), case
    )
    expected = hidden_keys.derivatives(embedding_model(name), case)
    torch.testing.assert_close(attribution, expected * case.unpadded, **EXACT)
    assert expected.abs().max() > 1e-2
    assert (attribution[~case.unpadded] == 0).all()


# --- the finite gate -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", [*TEXT_MODELS, "vit"])
def test_finite_gate_is_the_change_of_each_row_without_the_key(name, implementation):
    case = case_of(name)
    attribution = FiniteMaskGate("attention_mask").attribute(embedding_model(name, implementation), case)
    changes, _ = hidden_keys.finite_changes(embedding_model(name), case)
    read = readout_rows(case, changes.shape[-1])
    expected = without_own_row(changes, read)
    torch.testing.assert_close(attribution, expected, **EXACT)
    # Both parts of the rule matter here: own rows are left out, but not that of the readout token.
    for wrong in (torch.ones_like(read), torch.zeros_like(read)):
        if name != "vit" or wrong.all():  # in a ViT no feature is the readout token
            assert (without_own_row(changes, wrong) - expected).abs().max() > 1e-3


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("read", [0, 3, None], ids=["first", "fourth", "mean"])
def test_gates_of_one_layer_by_hand(read, heads):
    """A_ji (V_i − O_j), over 1 − A_ji for the finite gate, times the head, summed over heads and the rows read."""
    model, case = OneLayer(read, heads=heads), tokens()
    weights, values = model.attention(case.inputs)
    outputs = weights @ values
    rows = range(5) if read is None else [read]
    derivative, change = torch.zeros(2, *case.shape, dtype=torch.float64)
    for b in range(2):
        for i in range(5):
            for j in rows:
                for h in range(heads):
                    a = weights[b, h, j, i]
                    direction = model.head[3 * h : 3 * h + 3, case.target[b]].detach() / len(rows)
                    move = a * (values[b, h, i] - outputs[b, h, j]) @ direction
                    derivative[b, i] += move
                    change[b, i] += move / (1 - a)
    torch.testing.assert_close(MaskGate().attribute(model, case), derivative, **EXACT)
    torch.testing.assert_close(FiniteMaskGate().attribute(model, case), change, **EXACT)
    assert (derivative - change).abs().max() > 1e-2


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("read", [0, 4, None], ids=["first", "last", "mean"])
def test_the_finite_gate_of_one_layer_before_a_linear_map_is_leave_one_out(read, heads):
    model, case = OneLayer(read, heads=heads), tokens()
    loo = LeaveOneOut(AttentionMask()).attribute(model, case)
    nearly = {"rtol": 1e-8, "atol": 1e-10}  # a row here has 1 − A = 5e-6, which loses five digits
    torch.testing.assert_close(FiniteMaskGate().attribute(model, case), loo, **nearly)
    torch.testing.assert_close(GroupedMaskGate(3).attribute(model, case), loo, **nearly)
    special = (
        torch.arange(5).expand(2, -1) < 2
    )  # f is linear and each group has one feature, so f(x) is guessed exactly
    torch.testing.assert_close(
        GroupedMaskGate(3).attribute(model, replace(case, special_tokens_mask=special)), loo, **nearly
    )
    assert (MaskGate().attribute(model, case) - loo).abs().max() > 1e-2
    assert (FiniteMaskGate().attribute(OneLayer(read, 2, heads), case) - loo).abs().max() > 1e-2


def observed_readout_rows(model, case):
    """The readout rows by `GatedAttention`."""
    with GatedAttention(case) as attention:
        output = select_target(case.run(model), case.target)
    attention.effects(output, "finite")
    return attention.readout_rows


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", [*TEXT_MODELS, "vit"])
def test_readout_rows_of_whole_models(name, side):
    case = case_of(name, side)
    read = observed_readout_rows(embedding_model(name), case)
    assert torch.equal(read, readout_rows(case, read.shape[1]))


# --- the grouped gate ------------------------------------------------------------------------------------------------


def test_features_are_assigned_to_groups_in_turn():
    features = torch.tensor([[0, 1, 1, 0, 1, 1, 1, 0], [1, 1, 0, 0, 0, 0, 0, 0]]).bool()
    expected = [[-1, 0, 1, -1, 2, 0, 1, -1], [0, 1, -1, -1, -1, -1, -1, -1]]
    assert assign_groups(features, 3).tolist() == expected


def grouped(model, case, groups, long=False):
    """The grouped gate by the oracle: 0.6 φ(½) + 0.4 φ(0), and special features exactly up to the guess of f(x).

    φ(0) is the mean over the passes of the other groups. f(x) is guessed as the mean over groups g of f with g halfway
    plus ½ Σ_{i in g} ½ (φ_i(½) + φ_i(0)). In long texts special features get φ(0), in the mean over all groups.
    """
    ordinary = case.unpadded & ~case.special_tokens_mask
    halfway = torch.zeros(groups, *case.shape, dtype=torch.bool)
    for b in range(len(ordinary)):
        for number, i in enumerate(ordinary[b].nonzero().flatten().tolist()):
            halfway[number % groups, b, i] = True
    rows, outputs = [], []
    for group in halfway:
        changes, output = hidden_keys.finite_changes(model, case, group)
        rows.append(without_own_row(changes, readout_rows(case, changes.shape[-1])))
        outputs.append(output)
    changes = torch.stack(rows)
    own, others = (changes * halfway).sum(0), (changes * ~halfway).sum(0) / (groups - 1)
    whole = torch.stack([y + ((own + others) * group / 4).sum(1) for y, group in zip(outputs, halfway, strict=True)])
    with torch.no_grad():
        guessed = whole.mean(0) - select_target(case.run(model), case.target)
    exact = hidden_keys.leave_one_out(model, case) + guessed.unsqueeze(1)
    return torch.where(ordinary, 0.6 * own + 0.4 * others, changes.mean(0) if long else exact) * case.unpadded


@pytest.mark.parametrize(("groups", "special"), [(2, True), (4, True), (2, False)])
@pytest.mark.parametrize("name", [*TEXT_MODELS, "vit"])
def test_grouped_gate_has_one_group_halfway_at_a_time(name, groups, special):
    model, case = embedding_model(name), case_of(name)
    case = case if special else replace(case, special_tokens_mask=~case.unpadded)
    expected = grouped(model, case, groups)
    for implementation in ("eager", "sdpa"):
        attribution = GroupedMaskGate(groups, "attention_mask").attribute(embedding_model(name, implementation), case)
        torch.testing.assert_close(attribution, expected, **EXACT)
    assert (FiniteMaskGate("attention_mask").attribute(model, case) - expected).abs().max() > 1e-3


@pytest.mark.parametrize("name", TEXT_MODELS)
def test_grouped_gate_runs_no_pass_for_special_features_of_long_texts(name, monkeypatch):
    model, case = embedding_model(name), case_of(name)
    monkeypatch.setattr(gate, "LONG_TEXT", max(LENGTHS))
    long = case.unpadded.sum(1, keepdim=True) == max(LENGTHS)
    assert 0 < long.sum() < len(long)
    expected = torch.where(long, grouped(model, case, 4, long=True), grouped(model, case, 4))
    torch.testing.assert_close(GroupedMaskGate(4).attribute(model, case), expected, **EXACT)
    assert (expected - grouped(model, case, 4)).abs().max() > 1e-3


@pytest.mark.parametrize("explainer", GATES, ids=lambda e: e.name)
@pytest.mark.parametrize("name", [*TEXT_MODELS, "vit"])
def test_batching_layers_changes_only_round_off(explainer, name, monkeypatch):
    """All layers in one batch, or one by one with the gradient at the logits from the backward pass."""
    original_effects, operands = gate_effects.gate_effects, []

    def recording(kinds, scratch, *values):
        operands.append(len(values))
        return original_effects(kinds, scratch, *values)

    monkeypatch.setattr(gate_effects, "gate_effects", recording)
    gate, model, case = replace(explainer, removal="attention_mask"), embedding_model(name), case_of(name)
    together, few = gate.attribute(model, case), len(operands)
    assert set(operands) == {2}
    for bound in ("BATCH_ENTRIES", "REUSED_ENTRIES", "TAPPED_ENTRIES"):
        monkeypatch.setattr(gate_effects, bound, 1)
    torch.testing.assert_close(gate.attribute(model, case), together, rtol=1e-12, atol=1e-13)
    assert len(operands) > 2 * few
    assert (3 in operands) == (explainer.name != "grouped_mask_gate")  # there the weights are not A


@pytest.mark.parametrize("groups", [5, 2])
def test_the_grouped_gate_of_a_square_in_closed_form(groups):
    """f = a², a linear in attention's output, falls to (a − d_i)² without i. With a group G halfway a is a − d_G/2.

    φ_i = 2 a d_i there, where d_i is a's own fall without i, and d_G that without all of G. A group of one feature has
    φ(½) = 2ad − d², Leave-One-Out; φ(0) is 2ad less d times the mean d of the other groups.
    """
    square, linear, case = OneLayer(0, 2), OneLayer(0), tokens()

    def fall(removed):
        return select_target(case.run(linear), case.target) - output_without(linear, case, removed)

    group = torch.arange(5) % groups
    a = select_target(case.run(linear), case.target).unsqueeze(1)
    d = torch.stack([fall((torch.arange(5) == i).expand(2, -1)) for i in range(5)], 1)
    whole = torch.stack([fall((group == g).expand(2, -1)) for g in range(groups)], 1)
    halfway = 2 * (a - whole[:, group] / 2) * d
    others = 2 * (a - (whole.sum(1, keepdim=True) - whole[:, group]) / (2 * (groups - 1))) * d
    attribution = GroupedMaskGate(groups).attribute(square, case)
    torch.testing.assert_close(attribution, (0.6 * halfway + 0.4 * others).detach(), **EXACT)
    loo = LeaveOneOut(AttentionMask()).attribute(square, case)
    if groups == 5:
        torch.testing.assert_close(halfway.detach(), loo, **EXACT)
    assert (attribution - loo).abs().max() > 1e-3


@pytest.mark.parametrize("removal", ["attention_mask", "baseline"])
def test_grouped_gate_of_special_features_alone_is_leave_one_out(removal):
    model, case = embedding_model("bert"), case_of("bert")
    case = replace(case, special_tokens_mask=torch.ones_like(case.special_tokens_mask))
    loo = LeaveOneOut(AttentionMask() if removal == "attention_mask" else Replacement())
    attribution = GroupedMaskGate(2, removal).attribute(model, case)
    torch.testing.assert_close(attribution, loo.attribute(model, case), rtol=0, atol=1e-12)


@pytest.mark.parametrize("removal", ["attention_mask", "baseline"])
@pytest.mark.parametrize("max_tokens", [1, 12, 13, 40])
def test_max_tokens_does_not_change_the_result(max_tokens, removal):
    case, whole = case_of("bert"), GroupedMaskGate(3, removal)
    expected = whole.attribute(embedding_model("bert"), case)
    attribution = replace(whole, max_tokens=max_tokens).attribute(embedding_model("bert"), case)
    torch.testing.assert_close(attribution, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("groups", [1, 0, -3])
def test_fewer_than_two_groups_are_refused(groups):
    with pytest.raises(ValueError, match=f"at least 2 groups, got {groups}"):
        GroupedMaskGate(groups)


# --- padding ---------------------------------------------------------------------------------------------------------


@every_gate
def test_padding_on_the_left_changes_nothing_where_positions_are_relative(gate):
    model, case = embedding_model("llama"), case_of("llama", "left")
    together = gate.attribute(model, case)
    shifted = torch.stack([row.roll(n, 0) for row, n in zip(case.inputs, LENGTHS, strict=True)])
    right = replace(case_of("llama"), inputs=shifted)
    expected = gate.attribute(model, right)
    for i, n in enumerate(LENGTHS):
        # Rotations by other angles: their round-off is that of cosines, not of sums.
        torch.testing.assert_close(together[i, -n:], expected[i, :n], **EXACT)
        assert (together[i, :-n] == 0).all()


# --- output_without --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@every_text
def test_output_without_is_a_0_in_the_attention_mask(name, implementation):
    model, case = embedding_model(name, implementation), case_of(name)
    numbers = torch.Generator().manual_seed(1)
    several = (torch.rand(case.shape, generator=numbers) < 0.4) & case.unpadded & ~case.special_tokens_mask
    assert several.sum() > 1
    for removed in (several, torch.zeros_like(several), hidden_keys.single(case, 0), hidden_keys.single(case, 3)):
        with torch.no_grad():
            masked = select_target(AttentionMask().remove(case, removed).run(model), case.target)
        torch.testing.assert_close(output_without(model, case, removed), masked, rtol=0, atol=1e-12)


# --- recognising a softmax --------------------------------------------------------------------------------------------


class Attends(nn.Module):
    """Attention by this softmax, read at the first token."""

    def __init__(self, softmax):
        super().__init__()
        self.softmax = softmax

    def forward(self, x, **context):
        return (self.softmax(x @ x.transpose(-1, -2)) @ x)[:, 0]


def divided(axis=-1, numerator=lambda e: e, **options):
    def softmax(z):
        e = torch.exp(z)
        return torch.div(numerator(e), e.sum(axis, keepdim=True), **options)

    return softmax


def methods(z):
    e = (z - z.amax(-1, keepdim=True)).exp()
    return e.div(torch.sum(e, dim=-1, keepdim=True))


def more_in_the_sum(z):
    e = z.exp()
    return e / (1 + e.sum(-1, keepdim=True))


def of_another(z):
    e, other = z.exp(), (z / 2).exp()
    return e / other.sum(-1, keepdim=True)


def root(z):
    e = z.exp()
    return e / e.square().sum(-1, keepdim=True).sqrt()


SOFTMAXES = {
    "torch.softmax": lambda z: torch.softmax(z, -1),
    "last of three axes": lambda z: z.softmax(dim=2),
    "functional": lambda z: nn.functional.softmax(z, -1, dtype=torch.float64),
    "module": nn.Softmax(-1),
    "exp, sum, div": divided(),
    "methods, stable": methods,
}
LOOK_ALIKES = {
    "one more in the sum": more_in_the_sum,
    "another's sum": of_another,
    "Euclidean": root,
    "over the queries": divided(-2),
    "twice the exponentials": divided(numerator=lambda e: 2 * e),
    "sigmoid": torch.sigmoid,
}
TOO_WIDE = {
    "over both axes": divided((-2, -1)),
    "over everything": divided((0, 1, 2)),
    "whole part": divided(rounding_mode="trunc"),
}


@pytest.mark.parametrize("name", SOFTMAXES)
def test_every_way_to_write_a_softmax_is_recognised(name):
    case = tokens()
    expected = MaskGate().attribute(Attends(SOFTMAXES["torch.softmax"]), case)
    torch.testing.assert_close(MaskGate().attribute(Attends(SOFTMAXES[name]), case), expected, **EXACT)


def test_softmax_inside_scaled_dot_product_attention_is_recognised():
    case = tokens()
    fused = Attends(None)
    fused.forward = lambda x, **context: scaled_dot_product_attention(x, x, x, scale=1.0)[:, 0]
    expected = MaskGate().attribute(Attends(SOFTMAXES["torch.softmax"]), case)
    torch.testing.assert_close(MaskGate().attribute(fused, case), expected, **EXACT)


@pytest.mark.parametrize("name", [*LOOK_ALIKES, *TOO_WIDE])
def test_lookalikes_of_a_softmax_are_not_gated(name):
    model, case = Attends((LOOK_ALIKES | TOO_WIDE)[name]), tokens()
    with GatedAttention(case) as attention:
        output = case.run(model)
    assert torch.equal(output, case.run(model))
    assert not attention.weights
    with pytest.raises(Unsupported, match=r"no softmax attention over the features|of which no softmax is made"):
        FiniteMaskGate().attribute(model, case)
    with pytest.raises(Unsupported, match=r"in the model \(Attends\): the explained output does not depend on it"):
        MaskGate().attribute(model, case)


class LogProbabilities(OneLayer):
    """`OneLayer`, followed by a log-softmax over its outputs."""

    def forward(self, inputs, attention_mask=None):
        return torch.log_softmax(super().forward(inputs, attention_mask), 1)


def test_a_model_may_end_in_log_probabilities():
    """The gate of log softmax(y)_t is the gate of y_t − the softmax-weighted mean of the gates of all outputs."""
    model, case = OneLayer(), tokens()
    every = torch.stack([MaskGate().attribute(model, replace(case, target=torch.full((2,), t))) for t in range(2)])
    share = torch.softmax(case.run(model), 1).detach().T.unsqueeze(-1)
    expected = every[case.target, torch.arange(2)] - (share * every).sum(0)
    torch.testing.assert_close(MaskGate().attribute(LogProbabilities(), case), expected, **EXACT)


class Merged(Attends):
    """Heads and examples in one axis."""

    def forward(self, x, **context):
        return super().forward(torch.cat([x, x]))[: len(x)]


class Shrinking(Attends):
    """A layer of six positions, then a layer of five."""

    def forward(self, x, **context):
        x = torch.cat([x[:, :1], x], 1)
        x = self.softmax(x @ x.transpose(-1, -2)) @ x
        return super().forward(x[:, 1:])


class Unused(Attends):
    """Two layers; the output does not depend on the first."""

    def forward(self, x, **context):
        super().forward(x / 2)
        return super().forward(x)


KEYS = SOFTMAXES["torch.softmax"]
REFUSED = {
    "hidden": (PyTorchEncoder().eval(), "hides its attention weights: load the model with attn_implementation='eager'"),
    "another axis": (Attends(lambda z: torch.softmax(z, 1)), "not normalised over the keys"),
    "heads in the batch": (Merged(KEYS), r"attention of (4 rows for 2|8 rows for 4) examples"),
    "unlike length": (
        Shrinking(KEYS),
        r"5 in the model \(Shrinking\) and 6 in the model \(Shrinking\): no rule to join",
    ),
    "unused": (Unused(KEYS), "does not depend on"),
    "none": (nn.Flatten(), "no softmax attention over the features; remove them by their baseline"),
}


@pytest.mark.parametrize("name", REFUSED)
@every_gate
def test_models_that_cannot_be_gated_are_refused(gate, name):
    model, message = REFUSED[name]
    case = replace(tokens(special=torch.ones(2, 5, dtype=torch.bool)), forward_arguments={})
    plain = case.run(model).detach()
    with pytest.raises(Unsupported, match=message):
        gate.attribute(model, case)
    assert torch.equal(case.run(model), plain)


@every_gate
def test_another_removal_is_refused(gate):
    with pytest.raises(ValueError, match="'attention_mask' or 'baseline', got 'zero'"):
        replace(gate, removal="zero").attribute(OneLayer(), tokens())


def test_attention_over_fewer_positions_than_features_is_refused():
    model, case = OneLayer(), tokens()
    wider = replace(
        case, inputs=torch.cat([case.inputs] * 2, 1), baseline=torch.cat([case.baseline] * 2, 1), forward_arguments={}
    )
    half = Attends(None)
    half.forward = lambda x, **context: model(x[:, :5]) + model(x[:, 5:])
    with pytest.raises(Unsupported, match="no softmax attention over the features"):
        MaskGate("attention_mask").attribute(half, wider)


# --- by the baseline -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gate", [MaskGate, FiniteMaskGate])
@pytest.mark.parametrize("removal", [None, "baseline"])
def test_by_the_baseline_a_gate_is_the_gradient_times_the_difference(gate, removal):
    model, case = embedding_model("bert"), with_other_baseline(case_of("bert"))
    case = replace(case, forward_arguments={}) if removal is None else case
    expected = ((case.inputs - case.baseline) * input_gradient(model, case)).sum(2)
    torch.testing.assert_close(gate(removal).attribute(model, case), expected, **EXACT)


class Quadratic(nn.Module):
    """½ xᵀ Q x + bᵀ x."""

    def __init__(self, n, seed=0):
        super().__init__()
        numbers = torch.Generator().manual_seed(seed)
        matrix = torch.randn(n, n, dtype=torch.float64, generator=numbers)
        self.matrix, self.linear = matrix + matrix.T, torch.randn(n, dtype=torch.float64, generator=numbers)

    def forward(self, x, **context):
        return (x @ self.matrix * x).sum(1, keepdim=True) / 2 + (x @ self.linear).unsqueeze(1)


@pytest.mark.parametrize("groups", [2, 3, 6])
def test_the_grouped_gate_by_the_baseline_of_a_quadratic(groups):
    """With d = x − x′ and group G halfway: φ_i = d_i (g − ½ Q d_G)_i, g = Qx + b. LOO_i = d_i g_i − ½ Q_ii d_i².

    f there is f − ½ d_G·g + ⅛ d_G·Q d_G, and f is guessed by adding ¼ Σ (φ(½) + φ(0)) over the group.
    """
    n = 6
    model, numbers = Quadratic(n), torch.Generator().manual_seed(1)
    inputs, baseline = torch.randn(2, 3, n, dtype=torch.float64, generator=numbers)
    special = torch.arange(n).expand(3, -1) == 2
    case = Case(inputs, torch.zeros(3, dtype=torch.int64), baseline, special)
    d, gradient = inputs - baseline, inputs @ model.matrix + model.linear
    group = torch.tensor([0, 1, -1, *(torch.arange(2, n - 1) % groups).tolist()])  # the special feature is in no group
    member = group == torch.arange(groups).unsqueeze(1)
    moves = d.unsqueeze(1) * (gradient.unsqueeze(1) - (d.unsqueeze(1) * member) @ model.matrix / 2)
    own, others = (moves * member).sum(1), (moves * ~member).sum(1) / (groups - 1)
    exact = d * gradient - model.matrix.diagonal() * d.square() / 2
    part = d.unsqueeze(1) * member
    fallen = -(part * gradient.unsqueeze(1)).sum(2) / 2 + (part @ model.matrix * part).sum(2) / 8
    guessed = (fallen + (member * (own + others).unsqueeze(1)).sum(2) / 4).mean(1, keepdim=True)
    expected = torch.where(special, exact + guessed, 0.6 * own + 0.4 * others)
    torch.testing.assert_close(GroupedMaskGate(groups).attribute(model, case), expected, **EXACT)
    torch.testing.assert_close(LeaveOneOut().attribute(model, case), exact, **EXACT)


def test_the_default_removal_depends_on_the_attention_mask():
    model, case = embedding_model("bert"), case_of("bert")
    for kind in (MaskGate, FiniteMaskGate, GroupedMaskGate):
        masked = kind(removal="attention_mask").attribute(model, case)
        assert torch.equal(kind().attribute(model, case), masked)
        bare = replace(case, forward_arguments={})
        assert torch.equal(kind().attribute(model, bare), kind(removal="baseline").attribute(model, bare))
        assert (masked - kind(removal="baseline").attribute(model, case)).abs().max() > 1e-3


# --- at the edge -----------------------------------------------------------------------------------------------------


@every_gate
@every_text
@pytest.mark.parametrize("special", [False, True])
def test_gates_of_a_single_feature_are_zero(gate, name, special):
    case = single_example(case_of(name), 0)
    context = {
        key: value[:, :1] if value.dim() > 1 else torch.zeros_like(value)
        for key, value in case.forward_arguments.items()
    }
    one = Case(case.inputs[:, :1], case.target, case.baseline[:, :1], torch.tensor([[special]]), context)
    torch.testing.assert_close(gate.attribute(embedding_model(name), one), torch.zeros(1, 1).double(), **EXACT)


class Sharp(OneLayer):
    """In each row the logit of the first token is larger by ``gap``."""

    gap = 0.0

    def attention(self, x, attention_mask=None):
        logits = x.new_zeros(len(x), 1, x.shape[1], x.shape[1])
        logits[..., 0] = self.gap
        if attention_mask is not None:
            logits = logits.masked_fill(attention_mask[:, None, None] == 0, hidden_keys.HIDDEN)
        return torch.softmax(logits, -1), x.unsqueeze(1)[..., :3]


@pytest.mark.parametrize("gap", [0.0, 5.0, 25.0, 40.0])
def test_a_row_that_attends_almost_only_to_one_key(gap):
    model, case = Sharp(), tokens()
    model.gap = gap
    loo = LeaveOneOut(AttentionMask()).attribute(model, case)
    assert loo[:, 0].abs().min() > 0.02, "removing the first token must matter"
    torch.testing.assert_close(FiniteMaskGate().attribute(model, case), loo, rtol=1e-9, atol=1e-9)


@every_gate
@pytest.mark.parametrize("special", [False, True])
def test_a_row_that_attends_only_to_one_key(gate, special):
    """exp(−800) is 0: the weight of the first token is 1 and all others are 0, so no other weights remain."""
    model, case = Sharp(), tokens(special=torch.full((2, 5), special))
    model.gap = 800.0
    attribution = checked_attribution(gate.attribute(model, case), case)
    torch.testing.assert_close(attribution[:, 1:], torch.zeros(2, 4).double(), **EXACT)
    torch.testing.assert_close(MaskGate().attribute(model, case), torch.zeros(2, 5).double(), **EXACT)


@every_gate
@pytest.mark.parametrize("name", DECODERS)
def test_decoder_gates_are_zero_only_after_the_readout_row(gate, name):
    case = case_of(name)
    attribution = checked_attribution(gate.attribute(embedding_model(name), case), case)
    assert attribution[case.unpadded].abs().min() > 0
    case = replace(case, special_tokens_mask=~case.unpadded)
    earlier = replace(
        case, forward_arguments={**case.forward_arguments, "last": torch.full((3,), 1)}
    )  # later tokens have no effect
    assert (gate.attribute(embedding_model(name), earlier)[:, 2:] == 0).all()


@pytest.mark.parametrize("name", DECODERS)
def test_a_special_token_after_the_readout_row_gets_only_the_error_of_f_of_x(name):
    """It has no effect: the grouped gate gives it guessed f(x) − f(x), the same for all such tokens of an example."""
    case = case_of(name)
    special = torch.zeros_like(case.unpadded).index_fill(1, torch.tensor([2, 3]), True) & case.unpadded
    earlier = replace(
        case, special_tokens_mask=special, forward_arguments={**case.forward_arguments, "last": torch.full((3,), 1)}
    )
    attribution = GroupedMaskGate(2).attribute(embedding_model(name), earlier)
    both = special.sum(1) == 2
    assert both.any()
    torch.testing.assert_close(attribution[both, 2], attribution[both, 3], **EXACT)
    assert 0 < attribution[both, 2].abs().max() < 0.1


@pytest.mark.parametrize("name", DECODERS)
def test_halfway_weights_stay_causal(name):
    case = replace(case_of(name), special_tokens_mask=None)
    first = hidden_keys.single(case, 0)
    with torch.no_grad(), GatedAttention(case, first, 0.5) as attention:
        case.run(embedding_model(name))
    for weights in attention.gated_weights:
        assert (weights[..., 0, 0] == 1).all()
        assert (weights.triu(1) == 0).all()
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]).double(), **EXACT)


# --- no trace --------------------------------------------------------------------------------------------------------


def break_end(model):
    model.classifier = nn.Linear(3, 2, dtype=torch.float64)


def break_middle(model):
    model.bert.encoder.layer[1].intermediate.dense = nn.Linear(3, 2, dtype=torch.float64)


def dropout_in_sdpa(model):
    model.set_attn_implementation("sdpa")
    attention = model.bert.encoder.layer[1].attention.self.train()
    attention.query.register_forward_pre_hook(lambda *_: setattr(attention, "training", True))  # within the pass


BROKEN = {
    "not": (lambda model: None, None),
    "end": (break_end, RuntimeError),
    "middle": (break_middle, RuntimeError),
    "within sdpa": (dropout_in_sdpa, Unsupported),
}


@every_gate
@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
def test_gates_leave_model_and_case_unchanged(gate, broken, grad):
    model, case = copy.deepcopy(embedding_model("bert")), case_of("bert")
    damage, error = BROKEN[broken]
    damage(model.model)
    model.model.bert.encoder.layer[0].register_forward_hook(lambda *_: None)  # the user's own stays
    original = case.select(torch.arange(3))
    with torch.set_grad_enabled(grad):
        before = state_of(model)
        if error is None:
            attribution = attribution_of(gate, model, case)
        else:
            with pytest.raises(error):
                gate.attribute(model, case)
        assert_same_state(before, state_of(model))
    if error is None:
        assert torch.equal(attribution, gate.attribute(model, case)), "the second call differs"
        assert not attribution.requires_grad
    for name in ("inputs", "baseline", "target", "special_tokens_mask"):
        assert torch.equal(getattr(case, name), getattr(original, name))
    assert torch.equal(case.forward_arguments["attention_mask"], original.forward_arguments["attention_mask"])
    assert not case.inputs.requires_grad


@pytest.mark.parametrize("explainer", GATES, ids=lambda e: e.name)
def test_no_graph_is_kept_alive(explainer, monkeypatch):
    """A hook that holds its own tensor is never freed: Python's garbage collector does not see through the graph."""
    collectors = []

    class Recorded(gate_effects.GateEffectCollector):
        def __init__(self, *args):
            super().__init__(*args)
            collectors.append(weakref.ref(self))

    monkeypatch.setattr(attention_gates, "GateEffectCollector", Recorded)
    model, case = embedding_model("bert"), case_of("bert")
    explainer.attribute(model, case)
    gc.collect()
    assert collectors
    assert all(reference() is None for reference in collectors)


class LogitsGoOn(nn.Module):
    """Layers whose logits are also added to the next layer's: a softmax and an addition read them."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.parts = nn.ModuleList(nn.ModuleList(nn.Linear(4, 4) for _ in range(3)) for _ in range(3))
            self.head = nn.Linear(4, 2)
        self.double().eval()

    def forward(self, x):
        before = 0
        for query, key, value in self.parts:
            before = query(x) @ key(x).mT + before
            x = x + before.softmax(-1) @ value(x)
        return self.head(x[:, 0])


@pytest.mark.parametrize("few", [True, False])
def test_first_order_effects_ignore_other_readers_of_the_logits(few, monkeypatch):
    if not few:
        for bound in ("BATCH_ENTRIES", "REUSED_ENTRIES", "TAPPED_ENTRIES"):
            monkeypatch.setattr(gate_effects, bound, 1)
    inputs = torch.randn(2, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    case = Case(inputs, torch.tensor([0, 1]), torch.zeros_like(inputs))
    attention = GatedAttention(case)
    with torch.enable_grad(), attention:
        output = select_target(case.run(LogitsGoOn()), case.target)
    at_weights = torch.autograd.grad(output.sum(), attention.gated_weights, retain_graph=True)
    (derivative,) = attention.effects(output, "first-order")
    for layer, (weights, gradient) in enumerate(zip(attention.gated_weights, at_weights, strict=True)):
        by_hand = weights * (gradient - (weights * gradient).sum(-1, keepdim=True))
        torch.testing.assert_close(derivative[layer], by_hand.detach(), rtol=1e-12, atol=1e-14)


class OneAttention(nn.Module):
    """One layer, which writes to its attention weights if it is told to."""

    def __init__(self, writes):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.query, self.key, self.value = (nn.Linear(4, 4) for _ in range(3))
        self.writes = writes
        self.double().eval()

    def forward(self, x):
        weights = (self.query(x) @ self.key(x).mT).softmax(-1)
        weights = weights.mul_(0.5) if self.writes else weights * 0.5
        return (x + weights @ self.value(x))[:, 0]


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("kind", ["first-order", "finite"])
def test_a_model_may_write_to_its_attention_weights(kind, few, monkeypatch):
    if not few:
        monkeypatch.setattr(gate_effects, "TAPPED_ENTRIES", 1)
    inputs = torch.randn(2, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    case = Case(inputs, torch.tensor([0, 1]), torch.zeros_like(inputs))
    written, expected = (attention_gate_effects(OneAttention(writes), case, kind)[0] for writes in (True, False))
    torch.testing.assert_close(written, expected, rtol=1e-12, atol=1e-14)
    assert expected.abs().min() > 0
