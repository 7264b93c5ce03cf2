"""AttnLRP with a bypassed softmax: many sets of layers in a batch equal each set alone; other models are refused."""

from dataclasses import replace
from itertools import chain

import pytest
import torch
from torch import nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from faithcheck.explainers import CPLRP, AttnLRP, Unsupported
from faithcheck.explainers.lrp import softmax_bypass
from faithcheck.explainers.lrp.attnlrp import ATTNLRP
from faithcheck.explainers.lrp.rule_ablation import PARTS, attnlrp_without, sets_of_parts
from faithcheck.explainers.lrp.softmax_bypass import (
    BypassByRow,
    attnlrp_with_bypassed_softmax,
    attributions_with_bypassed_softmax,
    figure_2_sets,
)
from faithcheck.models import Case

SEED, LAYERS = 0, 4
SETS = [frozenset(), *chain(*figure_2_sets(LAYERS).values()), frozenset({0, 2})]


class EmbeddingModel(nn.Module):
    """An unmodified model, called on embeddings."""

    def __init__(self, model):
        super().__init__()
        self.model = model.double().eval()
        self.model.set_attn_implementation("eager")

    def forward(self, inputs, attention_mask):
        logits = self.model(inputs_embeds=inputs, attention_mask=attention_mask).logits
        return logits if logits.dim() == 2 else logits[:, -1]


def bert():
    torch.manual_seed(SEED)
    size = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 20}
    config = BertConfig(num_hidden_layers=LAYERS, initializer_range=0.3, **size)
    return EmbeddingModel(BertForSequenceClassification(config))


def gpt2():
    torch.manual_seed(SEED)
    config = GPT2Config(n_embd=16, n_head=2, n_layer=LAYERS, vocab_size=20, initializer_range=0.3)
    config.bos_token_id = config.eos_token_id = None
    return EmbeddingModel(GPT2LMHeadModel(config))


def llama():
    torch.manual_seed(SEED)
    size = {"hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 32}
    config = LlamaConfig(num_hidden_layers=LAYERS, vocab_size=20, initializer_range=0.3, **size)
    model = EmbeddingModel(LlamaForCausalLM(config))
    model.model.set_attn_implementation("sdpa")  # its eager attention computes the softmax in float32
    return model


@pytest.fixture
def case():
    inputs = torch.randn(3, 6, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(SEED))
    mask = torch.ones(3, 6, dtype=torch.int64)
    mask[1, 4:] = 0
    return Case(inputs, torch.tensor([0, 1, 1]), torch.zeros_like(inputs), forward_arguments={"attention_mask": mask})


@pytest.fixture(autouse=True)
def nothing_remains():
    yield
    assert not _global_forward_hooks
    assert not _global_forward_pre_hooks


@pytest.mark.parametrize(
    ("build", "implementation"), [(bert, "eager"), (bert, "sdpa"), (gpt2, "eager"), (gpt2, "sdpa"), (llama, "sdpa")]
)
@pytest.mark.parametrize("epsilon", [0.0, 1e-2])
def test_all_sets_in_a_batch_equal_each_set_alone(build, implementation, epsilon, case):
    model = build()
    model.model.set_attn_implementation(implementation)
    together, alone = maps(model, case, SETS, epsilon)
    # Up to round-off: the same products, summed in another order.
    torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-12)
    assert (together[0] - together[1]).abs().max() > 1e-4, "bypassing a layer changes nothing: the test proves nothing"


@pytest.mark.parametrize("sets", [[set()], [set(range(LAYERS))], [{2}, set(), {2}]], ids=["none", "all", "some, twice"])
def test_few_sets_equal_each_set_alone(sets, case):
    together, alone = maps(bert(), case, sets)
    torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("most", [1, 40])
def test_sets_beyond_the_tokens_of_a_pass_go_into_further_passes(most, case, monkeypatch):
    rows, softmax = [], BypassByRow.softmax
    monkeypatch.setattr(BypassByRow, "softmax", lambda self, call: rows.append(len(self.sets)) or softmax(self, call))
    whole = attributions_with_bypassed_softmax(bert(), case, SETS)
    assert set(rows) == {len(SETS)}
    rows.clear()
    monkeypatch.setattr(softmax_bypass, "MOST_TOKENS", most)
    torch.testing.assert_close(attributions_with_bypassed_softmax(bert(), case, SETS), whole, rtol=1e-10, atol=1e-12)
    assert max(rows) == max(1, most // case.shape.numel())


@pytest.mark.parametrize("shape", [(1, 6), (3, 1), (1, 1)])
@pytest.mark.parametrize("build", [bert, llama])
def test_one_example_or_one_token(build, shape):
    inputs = torch.randn(*shape, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(SEED))
    mask = torch.ones(shape, dtype=torch.int64)
    case = Case(inputs, torch.zeros(shape[:1]).long(), 0 * inputs, forward_arguments={"attention_mask": mask})
    together, alone = maps(build(), case, [frozenset(), frozenset({0, 2}), frozenset({3})])
    torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-12)


def maps(model, case, sets, epsilon=0.0):
    alone = torch.stack([attnlrp_with_bypassed_softmax(layers, epsilon).attribute(model, case) for layers in sets])
    return attributions_with_bypassed_softmax(model, case, sets, epsilon), alone


def test_no_layer_is_attnlrp_and_all_are_cplrp(case):
    model = bert()
    none, every = attributions_with_bypassed_softmax(model, case, [(), range(LAYERS)])
    torch.testing.assert_close(none, AttnLRP().attribute(model, case), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(every, CPLRP().attribute(model, case), rtol=1e-10, atol=1e-12)


def test_the_series_of_table_a3():
    first, last, alone = figure_2_sets(3).values()
    assert first == [{0}, {0, 1}, {0, 1, 2}]
    assert last == [{2}, {1, 2}, {0, 1, 2}]
    assert alone == [{0}, {1}, {2}]


def test_an_unknown_layer_is_refused(case):
    with pytest.raises(IndexError, match="from 0 to 3"):
        attributions_with_bypassed_softmax(bert(), case, [{LAYERS}])


class Layer(nn.Module):
    def forward(self, x, *rest):
        return x + torch.softmax(x @ x.transpose(1, 2), -1) @ x


class Stack(nn.Module):
    """Two layers; subclasses add operations around them."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers or [Layer(), Layer()])

    def forward(self, x, **forward_arguments):
        return self.layers[1](self.layers[0](x))[:, 0]


class AroundLayers(Stack):
    def forward(self, x, **forward_arguments):
        return self.layers[1](self.layers[0](x) * 1)[:, 0] + x[:, 1]


class KeepsAttention(Layer):
    def forward(self, x, *rest):
        self.attention = torch.softmax(x @ x.transpose(1, 2), -1) @ x
        return x + self.attention


class AroundFromAttention(Stack):
    """The attention output of the first layer is also added after the second."""

    def forward(self, x, **forward_arguments):
        return (self.layers[1](self.layers[0](x)) + self.layers[0].attention)[:, 0]


class SoftmaxOutside(Stack):
    def forward(self, x, **forward_arguments):
        return torch.softmax(super().forward(x), -1)


class WithoutSoftmax(Layer):
    def forward(self, x, *rest):
        return x + x @ x.transpose(1, 2) @ x


class TokensFirst(Layer):
    """Its attention weights have the queries along the first axis, then the examples."""

    def forward(self, x, *rest):
        logits = torch.einsum("bqd,bkd->qbk", x, x)
        return x + torch.einsum("qbk,bkd->bqd", torch.softmax(logits, -1), x)


class WeightsUsedTwice(Layer):
    def forward(self, x, *rest):
        weights = torch.softmax(x @ x.transpose(1, 2), -1)
        return x + weights @ x + weights.sum(-1, keepdim=True)


class Gated(Layer):
    """Its attention weights are factors of element-wise products and quotients, too."""

    def forward(self, x, *rest):
        weights = torch.softmax(x @ x.transpose(1, 2), -1)
        gate = x[..., :1].sigmoid() + 1
        return x + (weights * gate) @ x + gate / (weights.amax(-1, keepdim=True) + 1) + weights.amax(-1, True) / gate


class WeightsOfBothLayers(Stack):
    """The product of both layers' attention weights reads the values, as in attention rollout."""

    def forward(self, x, **forward_arguments):
        first = torch.softmax(x @ x.transpose(1, 2), -1)
        y = x + first @ x
        second = torch.softmax(y @ y.transpose(1, 2), -1)
        return (second @ first @ y)[:, 0]


class InPlace(Layer):
    def forward(self, x, *rest):
        return (x * 1).add_(torch.softmax(x, -1))


class WithoutResidual(Layer):
    def forward(self, x, *rest):
        return torch.softmax(x @ x.transpose(1, 2), -1) @ x


class WritesToAttentionOutput(Layer):
    def forward(self, x, *rest):
        return (torch.softmax(x @ x.transpose(1, 2), -1) @ x).add_(x)


class NoLayers(nn.Module):
    def forward(self, x, **forward_arguments):
        return x[:, 0]


LAYER_CLASSES = [Layer, WithoutResidual, WritesToAttentionOutput, WeightsUsedTwice, Gated, InPlace]
STACKS = [AroundLayers(), WeightsOfBothLayers(), AroundFromAttention(KeepsAttention(), Layer())]


@pytest.mark.parametrize(
    "model",
    [*(Stack(layer(), layer()) for layer in LAYER_CLASSES), *STACKS],
    ids=lambda model: f"{type(model).__name__} of {type(model.layers[0]).__name__}",
)
@pytest.mark.parametrize("epsilon", [0.0, 1e-2])
def test_other_layers_equal_each_set_alone(model, epsilon, case):
    case = replace(case, inputs=case.inputs / 4)  # so that no softmax is saturated
    together, alone = maps(model, case, [{0}, {1}, {0, 1}, {}], epsilon)
    torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-12)
    assert (together[0] - together[1]).abs().max() > 1e-4, "bypassing a layer changes nothing: the test proves nothing"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (SoftmaxOutside(), "softmax in the model .*: expected one softmax in each of 2 layers, but this is a further"),
        (Stack(Layer(), WithoutSoftmax()), "expected one softmax in each of 2 layers, but only 1 ran"),
        (Stack(TokensFirst(), TokensFirst()), "softmax in layers.0 .*: its first axis does not count the examples"),
        (NoLayers(), "no nn.ModuleList"),
    ],
    ids=["a softmax outside", "a layer without softmax", "tokens along the first axis", "no layers"],
)
def test_a_model_without_one_softmax_in_each_layer_is_refused(model, message, case):
    with pytest.raises(Unsupported, match=message):
        attributions_with_bypassed_softmax(model, case, [{0}, {1}])


def test_each_part_changes_the_map_and_no_part_is_attnlrp(case):
    model = bert()
    base = AttnLRP().attribute(model, case)
    assert torch.equal(attnlrp_without(()).attribute(model, case), base)
    for part in PARTS:
        changed = attnlrp_without([part]).attribute(model, case)
        assert (changed - base).abs().max() > 1e-3 * base.abs().max(), part
    assert torch.equal(attnlrp_without(["softmax bypassed"]).attribute(model, case), CPLRP().attribute(model, case))


@pytest.mark.parametrize(
    "product",
    [
        lambda x, y: x * y,
        lambda x, y: x / y,
        lambda x, y: 1 / y * x,
        lambda x, y: (x.unsqueeze(1) @ y.unsqueeze(2)).flatten(1),
        lambda x, y: torch.einsum("bi,bi->b", x, y).unsqueeze(1),
        lambda x, y: torch.bmm(x.unsqueeze(1), y.unsqueeze(2)).flatten(1),
    ],
    ids=["mul", "div", "rdiv", "matmul", "einsum", "bmm"],
)
def test_products_that_are_not_halved_give_each_operand_all_relevance(product):
    class Product(nn.Module):
        def forward(self, inputs):
            return product(inputs[:, :3], inputs[:, 3:])

    inputs = torch.rand(2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(SEED)) + 1
    case = Case(inputs, torch.zeros(2, dtype=torch.int64), torch.zeros_like(inputs))
    half, whole = (
        method.attribute(Product(), case) for method in (AttnLRP(), attnlrp_without(["products not halved"]))
    )
    assert half.abs().sum() > 0
    torch.testing.assert_close(whole, 2 * half, rtol=1e-12, atol=0)


def test_every_part_replaces_rules_of_attnlrp():
    assert all(rules.keys() <= ATTNLRP.keys() for rules in PARTS.values())
    assert len(sets_of_parts()) == 2 ** len(PARTS)
