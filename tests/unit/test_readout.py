"""The readout gate: its exact part by brute force, the rest by slow oracles, and the models that it refuses."""

import copy
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from faithcheck.explainers import LeaveOneOut, Unsupported
from faithcheck.explainers.fast.linear_map import linear_without_gradient
from faithcheck.explainers.gates import gate, readout_copies
from faithcheck.explainers.gates.mask_gate import MaskGate
from faithcheck.explainers.gates.readout_gate import ReadoutGate
from faithcheck.explainers.gates.readout_recording import is_from_layer_norm
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
from faithcheck.tests.helpers.attention_models import (
    DECODERS,
    LENGTHS,
    TEXT_MODELS,
    OneLayer,
    PyTorchEncoder,
    case_of,
    readout_rows,
    single_example,
    tokens,
    with_other_baseline,
)
from faithcheck.tests.helpers.model_state import assert_same_state, state_of

CPU = torch.device("cpu")
GATE = ReadoutGate("attention_mask")
MODELS = {
    "bert": lambda layers: bert(num_hidden_layers=layers),
    "gpt2": lambda layers: gpt2(n_layer=layers),
    "llama": lambda layers: llama(num_hidden_layers=layers),
    "vit": lambda layers: vit(num_hidden_layers=layers),
}
# Round-off of a few layers in float64, of outputs of about 1.
EXACT = {"rtol": 1e-10, "atol": 1e-11}

every_name = pytest.mark.parametrize("name", MODELS)
every_text = pytest.mark.parametrize("name", TEXT_MODELS)


class LinearHead(nn.Module):
    """The layers of a small unmodified model, the norm after them, and a linear map of the readout row."""

    def __init__(self, name, layers):
        super().__init__()
        self.base_model = random_weights(lambda: MODELS[name](layers))(0, torch.float64, CPU)
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
    """The gate runs layers outside the model's forward pass, where Llama's norm would compute in float32."""
    with KeepFloat64():
        return gate.attribute(model, case)


def first_exact(name, layers):
    """The last third where layers end in a LayerNorm, else all."""
    return 2 * layers // 3 if name == "bert" else 0


def by_oracle(model, case, layers, exact_from):
    """Key i removed from the readout row in the upper layers; elsewhere the mean of both gate effects."""
    changes = (hidden_keys.row_derivatives(model, case) + hidden_keys.finite_changes(model, case)[0]) / 2
    batch, features, queries = changes.shape[1:]
    read = readout_rows(case, queries)
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
    """Where the feature is the readout token, ``(batch, features)`` bool; nowhere in a ViT."""
    return readout_rows(case, queries)[:, -case.shape[1] :]


@pytest.mark.parametrize(("implementation", "layers"), [("eager", 1), ("eager", 3), ("eager", 4), ("sdpa", 3)])
@every_name
def test_exact_in_the_readout_row_of_the_upper_layers_and_by_gates_elsewhere(name, implementation, layers):
    case = case_of(name)
    expected = by_oracle(embedding_model(name, layers), case, layers, first_exact(name, layers))
    attribution = checked_attribution(explain(embedding_model(name, layers, implementation), case), case)
    not_own = ~own_key(case, case.shape[1] + (name == "vit"))
    torch.testing.assert_close(attribution[not_own], expected[not_own], **EXACT)
    for wrong in range(layers):  # the first exact layer matters
        if wrong != first_exact(name, layers):
            assert (by_oracle(embedding_model(name, layers), case, layers, wrong) - expected).abs().max() > 1e-4


@pytest.mark.parametrize("copied", [1, 2, 3])
def test_short_texts_are_exact_for_the_features_with_the_largest_effects(copied, monkeypatch):
    layers, case = 3, case_of("bert")
    model = embedding_model("bert", layers)
    monkeypatch.setattr(readout_copies, "COPIES_IN_SHORT_TEXTS", copied)
    exact, by_gates = (by_oracle(model, case, layers, since) for since in (first_exact("bert", layers), layers))
    sizes = hidden_keys.finite_changes(model, case)[0].abs().sum(0)
    own = torch.eye(case.shape[1], dtype=torch.bool) & ~readout_rows(case, case.shape[1]).unsqueeze(1)
    most = sizes.masked_fill(own, 0).sum(2).masked_fill(~case.unpadded, -1).topk(copied).indices
    is_copied = torch.zeros(case.shape, dtype=torch.bool).scatter(1, most, True)
    not_own = ~own_key(case, case.shape[1])
    torch.testing.assert_close(explain(model, case)[not_own], torch.where(is_copied, exact, by_gates)[not_own], **EXACT)
    assert ((exact - by_gates).abs() > 1e-5)[not_own & case.unpadded].all()


def maps_of_copies(model, monkeypatch):
    """How many linear maps the copied rows of a BERT of three layers go through, and the attribution."""
    computed = []

    def counted(*args, **options):
        computed.append(args)
        return linear_without_gradient(*args, **options)

    monkeypatch.setattr(readout_copies, "linear_without_gradient", counted)
    attribution = explain(model, case_of("bert"))
    return len(computed), attribution


def test_the_first_layer_of_the_copies_reads_the_recorded_queries_keys_and_values(monkeypatch):
    """One layer of three has copies; of its six linear maps three are of the unchanged states."""
    assert maps_of_copies(embedding_model("bert", 3), monkeypatch)[0] == 3


def test_a_linear_map_that_the_model_writes_to_is_computed_again(monkeypatch):
    plain, writes = (copy.deepcopy(embedding_model("bert", 3)) for _ in range(2))
    for layer in plain.model.bert.encoder.layer:
        with torch.no_grad():
            layer.attention.self.query.weight *= 0.5
            layer.attention.self.query.bias *= 0.5
    for layer in writes.model.bert.encoder.layer:
        layer.attention.self.query.register_forward_hook(lambda module, args, output: output.mul_(0.5))
    computed, attribution = maps_of_copies(writes, monkeypatch)
    assert computed == 4
    torch.testing.assert_close(attribution, explain(plain, case_of("bert")), **EXACT)


def test_the_first_layer_of_the_copies_refuses_keys_that_are_not_theirs_alone():
    """As every later layer does: a model of more layers is refused in its second one."""
    model, case = copy.deepcopy(embedding_model("bert", 3)), case_of("bert")

    def with_cache(module, args, output):
        return output if output.shape[1] == case.shape[1] else torch.cat([output, output], 1)

    attention = model.model.bert.encoder.layer[2].attention.self
    for projection in (attention.key, attention.value):
        projection.register_forward_hook(with_cache)
    with pytest.raises(Unsupported, match=r"expected keys and values .* of the copied rows"):
        explain(model, case)


@pytest.mark.parametrize("name", ["bert", *DECODERS])
def test_the_readout_token_counts_its_own_row_in_every_layer(name):
    case = case_of(name)
    own = own_key(case, case.shape[1])
    attribution, expected = (
        explain(embedding_model(name, 3), case),
        by_oracle(embedding_model(name, 3), case, 3, first_exact(name, 3)),
    )
    torch.testing.assert_close(attribution[own], expected[own], **EXACT)


@every_name
def test_one_layer_of_any_model_before_a_linear_head_is_leave_one_out(name):
    """No other row is read, so only the readout row's own attention counts; norms and feed-forward layers are exact."""
    model, case = embedding_model(name, 1), case_of(name)
    loo = hidden_keys.leave_one_out(model, case)
    torch.testing.assert_close(explain(model, case), loo * case.unpadded, **EXACT)
    if name in TEXT_MODELS:
        torch.testing.assert_close(loo, LeaveOneOut(AttentionMask()).attribute(model, case), **EXACT)
    assert (MaskGate("attention_mask").attribute(model, case) - loo).abs().max() > 1e-2


class Tanh(LinearHead):
    """The tanh of the head's output."""

    def forward(self, inputs, attention_mask=None, last=None):
        return torch.tanh(super().forward(inputs, attention_mask, last))


@every_name
def test_a_nonlinear_head_is_linearised(name):
    """f = tanh(y): the attribution is (1 − tanh² y) times the attribution of y."""
    model, case = embedding_model(name, 3), case_of(name)
    curved = copy.deepcopy(model)
    curved.__class__ = Tanh
    y = case.run(model).gather(1, case.target.unsqueeze(1)).detach()
    expected = (1 - y.tanh().square()) * explain(model, case)
    torch.testing.assert_close(explain(curved, case), expected, **EXACT)


# --- padding ---------------------------------------------------------------------------------------------------------


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
    attribution = explain(embedding_model(name, 3, implementation), case)
    not_own = ~own_key(case, case.shape[1])
    torch.testing.assert_close(
        attribution[not_own], by_oracle(embedding_model(name, 3), case, 3, first_exact(name, 3))[not_own], **EXACT
    )


# --- at the edge -----------------------------------------------------------------------------------------------------


@every_text
def test_the_gate_of_a_single_feature_is_zero(name):
    case = case_of(name)
    context = {"attention_mask": torch.ones(3, 1, dtype=torch.int64)}
    if name in DECODERS:
        context["last"] = torch.zeros(3, dtype=torch.int64)
    one = Case(case.inputs[:, :1], case.target, case.baseline[:, :1], forward_arguments=context)
    torch.testing.assert_close(explain(embedding_model(name, 2), one), torch.zeros(3, 1).double(), **EXACT)


@pytest.mark.parametrize("name", DECODERS)
def test_tokens_after_the_readout_row_get_zero(name):
    case = case_of(name)
    case = replace(case, forward_arguments={**case.forward_arguments, "last": torch.tensor([2, 1, 3])})
    attribution, not_own = explain(embedding_model(name, 3), case), ~own_key(case, case.shape[1])
    torch.testing.assert_close(
        attribution[not_own], by_oracle(embedding_model(name, 3), case, 3, first_exact(name, 3))[not_own], **EXACT
    )
    for row, last in zip(attribution, (2, 1, 3), strict=True):
        assert (row[last + 1 :] == 0).all()
        assert row[: last + 1].abs().min() > 0


def test_by_the_baseline_it_is_the_mask_gate():
    model, case = embedding_model("bert", 2), with_other_baseline(case_of("bert"))
    assert torch.equal(ReadoutGate("baseline").attribute(model, case), MaskGate("baseline").attribute(model, case))
    tokens_without_mask = replace(case, forward_arguments={})
    assert torch.equal(
        ReadoutGate().attribute(model, tokens_without_mask), MaskGate().attribute(model, tokens_without_mask)
    )
    assert torch.equal(ReadoutGate().attribute(model, case), explain(model, case))
    with pytest.raises(ValueError, match="'attention_mask' or 'baseline', got 'zero'"):
        ReadoutGate("zero").attribute(model, case)


# --- refusals --------------------------------------------------------------------------------------------------------


class Layer(nn.Module):
    """Attention with a residual."""

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
    """Layers with two attentions each."""

    class layer(Layer):
        def forward(self, x, *rest):
            return super().forward(super().forward(x))


class Without(Stack):
    """One layer has no attention."""

    def __init__(self):
        super().__init__()
        self.layers.append(nn.Linear(6, 6, dtype=torch.float64))


class Outside(Stack):
    """Attention before the layers."""

    def forward(self, x, **context):
        return super().forward(Layer()(x))


class Bilinear(Stack):
    """Layers with a product of data beside those of their attention."""

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
    """One attention, without a list of layers."""

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
    "hidden": (PyTorchEncoder().eval(), "no nn.ModuleList"),
    "none": (nn.Flatten(), "no nn.ModuleList"),
}


def tokens_without_mask():
    return replace(tokens(), forward_arguments={})


@pytest.mark.parametrize("name", NOT_STACKS)
def test_models_without_a_stack_of_layers_or_one_readout_row_are_refused(name):
    model, message = NOT_STACKS[name]
    before = state_of(model)
    with pytest.raises(Unsupported, match=message):
        explain(model, tokens_without_mask())
    assert_same_state(before, state_of(model))


def test_a_stack_by_hand_is_explained_with_and_without_sdpa():
    """Two layers by hand: softmax attention to all, read at the first token."""
    attribution = explain(Stack(), tokens_without_mask())
    assert attribution.abs().min() > 1e-6

    class Fused(Layer):
        def forward(self, x, *rest):
            return x + scaled_dot_product_attention(x, x, x, scale=1.0)

    fused = Stack()
    fused.layers = nn.ModuleList([Fused(), Fused()])
    torch.testing.assert_close(explain(fused, tokens_without_mask()), attribution, **EXACT)


class Scaled(Layer):
    """Attention whose keys and values are scaled, by the layer's arguments or by its own."""

    own = (), {}

    def forward(self, x, *args, **kwargs):
        own_args, own_kwargs = self.own
        return self.scaled(x, *own_args, *args, **own_kwargs, **kwargs)

    def scaled(self, x, keys=1.0, values=1.0):
        return x + torch.softmax(x @ x.mT * keys, -1) @ (x * values)


class Told(Stack):
    """Layers that get these arguments, or have them as their own."""

    layer = Scaled

    def __init__(self, arguments, as_own):
        super().__init__()
        self.arguments = [Scaled.own] * len(arguments) if as_own else arguments
        if as_own:
            for layer, own in zip(self.layers, arguments, strict=True):
                layer.own = own

    def states(self, x):
        for layer, (args, kwargs) in zip(self.layers, self.arguments, strict=True):
            x = layer(x, *args, **kwargs)
        return x


@pytest.mark.parametrize(
    "arguments",
    [
        [((2.0,), {}), ((2.0,), {})],
        [((2.0,), {}), ((0.5,), {})],
        [((), {"keys": 2.0}), ((), {"keys": 0.5})],
        [((), {"keys": 2.0}), ((), {"values": 2.0})],
        [((2.0,), {}), ((), {"values": 2.0})],
        [((2.0,), {}), ((), {})],
        [((), {}), ((2.0,), {})],
    ],
    ids=["the same", "others by place", "others by name", "other names", "by name", "fewer", "more"],
)
def test_each_layer_gets_its_own_arguments(arguments):
    """The copies, which often share them, go through each layer as the model did."""
    given, own = (explain(Told(arguments, as_own), tokens_without_mask()) for as_own in (False, True))
    torch.testing.assert_close(given, own, **EXACT)


def test_a_model_of_one_layer_in_no_list_is_refused():
    with pytest.raises(Unsupported, match="OneLayer has no"):
        explain(OneLayer(), tokens())


# --- no trace --------------------------------------------------------------------------------------------------------


def break_last(model):
    model.encoder.layer[2].output.dense = nn.Linear(3, 2, dtype=torch.float64)


def break_second_time(model):
    """A layer that runs once, and raises an error when the copied rows run through it."""
    counts = iter([1])

    def once(module, args):
        if next(counts, None) is None:
            raise RuntimeError("a second time")

    model.encoder.layer[2].attention.self.query.register_forward_pre_hook(once)


def dropout_in_sdpa(model):
    model.set_attn_implementation("sdpa")
    attention = model.encoder.layer[1].attention.self.train()
    attention.query.register_forward_pre_hook(lambda *_: setattr(attention, "training", True))  # within the pass


BROKEN = {
    "not": (lambda model: None, None),
    "last layer": (break_last, RuntimeError),
    "second pass": (break_second_time, Unsupported),
    "within sdpa": (dropout_in_sdpa, Unsupported),
}


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
def test_the_gate_leaves_model_and_case_unchanged(broken, grad):
    model, case = copy.deepcopy(embedding_model("bert", 3)), case_of("bert")
    damage, error = BROKEN[broken]
    damage(model.model.bert)
    model.model.bert.encoder.layer[0].register_forward_hook(lambda *_: None)  # the user's own stays
    original = case.select(torch.arange(3))
    with torch.set_grad_enabled(grad):
        before = state_of(model)
        if error is None:
            attribution = attribution_of(GATE, model, case)
        else:
            with pytest.raises(error):
                explain(model, case)
        assert_same_state(before, state_of(model))
    if error is None:
        assert torch.equal(attribution, explain(model, case)), "the second call differs"
        assert not explain(model, case).requires_grad
    for name in ("inputs", "baseline", "target", "special_tokens_mask"):
        assert torch.equal(getattr(case, name), getattr(original, name))
    assert torch.equal(case.forward_arguments["attention_mask"], original.forward_arguments["attention_mask"])


# --- long texts: a few features, removed from a few rows ---


@pytest.fixture
def long(monkeypatch):
    monkeypatch.setattr(gate, "LONG_TEXT", 1)
    return lambda share: monkeypatch.setattr(readout_copies, "COPIED_SHARE", share)


@pytest.mark.parametrize("layers", [1, 2, 3, 4])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_copying_every_row_for_every_feature_is_leave_one_out(long, implementation, layers):
    long(20.0)
    model, case = embedding_model("bert", layers, implementation), case_of("bert")
    loo = hidden_keys.leave_one_out(embedding_model("bert", layers), case)
    torch.testing.assert_close(explain(model, case), loo * case.unpadded, **EXACT)
    long(0.5)
    if layers > 1:
        assert (explain(model, case) - loo * case.unpadded).abs().max() > 1e-3


def test_a_batch_of_long_and_short_texts_equals_its_texts_one_by_one(monkeypatch):
    model, case = embedding_model("bert", 3), case_of("bert")
    assert len(set(LENGTHS)) > 1
    monkeypatch.setattr(gate, "LONG_TEXT", max(LENGTHS))
    together = explain(model, case)
    for i, n in enumerate(LENGTHS):
        torch.testing.assert_close(
            together[i, :n].unsqueeze(0), explain(model, single_example(case, i)), rtol=0, atol=1e-12
        )


@pytest.mark.parametrize("share", [1.0, 2.0])
def test_changed_values_are_passed_on_only_through_rows_without_a_copy(long, share, monkeypatch):
    """Σ over copied rows r of (V_r changed − V_r) · Σ over rows j without a copy of A_jr S_j, S the gradient at O_j."""
    long(share)
    model, case, calls = embedding_model("bert", 3), case_of("bert"), []
    pass_on = readout_copies.CopiedRowsAttention.pass_on

    def recorded(self, change, product, at_values, at_output):
        effect = pass_on(self, change, product, at_values, at_output)
        calls.append((self.copies, change, product.first, at_output, effect))
        return effect

    monkeypatch.setattr(readout_copies.CopiedRowsAttention, "pass_on", recorded)
    explain(model, case)
    # The first of the three layers has no gradient at its values, and after the last layer other rows are not read.
    assert len(calls) == 1
    ((copies, change, weights, at_output, effect),) = calls
    expected = torch.zeros_like(effect)
    for example, group in (effect != 0).nonzero().tolist():
        rows = copies.rows[example, group][copies.valid[example, group]]
        excluded = {*rows.tolist(), int(copies.feature_position[example, group])}
        not_copied = [j for j in range(weights.shape[-2]) if j not in excluded]
        through = weights[example, :, not_copied][..., rows].mT @ at_output[example, :, not_copied]
        expected[example, group] = (through * change[example, :, group, : len(rows)]).sum()
    assert (expected != 0).any()
    torch.testing.assert_close(effect, expected, **EXACT)


@pytest.mark.parametrize("layers", [3, 4])
def test_passing_on_changed_values_is_nearer_to_leave_one_out(long, layers, monkeypatch):
    long(1.0)
    model, case = embedding_model("bert", layers), case_of("bert")
    loo = hidden_keys.leave_one_out(model, case) * case.unpadded
    error = (explain(model, case) - loo).norm()
    monkeypatch.setattr(readout_copies.CopiedRowsAttention, "pass_on", lambda self, *_: 0)
    assert error < 0.95 * (explain(model, case) - loo).norm()


def norm_in_parts(x):
    norm = nn.functional.layer_norm
    return norm(x, (4,)) * nn.Parameter(torch.ones(4)) + nn.Parameter(torch.ones(4))


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (nn.LayerNorm(4), True),
        (norm_in_parts, True),
        (lambda x: torch.cat([norm_in_parts(x), norm_in_parts(x)]), True),
        (lambda x: x * 2, False),
        (lambda x: norm_in_parts(x) + x, False),
        (lambda x: norm_in_parts(x) @ nn.Parameter(torch.ones(4, 4)), False),
    ],
    ids=["LayerNorm", "in parts", "in chunks", "no norm", "residual", "linear map"],
)
def test_whether_a_layer_ends_in_a_layer_norm(states, expected):
    assert is_from_layer_norm(states(torch.randn(2, 4, requires_grad=True))) == expected
