"""AttnLRP with parts replaced, or the softmax bypassed in some layers."""

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from faithcheck.explainers import CPLRP, AttnLRP
from faithcheck.explainers.lrp.attnlrp import ATTNLRP
from faithcheck.models import Case
from faithcheck.tests.helpers.attnlrp_variants import (
    PARTS,
    attnlrp_with_bypassed_softmax,
    attnlrp_without,
    figure_2_sets,
    sets_of_parts,
)

SEED, LAYERS = 0, 4


class Bert(nn.Module):
    """An unmodified model, called on embeddings."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(SEED)
        size = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 20}
        config = BertConfig(num_hidden_layers=LAYERS, initializer_range=0.3, **size)
        self.model = BertForSequenceClassification(config).double().eval()

    def forward(self, inputs):
        return self.model(inputs_embeds=inputs).logits


@pytest.fixture
def case():
    inputs = torch.randn(3, 6, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(SEED))
    return Case(inputs, torch.tensor([0, 1, 1]), torch.zeros_like(inputs))


def test_no_layer_is_attnlrp_all_are_cplrp_and_each_counts(case):
    model = Bert()
    none, every, *some = (
        attnlrp_with_bypassed_softmax(layers).attribute(model, case)
        for layers in ((), range(LAYERS), *({k} for k in range(LAYERS)))
    )
    torch.testing.assert_close(none, AttnLRP().attribute(model, case), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(every, CPLRP().attribute(model, case), rtol=1e-10, atol=1e-12)
    maps = [none, every, *some]
    assert all((a - b).abs().max() > 1e-4 for i, a in enumerate(maps) for b in maps[:i])


def test_the_series_of_table_a3():
    first, last, alone = figure_2_sets(3).values()
    assert first == [{0}, {0, 1}, {0, 1, 2}]
    assert last == [{2}, {1, 2}, {0, 1, 2}]
    assert alone == [{0}, {1}, {2}]


def test_each_part_changes_the_map_and_no_part_is_attnlrp(case):
    model = Bert()
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
