"""PA-LRP: the map of AttnLRP where token plus position is the input, its sum in the ledger, its claims, its refusal."""

from dataclasses import replace

import pytest
import torch

from faithcheck.axioms import check_explainer
from faithcheck.explainers import AttnLRP, Unsupported
from faithcheck.explainers.lrp.ledger import conservation_ledger
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


def test_rotary_positions_are_refused():
    with pytest.raises(Unsupported, match="no position embeddings that are added to the tokens"):
        PositionalLRP().attribute(*of("llama"))


def test_its_claims_hold():
    explainer = PositionalLRP()
    axioms = [*sorted(explainer.claims), "trace"]
    records = check_explainer(explainer, axioms, ["control.bert"])
    assert {record.axiom: record.status for record in records} == dict.fromkeys(axioms, "holds")
