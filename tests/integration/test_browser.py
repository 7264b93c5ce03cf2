"""The HTML pages in Chromium: what a person does with them, at a desk, on a phone, in the dark and on paper."""

import re
import zlib

import pytest
from msgspec.structs import replace
from playwright.sync_api import expect

from faithcheck.axioms.measure.statuses import BY_LABEL
from faithcheck.reports import comparison, trend
from faithcheck.reports.causes import command
from faithcheck.reports.pages import alignment, colours, report
from faithcheck.reports.pages import comparison as comparison_page
from faithcheck.reports.pages import explanation as explanation_page
from faithcheck.reports.pages import trend as trend_page
from faithcheck.reports.pages.visible import record_anchor
from faithcheck.tests.helpers import documents
from faithcheck.tests.helpers.browser import browser, check_page, opened, unfold, violations
from faithcheck.tests.helpers.documents import typed

__all__ = ["browser"]  # a fixture

pytestmark = [pytest.mark.integration, pytest.mark.slow]

HOSTILE = "</script><script>document.title = 'run'</script>\u202e"
MOST_BYTES = 5_000_000
"""The most that a page of 10,000 records may have."""


def a_run(**changed):
    """Records of every status, on two families and two axioms; a text that is markup."""
    records = [documents.record(status) for status in BY_LABEL]
    for explainer in ("an explainer", "loo", "zz"):
        for pair in ("green.x2", "green.x10", "other.one"):
            gap = 0.9 if pair == "green.x10" else 1e-16
            named = {"explainer": explainer, "subject": pair, "id": f"dummy/{explainer}-{pair}", "axiom": "dummy"}
            records.append(documents.record("holds", gap=gap, why=HOSTILE, **named))
    equivalence = {"axiom": "equivalence", "explainer": None, "id": "equivalence/green.x2", "subject": "green.x2"}
    records.append(documents.record("holds", **equivalence))
    axioms = {"equivalence": "one function", "invariance": "one attribution", "dummy": "zero"}
    failures = [{"id": "tests/test_x.py::test_y", "message": "AssertionError: no"}]
    figures = [documents.figure_content()]
    return documents.document(records, axioms=axioms, failures=failures, figures=figures, **changed)


def a_comparison():
    """Regressions of one kind, a single one, other settings, and a reason that is markup."""
    old, new = a_run(), a_run(skips=[{"reason": HOSTILE * 9, "count": 3, "ids": []}], settings={"data": HOSTILE * 9})
    for place, one in enumerate(new.records):
        if one.axiom == "dummy":
            new.records[place] = replace(one, status="broken claim", gap=place / 10)
    new.records[-1] = replace(new.records[-1], status="error", detail={"error": HOSTILE})
    return comparison.compare(old, new)


def a_trend():
    """Runs of two catalogues, an alignment, and a file that cannot be read; names that are markup."""
    catalogue = {"hash": "h", "tolerances": {}, "axioms": {}, "pairs": {}}
    runs = {
        f"{HOSTILE}{day}.json": {
            **{"created": f"2026-01-0{day}T10:00:00+00:00", "seconds": day},
            "catalogue": {"version": "2026.12" if day < 3 else "2027.03", **catalogue},
        }
        for day in (2, 3)
    }
    runs = {name: a_run(**changed) for name, changed in runs.items()}
    runs["alignment.json"] = typed(documents.alignment(attnlrp=(0.5, 0.2), loo=(1.0, 0.2)))
    return trend.trend(runs, {"bad.json": HOSTILE * 9})


NOTEBOOK = (
    '<!doctype html><html lang="en"><title>a notebook</title><meta name="viewport" content="width=device-width">'
    "<style>:root {{ color-scheme: light dark }} body {{ background: Canvas; color: CanvasText }}"
    ' main {{ overflow-x: auto }}</style><main tabindex="0">{}</main>'
)
"""A page with the colours of the browser, in which the output of a cell scrolls in an area of its own."""
PAGES = {
    "report": lambda: report.to_html(a_run()),
    "alignment": lambda: alignment.to_html(
        typed(documents.alignment(attnlrp=(0.5, 0.2), ig=(0.1, 0.2), bad="no rule"))
    ),
    "maps": lambda: alignment.to_html(
        typed({**documents.alignment(attnlrp=(0.5, 0.2), loo=(1, 1)), **documents.shown("loo", "attnlrp")})
    ),
    "explanation": lambda: explanation_page.to_html(typed(documents.explanation())),
    "comparison": lambda: comparison_page.to_html(a_comparison()),
    "trend": lambda: trend_page.to_html(a_trend()),
    "notebook": lambda: NOTEBOOK.format(report.to_notebook(a_run())),
}
"""The pages of which `check_page` must hold."""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Each page as a file."""
    folder = tmp_path_factory.mktemp("pages")
    for name, page in PAGES.items():
        (folder / f"{name}.html").write_text(page(), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in PAGES}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_quiet_and_accessible_at_any_width_and_in_the_dark(browser, files, name):
    check_page(browser, files[name])


# --- the report ------------------------------------------------------------------------------------------------------

RED = "record-invariance/by_broken_claim-family.pair"


@pytest.fixture
def page(browser, files):
    with opened(browser, files["report"]) as page:
        yield page


def shown(page):
    """The ids of the cells that can be seen."""
    return page.evaluate("""[...document.querySelectorAll('#checks td[id]')].filter((cell) =>
        cell.firstChild.checkVisibility({ visibilityProperty: true })).map((cell) => cell.id)""")


def focused(page):
    """The id of the cell that has the focus."""
    return page.evaluate("document.activeElement.closest('td')?.id")


def dialog(page):
    """The text of the dialog; None where it is closed."""
    return page.locator("#dialog").inner_text() if page.locator("#dialog").is_visible() else None


def test_red_families_are_open_and_green_ones_closed_and_equivalence_is_last(page):
    axioms = page.locator("details.axiom")
    assert axioms.locator("h3").all_inner_texts() == ["invariance", "dummy", "equivalence"]
    assert axioms.evaluate_all("all => all.map((axiom) => axiom.open)") == [True, False, False]
    assert {cell.split("/")[0] for cell in shown(page)} == {"record-invariance"}
    assert len(shown(page)) == len(BY_LABEL)
    page.get_by_role("link", name="dummy", exact=True).click()  # from the overview
    expect(axioms.nth(1)).to_have_attribute("open", "")  # the page follows the new address a moment later


def test_search_shows_what_it_finds_and_nothing_else(page):
    page.fill("#search", "DUMMY x2 loo")
    assert shown(page) == ["record-dummy/loo-green.x2"]
    assert page.locator("#found").inner_text() == f"1 of {len(a_run().records)} records"
    assert page.locator("#checks th[scope=col]:visible").all_inner_texts() == ["subject", "loo"]
    page.fill("#search", "no such record")
    assert shown(page) == []
    assert page.locator("#found").inner_text() == f"0 of {len(a_run().records)} records"
    page.get_by_role("button", name="Show all").click()
    page.wait_for_function("document.getElementById('found').value === ''")
    page.locator("#checks td[id] >> visible=true").first.wait_for()  # on a busy machine the page is drawn later
    assert len(shown(page)) == len(BY_LABEL), "what was closed before the search is closed again"


def test_the_filter_shows_the_chosen_statuses(page):
    page.get_by_label("✗ inconclusive").check()
    page.get_by_label("≠ predicted violation").check()
    assert {cell.split("/")[1] for cell in shown(page)} == {
        "by_inconclusive-family.pair",
        "by_predicted_violation-family.pair",
    }
    page.fill("#search", "predicted")
    assert len(shown(page)) == 1


def test_pairs_are_sorted_by_name_or_gap(page):
    page.fill("#search", "dummy green")

    def pairs():
        return page.locator("#checks tbody th:visible").all_inner_texts()

    assert pairs() == ["green.x2", "green.x10"]
    page.select_option("#sort", "gap")
    assert pairs() == ["green.x10", "green.x2"]
    page.select_option("#sort", "name")
    assert pairs() == ["green.x2", "green.x10"]


def test_a_number_leads_to_its_reason_and_the_command_that_measures_it_again(page):
    record = next(one for one in a_run().records if one.status == "broken claim")
    page.locator(f'[id="{RED}"] a').click()
    text = dialog(page)
    for expected in ("✗ broken claim", record.why, record.cite, "0.31", "1e-9", "above the tolerance"):
        assert expected in text
    assert command(a_run(), record) in text
    assert violations(page) == [], "the dialog is accessible, too"
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy").click()
    page.get_by_text("copied", exact=True).wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == command(a_run(), record)
    page.get_by_role("button", name="Close").click()
    assert dialog(page) is None
    assert focused(page) == RED


def test_without_scripts_a_number_leads_to_its_row_among_the_reasons(browser, files):
    with opened(browser, files["report"], java_script_enabled=False) as page:
        assert not page.locator("#find").is_visible()
        page.locator(f'[id="{RED}"] a').click()
        row = page.locator("tr:target")
        assert row.is_visible()
        assert row.inner_text().startswith("family.pair")
        assert "why of broken claim" in page.locator("details.reason[open]").inner_text()


def test_a_link_to_a_record_opens_what_is_folded_and_shows_its_reason(browser, files):
    record = next(one for one in a_run().records if one.explainer == "an explainer")
    name = record_anchor(record.id)
    assert name == "record-dummy/an~20~explainer-green.x2"
    with opened(browser, files["report"], hash=f"#{name}") as page:
        assert name in shown(page)
        assert "dummy: an explainer on green.x2" in dialog(page)
        assert page.title() != "run", "what is markup in a reason is shown, not run"
        assert "</script><script>document.title = 'run'</script>\\u202e" in dialog(page)


def test_the_keyboard_alone_is_enough(page):
    page.keyboard.press("/")
    page.keyboard.type("dummy green")
    assert page.evaluate("document.activeElement.id") == "search"
    page.locator("#checks .matrix:visible td a").first.focus()
    assert focused(page) == "record-dummy/an~20~explainer-green.x2"
    for key, there in (
        ("ArrowRight", "loo-green.x2"),
        ("ArrowDown", "loo-green.x10"),
        ("ArrowDown", "loo-green.x10"),  # the last row
        ("ArrowRight", "zz-green.x10"),
        ("ArrowUp", "zz-green.x2"),
        ("ArrowLeft", "loo-green.x2"),
    ):
        page.keyboard.press(key)
        assert focused(page) == f"record-dummy/{there}"
    page.keyboard.press("Enter")
    assert "dummy: loo on green.x2" in dialog(page)
    page.keyboard.press("Escape")
    assert dialog(page) is None
    assert focused(page) == "record-dummy/loo-green.x2"


def test_paper_keeps_the_colours_and_unfolds_everything(page):
    page.emulate_media(media="print")
    closed = page.locator("details:not([open])")
    assert closed.count() > 0
    inside = closed.locator("> :not(summary)").first
    assert inside.evaluate("(part) => part.checkVisibility({ contentVisibilityAuto: true })")
    page.emulate_media(media="null", color_scheme="dark")  # paper is light, whatever the screen is
    pdf = page.pdf(prefer_css_page_size=True, print_background=False)
    streams = re.findall(rb"stream\r?\n(.*?)endstream", pdf, flags=re.DOTALL)
    drawn = b"".join(zlib.decompress(stream) for stream in streams if stream.startswith(b"x"))
    fills = {tuple(round(255 * float(c)) for c in f.split()) for f in re.findall(rb"([\d. ]+) rg", drawn)}
    for group, colour in colours.PAGE.items():
        for part in (colour.text, colour.cell):
            assert tuple(bytes.fromhex(part.light[1:])) in fills, group


BROKEN = r"""() => {
    const broken = [], texts = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT);
    for (let text = texts.nextNode(); text; text = texts.nextNode()) {
        if (!text.parentElement.closest('th') || !text.parentElement.checkVisibility()) continue;
        for (const word of text.data.matchAll(/[\p{L}\d]{1,14}(?![\p{L}\d])/gu)) {
            const range = document.createRange();
            range.setStart(text, word.index);
            range.setEnd(text, word.index + word[0].length);
            if (new Set([...range.getClientRects()].map((part) => part.top)).size > 1) broken.push(word[0]);
        }
    }
    return broken;
}"""
"""The words of at most 14 letters, in the headings of rows and columns, that stand on two lines."""
WIDEST = "Math.max(0, ...[...document.querySelectorAll('table')].map((table) => table.offsetWidth))"


@pytest.mark.parametrize("name", ["report", "maps", "explanation", "comparison", "trend"])
def test_no_name_is_broken_between_two_letters_on_paper_or_on_a_phone(browser, files, name):
    with opened(browser, files[name]) as page:
        unfold(page)
        for media, width in (("screen", 390), ("print", 1032)):  # of A4 on its side 273 mm are left within the margins
            page.emulate_media(media=media)
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate(BROKEN) == [], media
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.evaluate(WIDEST) <= 1032, "no table is cut by the edge of the paper"


def test_a_wide_matrix_is_split_on_paper_and_each_part_names_its_rows(browser, tmp_path):
    file = tmp_path / "wide.html"
    file.write_text(report.to_html(documents.many_records(200)), encoding="utf-8")
    with opened(browser, file) as page:
        page.evaluate("addEventListener('afterprint', () => { window.printed = true; })")
        whole = "#axiom-invariance-family_0 .matrix"
        before = page.locator("#checks").inner_html()
        pdf = page.pdf(prefer_css_page_size=True)
        assert page.evaluate("window.printed")
        assert page.locator("#checks").inner_html() == before, "after printing the page is as it was"
        page.fill("#search", "an_explainer_1")  # and 10 to 19
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        found = page.locator(f"{whole}:visible thead").evaluate_all("all => all.map((head) => head.innerText)")
        assert [head.split() for head in found] == [
            ["subject", *(f"an_explainer_{i}" for i in (1, 10, 11, 12, 13, 14))],
            ["subject", *(f"an_explainer_{i}" for i in (15, 16, 17, 18, 19))],
        ]
        names = page.locator(f"{whole}:visible tbody th").all_inner_texts()
        assert names == ["family_0.a_pair_of_usual_length_0"] * 2
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.locator(f"{whole}:visible").count() == 1
    assert len(re.findall(rb"/Type /Page\b", pdf)) > 1


# --- many records ----------------------------------------------------------------------------------------------------


def test_ten_thousand_records_are_a_page_that_can_be_used(browser, tmp_path):
    file = tmp_path / "many.html"
    text = report.to_html(documents.many_records(10_000))
    file.write_text(text, encoding="utf-8")
    size = file.stat().st_size
    assert size < MOST_BYTES
    with opened(browser, file) as page:
        ready = page.evaluate("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd")
        found = page.evaluate("""() => new Promise((done) => {
            const start = performance.now(), field = document.getElementById('search');
            field.value = 'an_explainer_7 family_3.';
            field.dispatchEvent(new Event('input', { bubbles: true }));
            requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));
        })""")
        nodes = page.evaluate("document.querySelectorAll('*').length")
        assert len(shown(page)) == 20
        assert page.locator("#found").inner_text() == "20 of 10000 records"
    assert nodes < 120_000
    print(f"10,000 records: {size:,} bytes, {nodes:,} elements; loaded in {ready:.0f} ms, searched in {found:.0f} ms")
