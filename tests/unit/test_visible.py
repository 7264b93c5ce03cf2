"""Text from outside, such as names and messages: what acts unseen, or as markup, reaches no terminal and no page."""

import json
import re

import pytest

from faithcheck.cli.main import main
from faithcheck.explainers import Unsupported
from faithcheck.progress import progress_bar
from faithcheck.reports.documents.document import to_json
from faithcheck.reports.pages import rendering, terminal, wording
from faithcheck.reports.pages.visible import visible
from faithcheck.tests.helpers import small_models
from faithcheck.tests.helpers.documents import alignment, document, record

HOSTILE = "\x1b]0;title\x07\x1b[31mred\x9b2J\r\u202etxt\u2066\ufeff\u2028\ud800 lrp[/eps] [bold]`"
SHOWN = r"\x1b[31mred\x9b2J\r\u202etxt\u2066\ufeff\u2028\ud800"
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", r"\x1b[2J"),
        ("a\u202eb\u2069", r"a\u202eb\u2069"),
        ("\r\b\x7f\x85", r"\r\x08\x7f\x85"),
        ("\ud800", r"\ud800"),
        ("\U000e0041", r"\U000e0041"),
        ("plain ✓ −0.5\n\tΔ ñ 語 👩\u200d💻 می\u200cخواهم\xa0", None),
    ],
)
def test_characters_that_act_unseen_are_written_out(text, shown):
    assert visible(text) == (text if shown is None else shown)
    assert visible({text: [text, (1, text)]}) == {visible(text): [visible(text), (1, visible(text))]}


KEPT = ("", "alignment", "tokens", "pearson_no_special", "xy", "nan")  # other values are refused


def hostile(value):
    """The document with the hostile text at the end of every text."""
    if isinstance(value, dict):
        return {key: hostile(item) for key, item in value.items()}
    if isinstance(value, list):
        return [hostile(item) for item in value]
    return value + HOSTILE if isinstance(value, str) and value not in KEPT else value


@pytest.fixture
def hostile_documents(tmp_path):
    suite = document(
        [
            record(status, detail={HOSTILE: "noted"}, traceback="Traceback")
            for status in ("holds", "error", "unsupported")
        ]
        + [record("recorded", axiom="loo", gap=None, detail={"pearson": 0.5, "symbolic gap": "x", "left behind": "y"})]
    )
    suite = to_json(suite)
    suite["failures"] = [{"id": "test", "message": "message"}]
    not_applicable = [{"axiom": "a", "reason": "r", "explainer": "e"}]
    suite["settings"] |= {"origins": {HOSTILE: "here"}, "not_applicable": not_applicable, HOSTILE: 1}
    suite["environment"][HOSTILE] = "1"
    suite["axioms"][HOSTILE] = "an axiom"
    suite["counts"][HOSTILE] = 1
    measured = alignment(loo=(1.0, 0.8), attnlrp=(0.5, 0.4), no="rule")
    measured["explainers"][1]["left_behind"] = "weights"
    paths = {}
    for name, content in {"suite": suite, "alignment": measured}.items():
        paths[name] = tmp_path / f"{name}.json"
        paths[name].write_text(json.dumps(hostile(content)))
    return paths


@pytest.mark.parametrize("kind", ["suite", "alignment"])
def test_hostile_text_in_a_document_is_shown_by_report_and_compare(kind, hostile_documents, tmp_path, capsys):
    path = str(hostile_documents[kind])
    pages = [tmp_path / name for name in ("page.md", "page.html", "compared.md")]
    assert main(["report", path]) == 0
    assert main(["report", path, "--md", str(pages[0]), "--html", str(pages[1])]) == 0
    changed = json.loads(hostile_documents[kind].read_text())
    changed["faithcheck"] += "2"
    for row in changed.get("records", changed.get("explainers")):
        row["id" if kind == "suite" else "name"] += "2"
    other = tmp_path / "other.json"
    other.write_text(json.dumps(changed))
    assert main(["compare", path, str(other), "--md", str(pages[2])]) == 1
    printed = capsys.readouterr()
    for shown in (printed.out + printed.err, *(page.read_text() for page in pages)):
        assert not RAW.search(shown), RAW.search(shown)
        flat = "".join(shown.replace("\\\\", "\\").split())
        assert "\\u202etxt" in flat
        assert "lrp[/eps][bold]" in flat.replace("\\[", "[").replace("\\]", "]")


def test_a_damaged_document_is_named_without_its_escape_sequences(tmp_path, capsys):
    path = tmp_path / "\x1b[2J.json"
    path.write_text(json.dumps(to_json(document([record("holds")])) | {"created": 3, "schema_version": 2}))
    assert main(["report", str(path)]) == 2
    assert capsys.readouterr().err == (
        f"faithcheck: {visible(str(path))}: damaged results document: created: Expected `str`, got `int`\n"
    )


def test_markup_in_a_name_is_text_on_a_terminal():
    printed = terminal.render(document([record("holds", explainer="lrp[/eps]", axiom="[bold]axiom[/]")]), 120)
    assert "lrp[/eps]" in printed
    assert "[bold]axiom[/]" in printed
    assert rendering.to_terminal(lambda rows: rows, ["a [/eps]"], 80, False) == "a [/eps]\n"


def test_markup_in_a_name_is_text_in_the_progress_bar():
    with progress_bar() as progress:
        task = progress.add_task("lrp[/eps]\x1b[2J", total=1)
        assert str(progress.columns[0].render(progress.tasks[task])).strip() == r"lrp[/eps]\x1b[2J"


def test_the_message_of_a_failed_test_is_shown():
    message = wording.message(record("error", why=HOSTILE, traceback=HOSTILE))
    assert not RAW.search(message)
    assert message.count(SHOWN.removesuffix("x")) == 2


class Refuses:
    """An explainer with hostile texts, which raises or refuses."""

    name = "lrp[/eps]"
    summary = label = settings = origin = HOSTILE
    error = ValueError

    def attribute(self, model, case):
        raise self.error(HOSTILE)


class RefusesModels(Refuses):
    error = Unsupported


def test_hostile_text_of_an_explainer_is_shown_by_check(tmp_path, capsys):
    spec = f"{__name__}:Refuses"
    pages = [tmp_path / f"a{suffix}" for suffix in (".json", ".md", ".html")]
    command = ["check", spec, "--axiom", "completeness", "--pairs", "control.mlp", "--json", str(pages[0])]
    assert main([*command, "--md", "--html"]) == 1
    printed = capsys.readouterr()
    first_line = SHOWN.partition(r"\r")[0]  # of the error: the screen shows it alone, the pages show all of it
    texts = [(printed.out + printed.err, first_line), *((page.read_text(), SHOWN) for page in pages[1:])]
    for text, shown in texts:
        assert not RAW.search(text), RAW.search(text)
        assert shown in "".join(text.split()).replace("\\\\", "\\").replace("\\[", "[")


@pytest.fixture(scope="module")
def hostile_model(tmp_path_factory):
    folder = small_models.save("bert", tmp_path_factory.mktemp("bert"))
    config = json.loads((folder / "config.json").read_text())
    labels = [f"label {i}{HOSTILE}" for i in range(len(config.get("id2label", "12")))]
    config |= {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_hostile_label_of_a_model_is_shown_by_explain(hostile_model, tmp_path, capsys):
    page = tmp_path / "map.html"
    command = ["explain", "the quick \x1b[2J fox", "--model", str(hostile_model), "--explainer", "gradient_x_input"]
    assert main([*command, "--html", str(page)]) == 0
    for text in (capsys.readouterr().out, page.read_text()):
        assert not RAW.search(text), RAW.search(text)
        assert r"\u202etxt" in text


def test_hostile_text_of_an_explainer_is_shown_by_align(hostile_model, tmp_path, capsys):
    (tmp_path / "texts.tsv").write_text("the quick brown fox\t0\nthe lazy dog\t1\n")
    command = ["align", "--model", str(hostile_model), "--data", str(tmp_path / "texts.tsv"), "--limit", "1"]
    command += ["--explainer", f"{__name__}:RefusesModels", "--cache", str(tmp_path / "cache")]
    assert main([*command, "--json", str(tmp_path / "a.json"), "--md", "--html"]) == 0
    printed = capsys.readouterr()
    for text in (printed.out + printed.err, *((tmp_path / f"a{suffix}").read_text() for suffix in (".md", ".html"))):
        assert not RAW.search(text), RAW.search(text)
        assert r"\u202etxt" in text.replace("\\\\", "\\")
