"""Every operation passes on the relevance that it receives, or the ledger names the cause of the loss."""

import pytest
import torch

from faithcheck.explainers import CPLRP, AttnLRP, EpsilonLRP
from faithcheck.explainers.lrp.ledger import conservation_ledger
from faithcheck.models import cases
from faithcheck.models.pair import registered_pairs
from faithcheck.models.pairs.product import FACTORS, ScalarProduct, parenthesisations
from faithcheck.models.pretrained.loading import load

BALANCE = 1e-9  # round-off in float64 is 1e-15 of the largest relevance
SENTENCES = [
    "a gorgeous , witty , seductive movie .",
    "the acting is flat and the story never gets going .",
    "this is the sort of film that stays with you for days",
]
METHODS = [AttnLRP(), CPLRP(), AttnLRP(1e-2), CPLRP(1e-2)]
COLUMNS = ["AttnLRP", "CP-LRP", "AttnLRP, ε = 1e-2", "CP-LRP, ε = 1e-2"]


@pytest.mark.conservation
@pytest.mark.parametrize("n", FACTORS)
def test_every_parenthesisation_conserves_at_each_product(settings, n):
    """½ + ½ at each product, for every tree; so Σ 2^−depth = 1 over its leaves (Kraft)."""
    case = cases.factors(n)(settings.seed, settings.dtype, settings.device)
    for tree in parenthesisations(0, n - 1):
        ledger = conservation_ledger(AttnLRP(), ScalarProduct(tree), case)
        products = [operation for operation in ledger.operations if operation.operation == "mul"]
        assert len(products) == n - 1
        for operation in ledger.operations:
            torch.testing.assert_close(operation.passed_on, operation.received, rtol=BALANCE, atol=0)
        assert ledger.by_cause() == {}


@pytest.mark.conservation
def test_a_perceptron_loses_relevance_to_its_biases_alone(settings):
    """With biases, ε-LRP loses relevance to them at the two linear maps, and nowhere else."""
    model, _ = registered_pairs()["control.mlp"].build(settings.seed, settings.dtype, settings.device)
    case = cases.points(settings.seed, settings.dtype, settings.device)
    for i in (0, 2):
        bias = torch.linspace(-1, 1, model[i].out_features).to(model[i].weight)
        model[i].bias = torch.nn.Parameter(bias)
    ledger = conservation_ledger(EpsilonLRP(), model, case)
    assert ledger.gap <= BALANCE
    assert set(ledger.by_cause()) == {"bias"}
    assert {operation.module for operation in ledger.operations if operation.losses} == {"0", "2"}


@pytest.mark.conservation
def test_where_relevance_goes_in_bert(settings, table):
    """The project's 12-layer BERT, each share relative to the explained logit, mean of a few sentences."""
    embedding_model = load(device=settings.device, dtype=torch.float64)
    case = embedding_model.case(embedding_model.encode(SENTENCES))
    ledgers = [conservation_ledger(method, embedding_model, case) for method in METHODS]
    shares = []
    for ledger in ledgers:
        assert ledger.gap <= BALANCE
        destinations = ledger.destinations.items()
        shares.append({name.removeprefix("model."): float((end / ledger.start).mean()) for name, end in destinations})
        assert sum(shares[-1].values()) == pytest.approx(1, abs=BALANCE)
    names = dict.fromkeys(name for share in shares for name in share)
    table(
        {
            "title": "Conservation ledger: where relevance goes in the project's BERT",
            "note": f"Share of the predicted logit, mean of {len(SENTENCES)} sentences; each column sums to 1. "
            "Negative: evidence against the class. Balanced to 1e-9 in float64, operation by operation.",
            "columns": ["where", *COLUMNS],
            "rows": [[name, *(f"{share.get(name, 0):+.3f}" for share in shares)] for name in names],
        }
    )
    attnlrp, cplrp, coarse, _ = shares
    assert "softmax" in attnlrp
    assert "softmax" not in cplrp  # the attention weights are constants
    assert "ε" in coarse
    assert "ε" not in attnlrp
