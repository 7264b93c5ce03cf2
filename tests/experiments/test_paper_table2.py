"""Table 2 of You et al. 2025 (arXiv 2510.18810): how well explainers agree with LOO on a Transformer.

``pytest -m paper`` measures the project's own model and sentences, or those of the ``--paper-…`` options. It is the
same as ``faithcheck align`` and uses the same cache. The paper's figures are of other models, so none is asserted.
"""

import math

import pytest
import torch
from msgspec import structs

from faithcheck.alignment.defaults import TABLE_2
from faithcheck.alignment.document import document_of
from faithcheck.alignment.evaluate import align
from faithcheck.alignment.settings import AlignRequest, table_2
from faithcheck.reports.pages import alignment_tables, alignment_wording
from faithcheck.request import Settings

pytestmark = [pytest.mark.paper]


def test_table_2(prepared, table, pytestconfig):
    setup, option = prepared.setup, pytestconfig.option
    outcomes = align(prepared.model, prepared.examples, table_2(setup), setup, prepared.folder)
    asked = (option.paper_model, option.paper_texts, option.paper_limit)
    request = AlignRequest(*asked, settings=Settings(option.seed, torch.float32, torch.device(option.device)))
    document = document_of(request, prepared, outcomes, None)

    how = f"Removed: {document.settings.removal}; seed {setup.seed}."
    for one in alignment_tables.tables(document):
        if one.title.startswith(("Correlation", "Perturbation")):
            continue  # wide: the page of faithcheck align has them
        found = [*alignment_wording.findings(document)[:1], *alignment_wording.counted(document), how]
        note = " ".join([*(found if "Alignment" in one.title else []), one.note])
        table({"title": f"Table 2: {one.title}", "note": note, "columns": one.titles, "rows": one.rows})

    measured = {explainer.name: explainer for explainer in document.explainers}
    counts = document.counts
    assert counts.measured + counts.empty + counts.alone == counts.examples
    assert tuple(measured) == TABLE_2
    assert not measured["loo"].refused
    for key, figure in structs.asdict(measured["loo"].figures).items():
        if key.startswith("pearson") and figure.n:
            assert figure.mean == pytest.approx(1, abs=1e-9), f"LOO does not agree with itself: {key}"
    for name, explainer in measured.items():
        for key, values in explainer.examples.items():
            undefined = explainer.undefined.all if key.endswith("_all") else explainer.undefined.no_special
            missing = sum(value is None for value in values)
            counted = sum(undefined.values()) if key in alignment_wording.FIGURES and key != "delta" else 0
            # A map that sums to 0 cannot be divided by its sum.
            assert missing == counted or (missing > counted and "sum_to_one" in key), (name, key)
            assert all(math.isfinite(value) for value in values if value is not None), (name, key)
