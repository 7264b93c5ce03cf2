"""The readout gate: its exact part by brute force, the rest by slow oracles, and what it refuses."""

import copy
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

from faithcheck.explainers import LeaveOneOut, Unsupported
from faithcheck.explainers.gates import mask_gates, readout_gate
from faithcheck.explainers.gates.mask_gates import MaskGate
from faithcheck.explainers.gates.readout_gate import ReadoutGate
from faithcheck.explainers.loo.removal import AttentionMask
from faithcheck.explainers.protocol import attribution_of, checked_attribution
from faithcheck.models import Case
from faithcheck.models.architectures.architecture import random_weights
from faithcheck.models.architectures.bert import bert
from faithcheck.models.architectures.embedding_model import KeepFloat64
from faithcheck.models.architectures.gpt2 import gpt2
from faithcheck.models.architectures.llama import llama
from faithcheck.models.architectures.vit import vit
from faithcheck.tests.helpers import hidden_keys
from faithcheck.tests.unit.test_explainers import assert_same, state_of
from faithcheck.tests.unit.test_gates import (
    DECODERS,
    LENGTHS,
    REFUSED,
    TEXT,
    OneLayer,
    alone,
    away,
    case_of,
    rows_read,
    tokens,
)

CPU = torch.device("cpu")
GATE = ReadoutGate("attention_mask")
MAKE = {
    "bert": lambda layers: bert(num_hidden_layers=layers),
    "gpt2": lambda layers: gpt2(n_layer=layers),
    "llama": lambda layers: llama(num_hidden_layers=layers),
    "vit": lambda layers: vit(num_hidden_layers=layers),
}
# Round-off of a few layers in float64, of outputs of about 1.
EXACT = {"rtol": 1e-10, "atol": 1e-11}

every_name = pytest.mark.parametrize("name", MAKE)
every_text = pytest.mark.parametrize("name", TEXT)


class LinearHead(nn.Module):
    """A small unmodified model's layers, the norm behind them, and a linear map of the row that it is read at."""

    def __init__(self, name, layers):
        super().__init__()
        self.base_model = random_weights(lambda: MAKE[name](layers))(0, torch.float64, CPU)
        self.head = nn.Linear(16, 3, dtype=torch.float64)

    @property
    def model(self):
        return self.base_model.model

    def forward(self, inputs, attention_mask=None, last=None):
        with KeepFloat64():
            if hasattr(self.base_model, "assembled"):
                states = self.model.base_model(self.base_model.assembled(inputs)).last_hidden_state
            else:
                states = self.model.base_model(inputs_embeds=inputs, attention_mask=attention_mask).last_hidden_state
        row = states[:, 0] if last is None else states[torch.arange(len(last)), last]
        return self.head(row)


@cache
def embedding_model(name, layers, implementation="eager"):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = LinearHead(name, layers).eval()
    made.model.set_attn_implementation(implementation)
    return made


def explain(model, case, gate=GATE):
    """The gate runs layers by themselves, outside a reader's forward, where Llama's norm would be in float32."""
    with KeepFloat64():
        return gate.attribute(model, case)


def first_exact(name, layers):
    """The last third where layers end in a LayerNorm, else all."""
    return 2 * layers // 3 if name == "bert" else 0


def by_oracle(model, case, layers, exact_from):
    """Key i hidden from the readout row in the upper layers; in other layers and rows, the mean of both gates."""
    changes = (hidden_keys.row_derivatives(model, case) + hidden_keys.finite_changes(model, case)[0]) / 2
    batch, features, queries = changes.shape[1:]
    read = rows_read(case, queries)
    result = hidden_keys.leave_one_out_of_rows(model, case, read, range(exact_from, layers))
    for b in range(batch):
        for i in range(features):
            for j in range(queries):
                if read[b, j]:
                    result[b, i] += changes[:exact_from, b, i, j].sum()
                elif j != queries - features + i:
                    result[b, i] += changes[:, b, i, j].sum()
    return result * case.unpadded


def own_key(case, queries):
    """Where the feature is the token that the model is read at, ``(batch, features)``; nowhere in a ViT."""
    return rows_read(case, queries)[:, -case.shape[1] :]


@pytest.mark.parametrize("layers", [1, 2, 3, 4])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@every_name
def test_the_readout_row_without_the_key_in_the_upper_layers_and_gates_elsewhere(name, implementation, layers):
    case = case_of(name)
    expected = by_oracle(embedding_model(name, layers), case, layers, first_exact(name, layers))
    found = checked_attribution(explain(embedding_model(name, layers, implementation), case), case)
    others = ~own_key(case, case.shape[1] + (name == "vit"))
    torch.testing.assert_close(found[others], expected[others], **EXACT)
    for other in range(layers):  # where the exact part begins matters
        if other != first_exact(name, layers):
            assert (by_oracle(embedding_model(name, layers), case, layers, other) - expected).abs().max() > 1e-4


@pytest.mark.parametrize("some", [1, 2, 3])
def test_of_short_texts_the_features_that_move_most_are_exact_and_the_others_by_gates(some, monkeypatch):
    layers, case = 3, case_of("bert")
    model = embedding_model("bert", layers)
    monkeypatch.setattr(readout_gate, "SHORT", some)
    exact, by_gates = (by_oracle(model, case, layers, since) for since in (first_exact("bert", layers), layers))
    sizes = hidden_keys.finite_changes(model, case)[0].abs().sum(0)
    own = torch.eye(case.shape[1], dtype=torch.bool) & ~rows_read(case, case.shape[1]).unsqueeze(1)
    most = sizes.masked_fill(own, 0).sum(2).masked_fill(~case.unpadded, -1).topk(some).indices
    again = torch.zeros(case.shape, dtype=torch.bool).scatter(1, most, True)
    others = ~own_key(case, case.shape[1])
    torch.testing.assert_close(explain(model, case)[others], torch.where(again, exact, by_gates)[others], **EXACT)
    assert ((exact - by_gates).abs() > 1e-5)[others & case.unpadded].all()


@pytest.mark.parametrize("name", ["bert", *DECODERS])
def test_the_token_that_is_read_has_its_own_row_in_every_layer(name):
    case = case_of(name)
    own = own_key(case, case.shape[1])
    found, expected = (
        explain(embedding_model(name, 3), case),
        by_oracle(embedding_model(name, 3), case, 3, first_exact(name, 3)),
    )
    torch.testing.assert_close(found[own], expected[own], **EXACT)


@every_name
def test_one_layer_of_any_model_before_a_linear_head_is_leave_one_out(name):
    """No other row is read: all there is, is the readout row's own attention; norms and feed-forward are exact."""
    model, case = embedding_model(name, 1), case_of(name)
    loo = hidden_keys.leave_one_out(model, case)
    torch.testing.assert_close(explain(model, case), loo * case.unpadded, **EXACT)
    if name in TEXT:
        torch.testing.assert_close(loo, LeaveOneOut(AttentionMask()).attribute(model, case), **EXACT)
    assert (MaskGate("attention_mask").attribute(model, case) - loo).abs().max() > 1e-2


class Tanh(LinearHead):
    """The head's tanh."""

    def forward(self, inputs, attention_mask=None, last=None):
        return torch.tanh(super().forward(inputs, attention_mask, last))


@every_name
def test_a_head_is_taken_by_its_gradient(name):
    """f = tanh(y): (1 − tanh² y) times the map of y, each part of it."""
    model, case = embedding_model(name, 3), case_of(name)
    curved = copy.deepcopy(model)
    curved.__class__ = Tanh
    y = case.run(model).gather(1, case.target.unsqueeze(1)).detach()
    expected = (1 - y.tanh().square()) * explain(model, case)
    torch.testing.assert_close(explain(curved, case), expected, **EXACT)


# --- padding ---------------------------------------------------------------------------------------------------------


@every_text
def test_a_padded_batch_is_its_texts_one_by_one(name):
    """Decoders are read at another row in each example."""
    model, case = embedding_model(name, 3), case_of(name)
    together = explain(model, case)
    for i, n in enumerate(LENGTHS):
        torch.testing.assert_close(together[i, :n].unsqueeze(0), explain(model, alone(case, i)), rtol=0, atol=1e-12)
        assert (together[i, n:] == 0).all()


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@every_text
def test_padding_on_the_left(name, implementation):
    case = case_of(name, "left")
    if name == "bert":  # read at the first position, which is padding here
        case = replace(
            case,
            forward_arguments={
                "attention_mask": case.forward_arguments["attention_mask"].index_fill(1, torch.tensor(0), 1)
            },
        )
    found = explain(embedding_model(name, 3, implementation), case)
    others = ~own_key(case, case.shape[1])
    torch.testing.assert_close(
        found[others], by_oracle(embedding_model(name, 3), case, 3, first_exact(name, 3))[others], **EXACT
    )


# --- at the edge -----------------------------------------------------------------------------------------------------


@every_text
def test_a_single_feature_has_all_the_attention_and_nothing_moves(name):
    case = case_of(name)
    context = {"attention_mask": torch.ones(3, 1, dtype=torch.int64)}
    if name in DECODERS:
        context["last"] = torch.zeros(3, dtype=torch.int64)
    one = Case(case.inputs[:, :1], case.target, case.baseline[:, :1], forward_arguments=context)
    torch.testing.assert_close(explain(embedding_model(name, 2), one), torch.zeros(3, 1).double(), **EXACT)


@pytest.mark.parametrize("name", DECODERS)
def test_what_comes_after_the_row_that_is_read_has_nothing(name):
    case = case_of(name)
    case = replace(case, forward_arguments={**case.forward_arguments, "last": torch.tensor([2, 1, 3])})
    found, others = explain(embedding_model(name, 3), case), ~own_key(case, case.shape[1])
    torch.testing.assert_close(
        found[others], by_oracle(embedding_model(name, 3), case, 3, first_exact(name, 3))[others], **EXACT
    )
    for row, last in zip(found, (2, 1, 3), strict=True):
        assert (row[last + 1 :] == 0).all()
        assert row[: last + 1].abs().min() > 0


def test_by_the_baseline_it_is_the_mask_gate():
    model, case = embedding_model("bert", 2), away(case_of("bert"))
    assert torch.equal(ReadoutGate("baseline").attribute(model, case), MaskGate("baseline").attribute(model, case))
    bare = replace(case, forward_arguments={})
    assert torch.equal(ReadoutGate().attribute(model, bare), MaskGate().attribute(model, bare))
    assert torch.equal(ReadoutGate().attribute(model, case), explain(model, case))
    with pytest.raises(ValueError, match="'attention_mask' or 'baseline', got 'zero'"):
        ReadoutGate("zero").attribute(model, case)


# --- what it refuses -------------------------------------------------------------------------------------------------


class Layer(nn.Module):
    """Attention with a residual; what comes of a residual is what its class says."""

    def forward(self, x, *rest):
        return x + torch.softmax(x @ x.transpose(1, 2), -1) @ x


class Stack(nn.Module):
    """Two layers, read at the first token."""

    layer = Layer

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([self.layer(), self.layer()])

    def states(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

    def forward(self, x, **context):
        return self.states(x)[:, 0]


class Pooled(Stack):
    """Read at the mean."""

    def forward(self, x, **context):
        return self.states(x).mean(1)


class InTwo(Stack):
    """Read at two tokens."""

    def forward(self, x, **context):
        states = self.states(x)
        return states[:, 0] + states[:, 3]


class Twice(Stack):
    """A layer of two attentions."""

    class layer(Layer):
        def forward(self, x, *rest):
            return super().forward(super().forward(x))


class Without(Stack):
    """A layer without attention."""

    def __init__(self):
        super().__init__()
        self.layers.append(nn.Linear(6, 6, dtype=torch.float64))


class Outside(Stack):
    """Attention before the layers."""

    def forward(self, x, **context):
        return super().forward(Layer()(x))


class Bilinear(Stack):
    """A layer with a product of data beside its attention's."""

    class layer(Layer):
        def forward(self, x, *rest):
            x = super().forward(x)
            return x + x @ (x.transpose(1, 2) @ x)


class ByKeyword(Stack):
    """Layers that are called by keyword."""

    class layer(Layer):
        def forward(self, hidden):
            return super().forward(hidden)

    def states(self, x):
        for layer in self.layers:
            x = layer(hidden=x)
        return x


class NoLayers(nn.Module):
    """One attention, in no list of layers."""

    def forward(self, x, **context):
        return Layer()(x)[:, 0]


NOT_STACKS = {
    "mean of all rows": (Pooled(), "read at 5 positions: the readout gate needs one; take finite_mask_gate"),
    "two rows": (InTwo(), "read at 2 positions"),
    "two attentions a layer": (Twice(), "one attention in each layer"),
    "a layer without": (Without(), "3 layers with 2 attentions: expected one each"),
    "attention outside": (Outside(), "one attention in each layer"),
    "another product": (Bilinear(), "a matrix product of data beside the attention's two"),
    "by keyword": (ByKeyword(), "hidden states as its first argument"),
    "no layers": (NoLayers(), "NoLayers has no nn.ModuleList of layers"),
    "hidden": (REFUSED["hidden"][0], "no nn.ModuleList"),
    "none": (nn.Flatten(), "no nn.ModuleList"),
}


def bare():
    return replace(tokens(), forward_arguments={})


@pytest.mark.parametrize("name", NOT_STACKS)
def test_what_is_no_stack_read_at_one_row_is_refused(name):
    model, message = NOT_STACKS[name]
    before = state_of(model)
    with pytest.raises(Unsupported, match=message):
        explain(model, bare())
    assert_same(before, state_of(model))


def test_and_what_is_one_is_not():
    """Two layers by hand: softmax attention to all, read at the first token."""
    found = explain(Stack(), bare())
    assert found.abs().min() > 1e-6

    class Fused(Layer):
        def forward(self, x, *rest):
            return x + scaled_dot_product_attention(x, x, x, scale=1.0)

    fused = Stack()
    fused.layers = nn.ModuleList([Fused(), Fused()])
    torch.testing.assert_close(explain(fused, bare()), found, **EXACT)


def test_a_model_of_one_layer_in_no_list_is_refused():
    with pytest.raises(Unsupported, match="OneLayer has no"):
        explain(OneLayer(), tokens())


# --- no trace --------------------------------------------------------------------------------------------------------


def break_last(model):
    model.encoder.layer[2].output.dense = nn.Linear(3, 2, dtype=torch.float64)


def break_second_time(model):
    """A layer that runs once for the model, and not again, on copies of the readout row."""
    counts = iter([1])

    def once(module, args):
        if next(counts, None) is None:
            raise RuntimeError("a second time")

    model.encoder.layer[2].attention.self.query.register_forward_pre_hook(once)


def dropout_in_sdpa(model):
    model.set_attn_implementation("sdpa")
    model.encoder.layer[1].attention.self.train()


BROKEN = {
    "not": (lambda model: None, None),
    "last layer": (break_last, RuntimeError),
    "second pass": (break_second_time, Unsupported),
    "within sdpa": (dropout_in_sdpa, Unsupported),
}


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
def test_nothing_is_left_on_the_model_or_the_case(broken, grad):
    model, case = copy.deepcopy(embedding_model("bert", 3)), case_of("bert")
    damage, error = BROKEN[broken]
    damage(model.model.bert)
    model.model.bert.encoder.layer[0].register_forward_hook(lambda *_: None)  # the user's own stays
    kept = case.select(torch.arange(3))
    with torch.set_grad_enabled(grad):
        before = state_of(model)
        if error is None:
            found = attribution_of(GATE, model, case)
        else:
            with pytest.raises(error):
                explain(model, case)
        assert_same(before, state_of(model))
    if error is None:
        assert torch.equal(found, explain(model, case)), "the same again"
        assert not explain(model, case).requires_grad
    for name in ("inputs", "baseline", "target", "special_tokens_mask"):
        assert torch.equal(getattr(case, name), getattr(kept, name))
    assert torch.equal(case.forward_arguments["attention_mask"], kept.forward_arguments["attention_mask"])


@every_name
def test_weights_may_require_grad_or_not(name):
    model, case = embedding_model(name, 2), case_of(name)
    frozen = copy.deepcopy(model).requires_grad_(False)
    assert torch.equal(explain(model, case), explain(frozen, case))


def test_inference_mode_is_refused_by_torch_itself_as_for_every_gradient():
    model, case = embedding_model("bert", 2), case_of("bert")
    with torch.inference_mode(), pytest.raises(RuntimeError, match="does not require grad"):
        explain(model, case)


@every_name
@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-4), (torch.bfloat16, 0.2)])
def test_in_less_precision(name, dtype, within):
    """A handful of operations with 24 or 8 bits, in parts of the largest value; wrong is off by 1 or more."""
    model, case = copy.deepcopy(embedding_model(name, 2)).to(dtype), case_of(name)
    expected = explain(embedding_model(name, 2), case)
    lower = replace(case, inputs=case.inputs.to(dtype), baseline=case.baseline.to(dtype))
    found = checked_attribution(explain(model, lower), lower)
    assert (found - expected).abs().max() < within * expected.abs().max()


# --- long texts: a few features, from a few rows ---


@pytest.fixture
def long(monkeypatch):
    monkeypatch.setattr(mask_gates, "LONG", 1)
    return lambda share: monkeypatch.setattr(readout_gate, "SHARE", share)


@pytest.mark.parametrize("layers", [1, 2, 3, 4])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_every_feature_from_every_row_is_leave_one_out(long, implementation, layers):
    long(20.0)
    model, case = embedding_model("bert", layers, implementation), case_of("bert")
    loo = hidden_keys.leave_one_out(embedding_model("bert", layers), case)
    torch.testing.assert_close(explain(model, case), loo * case.unpadded, **EXACT)
    long(0.5)
    if layers > 1:
        assert (explain(model, case) - loo * case.unpadded).abs().max() > 1e-3


@pytest.mark.parametrize("share", [0.5, 1.0, 2.0])
def test_a_padded_batch_of_long_texts_is_its_texts_one_by_one(long, share):
    long(share)
    model, case = embedding_model("bert", 3), case_of("bert")
    together = explain(model, case)
    for i, n in enumerate(LENGTHS):
        torch.testing.assert_close(together[i, :n].unsqueeze(0), explain(model, alone(case, i)), rtol=0, atol=1e-12)


def test_long_and_short_in_one_batch(monkeypatch):
    model, case = embedding_model("bert", 3), case_of("bert")
    assert len(set(LENGTHS)) > 1
    monkeypatch.setattr(mask_gates, "LONG", max(LENGTHS))
    together = explain(model, case)
    for i, n in enumerate(LENGTHS):
        torch.testing.assert_close(together[i, :n].unsqueeze(0), explain(model, alone(case, i)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("share", [1.0, 2.0])
def test_what_changed_values_do_goes_through_the_rows_of_no_copy_alone(long, share, monkeypatch):
    """Σ over copied rows r of (V_r changed − V_r) · Σ over rows j of no copy of A_jr S_j, S the gradient at O_j."""
    long(share)
    model, case, met = embedding_model("bert", 3), case_of("bert"), []
    pass_on = readout_gate.Copies.pass_on

    def followed(self, change, product, at_values, at_output):
        found = pass_on(self, change, product, at_values, at_output)
        met.append((self.copies, change, product.first, at_output, found))
        return found

    monkeypatch.setattr(readout_gate.Copies, "pass_on", followed)
    explain(model, case)
    assert len(met) == 1  # below the first layer nothing is asked for, and behind the last nothing is read
    ((copies, change, weights, at_output, found),) = met
    expected = torch.zeros_like(found)
    for example, group in (found != 0).nonzero().tolist():
        rows = copies.rows[example, group][copies.counted[example, group]]
        inside = {*rows.tolist(), int(copies.own[example, group])}
        others = [j for j in range(weights.shape[-2]) if j not in inside]
        through = weights[example, :, others][..., rows].mT @ at_output[example, :, others]
        expected[example, group] = (through * change[example, :, group, : len(rows)]).sum()
    assert (expected != 0).any()
    torch.testing.assert_close(found, expected, **EXACT)


@pytest.mark.parametrize("layers", [3, 4])
def test_to_pass_on_what_changed_values_do_is_nearer_to_leave_one_out(long, layers, monkeypatch):
    long(1.0)
    model, case = embedding_model("bert", layers), case_of("bert")
    loo = hidden_keys.leave_one_out(model, case) * case.unpadded
    error = (explain(model, case) - loo).norm()
    monkeypatch.setattr(readout_gate.Copies, "pass_on", lambda self, *_: 0)
    assert error < 0.95 * (explain(model, case) - loo).norm()


@pytest.mark.parametrize("shape", [(5, 4), (2, 5, 4)], ids=["rows", "batch"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_the_backward_pass_of_a_linear_map_is_of_the_rows_that_have_a_gradient(shape, bias):
    torch.manual_seed(0)
    linear = nn.Linear(4, 3, bias=bias, dtype=torch.float64)
    values = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    found = readout_gate.OfRows.apply(values, linear.weight, linear.bias)
    assert torch.equal(found, linear(values))
    for rows in ([], [0], [1, 3], range(5)):
        gradient = torch.zeros_like(found)
        gradient[..., list(rows), 1:] = 1.0
        with FlopCounterMode(display=False) as counter:
            (made,) = torch.autograd.grad(found, values, gradient, retain_graph=True)
        assert counter.get_total_flops() == 2 * 3 * 4 * len(rows) * values.numel() // 20, "the others cost nothing"
        (plain,) = torch.autograd.grad(linear(values), values, gradient)
        torch.testing.assert_close(made, plain, **EXACT)
        assert not made[..., [j for j in range(5) if j not in rows], :].any()


@pytest.mark.parametrize("share", [0.5, 20.0])
def test_and_only_in_the_last_layer_of_long_texts(long, share, monkeypatch):
    long(share)
    model, case, apply = embedding_model("bert", 3), case_of("bert"), readout_gate.OfRows.apply
    found, met = explain(model, case), []
    monkeypatch.setattr(readout_gate.OfRows, "apply", lambda *given: met.append(given[1]) or apply(*given))
    assert torch.equal(explain(model, case), found)
    last = [m.weight for m in model.model.bert.encoder.layer[-1].modules() if isinstance(m, nn.Linear)]
    assert [id(weight) for weight in met] == [id(weight) for weight in last]
    met.clear()
    with monkeypatch.context() as patch:
        patch.setattr(mask_gates, "LONG", 128)
        explain(model, case)
    assert not met
    monkeypatch.setattr(readout_gate.OfRows, "apply", nn.functional.linear)
    torch.testing.assert_close(explain(model, case), found, rtol=0, atol=1e-12)


def test_weights_that_are_computed_keep_their_gradient(long):
    long(0.5)
    torch.manual_seed(0)
    watched, values = readout_gate.Watched(case_of("bert")), torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    watched.last = True
    for computed in (lambda: (values[:3].tanh(),), lambda: (torch.eye(4).double(), values[0].tanh())):
        with watched:
            found = nn.functional.linear(values, *computed())
        plain = torch.autograd.grad(nn.functional.linear(values, *computed()).sum(), values)
        assert torch.equal(*torch.autograd.grad(found.sum(), values), *plain)
