"""Table 2 of You et al. 2025 (arXiv 2510.18810): how well explainers agree with LOO on a Transformer.

``pytest -m paper`` measures the project's own model and sentences, or those of the ``--paper-…`` options. It is the
same as ``faithcheck align`` and uses the same cache. The paper's figures are of other models, so none is asserted.
"""

import math

import pytest

from faithcheck.alignment.alignment_request import AlignRequest, heading
from faithcheck.alignment.defaults import TABLE_2
from faithcheck.alignment.evaluate import align, table_2
from faithcheck.alignment.figures import figures_of
from faithcheck.alignment.summary import summary
from faithcheck.reports import results
from faithcheck.reports.pages import alignment as pages
from faithcheck.reports.pages import alignment_wording

pytestmark = [pytest.mark.paper]


def test_table_2(prepared, table, pytestconfig):
    setup, option = prepared.setup, pytestconfig.option
    outcomes = align(prepared.model, prepared.examples, table_2(setup), setup, prepared.folder)
    figures = figures_of(prepared.examples, outcomes, prepared.model.model.dtype)
    found = summary(prepared.examples, outcomes, figures, setup.seed)
    asked = (option.paper_model, option.paper_texts, option.paper_limit)
    request = AlignRequest(*asked, device=option.device, seed=option.seed)
    document = results.plain({**heading(request, prepared), **found})

    how = f"Removed: {document['settings']['removal']}; seed {setup.seed}."
    for one in pages.tables(document):
        if one["title"].startswith(("Correlation", "Perturbation")):
            continue  # wide: the page of faithcheck align has them
        said = [*pages.findings(document)[:1], *pages.counted(document), how] if "Alignment" in one["title"] else []
        table({**one, "title": f"Table 2: {one['title']}", "note": " ".join([*said, one["note"]])})

    measured = {explainer["name"]: explainer for explainer in document["explainers"]}
    counts = found["counts"]
    assert counts["measured"] + counts["empty"] + counts["alone"] == counts["examples"]
    assert tuple(measured) == TABLE_2
    assert not measured["loo"]["refused"]
    for key, figure in measured["loo"]["figures"].items():
        if key.startswith("pearson") and figure["n"]:
            assert figure["mean"] == pytest.approx(1, abs=1e-9), f"LOO does not agree with itself: {key}"
    for name, explainer in measured.items():
        for key, values in explainer["examples"].items():
            undefined = explainer["undefined"].get("all" if key.endswith("_all") else "no_special", {})
            missing = sum(value is None for value in values)
            counted = sum(undefined.values()) if key in alignment_wording.FIGURES and key != "delta" else 0
            # A map that sums to 0 cannot be divided by its sum.
            assert missing == counted or (missing > counted and "sum_to_one" in key), (name, key)
            assert all(math.isfinite(value) for value in values if value is not None), (name, key)
