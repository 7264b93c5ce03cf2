"""The page of ``faithcheck align``: order, figures, maps side by side, and which of interval and test decides."""

import re

import pytest

from faithcheck.reports.documents.alignment import Comparison
from faithcheck.reports.documents.figure import Estimate
from faithcheck.reports.pages import alignment, alignment_tables, alignment_wording
from faithcheck.tests.helpers.documents import alignment as aligned
from faithcheck.tests.helpers.documents import shown, typed

CURVE = {"removed": [0.0, 0.5, 1.0], "lerf": [2.0, 1.5, 0.0], "morf": [2.0, 0.5, 0.0]}


@pytest.fixture
def document():
    """Three explainers and LOO, in another order than that of r, and one that was refused."""
    rs = {"cplrp": 0.5, "loo": 1.0, "attention_rollout": 0.25, "attnlrp": 0.75}
    content = aligned(**{name: (r, 0.5) for name, r in rs.items()}, ig_zero="no rule for this")
    for explainer in content["explainers"]:
        if not explainer["refused"]:
            r = rs[explainer["name"]]
            explainer["figures"]["pearson_no_special"] |= {"mean": r, "low": r - 0.1, "high": r + 0.1}
            explainer |= {"cost": 10 * r, "mean_curves": CURVE}
    return {**content, **shown(*rs)}


def comparison(low, high, p, n=20):
    about = dict(explainer="cplrp", against="attnlrp", figure="delta", mean=0.0, mean_against=0.0, difference=0.0)
    return Comparison(**about, low=low, high=high, p=p, n=n)


def test_every_table_is_sorted_by_r_below_loo(document):
    for table in alignment_tables.tables(typed(document)):
        names = list(dict.fromkeys(row[0] for row in table.rows))
        if table.titles[0] == "explainer":
            assert names == ["loo", "attnlrp", "cplrp", "attention_rollout"], table.title


def test_an_undefined_r_comes_last(document):
    document["explainers"][0]["figures"]["pearson_no_special"]["mean"] = None
    assert [one.name for one in typed(document).measured][-1] == "cplrp"


def test_the_columns_of_curves_are_away_where_there_are_none(document):
    titles = alignment_tables.tables(typed(document))[0].titles
    built_in = ["explainer", "r", "95 %", "sum to one", "LeRF", "MoRF", "Δ", "95 %", "cost", "n"]
    assert [title for title in titles if title in built_in] == built_in  # a contributor may add others
    for explainer in document["explainers"]:
        for name in ("lerf", "morf", "delta", "lerf_aopc", "morf_aopc"):
            explainer["figures"][name] = {"mean": None, "low": None, "high": None, "n": 0}
    tables = alignment_tables.tables(typed(document))
    assert tables[0].titles == titles[:4] + titles[8:]
    assert {len(row) for row in tables[0].rows} == {len(titles) - 4}
    assert "LeRF" not in tables[0].note
    assert not any("curves" in table.title for table in tables)
    assert [figure.title for figure in alignment_tables.figures(typed(document))][-1].startswith("Cost")


@pytest.mark.parametrize(
    ("compared", "verdict", "decides", "cell"),
    [
        (comparison(0.1, 0.2, 0.01), "beats", "", "larger"),
        (comparison(-0.2, -0.1, 0.01), "does not beat", "", "smaller"),
        (comparison(-0.1, 0.2, 0.5), "no difference", "", "no difference"),
        (comparison(-0.1, 0.2, 0.01), "no difference", "interval", "no difference: the interval decides"),
        (comparison(0.1, 0.2, 0.06), "no difference", "test", "no difference: the test decides"),
        (comparison(0.1, 0.2, None), "no difference", "test", "no difference: the test decides"),
        (comparison(0.1, 0.2, 0.01, n=5), "cannot be told", "", "cannot be told"),
        (comparison(None, None, None), "cannot be told", "", "cannot be told"),
    ],
)
def test_where_interval_and_test_disagree_the_one_without_a_difference_decides(compared, verdict, decides, cell):
    assert alignment_wording.verdict(compared) == verdict
    assert alignment_wording.deciding(compared) == decides
    assert alignment_wording.in_short(compared) == cell


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"low": -0.1, "high": 0.2, "p": 0.0004},
            "a corrected p of 4e-04, but the interval includes 0, and decides",
        ),
        (
            {"low": 0.1, "high": 0.2, "p": 0.0625},
            "the interval excludes 0, but the test has a corrected p of 0.062, and",
        ),
    ],
)
def test_a_finding_says_what_decides(document, changed, words):
    document["comparisons"][0] |= {**changed, "n": 20}
    finding = alignment_wording.findings(typed(document))[0]
    assert words in finding
    for page in (alignment.to_html(typed(document)), alignment.to_markdown(typed(document))):
        assert words in page
        assert "the one that finds no difference decides" in page


def test_the_figures_are_the_forest_plot_cost_and_curves(document):
    forest, cost, curves = alignment_tables.figures(typed(document))
    (panel,) = forest.panels
    assert [one.label for one in panel.estimates] == ["attnlrp", "cplrp", "attention_rollout"]
    assert panel.estimates[0] == Estimate(label="attnlrp", value=0.75, low=0.65, high=0.85)
    assert {line.label: (line.x, line.y) for line in cost.panels[0].lines}["cplrp"] == ([5.0], [0.5])
    assert [line.y for panel in curves.panels for line in panel.lines[:1]] == [CURVE["lerf"], CURVE["morf"]]
    page = alignment.to_html(typed(document))
    assert page.count("<svg") == 3


def test_a_document_of_an_older_version_has_a_page_without_maps_and_curves(document):
    del document["shown"]
    for explainer in document["explainers"]:
        explainer.pop("cost", None), explainer.pop("mean_curves", None)
    page = alignment.to_html(typed(document))
    assert page.count("<svg") == 1
    assert "side by side" not in page + alignment.to_markdown(typed(document))


def test_maps_stand_side_by_side_in_words(document):
    page = alignment.to_html(typed(document))
    title = "Text 7: least agreement, mean r 0.250"
    assert f"<h3>{title}</h3>" in page
    rows = re.findall(r'<tr><th scope="row">(\w+)</th><td>0.500</td><td>\n?(.*?)</td></tr>', page, re.DOTALL)
    assert [name for name, _ in rows] == ["loo", "attnlrp", "cplrp", "attention_rollout"]
    texts = [re.sub("<.*?>", "", shown_map).strip() for _, shown_map in rows]
    assert set(texts) == {"[CLS] grinning films [SEP]"}
    assert len(set(re.findall(r'style="([^"]*)"[^>]*>grinning', rows[0][1] + rows[3][1]))) == 2, "signed or one hue"
    assert "| grinning | 3 | 3 | 3 | 3 |" in alignment.to_markdown(typed(document))


def test_patches_are_drawn_as_a_grid(document):
    document["model"]["features"] = "patches"
    for one in document["shown"]:
        one["features"] = [{"text": f"r{i}c{j}", "glued": False, "special": False} for i in (0, 1) for j in (0, 1)]
        one["maps"] = [{**one_map, "values": [1.0, -1.0, 0.5, 0.0]} for one_map in one["maps"]]
    page = alignment.to_html(typed(document))
    assert page.count('grid-template-columns: repeat(2, 1fr)"') == 4
    assert "Patch" not in page
    assert 'title="r0c1: -1"' in page


def test_hostile_words_are_shown_and_never_run(document):
    document["shown"][0]["features"][1]["text"] = "<script>"
    page = alignment.to_html(typed(document))
    assert page.count("<script") == 1, "the page's own"
    assert "&lt;script&gt;" in page
    assert "&lt;script&gt;" in alignment.to_markdown(typed(document))
