"""Rows run on deferred tensors against the plain pass of the same rows: outputs, what is computed, and refusals."""

import copy
import logging
import warnings
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.overrides import BaseTorchFunctionMode

from faithcheck.explainers.forward_passes import observed_forward_passes
from faithcheck.explainers.loo import deferred, deferred_attention
from faithcheck.explainers.loo.deferred import DeferredTensor, RowRunner, run_deferred
from faithcheck.explainers.loo.deferred_values import MustRunPlainly
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.explainers.loo.removal import AttentionMask, Deletion, Replacement
from faithcheck.models import Case
from faithcheck.tests.helpers.attention_models import (
    DECODERS,
    SmallEmbeddingModel,
    case_of,
    embedding_model,
    single_example,
    tokens,
)
from faithcheck.tests.helpers.counted_rows import CountedRows
from faithcheck.tests.helpers.fixtures import small_models_are_recorded as small_models_are_recorded  # for every test
from faithcheck.tests.helpers.model_state import assert_same_state, state_of

MODELS = ("bert", "gpt2", "llama", "vit")
REMOVALS = (AttentionMask(), Replacement(), Deletion())
ROUND_OFF = {"rtol": 1e-12, "atol": 1e-13}  # float64: other orders of the same sums


def cases(name):
    """Rows of Leave-One-Out: of one example, which share their inputs, and of several."""
    whole = case_of(name)
    removed = torch.zeros(whole.shape, dtype=torch.bool)
    removed[1:, 2] = True
    alone = single_example(whole, 0) if name != "vit" else whole.select(torch.tensor([0]))
    rows = alone.repeat(alone.shape[1] + 1)
    each = torch.cat([torch.zeros(1, alone.shape[1]), torch.eye(alone.shape[1])]).bool()
    for removal in REMOVALS if name != "vit" else REMOVALS[1:2]:
        yield removal.remove(whole, removed)
        yield removal.remove(rows, each)


@pytest.fixture
def computed_at_once(monkeypatch):
    """The operations that are not recorded, by name."""
    names, compute_now = [], deferred.compute_now
    monkeypatch.setattr(deferred, "compute_now", lambda name, *rest: names.append(name) or compute_now(name, *rest))
    return names


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", MODELS)
def test_the_outputs_are_those_of_the_plain_pass(name, implementation, computed_at_once):
    model = embedding_model(name, implementation)
    for case in cases(name):
        with torch.no_grad():
            outputs = run_deferred(model, case)
            torch.testing.assert_close(outputs, case.run(model), **ROUND_OFF)
        assert type(outputs) is torch.Tensor
    assert set(computed_at_once) <= ({"conv2d"} if name == "vit" else set()), "all other operations are recorded"


def test_small_rows_are_run_as_they_are(monkeypatch):
    model, case = embedding_model("bert", "eager"), case_of("bert")
    monkeypatch.setattr(deferred, "run_deferred", None)  # must not be called
    monkeypatch.setattr(deferred, "WORTHWHILE", case.inputs.numel() + 1)
    with torch.no_grad():
        assert torch.equal(RowRunner(model).outputs(case), case.run(model))
        monkeypatch.setattr(deferred, "WORTHWHILE", case.inputs.numel())
        monkeypatch.setattr(deferred, "report_plain", lambda model, reason: failures.append(reason))
        failures = []
        RowRunner(model).outputs(case)
    assert "fails on tensors that are not ordinary" in failures[0]


def test_rows_on_another_device_than_the_cpu_are_run_as_they_are(monkeypatch):
    monkeypatch.setattr(deferred, "run_deferred", None)  # must not be called
    monkeypatch.setattr(deferred, "WORTHWHILE", 0)
    inputs = torch.zeros(2, 3, 4, device="meta")
    case = Case(inputs, torch.zeros(2, dtype=torch.int64, device="meta"), inputs)
    with torch.no_grad():
        assert RowRunner(torch.nn.Flatten()).outputs(case).shape == (2, 12)


@pytest.mark.parametrize("name", MODELS)
def test_float32_outputs_agree_to_1e_5(name):
    """In float32 a linear map runs by another library than in the plain pass."""
    model = embedding_model(name)
    single = single_precision(model)
    for case in cases(name):
        low = Case(
            case.inputs.float(), case.target, case.baseline.float(), forward_arguments=dict(case.forward_arguments)
        )
        with torch.no_grad():
            torch.testing.assert_close(run_deferred(single, low), low.run(single), rtol=0, atol=1e-5)


def single_precision(model):
    """A copy of a small model in float32; a `SmallEmbeddingModel` would keep float64 inside."""
    return copy.deepcopy(model).float()


def test_shared_rows_and_unread_positions_are_not_computed():
    """BERT with 2 layers, 6 tokens, 7 rows by attention mask, read at token 0.

    Queries, keys and values of layer 1 are computed for one row. Layer 2 is computed for token 0 alone, which attends
    to the other tokens without their keys and values.
    """
    model = embedding_model("bert")
    case = single_example(case_of("bert"), 0)
    each = torch.cat([torch.zeros(1, 6), torch.eye(6)]).bool()
    rows = AttentionMask().remove(case.repeat(7), each)
    with torch.no_grad(), CountedRows() as counted:
        run_deferred(model, rows)
    width, inner = 16, model.model.config.intermediate_size
    all_rows = 7 * 6
    first_layer, second_layer = [6, 6, 6, all_rows], [7, 7]
    pooler = [7]
    assert sorted(counted.rows[width, width]) == sorted(first_layer + second_layer + pooler)
    assert counted.rows[width, inner] == counted.rows[inner, width] == [all_rows, 7]


TOKENS, WIDTH, HEADS = 16, 12, 2
ALL_TOKENS = 4 * TOKENS
"""Of the four rows."""


class AttentionLayer(nn.Module):
    """Attention ``(4, tokens, width)`` of which the first queries are read."""

    def __init__(self, read=1, is_fused=True, mask=None, scale=None, has_biases=True):
        super().__init__()
        draw = partial(torch.randn, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        self.weights = draw(3, WIDTH, WIDTH) / 2
        self.biases = draw(3, WIDTH) if has_biases else [None] * 3
        self.read, self.is_fused, self.mask, self.scale = read, is_fused, mask, scale

    def forward(self, x):
        q, k, v = (
            functional.linear(x, *each).view(4, TOKENS, HEADS, WIDTH // HEADS).transpose(1, 2)
            for each in zip(self.weights, self.biases, strict=True)
        )
        if self.is_fused:
            attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=self.mask, scale=self.scale)
        else:
            logits = q @ k.transpose(2, 3) * ((WIDTH // HEADS) ** -0.5 if self.scale is None else self.scale)
            attended = torch.softmax(logits if self.mask is None else logits + self.mask, -1) @ v
        return attended.transpose(1, 2).reshape(x.shape)[:, : self.read].flatten(1)


def random_rows():
    """Four rows, all tokens of which differ."""
    inputs = torch.randn(4, TOKENS, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return Case(inputs, torch.zeros(4, dtype=torch.int64), torch.zeros_like(inputs))


SEEN = torch.rand(4, 1, TOKENS, TOKENS, generator=torch.Generator().manual_seed(0)) > 0.3
NUMBERS = torch.randn(1, HEADS, TOKENS, TOKENS, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
LOWEST = torch.finfo(torch.float64).min
MASKS = {
    "of every row": torch.zeros(SEEN.shape, dtype=torch.float64).masked_fill(~SEEN, LOWEST),
    "of all rows": NUMBERS[:, :1, :1],
    "of every head": NUMBERS,
    "of true and false": SEEN,
    "of two axes": SEEN[0, 0],
}
WAYS = [(True, None), (False, None), *((True, mask) for mask in MASKS), *((False, mask) for mask in list(MASKS)[:3])]


@pytest.mark.parametrize("read", [1, 2])
@pytest.mark.parametrize(("has_biases", "scale"), [(True, None), (False, 0.7)])
@pytest.mark.parametrize(("is_fused", "mask"), WAYS)
def test_few_queries_attend_without_keys_and_values(is_fused, mask, has_biases, scale, read):
    """(Wᵀq)ᵀx takes the place of qᵀ(W x): no linear map runs on all tokens."""
    model, case = AttentionLayer(read, is_fused, MASKS.get(mask), scale, has_biases), random_rows()
    with torch.no_grad(), CountedRows() as counted:
        outputs = run_deferred(model, case)
    assert ALL_TOKENS not in counted.rows.get((WIDTH, WIDTH), [])
    with torch.no_grad():
        torch.testing.assert_close(outputs, case.run(model), **ROUND_OFF)


@pytest.mark.parametrize("read", [3, TOKENS])
def test_many_queries_attend_to_keys_and_values(read):
    """Three queries need 3 · (16 + 6) multiplications, in units of which keys need 16 · 6: more than half."""
    model, case = AttentionLayer(read), random_rows()
    with torch.no_grad(), CountedRows() as counted:
        outputs = run_deferred(model, case)
    assert counted.rows[WIDTH, WIDTH].count(ALL_TOKENS) == (3 if read == TOKENS else 2)
    with torch.no_grad():
        torch.testing.assert_close(outputs, case.run(model), **ROUND_OFF)


PLACES = ("a token", "the keys' weight", "the keys' bias", "the values' weight", "the values' bias")
HUGE = [(where, number) for where in PLACES for number in (float("nan"), float("inf"), 1e200)]
HUGE.remove(("the keys' bias", 1e200))  # the plain pass adds it to its logits, which lose all digits


@pytest.mark.parametrize("is_fused", [True, False])
@pytest.mark.parametrize(("where", "number"), HUGE)
def test_one_query_attends_to_numbers_that_are_not_finite_as_written(where, number, is_fused):
    model, case = AttentionLayer(1, is_fused, MASKS["of every row"]), random_rows()
    written = {
        "a token": case.inputs[1, 2],
        "the keys' weight": model.weights[1, 2],
        "the keys' bias": model.biases[1],
        "the values' weight": model.weights[2, 2],
        "the values' bias": model.biases[2],
    }
    written[where][3] = number
    with torch.no_grad():
        outputs, expected = run_deferred(model, case), case.run(model)
    torch.testing.assert_close(outputs, expected, equal_nan=True, **ROUND_OFF)


def test_a_query_that_sees_no_key_is_what_it_is_in_the_plain_pass():
    """Its weights sum to 0, so that the values' bias does not count."""
    mask = SEEN & torch.tensor([True, True, False, True]).view(4, 1, 1, 1)
    model, case = AttentionLayer(mask=mask), random_rows()
    with torch.no_grad():
        outputs, expected = run_deferred(model, case), case.run(model)
    torch.testing.assert_close(outputs, expected, equal_nan=True, **ROUND_OFF)


def test_attention_that_is_read_in_part_and_then_in_full_is_right_both_times():
    def reads_twice(model, x):
        attended = AttentionLayer(TOKENS)(x).view(x.shape)
        return float(attended[:, 0].sum()) * attended.sum(1)

    model, case = Function(reads_twice), random_rows()
    with torch.no_grad():
        torch.testing.assert_close(run_deferred(model, case), case.run(model), **ROUND_OFF)


@pytest.mark.parametrize("removal", [AttentionMask(), Replacement()])
@pytest.mark.parametrize("name", DECODERS)
def test_rows_of_a_decoder_share_what_is_before_their_removed_tokens(name, removal, monkeypatch):
    """Rows without token 3, 4 or 5 of 6: in layer 1 tokens 0 to 2 attend in one row, as do keys and values.

    A block of two queries reads the keys up to its last query. Of layer 2, only the last token is read.
    """
    model, case = embedding_model(name, "sdpa"), single_example(case_of(name), 0)
    rows = removal.remove(case.repeat(3), torch.eye(6).bool()[3:])
    calls, attend = [], deferred_attention.scaled_dot_product_attention

    def counted(query, key, value, **options):
        calls.append((len(query), query.shape[2], key.shape[2]))
        return attend(query, key, value, **options)

    monkeypatch.setattr(deferred_attention, "scaled_dot_product_attention", counted)
    with torch.no_grad():
        outputs = run_deferred(model, rows)
        torch.testing.assert_close(outputs, rows.run(model), **ROUND_OFF)
    shared, apart = [(1, 2, 2), (1, 1, 3)], [(3, 2, 5), (3, 1, 6)]
    assert sorted(calls[:-1]) == sorted(shared + apart)


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_computes_logits_at_the_token_that_is_read(name):
    model, case = embedding_model(name), case_of(name)
    with torch.no_grad(), CountedRows() as counted:
        run_deferred(model, case)
    config, read = model.model.config, len(case.forward_arguments["last"].unique())
    assert read < case.shape[1]
    assert counted.rows[config.hidden_size, config.vocab_size][-1] == len(case.inputs) * read


class Function(nn.Module):
    """A function of the inputs, with a weight to write to."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.eye(6, dtype=torch.float64))

    def forward(self, inputs, attention_mask=None):
        return self.function(self, inputs)


class Opaque(torch.autograd.Function):
    """A function whose operations torch functions do not show."""

    @staticmethod
    def forward(ctx, x):
        return (x * 2).cumsum(1)


UNKNOWN = {
    "cumsum": lambda m, x: x.cumsum(1)[:, -1],
    "autograd.Function": lambda m, x: Opaque.apply(x).sum(1),
    "item": lambda m, x: x[:, 0] * x.max().item() + x[:, 1] * float(x.tolist()[0][1][2]),
    "control flow": lambda m, x: x[:, 0] if x.sum() > 0 else x[:, 1],
    "topk": lambda m, x: x.topk(2, dim=1).values.sum(1),
    "two positions": lambda m, x: x[:, 1:3].flatten(1),
    "a negative position": lambda m, x: functional.linear(x, m.weight)[:, -1],
    "transposed batch": lambda m, x: functional.linear(x, m.weight).transpose(0, 1)[2],
    "a row of the transposed": lambda m, x: functional.linear(x, m.weight).transpose(0, 1)[:, 2],
    "norms without weights": lambda m, x: functional.layer_norm(functional.layer_norm(x, (6,)), (6,), m.weight[0])[
        :, 1
    ],
    "rows mixed": lambda m, x: functional.linear(x, m.weight)[:, 0] - x.mean(0)[0],
    "rows flattened": lambda m, x: functional.linear(x.reshape(-1, 6), m.weight).reshape(x.shape)[:, 1],
    "read in full and in part": lambda m, x: (h := functional.linear(x, m.weight))[:, 0] + h.sum(1),
    "two parts": lambda m, x: (h := functional.gelu(functional.linear(x, m.weight)))[:, 0] * h[:, 2],
    "softmax over tokens": lambda m, x: torch.softmax(x @ m.weight, 1)[:, 0],
    "train mode": lambda m, x: functional.dropout(x, 0.5, True)[:, 0],
}


@pytest.mark.parametrize("function", UNKNOWN.values(), ids=UNKNOWN)
@pytest.mark.parametrize("shared", [True, False], ids=["equal rows", "other rows"])
def test_operations_that_are_not_recorded_fall_out_right(function, shared):
    model = Function(function)
    case = tokens(batch=1).repeat(3) if shared else tokens(batch=3)
    with torch.no_grad():
        torch.manual_seed(0)
        outputs = run_deferred(model, case)
        torch.manual_seed(0)
        torch.testing.assert_close(outputs, case.run(model), **ROUND_OFF)


def adds_in_place(model, x):
    h = functional.linear(x, model.weight)
    first = h[:, 0]
    h += 1
    return first


def writes_items(model, x):
    h = functional.linear(x, model.weight)
    total = h * 2
    h[:, 0] = 0
    return total[:, 0] + h[:, 0]


def relu_in_place(model, x):
    h = functional.linear(x, model.weight)
    before = h * 1
    functional.relu(h, inplace=True)
    return before[:, 0] + h[:, 0]


def writes_to_a_constant(model, x):
    constant = torch.ones(6, dtype=x.dtype)
    h = x * constant
    constant.zero_()
    return h[:, 0]


def writes_to_a_weight(model, x):
    h = functional.linear(x, model.weight)
    with torch.no_grad():
        model.weight.mul_(2)
    result = h[:, 0] * 1
    with torch.no_grad():
        model.weight.div_(2)
    return result


def differentiates(model, x):
    with torch.enable_grad():
        point = x.detach().clone().requires_grad_()
        return torch.autograd.grad(functional.linear(point, model.weight).square().sum(), point)[0][:, 0]


def autocasts(model, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return functional.linear(x, model.weight)[:, 0].double()


def writes_to_its_inputs(model, x):
    x += 1
    return x[:, 0]


def writes_and_catches_all(model, x):
    h = functional.linear(x, model.weight)
    first = h[:, 0]
    try:
        h += 1
    except Exception:
        return first * 0
    return first


def reads_numpy(model, x):
    return functional.linear(x, model.weight)[:, 0] * float(x.numpy().max())


def writes_by_numpy(model, x):
    h = functional.linear(x, model.weight)
    first = h * 1
    h.numpy()[:, 0] = 0
    return first[:, 0] + h[:, 0]


def writes_bits(model, x):
    h = functional.linear(x, model.weight)
    h.view(torch.int64).zero_()
    return h[:, 0]


def draws_then_writes(model, x):
    h = functional.dropout(functional.linear(x, model.weight), 0.5, True)
    h += 1
    return h[:, 0]


def keeps_a_tensor(model, x):
    model.kept = functional.linear(x, model.weight)
    return model.kept[:, 0]


def fails_on_other_tensors(model, x):
    assert type(x) is torch.Tensor
    return functional.linear(x, model.weight)[:, 0]


PLAIN = [
    adds_in_place,
    writes_and_catches_all,
    writes_items,
    writes_by_numpy,
    writes_bits,
    reads_numpy,
    relu_in_place,
    writes_to_a_constant,
    writes_to_a_weight,
    differentiates,
    autocasts,
    draws_then_writes,
    keeps_a_tensor,
    fails_on_other_tensors,
]


@pytest.mark.parametrize("function", PLAIN, ids=lambda function: function.__name__)
def test_what_a_recording_cannot_follow_is_run_plainly_and_said(function, caplog):
    """From equal random numbers, the plain path gives these very bits."""
    model, case = Function(function), tokens(batch=3)
    deferred.report_plain.cache_clear()
    runner = RowRunner(model)
    with caplog.at_level(logging.WARNING), torch.no_grad():
        torch.manual_seed(0)
        outputs = runner.outputs(case.copy())
        torch.manual_seed(0)
        expected = case.copy().run(model)
    assert runner.plain
    assert torch.equal(outputs, expected)
    assert "rows without features are run as they are, which takes longer" in caplog.text


TWICE, THRICE = (number * torch.eye(6, dtype=torch.float64) for number in (2, 3))
OTHER = {
    "number": lambda x, other: x * (3 if other else 2),
    "order of arguments": lambda x, other: 2 - x if other else x - 2,
    "option": lambda x, other: functional.gelu(x, approximate="tanh" if other else "none"),
    "activation": lambda x, other: (functional.gelu if other else functional.silu)(functional.linear(x, TWICE)),
    "weight": lambda x, other: functional.linear(x, THRICE if other else TWICE),
    "ε of a norm": lambda x, other: functional.layer_norm(x, (6,), eps=1.0 if other else 0.1),
    "range": lambda x, other: torch.cat([x[:, :, 3:] if other else x[:, :, :3]] * 2, 2),
    "axis": lambda x, other: (
        x - x.view(-1, 5, 6, 1).expand(-1, 5, 6, 6).softmax(2 if other else 3).mean(3, keepdim=True).flatten(2)
    ),
    "operand": lambda x, other: x * 2 + (x * 2 if other else x),
    "constant": lambda x, other: x + torch.full((5, 6), 3 if other else 2, dtype=x.dtype),
    "number of operations": lambda x, other: x.exp().log() * 2 if other else x,
    "mask": lambda x, other: x,
    "scale": lambda x, other: x,
}


@pytest.mark.parametrize("what", OTHER)
def test_a_pass_uses_nothing_of_an_earlier_one_that_did_something_else(what):
    """Of a small decoder, whose rows begin alike, one thing depends on the attention mask."""

    class Decoder(nn.Module):
        def forward(self, inputs, attention_mask):
            other = bool(attention_mask[0, 0])
            x = OTHER[what](inputs, other).unsqueeze(1)
            seen = torch.ones(5, 5).tril().triu(-2 if other and what == "mask" else -4).bool()
            scale = 0.5 if other and what == "scale" else 1.0
            x = functional.scaled_dot_product_attention(x, x, x, attn_mask=seen[None, None], scale=scale)
            return functional.scaled_dot_product_attention(x, x, x, is_causal=True).transpose(1, 2).flatten(2)[:, -1]

    runner, used = RowRunner(Decoder()), []
    first, later = (tokens(batch=1).inputs.repeat(2, 1, 1) for _ in range(2))
    first[0, 4] = later[0, 3] = later[1, 2] = 1
    with torch.no_grad():
        for rows, other in ((first, 0), (later, 0), (later, 1), (later, 1)):
            mask, earlier = torch.full(rows.shape[:2], other), runner.first
            case = Case(rows, torch.zeros(2).long(), torch.zeros_like(rows), forward_arguments={"attention_mask": mask})
            torch.testing.assert_close(runner.outputs(case, "text"), case.run(runner.model), **ROUND_OFF)
            used.append(earlier is not None and runner.first is earlier)
    assert used == [False, True, False, True]
    assert not runner.plain


def hooked(model):
    """A hook that doubles the query of the first layer."""
    model.get_submodule("model.bert.encoder.layer.0.attention.self.query").register_forward_hook(
        lambda m, a, out: 2 * out
    )
    return model


def encoder(model):
    """torch.nn's encoder, which puts 0 at padding if it runs on ordinary tensors."""

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(16, 2, 8, batch_first=True, dtype=torch.float64)
            self.encoder = nn.TransformerEncoder(layer, 1)

        def forward(self, inputs, attention_mask):
            return self.encoder(inputs, src_key_padding_mask=attention_mask == 0).mean(1)

    return Encoder().eval()


def scripted(model):
    """A module in TorchScript."""

    class Scripted(nn.Module):
        def __init__(self):
            super().__init__()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.inner = torch.jit.trace(nn.Linear(16, 3).double(), torch.zeros(1, 16, dtype=torch.float64))

        def forward(self, inputs, attention_mask):
            return self.inner(inputs[:, 0])

    return Scripted()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")  # the encoder's, of its own making
@pytest.mark.parametrize("make", [hooked, encoder, scripted])
def test_modules_that_must_see_ordinary_tensors_do(make, monkeypatch):
    model, case = make(SmallEmbeddingModel(copy.deepcopy(embedding_model("bert").model))), case_of("bert")
    monkeypatch.setattr(deferred, "run_deferred", None)  # must not be called
    with torch.no_grad():
        assert torch.equal(RowRunner(model).outputs(case), case.run(model))


def test_a_hook_on_all_modules_and_a_function_mode_see_ordinary_tensors(monkeypatch):
    model = Function(lambda m, x: x[:, 0])
    assert not RowRunner(model).plain
    with BaseTorchFunctionMode():
        assert "function mode" in RowRunner(model).plain
    with torch.device("cpu"):
        assert not RowRunner(model).plain
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert "all modules" in RowRunner(model).plain
    finally:
        handle.remove()


def test_passes_that_are_counted_are_deferred():
    passes = []
    model = embedding_model("bert")
    with observed_forward_passes(model, lambda: passes.append(0), lambda: None):
        assert not RowRunner(model).plain
        LeaveOneOut().attribute(model, case_of("bert"))
    assert passes


def test_a_model_that_fails_raises_its_own_error():
    model, case = Function(lambda m, x: functional.linear(x, m.weight)[:, 9]), tokens(batch=3)
    with torch.no_grad(), pytest.raises(IndexError, match="index 9 is out of bounds for dimension 1 with size 5"):
        RowRunner(model).outputs(case)


WRONG = {
    "position": lambda h: h[:, 9],
    "positions": lambda h: h[:, [0, 9]],
    "row's position": lambda h: h[torch.arange(3), torch.tensor([0, 1, 9])],
    "axis": lambda h: h.transpose(0, 7),
    "softmax": lambda h: torch.softmax(h, 5),
    "permutation": lambda h: h.permute(0, 1, 1),
    "size": lambda h: h.reshape(3, 4, -1),
    "view": lambda h: h.view(3, 31),
    "expansion": lambda h: h.expand(3, 7, 6),
    "matrices": lambda h: h @ torch.ones(5, 2, dtype=h.dtype),
    "broadcast": lambda h: h + torch.ones(4, dtype=h.dtype),
    "weight": lambda h: functional.linear(h, torch.ones(2, 5, dtype=h.dtype)),
    "norm": lambda h: functional.layer_norm(h, (5,)),
    "parts": lambda h: h.split([1, 2], 1)[0],
    "joined": lambda h: torch.cat([h, h[:, :, :2]], 1),
    "unsqueeze": lambda h: h.unsqueeze(9),
    "float32": lambda h: functional.linear(h, torch.ones(2, 6)),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_call_that_torch_refuses_is_refused_at_once(wrong):
    """Also where its result is not read: a model may catch the error."""

    def recovers(model, x):
        h = functional.linear(x, model.weight)
        try:
            wrong(h)
        except (RuntimeError, IndexError):
            return h[:, 0]
        return h[:, 1]

    model, case = Function(recovers), tokens(batch=3)
    with torch.no_grad():
        torch.testing.assert_close(run_deferred(model, case), case.run(model), **ROUND_OFF)
        with pytest.raises((RuntimeError, IndexError)):
            wrong(functional.linear(case.inputs, model.weight))


NOT_A_NUMBER = {
    "relu": lambda m, x: functional.relu(functional.linear(x, m.weight.to(x.dtype)))[:, 1],
    "gelu": lambda m, x: functional.gelu(functional.linear(x, m.weight.to(x.dtype)))[:, 1],
    "attention": lambda m, x: (torch.softmax(x.unsqueeze(1) @ x.unsqueeze(1).transpose(2, 3), -1) @ x.unsqueeze(1))[
        :, 0, 0
    ],
}


@pytest.mark.parametrize("function", NOT_A_NUMBER.values(), ids=NOT_A_NUMBER)
@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf"), 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_that_are_not_finite_stay_what_they_are(function, number, dtype):
    case = tokens(batch=3)
    inputs = case.inputs.to(dtype)
    inputs[1, 1, 2] = number
    case, model = Case(inputs, case.target, torch.zeros_like(inputs)), Function(function)
    with torch.no_grad():
        outputs, expected = run_deferred(model, case), case.run(model)
    torch.testing.assert_close(outputs, expected, equal_nan=True, rtol=1e-5, atol=1e-5)


def test_logits_that_overflow_stay_nan():
    """A softmax over −∞ alone is NaN; fused attention makes 0 of it."""

    def attention(model, x):
        x = x.abs().unsqueeze(1) + 1
        return (torch.softmax((x * -1e200) @ (x * 1e200).transpose(2, 3), -1) @ x)[:, 0, 0]

    model, case = Function(attention), tokens(batch=3)
    with torch.no_grad():
        assert case.run(model).isnan().all()
        assert run_deferred(model, case).isnan().all()


def test_a_hidden_value_that_is_not_a_number_counts_as_in_the_plain_pass():
    """0 × NaN is NaN: token 3 of row 1 reaches token 1 through a weight of 0, so token 1 is not the last row's."""

    def attention(model, x):
        mask = torch.full((5, 5), torch.finfo(x.dtype).min, dtype=x.dtype).triu(1)[None, None]
        x = x.unsqueeze(1)
        return (torch.softmax(x @ x.transpose(2, 3) + mask, -1) @ x).flatten(1)

    inputs = tokens(batch=1).inputs.repeat(4, 1, 1)
    inputs[1, 3] = float("nan")
    model, case = Function(attention), Case(inputs, torch.zeros(4, dtype=torch.int64), torch.zeros_like(inputs))
    with torch.no_grad():
        expected = case.run(model)
        torch.testing.assert_close(run_deferred(model, case), expected, equal_nan=True, **ROUND_OFF)
    assert expected[1].isnan().all()
    assert not expected[0].isnan().any()


def test_the_sign_of_zero_tells_rows_apart():
    zeros = torch.zeros(2, 3, dtype=torch.float64)
    zeros[1, 1] = -0.0
    case = Case(zeros, torch.zeros(2, dtype=torch.int64), zeros)
    with torch.no_grad():
        assert run_deferred(Function(lambda m, x: 1 / x), case)[1].tolist() == [
            float("inf"),
            float("-inf"),
            float("inf"),
        ]


@pytest.mark.parametrize("lowest", [float("-inf"), torch.finfo(torch.float64).min])
def test_a_row_that_attends_to_nothing_stays_what_it_is(lowest):
    """Written out, a softmax over −∞ alone is NaN, which an explainer must see; over equal numbers it is the mean."""

    def attention(model, x):
        mask = torch.zeros(1, 1, 5, 5, dtype=x.dtype).fill_(lowest)
        x = x.unsqueeze(1)
        return (torch.softmax(torch.matmul(x, x.transpose(2, 3)) * 0.5 + mask, -1) @ x)[:, 0, 0]

    model, case = Function(attention), tokens(batch=3)
    with torch.no_grad():
        outputs = run_deferred(model, case)
        torch.testing.assert_close(outputs, case.run(model), equal_nan=True, **ROUND_OFF)
    assert outputs.isnan().all() == (lowest == float("-inf"))


def random_mask(seed, hidden_number):
    """A mask ``(rows, heads, tokens, tokens)``: few keys hidden otherwise in few rows and heads, and blind queries."""
    numbers = torch.Generator().manual_seed(seed)
    rows, heads, n = 4, 2, 5
    seen = torch.ones(n, n).bool().tril() if seed % 2 else torch.ones(n, n).bool()
    seen = seen.expand(rows, heads, n, n).clone()
    for _ in range(1 + seed % 3):
        row, head, query, key = (int(torch.randint(size, (1,), generator=numbers)) for size in (rows, heads, n, n))
        seen[row, head, query:, key] = False
    if seed % 4 == 3:
        seen[:, int(torch.randint(heads, (1,), generator=numbers)), 1] = False
    return (
        seen
        if hidden_number is None
        else torch.zeros(seen.shape, dtype=torch.float64).masked_fill(~seen, hidden_number)
    )


@pytest.mark.parametrize("hidden_number", [None, torch.finfo(torch.float64).min, float("-inf"), -3.0], ids=str)
@pytest.mark.parametrize("seed", range(12))
def test_attention_under_any_mask(seed, hidden_number):
    """Two layers, written out or fused, on rows that are equal, or that differ in one token."""
    mask = random_mask(seed, hidden_number)

    def layer(x, weight, is_fused):
        q = k = v = functional.linear(x, weight).view(4, 5, 2, 3).transpose(1, 2)
        if is_fused or hidden_number is None:
            out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            out = torch.softmax(q @ k.transpose(2, 3) * 0.5 + mask, -1) @ v
        return x + out.transpose(1, 2).reshape(4, 5, 6)

    weight = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    inputs = tokens(batch=1).inputs.expand(4, 5, 6)
    other = inputs.clone()
    other[1, 3] = 1
    for is_fused in (True, False):
        for rows in (inputs, other):
            model = Function(
                lambda m, x, is_fused=is_fused: layer(layer(x, weight, is_fused), weight, is_fused).flatten(1)
            )
            case = Case(rows, torch.zeros(4, dtype=torch.int64), torch.zeros_like(rows))
            with torch.no_grad():
                outputs, expected = run_deferred(model, case), case.run(model)
            torch.testing.assert_close(outputs, expected, equal_nan=True, **ROUND_OFF)


def test_a_model_that_writes_to_its_inputs_is_run_again_on_the_same_inputs():
    model, case = Function(writes_to_its_inputs), tokens(batch=3)
    before = case.inputs.clone()
    with torch.no_grad():
        RowRunner(model).outputs(case.copy())
        with pytest.raises(MustRunPlainly):
            run_deferred(model, case)
    assert torch.equal(case.inputs, before)


def test_inference_mode_works():
    model, case = embedding_model("bert"), case_of("bert")
    expected = LeaveOneOut().attribute(model, case)
    with torch.inference_mode():
        torch.testing.assert_close(LeaveOneOut().attribute(model, case), expected, **ROUND_OFF)


def test_the_model_sees_a_tensor_of_the_same_description():
    case = tokens(batch=3)
    seen = []

    def describe(model, x):
        seen.append((x.shape, x.size(1), x.dim(), x.ndim, len(x), x.dtype, x.device, x.numel(), x.is_floating_point()))
        return x[:, 0]

    model = Function(describe)
    with torch.no_grad():
        run_deferred(model, case)
        case.run(model)
    assert seen[0] == seen[1]


def test_nothing_is_left_on_the_model():
    model, case = SmallEmbeddingModel(embedding_model("bert").model), case_of("bert")
    before, random = state_of(model), torch.get_rng_state()
    attribution = LeaveOneOut().attribute(model, case)
    assert not isinstance(attribution, DeferredTensor)
    assert_same_state(state_of(model), before)
    assert torch.equal(torch.get_rng_state(), random)
