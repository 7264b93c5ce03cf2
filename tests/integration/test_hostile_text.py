"""Hostile text in every field of a document is shown, and never run: on the pages, in Markdown and on a terminal."""

import re
from collections.abc import Callable, Iterator

import pytest
from markdown_it import MarkdownIt

from faithcheck.reports import comparison
from faithcheck.reports.documents.document import to_json
from faithcheck.reports.pages import alignment, explanation, report, terminal
from faithcheck.reports.pages import comparison as comparison_page
from faithcheck.reports.pages.visible import visible
from faithcheck.tests.helpers import documents
from faithcheck.tests.helpers.browser import browser, opened
from faithcheck.tests.helpers.documents import typed

__all__ = ["browser"]  # a fixture

pytestmark = pytest.mark.integration

HOSTILE = (
    "\x1b[31m\x07\x00\x9b2J\u202etxt\u2066\ud800"
    "</script></style></title></textarea>--><script>alert(1)</script><img src=x onerror=alert(2)>"
    "\"'><svg/onload=alert(3)><b>bold</b>&lt;i&gt;{{ 7*7 }}{% raw %}"
    "[link](javascript:alert(4)) ![image](https://evil.example/x.png) <https://evil.example> https://evil.example "
    "www.evil.example | cell `code` ``` **strong** ~~gone~~ $x$ \\| [bold]rich[/bold] [/]\n```\n"
    "# heading\n- item\n\n---\n"
)
HARMLESS = re.sub(r"\W", "x", visible(HOSTILE))
"""Text of the same length as it is shown, that no parser takes for anything else."""
FIXED = ("", "alignment", "explanation", "tokens", "pearson_no_special", "xy", "nan")
"""Texts that decide how a document is read; others are refused."""
FREE_KEYS = ("axioms", "environment", "rules", "origins", "specs", "pair_origins")
"""Mappings of a document whose keys are any text."""
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def a_run():
    """A results document with every part that one can have."""
    records = [
        documents.record("broken claim", axiom=axiom, id=f"{axiom}/x-{axiom}", subject=axiom, evidence=kept)
        for axiom, kept in documents.EVIDENCE.items()
    ]
    records += [documents.record(status, traceback="Traceback") for status in ("holds", "error", "unsupported")]
    left = {"pearson": 0.5, "symbolic gap": "x", "left behind": "hooks", "note": "noted", "told apart by": "y"}
    records += [documents.record("recorded", axiom="loo", id="loo/x", gap=None, detail=left)]
    records += [documents.record("broken claim", axiom="trace", id="trace/x", detail={"left behind": "hooks (x)"})]
    parts = {"failures": [{"id": "test", "message": "message"}], "figures": [documents.figure_content()]}
    run = to_json(documents.document(records, **parts))
    run["settings"] |= {
        "origins": {"x": "here"},
        "pair_origins": {"words": "my_pairs"},
        "specs": {"x": "m:X"},
        "not_applicable": [{"axiom": "a", "reason": "r", "explainer": "e"}],
        "explainers": ["x"],
        "arguments": ["--like", "attnlrp", "--expectations=file"],
        "claims": ["never measured"],
        "part": False,
    }
    return run


def an_alignment():
    """An alignment with an explainer that was refused and one that left something behind."""
    measured = documents.alignment(loo=(1.0, 0.8), attnlrp=(0.5, 0.4), other=(0.1, 0.2), no="rule")
    measured["explainers"][1]["left_behind"] = "weights"
    return measured


def an_explanation():
    """An explanation by explainers that left something behind. Its tokens are words: pieces would be joined."""
    explained = documents.explanation()
    explained["notes"] = ["cut"]
    for feature in explained["features"]:
        feature["glued"] = False
    for row in explained["maps"]:
        row |= {"origin": "here", "left_behind": "weights"}
    return explained


def with_text(value, text):
    """The document with this text at the end of every text, and of the keys that may be any text."""
    if isinstance(value, dict):
        return {
            key: {f"{free}{text}": with_text(item, text) for free, item in part.items()}
            if key in FREE_KEYS and isinstance(part, dict)
            else with_text(part, text)
            for key, part in value.items()
        }
    if isinstance(value, list):
        return [with_text(item, text) for item in value]
    return value + text if isinstance(value, str) and value not in FIXED else value


KINDS: dict[str, tuple[Callable, Callable, Callable, Callable]] = {
    "suite": (a_run, report.to_html, report.to_markdown, terminal.render),
    "alignment": (an_alignment, alignment.to_html, alignment.to_markdown, alignment.to_terminal),
    "explanation": (
        *(an_explanation, explanation.to_html, explanation.to_markdown),
        explanation.to_terminal,
    ),
}


def texts(value) -> Iterator[str]:
    """Every text of a document."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from texts(item)
    elif isinstance(value, str):
        yield value


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_documents_are_documents(kind):
    """So that what follows is about files that are read, and not about refused ones."""
    make, *_ = KINDS[kind]
    content = with_text(make(), HOSTILE)
    read = HOSTILE.replace("\ud800", "\\ud800")  # half a character is read as its escape sequence
    assert sum(read in text for text in texts(to_json(typed(content)))) > 20


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_shows_hostile_text_and_runs_nothing(kind, browser, tmp_path):
    make, to_html, _, _ = KINDS[kind]
    found = {}
    for name, text in {"hostile": HOSTILE, "harmless": HARMLESS}.items():
        file = tmp_path / f"{name}.html"
        file.write_text(to_html(typed(with_text(make(), text))), encoding="utf-8")
        with opened(browser, file) as page:  # at the end it must have said nothing and asked for nothing
            page.on("dialog", lambda dialog: pytest.fail(f"a dialog: {dialog.message}"))
            found[name] = page.evaluate(
                "() => { const tags = {}; document.querySelectorAll(':not(wbr)').forEach("
                "(e) => { tags[e.tagName] = (tags[e.tagName] || 0) + 1; }); return tags; }"
            )
            shown = page.evaluate("document.body.textContent")
            handlers = page.evaluate(
                "[...document.querySelectorAll('*')].flatMap((e) => [...e.attributes])"
                ".filter((a) => a.name.startsWith('on') || /^\\s*javascript:/.test(a.value)).map((a) => a.name)"
            )
        assert not RAW.search(shown)
        assert handlers == []
    assert found["hostile"] == found["harmless"], "no element comes from a text, but where a name may be broken"
    hostile = " ".join((tmp_path / "hostile.html").read_text().split())
    assert "&lt;img src=x onerror=alert(2)&gt;" in hostile
    assert r"\x1b[31m\x07\x00\x9b2J\u202etxt\u2066\ud800" in hostile


def markdown_pages():
    """Each kind of Markdown page as a function of the text in its documents."""
    for name, (make, _, to_markdown, _) in KINDS.items():
        yield pytest.param(lambda text, make=make, to=to_markdown: to(typed(with_text(make(), text))), id=name)
    yield pytest.param(lambda text: comparison_page.to_markdown(compared(text)), id="comparison")


def compared(text):
    """The comparison of a run with another one, in which something of every kind changed."""
    old, new = to_json(documents.document([documents.record("holds")])), a_run()
    new["settings"]["seed"] = 8
    return comparison.compare(*(typed(with_text(one, text)) for one in (old, new)))


@pytest.mark.parametrize("page", [*markdown_pages()])
def test_markdown_shows_hostile_text_literally(page):
    hostile, harmless = page(HOSTILE), page(HARMLESS)
    assert not RAW.search(hostile)
    outline = [outline_of(text) for text in (hostile, harmless)]
    assert outline[0] == outline[1], "no element comes from a text"
    links = re.findall(r"(?:https?:/|www\.)\S*evil", outside_of_code(hostile))
    assert links == [], "GitHub makes links of bare addresses"


@pytest.mark.parametrize("page", [*markdown_pages()])
def test_markdown_mentions_nobody_and_closes_no_issue(page):
    """GitHub looks for both in the texts between elements, after Markdown's escapes are resolved."""
    paragraphs = [
        "".join(child.content if child.type.startswith("text") else "\0" for child in token.children or [])
        for token in parsed(page(" @octocat fixes #1, closes GH-2 and owner/repository#3 "))
    ]
    assert any("octocat" in text for text in paragraphs)
    assert re.findall(r"(?i)(?:[@#]|\bgh-)\w+", "\n".join(paragraphs)) == []


def parsed(text):
    """The tokens of Markdown as GitHub renders it."""
    return MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)


def outline_of(text):
    """What a Markdown page is made of: the blocks and the elements within them, without their text."""
    outline = []
    for token in parsed(text):
        inline = [child.type for child in token.children or [] if child.type not in ("text", "softbreak")]
        html = re.findall(r"<[^>]*>", token.content) if token.type == "html_block" else []
        outline.append((token.type, [kind for kind in inline if kind != "text_special"], html))
    return outline


def outside_of_code(text):
    """The source of a Markdown page without its blocks of code."""
    lines = text.splitlines()
    for token in parsed(text):
        if token.type == "fence":
            lines[slice(*token.map)] = [""] * (token.map[1] - token.map[0])
    return "\n".join(lines)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("color", [False, True])
def test_a_terminal_shows_hostile_text_without_its_escape_sequences(kind, color, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")  # as in other tests: Rich keeps a style as it was first written
    make, _, _, to_terminal = KINDS[kind]
    printed = to_terminal(typed(with_text(make(), HOSTILE)), 120, color)
    assert not RAW.search(re.sub(r"\x1b\[[0-9;]*m", "", printed) if color else printed)
    if color:
        plain = set(re.findall(r"\x1b\[[0-9;]*m", to_terminal(typed(with_text(make(), HARMLESS)), 120, color)))
        assert set(re.findall(r"\x1b\[[0-9;]*m", printed)) <= plain
    assert r"\u202etxt" in printed
