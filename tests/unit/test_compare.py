"""``faithcheck compare``: regressions, changed magnitudes, and differences between the two runs."""

import copy
import json
import re

import pytest

from faithcheck.axioms.engine.statuses import PASSING, RED, SKIPPED
from faithcheck.reports import comparison, results
from faithcheck.reports.commands.main import main
from faithcheck.reports.pages import comparison as pages
from faithcheck.tests.helpers.documents import alignment, document, record


def run(*statuses, **changed):
    """A results document with a record of each status, named by its place."""
    return document([named(i, status) for i, status in enumerate(statuses) if status], **changed)


def named(i, status, **changed):
    return record(status, **{"id": f"invariance/{i}", "explainer": "mine", **changed})


def regressions(old, new):
    return [(what, name) for what, name, *_ in comparison.compare(old, new)["regressions"]]


@pytest.mark.parametrize("old", [None, *PASSING, *RED, *SKIPPED])
@pytest.mark.parametrize("new", [None, *PASSING, *RED, *SKIPPED])
def test_regressions_are_those_of_the_docstring(old, new):
    """The definition, written anew: red now and not before, or measured before and not now."""
    became_red = new in RED and old not in RED
    lost = old is not None and old not in SKIPPED and (new is None or new in SKIPPED)
    listed = regressions(run(old), run(new))
    assert bool(listed) == (became_red or lost), listed
    assert len(listed) <= 1


def test_every_record_is_counted_once():
    before = ["holds", "broken claim", "unsupported", "recorded", "error", None, "unsupported", "holds"]
    after = ["broken claim", "holds", "recorded", None, "error", "holds", None, "holds"]
    compared = comparison.compare(run(*before), run(*after))
    rows = {name: [row[1] for row in compared[name]] for name in comparison.LISTS}
    assert rows == {
        "regressions": ["invariance/0", "invariance/3"],
        "mended": ["invariance/1"],
        "verdicts": ["invariance/2"],
        "magnitudes": [],
        "slower": [],
        "faster": [],
        "appeared": ["invariance/5"],
        "vanished": ["invariance/6"],
        "skips": [],
    }
    assert compared["unchanged"] == 2
    assert compared["still_red"] == 1


def test_a_failed_test_without_a_record_counts():
    failed = {"failures": [{"id": "tests/test_x.py::test_y", "message": "no"}]}
    green, red = run("holds"), run("holds", **failed)
    assert regressions(green, red) == [("new, and red", "tests/test_x.py::test_y")]
    assert regressions(red, red) == []
    assert comparison.compare(red, red)["still_red"] == 1
    mended = comparison.compare(red, green)
    assert [row[1] for row in mended["mended"]] == ["tests/test_x.py::test_y"]
    assert not comparison.is_regression(mended)


def test_records_with_the_same_id_get_numbers():
    old, new = (document([named(0, "holds"), named(0, status)]) for status in ("holds", "broken claim"))
    assert regressions(old, new) == [("was green, is red", "invariance/0 (2)")]


def changed_figures(before, now, threshold=comparison.THRESHOLD):
    old, new = (document([named(0, "recorded", **changed)]) for changed in (before, now))
    compared = comparison.compare(old, new, threshold)
    assert not comparison.is_regression(compared), "a magnitude is no regression"
    return [(name, was, is_now) for name, _, was, is_now in compared["magnitudes"]]


@pytest.mark.parametrize(
    ("before", "now", "tol", "listed"),
    [
        (0.5, 0.5049, 1e-9, False),  # less than 1 %
        (0.5, 0.506, 1e-9, True),
        (0.506, 0.5, 1e-9, True),
        (1e-16, 9e-10, 1e-9, False),  # round-off
        (1e-16, 2e-9, 1e-9, True),
        (0.0, 0.0, 0.0, False),
        ("nan", "nan", 1e-9, False),
        (0.5, "inf", 1e-9, True),
        (None, 0.5, 1e-9, True),
        (0.5, 0.6, None, True),
    ],
)
def test_a_gap_is_listed_if_it_changes_by_more_than_threshold_and_tolerance(before, now, tol, listed):
    assert bool(changed_figures({"gap": before, "tol": tol}, {"gap": now, "tol": tol})) == listed


def test_the_threshold_is_an_argument():
    assert changed_figures({"gap": 0.5}, {"gap": 0.6}, threshold=0.5) == []
    assert changed_figures({"gap": 0.5}, {"gap": 0.5001}, threshold=1e-5) == [("gap", "0.5", "0.5001")]


def test_correlations_are_compared_absolutely():
    before = {"gap": 0.5, "detail": {"pearson": 0.001, "spearman_no_special": 0.5, "examples": 8}}
    assert changed_figures(before, {"gap": 0.9, "detail": {**before["detail"], "pearson": 0.009, "examples": 9}}) == []
    now = {"gap": 0.5, "detail": {"pearson": 0.001, "spearman_no_special": 0.489, "examples": 8}}
    assert changed_figures(before, now) == [("spearman no special", "+0.500", "+0.489")]
    assert changed_figures(before, {"detail": {**before["detail"], "pearson": None}}) == [("pearson", "+0.001", "–")]


def test_reasons_for_which_more_is_skipped_are_listed():
    old, new = run("unsupported", "holds"), run("unsupported", "holds")
    same = {"reason": "no softmax", "count": 2, "ids": []}
    old["skips"].append(same)
    added = {"reason": "no rule", "count": 1, "ids": []}
    new["skips"] = [{"reason": "no rule for mul", "count": 3, "ids": []}, added, same]
    assert comparison.compare(old, new)["skips"] == [
        ("more are skipped", "no rule for mul", "1", "3"),
        ("a new reason", "no rule", "0", "1"),
    ]
    assert comparison.compare(new, old)["skips"] == []


def test_differences_between_the_runs_come_first():
    old, new = run("holds"), run("holds")
    assert comparison.compare(old, copy.deepcopy(old))["differences"] == []
    new["settings"] |= {"seed": 8, "dtype": "float32", "device": "cuda", "data": "MNIST", "arguments": ["other"]}
    new["environment"] |= {"torch": "2.14", "commit": "abcdef"}
    new["faithcheck"] = "0.2.0"
    new["counts"]["planned"] += 5
    old["settings"]["explainers"], new["settings"]["explainers"] = ["loo", "attnlrp"], ["cplrp", "loo"]
    old["settings"]["origins"], new["settings"]["origins"] = {"a": "x", "b": "y"}, {"a": "x", "b": "z"}
    compared = comparison.compare(old, new)
    assert dict((name, (was, now)) for name, was, now in compared["differences"]) == {
        "seed": ("7", "8"),
        "dtype": ("float64", "float32"),
        "device": ("cpu", "cuda"),
        "data": ("digits", "MNIST"),
        "explainers": ("also attnlrp", "also cplrp"),
        "origins": ("b: y", "b: z"),
        "faithcheck": ("0.1.0", "0.2.0"),
        "torch": ("–", "2.14"),
        "tests not run": ("0", "5"),
    }
    for page in (pages.to_terminal(compared, 200), pages.to_markdown(compared)):
        assert page.index("wo runs differ") < page.index("before:")
        assert all(text in page for text in ("float32", "cuda", "MNIST", "also cplrp", "2.14"))
    old["settings"]["explainers"] = ["loo", "cplrp"]
    assert "explainers" not in dict(row[:2] for row in comparison.compare(old, new)["differences"]), (
        "another order alone"
    )


def test_a_changed_expectation_is_shown():
    old, new = run("broken claim"), document([named(0, "recorded", expected="UNCLAIMED")])
    ((what, _, was, now),) = comparison.compare(old, new)["mended"]
    assert what == "was red, and the expectation is another one"
    assert was.endswith("expected HOLDS")
    assert now.endswith("expected UNCLAIMED")


def test_the_markdown_opens_with_the_verdict_and_folds_long_lists():
    few = pages.to_markdown(comparison.compare(run("holds", "holds"), run("broken claim", "holds")))
    assert few.startswith("### ✗ faithcheck: 1 regression, 1 unchanged\n")
    assert "<details" not in few
    assert "| was green, is red | invariance/0 | ✓ holds, gap 0.31 | ✗ broken claim, gap 0.31 |" in few
    none = pages.to_markdown(comparison.compare(run("holds"), run("holds")))
    assert none.startswith("### ✓ faithcheck: no regressions, 1 unchanged\n")
    assert "|" not in none


def test_a_long_comparison_fits_a_comment_and_counts_the_rows_left_out():
    old = document([named(i, "holds", explainer="x", id=f"invariance/{'x' * 300}-{i}") for i in range(500)])
    new = document([named(i, "broken claim", id=f"invariance/{'x' * 300}-{i}") for i in range(500)])
    new["records"] += [named(i, "holds") for i in range(500)]
    new["skips"] = [{"reason": f"{i} " + "why " * 200, "count": 1, "ids": []} for i in range(500)]
    compared = comparison.compare(old, new)
    page = pages.to_markdown(compared)
    assert len(page) < 65_536
    assert page.count("and 460 more, which `faithcheck compare` prints.") == 3
    assert page.count("<details") == page.count("</details>") == 3
    assert "<details open><summary>regressions: 500</summary>" in page
    assert pages.to_terminal(compared, 400).count("was green, is red") == 500


@pytest.mark.parametrize("width", [50, 80, 120])
def test_the_terminal_text_fits_its_width_and_is_complete(width):
    key = f"invariance/{'a_rather_long_name' * 3}-of_a.pair"
    old, new = (document([named(0, status, id=key)]) for status in ("predicted violation", "violation vanished"))
    new["settings"]["data"] = "a long name of data " * 5
    printed = pages.to_terminal(comparison.compare(old, new), width)
    assert max(map(len, printed.splitlines())) <= width
    flat = "".join(printed.split())
    parts = ["wasgreen,isred:", key, "≠predictedviolation,gap0.31→✗violationvanished,gap0.31", "alongnameofdata" * 5]
    assert all(part in flat for part in parts)


def test_names_with_markup_are_escaped():
    new = document([named(0, "broken claim", id="invariance/a|b<script>[red]x")])
    compared = comparison.compare(document([]), new)
    assert "invariance/a\\|b&lt;script&gt;\\[red\\]x" in pages.to_markdown(compared)
    assert "a|b<script>[red]x" in pages.to_terminal(compared, 200)


# --- alignments ------------------------------------------------------------------------------------------------------


def test_alignment_documents_are_compared(tmp_path, capsys):
    old = alignment(loo=(1.0, 0.8), attnlrp=(0.5, 0.4), cplrp=(0.3, 0.2))
    new = alignment(loo=(1.0, 0.81), attnlrp=(0.45, 0.4), cplrp="no rule for conv", mine=(0.1, 0.1))
    new["model"]["fingerprint"] = "c"
    compared = comparison.compare(old, new)
    assert compared["magnitudes"] == [("pearson all", "attnlrp", "+0.500", "+0.450"), ("delta", "loo", "0.8", "0.81")]
    assert [row[:2] for row in compared["regressions"]] == [("no longer measured", "cplrp")]
    assert [row[1] for row in compared["appeared"]] == ["mine"]
    assert compared["skips"] == [("a new reason", "cplrp: no rule for conv", "0", "1")]
    assert compared["differences"] == [("model fingerprint", "a", "c")]
    files = [save(tmp_path / name, content) for name, content in (("old.json", old), ("new.json", new))]
    assert main(["compare", *files]) == 1
    assert "no longer measured" in capsys.readouterr().out
    assert main(["compare", files[0], files[0]]) == 0


# --- the command -----------------------------------------------------------------------------------------------------


def save(path, content):
    path.write_text(json.dumps(content))
    return str(path)


def test_the_command_sets_its_exit_code_and_writes_the_page(tmp_path, capsys):
    green, red = (save(tmp_path / f"{name}.json", run(status)) for name, status in (("a", "holds"), ("b", "error")))
    assert main(["compare", green, green]) == 0
    assert "✓ no regressions, 1 unchanged" in capsys.readouterr().out
    assert main(["compare", red, red]) == 0, "red before and red now is no regression"
    assert "1 still red" in capsys.readouterr().out
    assert main(["compare", green, red, "--md"]) == 1
    printed = capsys.readouterr().out
    assert "✗ 1 regression" in printed
    assert f"written: {tmp_path / 'b.compare.md'}" in printed
    assert (tmp_path / "b.compare.md").read_text().startswith("### ✗ faithcheck: 1 regression")
    assert main(["compare", green, red, "--md", str(tmp_path / "page.md")]) == 1
    assert (tmp_path / "page.md").is_file()


def test_documents_that_cannot_be_compared_are_refused(tmp_path, capsys):
    green, other = save(tmp_path / "a.json", run("holds")), save(tmp_path / "b.json", alignment(loo=(1.0, 1.0)))
    damaged = save(tmp_path / "c.json", {"schema_version": results.SCHEMA_VERSION})
    outdated = save(tmp_path / "d.json", run("holds", schema_version=1))
    for second, message in [
        (other, "one document is of the suite, the other of faithcheck align"),
        (damaged, "damaged results document"),
        (outdated, "schema version 1"),
        (str(tmp_path / "none.json"), "cannot be read"),
    ]:
        assert main(["compare", green, second]) == 2
        assert message in capsys.readouterr().err
    assert main(["compare", green, green, "--md", green]) == 2
    assert json.loads((tmp_path / "a.json").read_text()) == run("holds")
    with pytest.raises(SystemExit) as exit_code:
        main(["compare", green, green, "--threshold", "0"])
    assert exit_code.value.code == 2
    assert "above 0" in capsys.readouterr().err


def test_the_help_repeats_the_definition_of_a_regression(capsys):
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    for line in re.findall(r"\* ((?:.|\n(?!\*|\n))+)[;.]\n", comparison.__doc__):
        words = " ".join(line.split()).replace("(*unsupported*) ", "").split(":")[0]
        assert words in printed, words
