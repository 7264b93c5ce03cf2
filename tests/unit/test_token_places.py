"""Where relevance sinks: places of tokens, and the shares of maps there, in an alignment and in the ledger."""

import numpy as np
import pytest
import torch
from msgspec import structs

from faithcheck.alignment.batch import positions_of
from faithcheck.alignment.batch_result import MeasuredExample
from faithcheck.alignment.explainer_pass import ExplainerResult
from faithcheck.alignment.figures import figures_of
from faithcheck.explainers import CPLRP, AttnLRP
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.explainers.lrp.blockwise import BlockwiseLRP
from faithcheck.explainers.lrp.ledger import conservation_ledger
from faithcheck.explainers.protocol import InvalidAttribution
from faithcheck.models.architectures.base_models import BASE_MODELS
from faithcheck.models.pretrained.example import Example, Examples
from faithcheck.models.token_places import places
from faithcheck.reports.documents.alignment import Alignment
from faithcheck.reports.documents.document import from_json
from faithcheck.reports.pages.alignment_tables import tables
from faithcheck.tests.helpers.documents import alignment

TOKENS = ("[CLS]", "it", "'", "s", "##!", "Ġ...", "▁", "[SEP]")
SPECIAL = torch.tensor([True, *[False] * 6, True])


def test_no_token_is_at_two_places():
    found = {place: mask.nonzero().flatten().tolist() for place, mask in places(SPECIAL, TOKENS).items()}
    assert found == {"first": [0], "separators": [7], "punctuation": [2, 4, 5, 6]}


def test_byte_level_tokens_are_punctuation_by_the_characters_that_they_stand_for():
    """’, “, —, a line break, 你 and a part of a character as GPT-2 writes them; é, «, 你 as other tokenizers do."""
    names = ("it", "âĢĻ", "ĠâĢľ", "ĠâĢĶ", "Ċ", "ä½ł", "âĢ", "café", "«", "你")
    found = places(torch.zeros(len(names), dtype=torch.bool), names)["punctuation"]
    assert found.nonzero().flatten().tolist() == [1, 2, 3, 4, 8]


def test_the_first_token_is_the_first_one_of_a_decoder_too():
    special = torch.tensor([False, False, True])
    found = {place: mask.tolist() for place, mask in places(special, ("!", "Ġyes", "Ġ.")).items()}
    assert found == {
        "first": [True, False, False],
        "separators": [False, False, True],
        "punctuation": [False, False, False],
    }


def test_the_shares_of_a_map():
    """|a| = 4, 1, 1, 0, 1, 0, 1, 2: 0.4 at the first token, 0.3 at punctuation, 0.2 at [SEP]; positions: 2.5/12.5."""
    values = [4.0, -1.0, 1.0, 0.0, -1.0, 0.0, 1.0, -2.0]
    examples = Examples(["", ""], lambda item: Example(torch.arange(8), SPECIAL, TOKENS))
    measured = MeasuredExample(target=0, map=values, positions=-2.5, morf=[1.0, 0.0], lerf=[1.0, 0.0])
    of_zeros = structs.replace(measured, map=[0.0] * 8, positions=0.0)
    results = [ExplainerResult("any", records={0: measured, 1: of_zeros})]
    columns = figures_of(examples, results, torch.float64)["any"].columns
    shares = {name: column for name, column in columns.items() if name.startswith("share_")}
    assert {name: float(column[0]) for name, column in shares.items()} == pytest.approx(
        {"share_first": 0.4, "share_separators": 0.2, "share_punctuation": 0.3, "share_positions": 0.2}
    )
    assert all(column[1] is np.ma.masked for column in shares.values()), "a map of zeros has no shares"


def sinks(document):
    return [table for table in tables(document) if table.title == "Where relevance sinks"]


def test_the_page_has_them_of_tokens_and_the_share_of_positions_of_patches_too():
    content = alignment(loo=(1.0, 0.5), attnlrp=(0.2, 0.3))
    assert sinks(from_json(content, Alignment)) == [], "a document of an older version"
    shown = ("0.100", "[0.050, 0.200]")
    for explainer in content["explainers"]:
        shares = ("share_first", "share_separators", "share_punctuation", "share_positions")
        explainer["figures"] |= {name: {"mean": 0.1, "low": 0.05, "high": 0.2, "n": 8} for name in shares}
    loo = content["explainers"][0]
    loo["figures"]["share_positions"] = {"mean": None, "low": None, "high": None, "n": 0}
    loo["no_positions"] = "it gives relevance to features alone"
    (table,) = sinks(from_json(content, Alignment))
    assert table.rows[0] == ("loo", *shown * 3, "it gives relevance to features alone", "–", "8")
    content["model"]["features"] = "patches"
    (table,) = sinks(from_json(content, Alignment))
    assert table.rows[1] == ("attnlrp", *shown, "8")


@pytest.mark.parametrize(
    "explainer",
    [BlockwiseLRP(), AttnLRP(1e-2)],
    ids=["blockwise_lrp", "attnlrp with a stabiliser"],
)
@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2", "vit"])
def test_an_alignment_has_what_the_ledger_says_of_positions(name, explainer):
    model, case = (
        make(0, torch.float64, torch.device("cpu")) for make in (BASE_MODELS[name].model, BASE_MODELS[name].case)
    )
    positions, why = positions_of(explainer, model, case)
    causes = conservation_ledger(explainer, model, case).by_cause()
    (expected,) = (lost for cause, lost in causes.items() if "position_embeddings" in cause or "wpe" in cause)
    assert why == ""
    torch.testing.assert_close(torch.tensor(positions, dtype=torch.float64), expected)


def test_why_no_relevance_of_positions_is_known():
    model, case = (
        make(0, torch.float64, torch.device("cpu")) for make in (BASE_MODELS["llama"].model, BASE_MODELS["llama"].case)
    )
    none = [None] * len(case.inputs)
    assert positions_of(AttnLRP(), model, case) == (none, "the model adds no position embeddings")
    assert positions_of(LeaveOneOut(), model, case) == (none, "it gives relevance to features alone")
    with pytest.raises(InvalidAttribution, match="position embeddings is not finite"):
        positions_of(NotFinite(), model, case)


class NotFinite:
    name = "not_finite"

    def position_relevance(self, model, case):
        return torch.full((len(case.inputs),), torch.nan)


@pytest.mark.parametrize(("name", "parameter"), [("bert", "position_embeddings"), ("gpt2", "wpe")])
@pytest.mark.parametrize("explainer", [AttnLRP(), CPLRP()])
def test_the_ledger_knows_what_position_embeddings_keep(name, parameter, explainer):
    model, case = (
        make(0, torch.float64, torch.device("cpu")) for make in (BASE_MODELS[name].model, BASE_MODELS[name].case)
    )
    ledger = conservation_ledger(explainer, model, case)
    kept = {cause: lost for cause, lost in ledger.by_cause().items() if parameter in cause}
    assert len(kept) == 1
    (positions,) = kept.values()
    torch.testing.assert_close(positions, explainer.position_relevance(model, case))
    assert (positions != 0).all()
