"""`from faithcheck import check_explainer`: a list of records, and the report that is made of them."""

import io
import pickle
import re
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

import faithcheck
from faithcheck import CheckReport, check_explainer, progress
from faithcheck.axioms import Record
from faithcheck.executors.executor import Executor
from faithcheck.reports.documents import results
from faithcheck.reports.documents.document import to_json
from faithcheck.reports.documents.results import Counts
from faithcheck.reports.pages import report
from faithcheck.tests.helpers.documents import document, record

PRODUCT = "product.x1x2x3"
HOSTILE = "<script>alert(1)</script>\u202e"


class Mine:
    """Green under invariance, red under completeness."""

    name = "mine"
    claims = frozenset({"invariance", "completeness"})

    def attribute(self, model, case):
        return case.inputs.abs()


@pytest.fixture(scope="module")
def mine():
    return check_explainer(Mine(), ["invariance", "completeness"], PRODUCT, progress=False)


# --- a list of records ------------------------------------------------------------------------------------------------


def test_the_report_is_a_list_of_one_record_for_each_check(mine):
    assert isinstance(mine, list)
    assert [one.axiom for one in mine] == ["invariance", "completeness", "completeness"]


def test_the_red_records_are_those_that_are_not_as_expected(mine):
    assert [one.id for one in mine.red] == [f"completeness/mine-{PRODUCT}.{side}" for side in "fg"]
    assert not mine.passed
    green = check_explainer(Mine(), "invariance", PRODUCT, progress=False)
    assert green.red == []
    assert green.passed


def test_a_claim_that_is_not_measured_is_not_green():
    unmeasured = check_explainer(Claims(), pairs=PRODUCT, progress=False)
    assert unmeasured.red == []
    assert not unmeasured.passed
    assert unmeasured.headline.endswith("claimed, outside this run: symmetry")


class Claims(Mine):
    """Claims what no check on a product can measure."""

    claims = frozenset({"symmetry"})


def test_one_string_is_one_name():
    by_string = check_explainer(Mine(), "invariance", "product.*", progress=False)
    by_lists = check_explainer(Mine(), ["invariance"], ["product.*"], progress=False)
    assert [(one.id, one.gap) for one in by_string] == [(one.id, one.gap) for one in by_lists]
    assert len(by_string) > 2


def test_an_axiom_that_is_named_twice_is_measured_once():
    assert len(check_explainer(Mine(), ["invariance", "invariance"], [PRODUCT, PRODUCT], progress=False)) == 1


def test_an_explainer_is_checked_by_its_name():
    (by_name,) = check_explainer("gradient_x_input", "invariance", PRODUCT, progress=False)
    assert by_name.explainer == "gradient_x_input"
    with pytest.raises(ValueError, match="did you mean gradient_x_input"):
        check_explainer("gradient_x_inputs", "invariance", PRODUCT)


def test_nothing_to_check_is_refused():
    with pytest.raises(ValueError, match=r"nothing to check: symmetry on the 1 pairs"):
        check_explainer(Mine(), "symmetry", PRODUCT)
    with pytest.raises(ValueError, match=r"nothing to check: balance .*balance does not apply to mine: "):
        check_explainer(Mine(), "balance")
    with pytest.raises(ValueError, match="unknown axiom 'symetry': did you mean symmetry"):
        check_explainer(Mine(), "symetry", PRODUCT)


def test_the_repr_fits_a_line_and_copies_are_equal(mine):
    assert repr(mine) == f"<CheckReport of 3 records: {mine.headline}>"
    copy = pickle.loads(pickle.dumps(mine))
    assert (list(copy), copy.document) == (list(mine), mine.document)


# --- what is made of them ---------------------------------------------------------------------------------------------


def test_the_document_is_one_that_pages_are_made_of(mine, tmp_path):
    paths = {name: tmp_path / f"report.{name}" for name in ("json", "html", "md")}
    mine.save(json=paths["json"], html=str(paths["html"]), md=paths["md"])
    assert to_json(results.load(paths["json"])) == to_json(mine.document)
    assert paths["html"].read_text(encoding="utf-8") == report.to_html(mine.document)
    assert paths["md"].read_text(encoding="utf-8") == report.to_markdown(mine.document)
    assert mine.document.settings.origins == {"mine": f"{__name__}:Mine"}
    assert mine.document.counts == Counts(planned=3, ran=3, passed=1, failed=2, skipped=0, deselected=0)


def test_save_needs_a_file(mine):
    with pytest.raises(ValueError, match=r"save\(html='report.html'\), json= or md="):
        mine.save()


def test_the_data_frame_has_a_row_a_record(mine):
    frame = mine.to_frame()
    assert [*frame.columns] == [*Record.__struct_fields__]
    assert [*frame["gap"]] == [one.gap for one in mine]
    assert [*frame["detail"]] == [one.detail for one in mine]


def test_without_pandas_one_line_says_how_to_install_it(mine, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError) as error:
        mine.to_frame()
    assert str(error.value) == "to_frame makes a data frame of pandas, which is missing: pip install pandas"


# --- in a notebook ----------------------------------------------------------------------------------------------------


def test_the_output_of_a_cell_has_the_headline_and_what_is_red(mine):
    html = mine._repr_html_()
    assert mine.headline in html
    assert html.count("<details") == 2
    assert "completeness: mine on product.x1x2x3.f: expected to hold" in html
    assert "#c0272d" in html
    assert not any(word in html for word in ("<script", "<style", "http"))


def test_many_reds_are_counted_and_not_shown():
    reds = [record("broken claim", subject=f"family.{i}") for i in range(report.REDS + 3)]
    html = report.to_notebook(document(reds))
    assert html.count("<details") == report.REDS
    assert "and 3 more that are red" in html
    assert "more that are red" not in report.to_notebook(document(reds[: report.REDS]))


def test_markup_in_a_record_is_text():
    hostile = record("broken claim", explainer=HOSTILE, subject=HOSTILE, why=HOSTILE, detail={HOSTILE: HOSTILE})
    html = report.to_notebook(document([hostile]))
    assert "<script" not in html
    assert "\u202e" not in html
    assert "&lt;script&gt;" in html


class Display:
    """A cell of a notebook: what was last drawn in it."""

    def __init__(self):
        self.drawn = []

    def display(self, renderable):
        self.update(renderable)

    def update(self, renderable):
        assert "text/html" in renderable._repr_mimebundle_([], [])  # which IPython displays
        console = Console(width=100, record=True, file=io.StringIO())
        console.print(renderable)
        self.drawn.append(console.export_text())


def bar_on(monkeypatch, **options):
    """Let the bar be drawn on a console with these options; returns the display of the notebook."""
    made, cell = progress.progress_bar, Display()

    def progress_bar(shown=True):
        bar = made(shown)
        bar.live.console = Console(stderr=True, **options)
        return bar

    monkeypatch.setattr(progress, "progress_bar", progress_bar)
    monkeypatch.setattr("IPython.display.DisplayHandle", lambda: cell)
    return cell


def jobs(count):
    """Stand-ins for checks: the bar reads nothing but these names and the status."""
    checks = [SimpleNamespace(axiom="invariance", subject=f"pair.{i}") for i in range(count)]
    return [SimpleNamespace(check=one, run=lambda: SimpleNamespace(status="holds", group=None)) for one in checks]


def test_a_notebook_shows_a_bar_that_counts_the_checks(monkeypatch):
    cell = bar_on(monkeypatch, force_jupyter=True)
    assert len(list(progress.measured(jobs(3), Executor()))) == 3
    assert [re.search(r"\d/\d", text)[0] for text in cell.drawn] == [f"{done}/3" for done in (0, 0, 1, 2, 3)]
    assert "invariance pair.1" in cell.drawn[2]


@pytest.mark.parametrize("options", [{"force_jupyter": True}, {}])
def test_without_progress_and_without_a_terminal_nothing_is_drawn(monkeypatch, options, capsys):
    cell = bar_on(monkeypatch, **options)
    assert len(list(progress.measured(jobs(3), Executor(), bar=not options))) == 3
    assert cell.drawn == []
    assert capsys.readouterr() == ("", "")


# --- the package's root -----------------------------------------------------------------------------------------------


def test_the_public_names_are_listed_and_found():
    assert {"check_explainer", "CheckReport"} <= set(faithcheck.__all__) <= set(dir(faithcheck))
    assert faithcheck.check_explainer is check_explainer
    assert faithcheck.CheckReport is CheckReport
    with pytest.raises(AttributeError, match="No faithcheck attribute nope"):
        _ = faithcheck.nope
