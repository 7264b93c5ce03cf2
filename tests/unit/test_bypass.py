"""AttnLRP with a bypassed softmax: many sets of layers at once equal each set alone; other models are refused."""

import math
from itertools import chain, combinations, pairwise

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
from faithcheck.explainers.fast import linear_map
from faithcheck.explainers.lrp import softmax_bypass, stacked_gradients
from faithcheck.explainers.lrp.attnlrp import ATTNLRP
from faithcheck.explainers.lrp.row_recorder import NoClosedForm
from faithcheck.explainers.lrp.row_steps import Part
from faithcheck.explainers.lrp.rule_ablation import PARTS, attnlrp_without, sets_of_parts
from faithcheck.explainers.lrp.softmax_bypass import (
    attnlrp_with_bypassed_softmax,
    attributions_with_bypassed_softmax,
    figure_2_sets,
)
from faithcheck.models import Case

SEED, LAYERS = 0, 4


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


@pytest.fixture
def without_closed_forms(monkeypatch):
    def refuse(*_):
        raise NoClosedForm

    monkeypatch.setattr(softmax_bypass, "attributions_by_closed_forms", refuse)


@pytest.fixture
def without_autograd(monkeypatch):
    """Closed forms alone: a test that falls back to autograd fails."""
    monkeypatch.delattr(softmax_bypass, "attributions_by_autograd")


@pytest.mark.parametrize("build", [bert, gpt2])
@pytest.mark.parametrize("epsilon", [0.0, 1e-2])
def test_all_sets_at_once_equal_each_set_alone(build, epsilon, case, without_closed_forms):
    require_equal_to_each_set_alone(build(), case, epsilon)


def require_equal_to_each_set_alone(model, case, epsilon=0.0):
    sets = [frozenset(), *chain(*figure_2_sets(LAYERS).values()), frozenset({0, 2})]
    together = attributions_with_bypassed_softmax(model, case, sets, epsilon)
    alone = torch.stack([attnlrp_with_bypassed_softmax(layers, epsilon).attribute(model, case) for layers in sets])
    # Up to round-off: the same products, summed in another order.
    torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-12)
    assert (together[0] - together[1]).abs().max() > 1e-3, "bypassing a layer changes nothing: the test proves nothing"


@pytest.mark.parametrize(
    ("build", "implementation"), [(bert, "eager"), (bert, "sdpa"), (gpt2, "eager"), (gpt2, "sdpa"), (llama, "sdpa")]
)
def test_closed_forms_of_all_sets_equal_each_set_alone(build, implementation, case, without_autograd):
    model = build()
    model.model.set_attn_implementation(implementation)
    require_equal_to_each_set_alone(model, case)


@pytest.mark.parametrize("sets", [[set()], [set(range(LAYERS))], [{2}, set(), {2}]], ids=["none", "all", "some, twice"])
def test_closed_forms_of_few_sets_equal_each_set_alone(sets, case, without_autograd):
    together, alone = maps(bert(), case, sets)
    torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("numbers", [[], [0], [0, 1, 2], [0, 1, 4], [4, 0, 1, 2], [3, 2, 2, 3]], ids=str)
def test_slices_have_the_numbers_in_their_order(numbers):
    stack = torch.arange(5)
    found = [stack[some] for some in stacked_gradients.slices(numbers)]
    assert torch.cat(found).tolist() == numbers
    consecutive = sum(b == a + 1 for a, b in pairwise(numbers))
    assert len(found) == max(1, len(numbers) - consecutive)


def test_closed_forms_in_float32_equal_each_set_alone(case, without_autograd):
    model = llama().float()
    model.model.set_attn_implementation("eager")
    together, alone = maps(model, case.to(torch.float32), [frozenset(), {0, 1}, {3}])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 6), (3, 1), (1, 1)])
@pytest.mark.parametrize("build", [bert, llama])
def test_one_example_or_one_token(build, shape):
    inputs = torch.randn(*shape, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(SEED))
    mask = torch.ones(shape, dtype=torch.int64)
    case = Case(inputs, torch.zeros(shape[:1]).long(), 0 * inputs, forward_arguments={"attention_mask": mask})
    together, alone = maps(build(), case, [frozenset(), frozenset({0, 2}), frozenset({3})])
    torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("build", "side"), [(bert, "right"), (llama, "left")])  # each reads its token at that side
def test_closed_forms_leave_padding_out(build, side, without_autograd, monkeypatch):
    """Parts of one example each are as long as its tokens, and the maps are those of the padded batch."""
    seen = []
    part_of_rows = Part.of_rows
    monkeypatch.setattr(Part, "of_rows", lambda part, x: seen.append(part.tokens) or part_of_rows(part, x))
    monkeypatch.setattr(stacked_gradients, "MOST_TOGETHER", 1)
    case = padded_case(side)
    require_equal_to_each_set_alone(build(), case)
    found = list(dict.fromkeys((tokens.start, tokens.stop) for tokens in seen))
    assert found == ([(0, 3), (0, 5), (0, 6)] if side == "right" else [(3, 6), (1, 6), (0, 6)])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("most", [12, 1000])
def test_parts_have_the_fewest_tokens_of_all_ways_to_cut(seed, most, monkeypatch):
    monkeypatch.setattr(stacked_gradients, "MOST_TOGETHER", most)
    monkeypatch.setattr(stacked_gradients, "TOKENS_OF_A_PART", 3)
    generator, examples = torch.Generator().manual_seed(seed), 7
    lengths = torch.randint(1, 10, (examples, 1), generator=generator).sort(0).values
    read = torch.arange(10) < lengths

    def count(cuts):
        sizes = [(b - a, int(lengths[a:b].max())) for a, b in pairwise([0, *cuts, examples])]
        allowed = all(number == 1 or number * length <= most for number, length in sizes)
        return sum(number * length + 3 for number, length in sizes) if allowed else math.inf

    found = stacked_gradients.parts(read)
    cuts = chain.from_iterable(combinations(range(1, examples), k) for k in range(examples))
    assert count([part.examples.start for part in found[1:]]) == min(map(count, cuts))
    assert [part.examples.stop for part in found[:-1]] == [part.examples.start for part in found[1:]]
    for part in found:
        assert part.tokens == slice(0, int(lengths[part.examples].max()))


def test_an_example_that_reads_no_token_is_in_no_part(monkeypatch):
    monkeypatch.setattr(stacked_gradients, "TOKENS_OF_A_PART", 0)
    read = torch.tensor([[False] * 3, [False, True, True], [False] * 3, [False] * 3])
    assert stacked_gradients.parts(read) == [Part(slice(1, 2), slice(1, 3))]
    assert stacked_gradients.parts(torch.zeros_like(read)) == []


def test_closed_forms_keep_padding_that_is_read(without_autograd):
    """BERT without its mask: every token attends to padding, which receives relevance."""
    case = padded_case("right")

    class WithoutMask(EmbeddingModel):
        def forward(self, inputs, attention_mask):
            return super().forward(inputs, torch.ones_like(attention_mask))

    model = WithoutMask(bert().model)
    require_equal_to_each_set_alone(model, case)
    together, _ = maps(model, case, [frozenset({1})])
    assert (together[:, ~case.unpadded].abs() > 1e-6).all()


def test_closed_forms_leave_nothing_on_the_model(case, without_autograd):
    model = bert()
    attributions_with_bypassed_softmax(model, case, [{0}])
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def padded_case(side):
    inputs = torch.randn(3, 6, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(SEED))
    lengths = torch.tensor([6, 3, 5]).unsqueeze(1)
    mask = (torch.arange(6) < lengths).long()
    mask = mask if side == "right" else mask.flip(1)
    return Case(inputs, torch.tensor([0, 1, 1]), 0 * inputs, forward_arguments={"attention_mask": mask})


def maps(model, case, sets):
    alone = torch.stack([attnlrp_with_bypassed_softmax(layers).attribute(model, case) for layers in sets])
    return attributions_with_bypassed_softmax(model, case, sets), alone


@pytest.mark.usefixtures("without_closed_forms")
def test_large_gradients_one_by_one_equal_all_in_one_pass(case, monkeypatch):
    model, sets = bert(), [*chain(*figure_2_sets(LAYERS).values())]
    batched = attributions_with_bypassed_softmax(model, case, sets)
    monkeypatch.setattr(softmax_bypass, "LARGE", 0)
    monkeypatch.delattr(torch.func, "vmap")
    torch.testing.assert_close(attributions_with_bypassed_softmax(model, case, sets), batched, rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("without_closed_forms")
@pytest.mark.skipif(linear_map.LINEAR_POINTWISE is None, reason="this torch has no linear map by oneDNN")
@pytest.mark.parametrize("build", [bert, gpt2])
def test_large_gradients_by_onednn_equal_each_set_alone_by_torch(build, case, monkeypatch):
    model, rows = build().float(), []
    case = case.to(torch.float32)
    sets = [*chain(*figure_2_sets(LAYERS).values())]
    alone = torch.stack([attnlrp_with_bypassed_softmax(layers).attribute(model, case) for layers in sets])
    onednn_linear = linear_map.onednn_linear
    monkeypatch.setattr(linear_map, "ONEDNN_IS_FASTER", True)
    monkeypatch.setattr(linear_map, "MANY_MULTIPLICATIONS", 1)
    monkeypatch.setattr(linear_map, "onednn_linear", lambda x, *rest: rows.append(x.shape) or onednn_linear(x, *rest))
    attributions_with_bypassed_softmax(model, case, sets)
    assert not rows, "one batched backward pass has no linear maps by oneDNN"
    monkeypatch.setattr(softmax_bypass, "LARGE", 0)
    torch.testing.assert_close(attributions_with_bypassed_softmax(model, case, sets), alone, rtol=1e-4, atol=1e-5)
    if build is bert:  # GPT-2 writes its linear maps as addmm
        assert len(rows) > 6 * LAYERS, "oneDNN computed no linear map of a backward pass"


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

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])

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

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([KeepsAttention(), Layer()])

    def forward(self, x, **forward_arguments):
        return (self.layers[1](self.layers[0](x)) + self.layers[0].attention)[:, 0]


class SoftmaxOutside(Stack):
    def forward(self, x, **forward_arguments):
        return torch.softmax(super().forward(x), -1)


class TwoArguments(Stack):
    def forward(self, x, **forward_arguments):
        return self.layers[1](self.layers[0](x), x)[:, 0]


class WeightsUsedTwice(Layer):
    def forward(self, x, *rest):
        weights = torch.softmax(x @ x.transpose(1, 2), -1)
        return x + weights @ x + weights.sum(-1, keepdim=True)


class InPlace(Layer):
    def forward(self, x, *rest):
        return (x * 1).add_(torch.softmax(x, -1))


class WithoutResidual(Layer):
    def forward(self, x, *rest):
        return torch.softmax(x @ x.transpose(1, 2), -1) @ x


class WritesToAttentionOutput(Layer):
    def forward(self, x, *rest):
        return (torch.softmax(x @ x.transpose(1, 2), -1) @ x).add_(x)


def stack_of(layer):
    model = Stack()
    model.layers = nn.ModuleList([layer(), layer()])
    return model


class NoLayers(nn.Module):
    def forward(self, x, **forward_arguments):
        return x[:, 0]


@pytest.mark.parametrize("layer", [Layer, WithoutResidual, WritesToAttentionOutput])
def test_a_plain_stack_of_layers_is_supported(layer, case):
    model = stack_of(layer)
    together = attributions_with_bypassed_softmax(model, case, [{0}, {1}])
    alone = torch.stack([attnlrp_with_bypassed_softmax({k}).attribute(model, case) for k in (0, 1)])
    torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (AroundLayers(), "goes around a layer"),
        (AroundFromAttention(), "goes around a layer"),
        (SoftmaxOutside(), "3 softmaxes"),
        (TwoArguments(), "first argument and in no other"),
        (NoLayers(), "no nn.ModuleList"),
        (stack_of(WeightsUsedTwice), "4 attention outputs"),
        (stack_of(InPlace), "add_ in layers.0 .* writes to its operand"),
    ],
    ids=[
        "around",
        "around from attention",
        "a softmax outside",
        "two arguments",
        "no layers",
        "weights used twice",
        "in place",
    ],
)
def test_a_model_that_layers_do_not_separate_is_refused(model, message, case):
    with pytest.raises(Unsupported, match=message):
        attributions_with_bypassed_softmax(model, case, [{0}])


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
