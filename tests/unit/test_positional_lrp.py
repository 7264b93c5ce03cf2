"""PA-LRP: the map of AttnLRP where pairs of token and position are the input, its sum, its claims, its refusals."""

import re
from dataclasses import replace

import pytest
import torch

from faithcheck import check_explainer
from faithcheck.explainers import AttnLRP, Unsupported
from faithcheck.explainers.lrp.ledger import conservation_ledger
from faithcheck.explainers.lrp.position_pairs import Position, PositionPairs, row_of_token
from faithcheck.explainers.lrp.positional import PositionalLRP
from faithcheck.models.architectures.base_models import BASE_MODELS
from faithcheck.models.case import Case

CLOSE = {"rtol": 1e-10, "atol": 1e-12}
POSITIONS = {
    "bert": ("model.bert.embeddings.position_embeddings", 0),
    "roberta": ("model.roberta.embeddings.position_embeddings", 2),  # the positions of RoBERTa begin after padding's
    "gpt2": ("model.transformer.wpe", 0),
}


def of(name):
    where = (0, torch.float64, torch.device("cpu"))
    return BASE_MODELS[name].model(*where), BASE_MODELS[name].case(*where)


@pytest.mark.parametrize(("name", "epsilon"), [("bert", 0.0), ("roberta", 0.0), ("gpt2", 0.0), ("gpt2", 1e-2)])
def test_it_is_attnlrp_of_the_model_as_a_function_of_token_plus_position(name, epsilon):
    """For ε → 0; else where nothing else, such as a type embedding, is added with a stabiliser of its own."""
    model, case = of(name)
    attribution = PositionalLRP(epsilon).attribute(model, case)
    module, first = POSITIONS[name]
    weight = model.get_parameter(f"{module}.weight")
    positions = weight.detach()[first : first + case.shape[1]].clone()
    with torch.no_grad():
        weight.zero_()
    sums = AttnLRP(epsilon).attribute(model, replace(case, inputs=case.inputs + positions))
    torch.testing.assert_close(attribution, sums, **CLOSE)


@pytest.mark.parametrize("name", POSITIONS)
def test_it_has_what_the_position_embeddings_keep_in_the_ledger(name):
    model, case = of(name)
    ledger = conservation_ledger(AttnLRP(), model, case)
    kept = ledger.by_cause()[POSITIONS[name][0]]
    assert (kept.abs() > 1e-3 * ledger.start.abs()).any()
    attribution = PositionalLRP().attribute(model, case)
    torch.testing.assert_close(attribution.sum(1), ledger.attribution.sum(1) + kept, **CLOSE)


def test_the_position_of_a_class_token_goes_to_no_patch():
    """Without its position embedding, the patches of a ViT keep theirs."""
    model, case = of("vit")
    gained = PositionalLRP().attribute(model, case) - AttnLRP().attribute(model, case)
    weight = model.get_parameter("model.vit.embeddings.position_embeddings")
    with torch.no_grad():
        model.get_parameter("model.vit.embeddings.cls_token").add_(weight[:, :1])
        weight[:, 0] = 0
    torch.testing.assert_close(
        PositionalLRP().attribute(model, case) - AttnLRP().attribute(model, case), gained, **CLOSE
    )
    kept = conservation_ledger(AttnLRP(), model, case).by_cause()["model.vit.embeddings.position_embeddings"]
    torch.testing.assert_close(gained.sum(1), kept, **CLOSE)


class Added(torch.nn.Module):
    """Tokens plus positions, by an operation that is given, tanh and their mean."""

    def __init__(self, add):
        super().__init__()
        self.add = add
        self.position_embeddings = torch.nn.Parameter(torch.randn(1, 3, 2, dtype=torch.float64))

    def forward(self, inputs):
        return torch.tanh(self.add(inputs.clone(), self.position_embeddings)).mean((1, 2)).unsqueeze(1)


@pytest.mark.parametrize("add", [torch.add, torch.Tensor.add_, lambda x, p: p + x])
def test_however_they_are_added(add):
    """tanh passes its value on, in proportion to x and p: a token gets Σ_d tanh(x + p)/6, as the mean is of 6."""
    model, inputs = Added(add), torch.randn(4, 3, 2, dtype=torch.float64)
    case = Case(inputs, torch.zeros(4, dtype=torch.int64), torch.zeros_like(inputs))
    expected = torch.tanh(inputs + model.position_embeddings.detach()).sum(2) / 6
    torch.testing.assert_close(PositionalLRP().attribute(model, case), expected, **CLOSE)


class OfPairs(torch.nn.Module):
    """A decoder as a function of pairs: the embedding, the cosines and the sines of each token, one after the other."""

    def __init__(self, model, width):
        super().__init__()
        self.model, self.width = model, width

    def forward(self, inputs, **arguments):
        cos, sin = inputs[..., self.width :].chunk(2, -1)
        (rotary,) = (module for module in self.model.modules() if type(module).__name__ == "LlamaRotaryEmbedding")
        rotary.forward = lambda *_, **__: (cos, sin)
        try:
            return self.model(inputs[..., : self.width], **arguments)
        finally:
            del rotary.forward


@pytest.mark.parametrize("epsilon", [0.0, 1e-2])
def test_of_rotary_positions_it_is_attnlrp_of_the_model_as_a_function_of_pairs(epsilon):
    model, case = of("llama")
    (rotary,) = (module for module in model.modules() if type(module).__name__ == "LlamaRotaryEmbedding")
    rotations = rotary(case.inputs, torch.arange(case.shape[1])[None])  # one row, as in the model: it is of float32
    pairs = torch.cat([case.inputs, *(each.expand(len(case.inputs), -1, -1) for each in rotations)], -1)
    case_of_pairs = replace(case, inputs=pairs, baseline=torch.zeros_like(pairs))
    expected = AttnLRP(epsilon).attribute(OfPairs(model, case.inputs.shape[-1]), case_of_pairs)
    attribution = PositionalLRP(epsilon).attribute(model, case)
    # Llama's softmax is of float32, and so is the gradient there.
    torch.testing.assert_close(attribution, expected, rtol=1e-5, atol=1e-6)
    plain = AttnLRP(epsilon).attribute(model, case)
    assert ((attribution - plain).abs().amax(1) > 1e-2 * plain.abs().amax(1)).any()


class Rotated(torch.nn.Module):
    """Σ over tokens and coordinates of x ⊙ cos, by an operation that is given; ``inv_freq`` are the frequencies."""

    def __init__(self, multiply, axis):
        super().__init__()
        self.multiply, self.axis = multiply, axis
        self.inv_freq = torch.nn.Buffer(torch.tensor([1.0, 0.1], dtype=torch.float64))

    def cosines(self, n):
        return (torch.arange(n, dtype=torch.float64)[:, None] * self.inv_freq).cos()

    def forward(self, inputs):
        heads = inputs.unflatten(2, (3, 2)).transpose(1, self.axis)  # (batch, tokens, heads, 2), or heads first
        cosines = self.cosines(inputs.shape[1]).unsqueeze(1 if self.axis == 1 else 0)
        return self.multiply(heads.clone(), cosines).sum((1, 2, 3)).unsqueeze(1)


@pytest.mark.parametrize("axis", [1, 2], ids=["tokens before heads", "heads before tokens"])
@pytest.mark.parametrize("multiply", [torch.mul, torch.Tensor.mul_, lambda x, c: c * x])
@pytest.mark.parametrize("tokens", [1, 3, 4])
def test_half_stays_at_the_token_and_half_goes_to_its_position(multiply, axis, tokens):
    """Here both are one token, so that nothing moves: Σ over coordinates of x cos."""
    model, inputs = Rotated(multiply, axis), torch.randn(2, tokens, 6, dtype=torch.float64)
    case = Case(inputs, torch.zeros(2, dtype=torch.int64), torch.zeros_like(inputs))
    expected = (inputs.unflatten(2, (3, 2)) * model.cosines(tokens)[:, None]).sum((2, 3))
    torch.testing.assert_close(PositionalLRP().attribute(model, case), expected, **CLOSE)
    pairs, output = AttnLRP().propagate(model, case, PositionPairs)
    (position,) = pairs.of_tokens(pairs.relevances(output)[1])
    torch.testing.assert_close(position, expected / 2, **CLOSE)


class WithoutPositions(torch.nn.Module):
    """A model that must not run."""

    def forward(self, inputs):
        raise AssertionError("it ran")


def test_a_model_without_positions_is_refused_before_it_runs():
    with pytest.raises(Unsupported, match="no position embeddings were found"):
        PositionalLRP().attribute(WithoutPositions(), Case(torch.ones(1, 2, 2), torch.tensor([0]), torch.ones(1, 2, 2)))


def test_a_model_that_does_not_use_its_positions_is_refused():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 1))
    model.register_buffer("position_ids", torch.arange(4))
    with pytest.raises(Unsupported, match="no position embeddings were found"):
        PositionalLRP().attribute(model, Case(torch.ones(1, 2, 2), torch.tensor([0]), torch.ones(1, 2, 2)))


ONE_WAY_TO_RUN = "batching.padded batching.single execution.cached execution.prefix"


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("family", ONE_WAY_TO_RUN.split())
def test_positions_go_to_their_tokens_however_a_model_arranges_its_rows(family, name):
    (record,) = check_explainer(PositionalLRP(), ["invariance"], [f"{family}_{name}"])
    assert record.status == "holds"


# --- which row is of which token --------------------------------------------------------------------------------------

ARRANGED = {
    "as they are": (lambda x: x, [0, 1, 2, 3, 4, 5]),
    "in reverse": (lambda x: x.flip(1), [2, 1, 0, 5, 4, 3]),
    "examples in reverse": (lambda x: x.flip(0), [3, 4, 5, 0, 1, 2]),
    "padded on both sides": (lambda x: torch.nn.functional.pad(x, (0, 0, 1, 2)), [1, 2, 3, 7, 8, 9]),
    "in one row": (lambda x: x.reshape(1, 6, 4), [0, 1, 2, 3, 4, 5]),
    "one example": (lambda x: x[1:], [3, 3, 3, 0, 1, 2]),
    "the last token": (lambda x: x[:, 2:], [2, 2, 0, 2, 2, 1]),
    "each by a linear map": (lambda x: x @ torch.arange(20.0).double().view(4, 5), [0, 1, 2, 3, 4, 5]),
    "the mean of the tokens": (lambda x: x.mean(1, keepdim=True), None),
    "the sum of neighbours": (lambda x: x + x.roll(1, 1), None),
    "twice": (lambda x: torch.cat([x, x]), None),
    "two tokens in one row": (lambda x: x.reshape(1, 3, 8), None),
    "no token": (lambda x: 0 * x, None),
}


@pytest.mark.parametrize("name", ARRANGED)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_row_of_each_token(name, dtype):
    """The last number is of tokens that have no row: the number of rows."""
    arrange, expected = ARRANGED[name]
    point = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    operand = arrange(point).to(dtype)
    rows = row_of_token(Position(operand.detach(), frozenset({1, 2}), "add"), operand, point)
    assert (rows if rows is None else rows.tolist()) == expected


def test_a_tensor_that_positions_repeat_has_no_rows():
    point = torch.randn(1, 3, 4, dtype=torch.float64, requires_grad=True)
    position = Position(torch.zeros(2, 3, 4, dtype=torch.float64), frozenset({0, 1, 2}), "add")
    assert row_of_token(position, point * 2, point) is None


class Biased(torch.nn.Module):
    """A relative position bias in the logits of x xᵀ, one head."""

    def __init__(self):
        super().__init__()
        self.relative_position_bias = torch.nn.Parameter(torch.randn(1, 1, 3, 3, dtype=torch.float64))

    def forward(self, inputs):
        return ((inputs @ inputs.transpose(1, 2)).unsqueeze(1) + self.relative_position_bias).flatten(1)


def test_positions_of_pairs_of_tokens_are_refused():
    inputs = torch.randn(2, 3, 4, dtype=torch.float64)
    case = Case(inputs, torch.zeros(2, dtype=torch.int64), torch.zeros_like(inputs))
    with pytest.raises(
        Unsupported, match=r"in 2 × 1 rows of a tensor of shape \(2, 1, 3, 3\): each .* of the 2 × 3 tokens"
    ):
        PositionalLRP().attribute(Biased(), case)


@pytest.mark.parametrize("pair", ["execution.packed_gpt2", "execution.packed_llama"])
def test_positions_of_examples_that_are_packed_into_other_rows_are_refused(pair):
    record, *_ = check_explainer(PositionalLRP(), ["invariance"], [pair])
    assert record.status == "unsupported"
    assert re.search(r"2 × 12 rows .* one of the 3 × 6 tokens; take attnlrp", record.detail["reason"])
