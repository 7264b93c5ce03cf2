"""Rows run on deferred tensors against the plain pass of the same rows: outputs, what is computed, and refusals."""

import copy
import logging

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from faithcheck.explainers.loo import deferred
from faithcheck.explainers.loo.deferred import DeferredTensor, run_deferred
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


class CountedRows(TorchDispatchMode):
    """Counts the rows that linear maps of each shape are applied to."""

    def __init__(self):
        super().__init__()
        self.rows = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.__name__.startswith(("addmm", "mm.")):
            a, b = args[-2:]
            self.rows.setdefault(tuple(b.shape), []).append(a.shape[0])
        return func(*args, **(kwargs or {}))


def test_shared_rows_and_unread_positions_are_not_computed():
    """BERT with 2 layers, 6 tokens, 7 rows by attention mask, read at token 0.

    Queries, keys and values of layer 1 are computed for one row. Of layer 2, all but keys and values are computed for
    token 0 alone.
    """
    model = embedding_model("bert")
    case = single_example(case_of("bert"), 0)
    each = torch.cat([torch.zeros(1, 6), torch.eye(6)]).bool()
    rows = AttentionMask().remove(case.repeat(7), each)
    with torch.no_grad(), CountedRows() as counted:
        run_deferred(model, rows)
    width, inner = 16, model.model.config.intermediate_size
    all_rows = 7 * 6
    first_layer, second_layer = [6, 6, 6, all_rows], [7, all_rows, all_rows, 7]
    pooler = [7]
    assert sorted(counted.rows[width, width]) == sorted(first_layer + second_layer + pooler)
    assert counted.rows[width, inner] == counted.rows[inner, width] == [all_rows, 7]


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
    "numpy": lambda m, x: x[:, 0] * float(x.numpy().max()),
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


PLAIN = [
    adds_in_place,
    writes_and_catches_all,
    writes_items,
    relu_in_place,
    writes_to_a_constant,
    writes_to_a_weight,
    differentiates,
    autocasts,
]


@pytest.mark.parametrize("function", PLAIN, ids=lambda function: function.__name__)
def test_what_a_recording_cannot_follow_is_run_plainly_and_said(function, caplog):
    model, removal = Function(function), Replacement()
    deferred.report_plain.cache_clear()
    case = tokens(batch=1)
    with caplog.at_level(logging.WARNING), torch.no_grad():
        assert run_deferred(model, tokens(batch=3)) is None
        attribution = LeaveOneOut(removal).attribute(model, case)
        expected = [
            model(case.inputs)[0, 0]
            - model(removal.remove(case, torch.eye(case.shape[1]).bool()[i : i + 1]).inputs)[0, 0]
            for i in range(case.shape[1])
        ]
    torch.testing.assert_close(attribution[0], torch.stack(expected).detach(), **ROUND_OFF)
    assert "Leave-One-Out runs it as it is, which takes longer" in caplog.text


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


def test_a_model_that_writes_to_its_inputs_is_run_again_on_the_same_inputs():
    model, case = Function(writes_to_its_inputs), tokens(batch=3)
    before = case.inputs.clone()
    with torch.no_grad():
        assert run_deferred(model, case) is None
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
