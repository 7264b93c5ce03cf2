"""The mask gates against closed forms and slow oracles, on unmodified models; and that each of them can be wrong."""

import copy
import gc
import weakref
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from faithcheck.explainers import LeaveOneOut, Unsupported, attention_observer
from faithcheck.explainers.attention_observer import AttentionObserver, output_without
from faithcheck.explainers.gates import mask_gates
from faithcheck.explainers.gates.mask_gates import FiniteMaskGate, GroupedMaskGate, MaskGate, dealt
from faithcheck.explainers.gates.readout_gate import ReadoutGate
from faithcheck.explainers.loo.removal import AttentionMask
from faithcheck.explainers.protocol import attribution_of, checked_attribution, input_gradient
from faithcheck.models import Case, select_target
from faithcheck.models.architectures.base_models import BASE_MODELS
from faithcheck.models.architectures.embedding_model import KeepFloat64
from faithcheck.tests.helpers import hidden_keys
from faithcheck.tests.unit.test_explainers import assert_same, state_of

CPU = torch.device("cpu")
TEXT, DECODERS = ("bert", "gpt2", "llama"), ("gpt2", "llama")
GATES = [MaskGate(), FiniteMaskGate(), ReadoutGate(), GroupedMaskGate()]
LENGTHS, WIDTH = (6, 4, 5), 16
GATES = (MaskGate("attention_mask"), FiniteMaskGate("attention_mask"), GroupedMaskGate(2, "attention_mask"))
# Round-off of two layers in float64, of outputs of about 1.
EXACT = {"rtol": 1e-10, "atol": 1e-12}

every_gate = pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.name)
every_text = pytest.mark.parametrize("name", TEXT)


class Reader(nn.Module):
    """A small unmodified model; a decoder is read at ``last``."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, inputs, attention_mask=None, last=None):
        with KeepFloat64():
            logits = self.model(inputs_embeds=inputs, attention_mask=attention_mask).logits
        return logits if last is None else logits[torch.arange(len(last)), last]


@cache
def embedding_model(name, implementation="eager"):
    base_model = BASE_MODELS[name].model(0, torch.float64, CPU)
    base_model.model.set_attn_implementation(implementation)
    return base_model if name == "vit" else Reader(base_model.model)


def case_of(name, side="right", seed=0):
    """Three texts of unlike length, first and last token special; or images. All other context is the mask."""
    if name == "vit":
        return BASE_MODELS[name].case(seed, torch.float64, CPU)
    numbers = torch.Generator().manual_seed(seed)
    inputs = torch.randn(3, max(LENGTHS), WIDTH, dtype=torch.float64, generator=numbers)
    lengths, positions = torch.tensor(LENGTHS).unsqueeze(1), torch.arange(max(LENGTHS))
    first = 0 if side == "right" else max(LENGTHS) - lengths
    last = first + lengths - 1
    present = (first <= positions) & (positions <= last)
    context = {"attention_mask": present.long()}
    if name in DECODERS:
        context["last"] = last.squeeze(1)
    special = ~present | (positions == first) | (positions == last)
    return Case(inputs, torch.tensor([0, 1, 2]), torch.zeros_like(inputs), special, context)


def alone(case, i):
    """One example of a right-padded case, without its padding."""
    n = LENGTHS[i]
    one = case.select(torch.tensor([i]))
    context = {name: value[:, :n] if value.dim() > 1 else value for name, value in one.forward_arguments.items()}
    return Case(one.inputs[:, :n], one.target, one.baseline[:, :n], one.special_tokens_mask[:, :n], context)


def rows_read(case, queries):
    """The row at which these models are read, ``(batch, queries)`` bool: a decoder's last, else the first."""
    last = case.forward_arguments.get("last", torch.zeros(len(case.inputs), dtype=torch.int64))
    return torch.arange(queries) == last.unsqueeze(1)


def without_own_row(changes, read):
    """Sum the oracle's changes ``(layers, batch, features, queries)``, a token's own row where it is read alone."""
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


@pytest.mark.parametrize("name", [*TEXT, "vit"])
def test_the_oracle_hides_as_an_attention_mask_does(name):
    model, case = embedding_model(name), case_of(name)
    loo = hidden_keys.leave_one_out(model, case)
    assert loo.abs().max() > 1e-2, "nothing changes: the tests below prove nothing"
    if name in TEXT:
        torch.testing.assert_close(loo, LeaveOneOut(AttentionMask()).attribute(model, case), **EXACT)
    with torch.no_grad():
        plain = select_target(case.run(model), case.target)
        opened = hidden_keys.gated(model, case, torch.ones(case.shape, dtype=torch.float64))
    torch.testing.assert_close(opened, plain, **EXACT)


# --- the gate at 1 ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", [*TEXT, "vit"])
def test_the_mask_gate_is_the_derivative_of_a_gate_in_every_mask(name, side, implementation):
    case = case_of(name, side)
    found = checked_attribution(MaskGate("attention_mask").attribute(embedding_model(name, implementation), case), case)
    expected = hidden_keys.derivatives(embedding_model(name), case)
    torch.testing.assert_close(found, expected * case.unpadded, **EXACT)
    assert expected.abs().max() > 1e-2
    assert (found[~case.unpadded] == 0).all()


def test_and_a_difference_of_outputs():
    model, case, h = embedding_model("bert"), case_of("bert"), 1e-4
    found = MaskGate().attribute(model, case)
    with torch.no_grad():
        for i in range(case.shape[1]):
            step = h * hidden_keys.single(case, i).double()
            up, down = (hidden_keys.gated(model, case, 1 + sign * step) for sign in (1, -1))
            # A central difference errs by h²/6 of the third derivative, about 1e-9.
            torch.testing.assert_close(found[:, i], (up - down) / (2 * h), rtol=0, atol=1e-7)


# --- the finite gate -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", [*TEXT, "vit"])
def test_the_finite_gate_steps_to_each_row_without_the_key(name, implementation):
    case = case_of(name)
    found = FiniteMaskGate("attention_mask").attribute(embedding_model(name, implementation), case)
    changes, _ = hidden_keys.finite_changes(embedding_model(name), case)
    read = rows_read(case, changes.shape[-1])
    expected = without_own_row(changes, read)
    torch.testing.assert_close(found, expected, **EXACT)
    # Each part of the rule matters here: own rows are left out, and that of the token read is not.
    for others in (torch.ones_like(read), torch.zeros_like(read)):
        if name != "vit" or others.all():  # no feature is the class token
            assert (without_own_row(changes, others) - expected).abs().max() > 1e-3


class OneLayer(nn.Module):
    """One layer of attention and a linear map, or its square: tokens ``(batch, tokens, 6)`` to ``(batch, 2)``.

    Read at a row, or at the mean of all.
    """

    def __init__(self, read=0, power=1, heads=1):
        super().__init__()
        numbers = torch.Generator().manual_seed(heads)
        self.query, self.key, self.value = torch.randn(3, heads, 6, 3, dtype=torch.float64, generator=numbers) / 2
        self.head = nn.Parameter(torch.randn(heads * 3, 2, dtype=torch.float64, generator=numbers))
        self.read, self.power = read, power

    def attention(self, x, attention_mask=None):
        """Weights ``(batch, heads, tokens, tokens)`` and values."""
        q, k, v = (x.unsqueeze(1) @ weight for weight in (self.query, self.key, self.value))
        logits = q @ k.transpose(-1, -2)
        if attention_mask is not None:
            logits = logits.masked_fill(attention_mask[:, None, None] == 0, hidden_keys.HIDDEN)
        return torch.softmax(logits, -1), v

    def forward(self, inputs, attention_mask=None):
        weights, values = self.attention(inputs, attention_mask)
        outputs = (weights @ values).transpose(1, 2).flatten(2) @ self.head
        return (outputs.mean(1) if self.read is None else outputs[:, self.read]) ** self.power


def tokens(n=5, batch=2, special=None, seed=0):
    numbers = torch.Generator().manual_seed(seed)
    inputs = torch.randn(batch, n, 6, dtype=torch.float64, generator=numbers)
    mask = {"attention_mask": torch.ones(batch, n, dtype=torch.int64)}
    return Case(inputs, torch.arange(batch) % 2, torch.zeros_like(inputs), special, mask)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("read", [0, 3, None], ids=["first", "fourth", "mean"])
def test_by_hand(read, heads):
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
    nearly = {"rtol": 1e-8, "atol": 1e-10}  # a row here has 1 − A = 5e-6: five digits go
    torch.testing.assert_close(FiniteMaskGate().attribute(model, case), loo, **nearly)
    torch.testing.assert_close(GroupedMaskGate(3).attribute(model, case), loo, **nearly)
    special = torch.arange(5).expand(2, -1) < 2  # f(x) is guessed exactly, as it is linear and each group has one
    torch.testing.assert_close(
        GroupedMaskGate(3).attribute(model, replace(case, special_tokens_mask=special)), loo, **nearly
    )
    assert (MaskGate().attribute(model, case) - loo).abs().max() > 1e-2
    assert (FiniteMaskGate().attribute(OneLayer(read, 2, heads), case) - loo).abs().max() > 1e-2


def rows_found(model, case):
    """The rows that `AttentionObserver.moved` says the model is read at."""
    with AttentionObserver(case) as attention:
        output = select_target(case.run(model), case.target)
    attention.moved(output, "change")
    return attention.read


@pytest.mark.parametrize(("read", "expected"), [(0, [0]), (3, [3]), (None, [0, 1, 2, 3, 4])])
def test_which_rows_are_read(read, expected):
    found = rows_found(OneLayer(read), tokens())
    assert [row.nonzero().flatten().tolist() for row in found] == [expected, expected]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", [*TEXT, "vit"])
def test_which_rows_of_a_whole_model_are_read(name, side):
    case = case_of(name, side)
    read = rows_found(embedding_model(name), case)
    assert torch.equal(read, rows_read(case, read.shape[1]))


# --- the grouped gate ------------------------------------------------------------------------------------------------


def test_features_are_dealt_out_in_turn():
    features = torch.tensor([[0, 1, 1, 0, 1, 1, 1, 0], [1, 1, 0, 0, 0, 0, 0, 0]]).bool()
    expected = [[-1, 0, 1, -1, 2, 0, 1, -1], [0, 1, -1, -1, -1, -1, -1, -1]]
    assert dealt(features, 3).tolist() == expected


def grouped(model, case, groups, long=False):
    """0.6 φ(½) + 0.4 the mean of φ(0) over the other groups' rows, and special features exactly, by the oracle.

    In long texts special features have φ(0), in the mean over all groups' rows.

    But for f(x), which is what it is with a group halfway and ½ Σ ½ (φ(½) + φ(0)) more, in the mean over groups.
    """
    ordinary = case.unpadded & ~case.special_tokens_mask
    halfway = torch.zeros(groups, *case.shape, dtype=torch.bool)
    for b in range(len(ordinary)):
        for number, i in enumerate(ordinary[b].nonzero().flatten().tolist()):
            halfway[number % groups, b, i] = True
    rows, outputs = [], []
    for group in halfway:
        changes, output = hidden_keys.finite_changes(model, case, group)
        rows.append(without_own_row(changes, rows_read(case, changes.shape[-1])))
        outputs.append(output)
    changes = torch.stack(rows)
    own, others = (changes * halfway).sum(0), (changes * ~halfway).sum(0) / (groups - 1)
    whole = torch.stack([y + ((own + others) * group / 4).sum(1) for y, group in zip(outputs, halfway, strict=True)])
    with torch.no_grad():
        guessed = whole.mean(0) - select_target(case.run(model), case.target)
    exact = hidden_keys.leave_one_out(model, case) + guessed.unsqueeze(1)
    return torch.where(ordinary, 0.6 * own + 0.4 * others, changes.mean(0) if long else exact) * case.unpadded


@pytest.mark.parametrize(("groups", "special"), [(2, True), (4, True), (2, False)])
@pytest.mark.parametrize("name", [*TEXT, "vit"])
def test_the_grouped_gate_lets_one_group_half_way_at_a_time(name, groups, special):
    model, case = embedding_model(name), case_of(name)
    case = case if special else replace(case, special_tokens_mask=~case.unpadded)
    expected = grouped(model, case, groups)
    for implementation in ("eager", "sdpa"):
        found = GroupedMaskGate(groups, "attention_mask").attribute(embedding_model(name, implementation), case)
        torch.testing.assert_close(found, expected, **EXACT)
    assert (FiniteMaskGate("attention_mask").attribute(model, case) - expected).abs().max() > 1e-3


@pytest.mark.parametrize("name", TEXT)
def test_the_grouped_gate_of_long_texts_spends_nothing_on_special_features(name, monkeypatch):
    model, case = embedding_model(name), case_of(name)
    monkeypatch.setattr(mask_gates, "LONG", max(LENGTHS))
    long = case.unpadded.sum(1, keepdim=True) == max(LENGTHS)
    assert 0 < long.sum() < len(long)
    expected = torch.where(long, grouped(model, case, 4, long=True), grouped(model, case, 4))
    torch.testing.assert_close(GroupedMaskGate(4).attribute(model, case), expected, **EXACT)
    assert (expected - grouped(model, case, 4)).abs().max() > 1e-3


@pytest.mark.parametrize("explainer", GATES, ids=lambda e: e.name)
@pytest.mark.parametrize("name", [*TEXT, "vit"])
def test_how_much_is_worked_on_at_once_changes_nothing_but_round_off(explainer, name, monkeypatch):
    """All layers together, or one by one, with the gradient at the logits that the backward pass made."""
    reckon, operands = attention_observer.gates_moved, []

    def followed(kinds, scratch, *values):
        operands.append(len(values))
        return reckon(kinds, scratch, *values)

    monkeypatch.setattr(attention_observer, "gates_moved", followed)
    gate, model, case = replace(explainer, removal="attention_mask"), embedding_model(name), case_of(name)
    together, few = gate.attribute(model, case), len(operands)
    assert set(operands) == {2}
    monkeypatch.setattr(attention_observer, "TOGETHER", 1)
    torch.testing.assert_close(gate.attribute(model, case), together, rtol=1e-12, atol=1e-13)
    assert len(operands) > 2 * few
    assert (3 in operands) == (explainer.name != "grouped_mask_gate")  # whose A is not the weights


@pytest.mark.parametrize("groups", [5, 2])
def test_the_grouped_gate_of_a_square_in_closed_form(groups):
    """f = a², a linear in attention's output, falls to (a − d_i)² without i. With a group G halfway a is a − d_G/2.

    φ_i = 2 a d_i there, where d_i is a's own fall without i, and d_G that without all of G. A group of one alone has
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
    found = GroupedMaskGate(groups).attribute(square, case)
    torch.testing.assert_close(found, (0.6 * halfway + 0.4 * others).detach(), **EXACT)
    loo = LeaveOneOut(AttentionMask()).attribute(square, case)
    if groups == 5:
        torch.testing.assert_close(halfway.detach(), loo, **EXACT)
    assert (found - loo).abs().max() > 1e-3


@pytest.mark.parametrize("removal", ["attention_mask", "baseline"])
def test_where_all_are_special_it_is_leave_one_out(removal):
    model, case = embedding_model("bert"), case_of("bert")
    case = replace(case, special_tokens_mask=torch.ones_like(case.special_tokens_mask))
    loo = LeaveOneOut(AttentionMask()) if removal == "attention_mask" else LeaveOneOut()
    found = GroupedMaskGate(2, removal).attribute(model, case)
    torch.testing.assert_close(found, loo.attribute(model, case), rtol=0, atol=1e-12)


@pytest.mark.parametrize("removal", ["attention_mask", "baseline"])
@pytest.mark.parametrize("max_tokens", [1, 12, 13, 40])
def test_the_size_of_a_pass_does_not_matter(max_tokens, removal):
    case, whole = case_of("bert"), GroupedMaskGate(3, removal)
    expected = whole.attribute(embedding_model("bert"), case)
    found = replace(whole, max_tokens=max_tokens).attribute(embedding_model("bert"), case)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("groups", [1, 0, -3])
def test_one_group_has_no_others(groups):
    with pytest.raises(ValueError, match=f"at least 2 groups, got {groups}"):
        GroupedMaskGate(groups)


# --- padding ---------------------------------------------------------------------------------------------------------


@every_gate
@every_text
def test_a_padded_batch_is_its_texts_one_by_one(name, gate):
    model, case = embedding_model(name), case_of(name)
    together = gate.attribute(model, case)
    for i, n in enumerate(LENGTHS):
        torch.testing.assert_close(
            together[i, :n].unsqueeze(0), gate.attribute(model, alone(case, i)), rtol=0, atol=1e-12
        )
        assert (together[i, n:] == 0).all()


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


def test_output_without_on_images():
    model, case = embedding_model("vit"), case_of("vit")
    loo = hidden_keys.leave_one_out(model, case)
    for implementation in ("eager", "sdpa"):
        model = embedding_model("vit", implementation)
        whole = select_target(case.run(model), case.target).detach()
        removed = [(torch.arange(6) == i).expand(3, -1) for i in range(6)]
        found = torch.stack([whole - output_without(model, case, gone) for gone in removed], 1)
        torch.testing.assert_close(found, loo, **EXACT)


# --- what is a softmax -----------------------------------------------------------------------------------------------


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
def test_every_softmax_is_seen(name):
    case = tokens()
    expected = MaskGate().attribute(Attends(SOFTMAXES["torch.softmax"]), case)
    torch.testing.assert_close(MaskGate().attribute(Attends(SOFTMAXES[name]), case), expected, **EXACT)


def test_and_one_inside_scaled_dot_product_attention():
    case = tokens()
    fused = Attends(None)
    fused.forward = lambda x, **context: scaled_dot_product_attention(x, x, x, scale=1.0)[:, 0]
    expected = MaskGate().attribute(Attends(SOFTMAXES["torch.softmax"]), case)
    torch.testing.assert_close(MaskGate().attribute(fused, case), expected, **EXACT)


@pytest.mark.parametrize("name", [*LOOK_ALIKES, *TOO_WIDE])
def test_what_only_looks_like_a_softmax_is_left_as_it_is(name):
    model, case = Attends((LOOK_ALIKES | TOO_WIDE)[name]), tokens()
    with AttentionObserver(case) as attention:
        output = case.run(model)
    assert torch.equal(output, case.run(model))
    assert not attention.weights
    with pytest.raises(Unsupported, match=r"no softmax attention over the features|of which no softmax is made"):
        MaskGate().attribute(model, case)


class LogProbabilities(OneLayer):
    """The same, and the logarithm of its softmax."""

    def forward(self, inputs, attention_mask=None):
        return torch.log_softmax(super().forward(inputs, attention_mask), 1)


def test_a_model_may_end_in_log_probabilities():
    """The gate of log softmax(y)_t is that of y_t less the mean, by the softmax, of those of all outputs."""
    model, case = OneLayer(), tokens()
    every = torch.stack([MaskGate().attribute(model, replace(case, target=torch.full((2,), t))) for t in range(2)])
    share = torch.softmax(case.run(model), 1).detach().T.unsqueeze(-1)
    expected = every[case.target, torch.arange(2)] - (share * every).sum(0)
    torch.testing.assert_close(MaskGate().attribute(LogProbabilities(), case), expected, **EXACT)


class PyTorch(nn.Module):
    """PyTorch's own encoder layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True, dtype=torch.float64)

    def forward(self, x, **context):
        return self.layer(x)[:, 0]


class Merged(Attends):
    """Heads and examples in one axis."""

    def forward(self, x, **context):
        return super().forward(torch.cat([x, x]))[: len(x)]


class Shrinking(Attends):
    """A layer of six positions, then one of five."""

    def forward(self, x, **context):
        x = torch.cat([x[:, :1], x], 1)
        x = self.softmax(x @ x.transpose(-1, -2)) @ x
        return super().forward(x[:, 1:])


class Unused(Attends):
    """Two layers, one of which does not matter to the output."""

    def forward(self, x, **context):
        super().forward(x / 2)
        return super().forward(x)


KEYS = SOFTMAXES["torch.softmax"]
REFUSED = {
    "hidden": (PyTorch().eval(), "hides its attention weights: load the model with attn_implementation='eager'"),
    "another axis": (Attends(lambda z: torch.softmax(z, 1)), "not normalised over the keys"),
    "heads in the batch": (Merged(KEYS), r"attention of (4 rows for 2|8 rows for 4) examples"),
    "unlike length": (Shrinking(KEYS), "layers of 5 and 6 positions"),
    "unused": (Unused(KEYS), "does not depend on"),
    "none": (nn.Flatten(), "no softmax attention over the features in this model: remove them by their baseline"),
}


@pytest.mark.parametrize("name", REFUSED)
@every_gate
def test_what_cannot_be_gated_is_refused(gate, name):
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


def test_attention_among_fewer_than_the_features_is_none_of_theirs():
    model, case = OneLayer(), tokens()
    wider = replace(
        case, inputs=torch.cat([case.inputs] * 2, 1), baseline=torch.cat([case.baseline] * 2, 1), forward_arguments={}
    )
    half = Attends(None)
    half.forward = lambda x, **context: model(x[:, :5]) + model(x[:, 5:])
    with pytest.raises(Unsupported, match="no softmax attention over the features"):
        MaskGate("attention_mask").attribute(half, wider)


# --- by the baseline -------------------------------------------------------------------------------------------------


def away(case, seed=3):
    """The case with another baseline than 0."""
    baseline = torch.randn(case.inputs.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return replace(case, baseline=baseline)


@pytest.mark.parametrize("gate", [MaskGate, FiniteMaskGate])
@pytest.mark.parametrize("removal", [None, "baseline"])
def test_by_the_baseline_a_gate_is_the_gradient_times_the_difference(gate, removal):
    model, case = embedding_model("bert"), away(case_of("bert"))
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
    """With d = x − x′, group G halfway: φ_i = d_i (g − ½ Q d_G)_i, g = Qx + b. LOO_i = d_i g_i − ½ Q_ii d_i².

    And f there is f − ½ d_G·g + ⅛ d_G·Q d_G, from which f is guessed by adding ¼ Σ (φ(½) + φ(0)) of the group.
    """
    n = 6
    model, numbers = Quadratic(n), torch.Generator().manual_seed(1)
    inputs, baseline = torch.randn(2, 3, n, dtype=torch.float64, generator=numbers)
    special = torch.arange(n).expand(3, -1) == 2
    case = Case(inputs, torch.zeros(3, dtype=torch.int64), baseline, special)
    d, gradient = inputs - baseline, inputs @ model.matrix + model.linear
    group = torch.tensor([0, 1, -1, *(torch.arange(2, n - 1) % groups).tolist()])  # the special one is in none
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


def test_by_default_the_case_says_which():
    model, case = embedding_model("bert"), case_of("bert")
    for gate in (MaskGate, FiniteMaskGate, GroupedMaskGate):
        masked = gate(removal="attention_mask").attribute(model, case)
        assert torch.equal(gate().attribute(model, case), masked)
        bare = replace(case, forward_arguments={})
        assert torch.equal(gate().attribute(model, bare), gate(removal="baseline").attribute(model, bare))
        assert (masked - gate(removal="baseline").attribute(model, case)).abs().max() > 1e-3


# --- at the edge -----------------------------------------------------------------------------------------------------


@every_gate
@every_text
@pytest.mark.parametrize("special", [False, True])
def test_a_single_feature_has_all_the_attention_and_no_gate_moves_it(gate, name, special):
    case = alone(case_of(name), 0)
    context = {
        key: value[:, :1] if value.dim() > 1 else torch.zeros_like(value)
        for key, value in case.forward_arguments.items()
    }
    one = Case(case.inputs[:, :1], case.target, case.baseline[:, :1], torch.tensor([[special]]), context)
    torch.testing.assert_close(gate.attribute(embedding_model(name), one), torch.zeros(1, 1).double(), **EXACT)


class Sharp(OneLayer):
    """Each row attends to the first token by so many logits more."""

    gap = 0.0

    def attention(self, x, attention_mask=None):
        logits = x.new_zeros(len(x), 1, x.shape[1], x.shape[1])
        logits[..., 0] = self.gap
        if attention_mask is not None:
            logits = logits.masked_fill(attention_mask[:, None, None] == 0, hidden_keys.HIDDEN)
        return torch.softmax(logits, -1), x.unsqueeze(1)[..., :3]


@pytest.mark.parametrize("gap", [0.0, 5.0, 25.0, 40.0])
def test_a_row_that_attends_to_one_key_almost_alone(gap):
    model, case = Sharp(), tokens()
    model.gap = gap
    loo = LeaveOneOut(AttentionMask()).attribute(model, case)
    assert loo[:, 0].abs().min() > 0.02, "without the first token the others have all"
    torch.testing.assert_close(FiniteMaskGate().attribute(model, case), loo, rtol=1e-9, atol=1e-9)


@every_gate
@pytest.mark.parametrize("special", [False, True])
def test_and_to_one_key_alone(gate, special):
    """exp(−800) is 0: the weight of the first token is 1, every other 0, and nothing is left to compare with."""
    model, case = Sharp(), tokens(special=torch.full((2, 5), special))
    model.gap = 800.0
    found = checked_attribution(gate.attribute(model, case), case)
    torch.testing.assert_close(found[:, 1:], torch.zeros(2, 4).double(), **EXACT)
    torch.testing.assert_close(MaskGate().attribute(model, case), torch.zeros(2, 5).double(), **EXACT)


@every_gate
@pytest.mark.parametrize("name", DECODERS)
def test_the_first_row_of_a_decoder_sees_itself_alone_and_the_rest_is_as_it_is(gate, name):
    case = case_of(name)
    found = checked_attribution(gate.attribute(embedding_model(name), case), case)
    assert found[case.unpadded].abs().min() > 0
    case = replace(case, special_tokens_mask=~case.unpadded)
    earlier = replace(
        case, forward_arguments={**case.forward_arguments, "last": torch.full((3,), 1)}
    )  # what comes later cannot matter
    assert (gate.attribute(embedding_model(name), earlier)[:, 2:] == 0).all()


@pytest.mark.parametrize("name", DECODERS)
def test_a_special_token_after_the_row_that_is_read_has_the_error_of_f_of_x_alone(name):
    """It moves nothing: what the grouped gate gives it is f(x) as guessed less f(x), the same for all of an example."""
    case = case_of(name)
    special = torch.zeros_like(case.unpadded).index_fill(1, torch.tensor([2, 3]), True) & case.unpadded
    earlier = replace(
        case, special_tokens_mask=special, forward_arguments={**case.forward_arguments, "last": torch.full((3,), 1)}
    )
    found = GroupedMaskGate(2).attribute(embedding_model(name), earlier)
    both = special.sum(1) == 2
    assert both.any()
    torch.testing.assert_close(found[both, 2], found[both, 3], **EXACT)
    assert 0 < found[both, 2].abs().max() < 0.1


@pytest.mark.parametrize("name", DECODERS)
def test_halfway_a_row_looks_no_further_than_before(name):
    case = replace(case_of(name), special_tokens_mask=None)
    first = hidden_keys.single(case, 0)
    with torch.no_grad(), AttentionObserver(case, first, 0.5) as attention:
        case.run(embedding_model(name))
    for weights in attention.weights:
        assert (weights[..., 0, 0] == 1).all()
        assert (weights.triu(1) == 0).all()
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]).double(), **EXACT)


@pytest.mark.parametrize("name", DECODERS)
def test_the_grouped_gate_is_the_same_in_eager_and_fused_attention(name):
    case = replace(case_of(name), special_tokens_mask=None)
    eager, fused = (GroupedMaskGate(2).attribute(embedding_model(name, kind), case) for kind in ("eager", "sdpa"))
    torch.testing.assert_close(eager, fused, **EXACT)


# --- no trace --------------------------------------------------------------------------------------------------------


def break_end(model):
    model.classifier = nn.Linear(3, 2, dtype=torch.float64)


def break_middle(model):
    model.bert.encoder.layer[1].intermediate.dense = nn.Linear(3, 2, dtype=torch.float64)


def dropout_in_sdpa(model):
    model.set_attn_implementation("sdpa")
    model.bert.encoder.layer[1].attention.self.train()


BROKEN = {
    "not": (lambda model: None, None),
    "end": (break_end, RuntimeError),
    "middle": (break_middle, RuntimeError),
    "within sdpa": (dropout_in_sdpa, Unsupported),
}


@every_gate
@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
def test_nothing_is_left_on_the_model_or_the_case(gate, broken, grad):
    model, case = copy.deepcopy(embedding_model("bert")), case_of("bert")
    damage, error = BROKEN[broken]
    damage(model.model)
    model.model.bert.encoder.layer[0].register_forward_hook(lambda *_: None)  # the user's own stays
    kept = case.select(torch.arange(3))
    with torch.set_grad_enabled(grad):
        before = state_of(model)
        if error is None:
            found = attribution_of(gate, model, case)
        else:
            with pytest.raises(error):
                gate.attribute(model, case)
        assert_same(before, state_of(model))
    if error is None:
        assert torch.equal(found, gate.attribute(model, case)), "the same again"
        assert not found.requires_grad
    for name in ("inputs", "baseline", "target", "special_tokens_mask"):
        assert torch.equal(getattr(case, name), getattr(kept, name))
    assert torch.equal(case.forward_arguments["attention_mask"], kept.forward_arguments["attention_mask"])
    assert not case.inputs.requires_grad


@every_gate
def test_the_result_is_no_part_of_a_graph(gate):
    for kind in ("attention_mask", "baseline"):
        assert not replace(gate, removal=kind).attribute(embedding_model("bert"), case_of("bert")).requires_grad


@every_gate
@every_text
def test_weights_may_require_grad_or_not(gate, name):
    model, case = embedding_model(name), case_of(name)
    frozen = copy.deepcopy(model).requires_grad_(False)
    assert torch.equal(gate.attribute(model, case), gate.attribute(frozen, case))
    point = replace(case, inputs=case.inputs.clone().requires_grad_())
    assert torch.equal(gate.attribute(model, case), gate.attribute(frozen, point))
    assert point.inputs.grad is None


@every_gate
def test_inference_mode_is_refused_by_torch_itself_as_for_every_gradient(gate):
    model, case = embedding_model("bert"), case_of("bert")  # made outside: tensors made inside are of no use elsewhere
    with torch.inference_mode(), pytest.raises(RuntimeError, match="does not require grad"):
        gate.attribute(model, case)


@every_gate
@pytest.mark.parametrize("name", [*TEXT, "vit"])
@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-4), (torch.bfloat16, 0.2)])
def test_in_less_precision(gate, name, dtype, within):
    """A handful of operations with 24 or 8 bits, in parts of the largest value; wrong is off by 1 or more."""
    model, case = copy.deepcopy(embedding_model(name)).to(dtype), case_of(name)
    expected = gate.attribute(embedding_model(name), case)
    lower = replace(case, inputs=case.inputs.to(dtype), baseline=case.baseline.to(dtype))
    found = checked_attribution(gate.attribute(model, lower), lower)
    assert (found - expected).abs().max() < within * expected.abs().max()


@pytest.mark.parametrize("explainer", GATES, ids=lambda e: e.name)
def test_no_graph_is_kept(explainer, monkeypatch):
    """A hook that holds what holds its tensor is never freed: Python's collector does not see through the graph."""
    made = []

    class Followed(attention_observer.Moved):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(weakref.ref(self))

    monkeypatch.setattr(attention_observer, "Moved", Followed)
    model, case = embedding_model("bert"), case_of("bert")
    explainer.attribute(model, case)
    gc.collect()
    assert made
    assert all(one() is None for one in made)


class LogitsGoOn(nn.Module):
    """Layers whose logits are added to the next layer's: read by a softmax, and by others."""

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


@pytest.mark.parametrize("together", [1, attention_observer.TOGETHER])
def test_the_gradient_at_logits_is_that_of_their_softmax_alone(together, monkeypatch):
    monkeypatch.setattr(attention_observer, "TOGETHER", together)
    inputs = torch.randn(2, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    case = Case(inputs, torch.tensor([0, 1]), torch.zeros_like(inputs))
    watched = AttentionObserver(case)
    with torch.enable_grad(), watched:
        output = select_target(case.run(LogitsGoOn()), case.target)
    at_weights = torch.autograd.grad(output.sum(), watched.weights, retain_graph=True)
    (derivative,) = watched.moved(output, "derivative")
    for layer, (weights, gradient) in enumerate(zip(watched.weights, at_weights, strict=True)):
        byhand = weights * (gradient - (weights * gradient).sum(-1, keepdim=True))
        torch.testing.assert_close(derivative[layer], byhand.detach(), rtol=1e-12, atol=1e-14)
