"""``faithcheck compare``: regressions, changed magnitudes, and differences between the two runs."""

import json
import re
import statistics

import pytest
from msgspec.structs import replace

from faithcheck.axioms.measure.statuses import PASSING, RED, SKIPPED
from faithcheck.cli.main import main
from faithcheck.reports import comparison
from faithcheck.reports.documents.document import DocumentError, to_json
from faithcheck.reports.pages import comparison as pages
from faithcheck.reports.pages import rendering
from faithcheck.tests.helpers.documents import alignment, document, explanation, record, typed


def run(*statuses, **changed):
    """A results document with a record of each status, named by its place."""
    return document([named(i, status) for i, status in enumerate(statuses) if status], **changed)


def named(i, status, **changed):
    return record(status, **{"id": f"invariance/{i}", "explainer": "mine", **changed})


def regressions(old, new):
    return [(what, name) for what, name, *_ in comparison.compare(old, new).regressions]


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
    rows = {name: [row.id for row in compared.listed(name)] for name in comparison.LISTS}
    assert rows == {
        "regressions": ["invariance/0", "invariance/3"],
        "mended": ["invariance/1"],
        "verdicts": ["invariance/2"],
        "magnitudes": [],
        "appeared": ["invariance/5"],
        "vanished": ["invariance/6"],
        "skips": [],
    }
    assert compared.unchanged == 2
    assert compared.still_red == 1


def test_a_failed_test_without_a_record_counts():
    failed = {"failures": [{"id": "tests/test_x.py::test_y", "message": "no"}]}
    green, red = run("holds"), run("holds", **failed)
    assert regressions(green, red) == [("new, and red", "tests/test_x.py::test_y")]
    assert regressions(red, red) == []
    assert comparison.compare(red, red).still_red == 1
    mended = comparison.compare(red, green)
    assert [row.id for row in mended.listed("mended")] == ["tests/test_x.py::test_y"]
    assert not mended.regressions


def test_records_with_the_same_id_get_numbers():
    old, new = (document([named(0, "holds"), named(0, status)]) for status in ("holds", "broken claim"))
    assert regressions(old, new) == [("was green, is red", "invariance/0 (2)")]


def changed_figures(before, now, threshold=comparison.THRESHOLD):
    old, new = (document([named(0, "recorded", **changed)]) for changed in (before, now))
    compared = comparison.compare(old, new, threshold)
    assert not compared.regressions, "a magnitude is no regression"
    return [(name, was, is_now) for name, _, was, is_now in compared.listed("magnitudes")]


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
    same = {"reason": "no softmax", "count": 2, "ids": []}
    added = {"reason": "no rule", "count": 1, "ids": []}
    before, now = ({"reason": "no rule for mul", "count": count, "ids": []} for count in (1, 3))
    old, new = (run("unsupported", "holds", skips=skips) for skips in ([before, same], [now, added, same]))
    assert comparison.compare(old, new).listed("skips") == [
        ("more are skipped", "no rule for mul", "1", "3"),
        ("a new reason", "no rule", "0", "1"),
    ]
    assert comparison.compare(new, old).listed("skips") == []


def test_differences_between_the_runs_come_first():
    assert comparison.compare(run("holds"), run("holds")).differences == []
    before = {"origins": {"a": "x", "b": "y"}, "rules": {"a": ["add", "mul"], "attnlrp": ["mul"]}}
    now = {
        **{"seed": 8, "dtype": "float32", "device": "cuda", "data": "MNIST", "arguments": ["other"]},
        **{"explainers": ["cplrp", "loo"], "origins": {"a": "x", "b": "z", "cplrp": "z"}, "rules": {"a": ["add"]}},
    }
    old = run("holds", settings={**before, "explainers": ["loo", "attnlrp"]})
    new = run("holds", settings=now, environment={"python": "3.11", "torch": "2.14", "commit": "abcdef"})
    new = replace(new, faithcheck="0.2.0", counts=replace(new.counts, planned=new.counts.planned + 5))
    compared = comparison.compare(old, new)
    assert dict((name, (was, now)) for name, was, now in compared.differences) == {
        "seed": ("7", "8"),
        "dtype": ("float64", "float32"),
        "device": ("cpu", "cuda"),
        "data": ("digits", "MNIST"),
        "explainers": ("also attnlrp", "also cplrp"),
        "origins": ("b: y", "b: z"),
        "rules": ("a: also mul", "a: –"),
        "faithcheck": ("0.1.0", "0.2.0"),
        "torch": ("–", "2.14"),
        "tests not run": ("0", "5"),
    }
    for page in (pages.to_terminal(compared, 200), pages.to_markdown(compared)):
        assert page.index("wo runs differ") < page.index("float32")
        assert all(text in page for text in ("float32", "cuda", "MNIST", "also cplrp", "2.14"))
    old = run("holds", settings={**before, "explainers": ["loo", "cplrp"]})
    assert "explainers" not in dict(row[:2] for row in comparison.compare(old, new).differences), "another order alone"


def test_a_changed_expectation_is_shown():
    old, new = run("broken claim"), document([named(0, "recorded", expected="UNCLAIMED")])
    ((what, _, was, now),) = comparison.compare(old, new).listed("mended")
    assert what == "was red, and the expectation is another one"
    assert was.endswith("expected HOLDS")
    assert now.endswith("expected UNCLAIMED")


def test_the_markdown_opens_with_the_verdict_and_folds_long_lists():
    few = pages.to_markdown(comparison.compare(run("holds", "holds"), run("broken claim", "holds")))
    change = "✓ holds, gap 0.31 → ✗ broken claim, gap 0.31"
    assert few.startswith(f"### ✗ faithcheck: 1 regression: invariance/0: was green, is red: {change}\n\n1 unchanged\n")
    assert "<details" not in few
    assert "| was green, is red | invariance/0 | ✓ holds, gap 0.31 | ✗ broken claim, gap 0.31 |" in few
    none = pages.to_markdown(comparison.compare(run("holds"), run("holds")))
    assert none.startswith("### ✓ faithcheck: no regression\n\n1 unchanged\n")
    assert "|" not in none


def many(status, count=39, **changed):
    """Records of one explainer and status whose gaps increase with their number."""
    return [named(i, status, gap=i / 100, **changed) for i in range(1, count + 1)]


def test_39_regressions_of_one_kind_are_one_line_with_the_worst():
    compared = comparison.compare(document(many("holds")), document([*many("broken claim"), named(99, "holds")]))
    kind = "invariance: mine: expected to hold, but the gap … is above the tolerance 1e-9"
    sentence = f"39 regressions of one kind, was green, is red: {kind}; the worst: ✓ holds, gap 0.39 → ✗ broken claim"
    assert pages.verdict(compared) == f"{sentence}, gap 0.39"
    printed = pages.to_terminal(compared, 400)
    assert printed.startswith(f"✗ {sentence}, gap 0.39\n1 new, 0 unchanged\n")
    assert f"  was green, is red: 39 × {kind}\n" in printed
    assert "      the worst: invariance/39: ✓ holds, gap 0.39 → ✗ broken claim, gap 0.39\n" in printed
    assert len(printed.splitlines()) < 15
    page = pages.to_markdown(compared)
    assert "<details><summary>39 × was green, is red: " + kind in page
    assert page.count("| was green, is red |") == 39
    assert page.count("<details") == page.count("</details>") == 2, "the kind, and what is new"


def test_kinds_are_told_by_explainer_change_and_cause():
    before, now = many("holds"), [*many("broken claim", 16), *many("unsupported")[16:]]
    now[0] = replace(now[0], explainer="yours")
    compared = comparison.compare(document(before), document(now))
    assert [(kind.change, len(kind.rows)) for kind in compared.kinds["regressions"]] == [
        ("was green, is red", 15),
        ("was green, is red", 1),
        ("no longer measured", 23),
    ], "what is red comes first"
    sentence = "39 regressions of 3 kinds; 15 × was green, is red: invariance: mine: expected to hold, but"
    assert pages.verdict(compared).startswith(sentence)


def test_what_is_no_longer_red_has_the_kind_that_it_had():
    compared = comparison.compare(document(many("error", detail={"error": "no GPU"})), document(many("holds")))
    assert [(kind.what, len(kind.rows)) for kind in compared.kinds["mended"]] == [
        ("invariance: mine: the check could not be measured: no GPU", 39)
    ]
    assert pages.verdict(compared) == "no regression, and 39 no longer red"


def test_texts_are_not_compared():
    with pytest.raises(DocumentError, match="of one text: faithcheck align compares explainers"):
        comparison.compare(typed(explanation()), typed(explanation()))


def test_nothing_to_compare_is_not_green():
    for old, new in [([], []), ([], [named(0, "holds")])]:
        compared = comparison.compare(document(old), document(new))
        assert pages.verdict(compared) == "no verdict: nothing that both documents measured"
        assert "✓" not in pages.to_markdown(compared).splitlines()[0]
        assert 'class="good"' not in pages.to_html(compared)


def test_a_long_comparison_fits_a_comment_and_counts_what_is_cut():
    """150 regressions of one kind, 100 of their own, 100 no longer red, 150 reasons; characters that are escaped."""
    long = "<é_*" * 80
    before = [named(i, "holds", explainer="x", id=f"invariance/{long}-{i}") for i in range(150)]
    now = [named(i, "broken claim", id=f"invariance/{long}-{i}") for i in range(150)]
    now += [named(1000 + i, "error", explainer=f"{long}{i}", id=f"dummy/{long}{i}") for i in range(100)]
    for records, status in ((before, "error"), (now, "holds")):
        records += [named(i, status, explainer=f"{long}{i}", id=f"loo/{long}{i}") for i in range(100)]
    skips = [{"reason": f"{i} " + "why " * 200, "count": 1, "ids": []} for i in range(150)]
    old = document(before, {"explainers": []}, skips=[])
    new = document(now, {"explainers": [f"{long}{i}" for i in range(200)]}, skips=skips)
    compared = comparison.compare(old, new)
    page = pages.to_markdown(compared)
    assert len(rendering.to_page("comparison.md.j2", pages._view(compared, pages.MOST[0])).encode()) > 65_536
    assert len(page.encode()) <= 65_536
    assert page.count("<details") == page.count("</details>")
    shown = len(re.findall(r"^\| (?:was green|new, and red|was red|a new reason)", page, flags=re.MULTILINE))
    cut = sum(int(number) for number in re.findall(r"and (\d+) more, which `faithcheck compare --html`", page))
    assert shown + cut == 150 + 100 + 100 + 150
    full = pages.to_html(compared)
    assert all(f"-{i}<" in full for i in range(150))
    assert all(f"{i} why" in full for i in range(150))


@pytest.mark.parametrize("width", [50, 80, 120])
def test_the_terminal_text_fits_its_width_and_is_complete(width):
    key = f"invariance/{'a_rather_long_name' * 3}-of_a.pair"
    old = document([named(0, "predicted violation", id=key)])
    new = document([named(0, "violation vanished", id=key)], {"data": "a long name of data " * 5})
    printed = pages.to_terminal(comparison.compare(old, new), width)
    assert max(map(len, printed.splitlines())) <= width
    flat = "".join(printed.split())
    parts = ["wasgreen,isred:", key, "≠predictedviolation,gap0.31→✗violationvanished,gap0.31", "alongnameofdata" * 5]
    assert all(part in flat for part in parts)


# --- alignments ------------------------------------------------------------------------------------------------------


def test_alignment_documents_are_compared(tmp_path, capsys):
    old = alignment(loo=(1.0, 0.8), attnlrp=(0.5, 0.4), cplrp=(0.3, 0.2))
    new = alignment(loo=(1.0, 0.81), attnlrp=(0.45, 0.4), cplrp="no rule for conv", mine=(0.1, 0.1))
    new["model"]["fingerprint"] = "c"
    compared = comparison.compare(typed(old), typed(new))
    changes = [("pearson all", "attnlrp", "+0.500", "+0.450"), ("delta", "loo", "0.8", "0.81")]
    assert compared.listed("magnitudes") == changes
    assert [row[:2] for row in compared.regressions] == [("no longer measured", "cplrp")]
    assert [row.id for row in compared.listed("appeared")] == ["mine"]
    assert compared.listed("skips") == [("a new reason", "cplrp: no rule for conv", "0", "1")]
    assert compared.differences == [("model fingerprint", "a", "c")]
    files = [save(tmp_path / name, content) for name, content in (("old.json", old), ("new.json", new))]
    assert main(["compare", *files]) == 1
    assert "no longer measured" in capsys.readouterr().out
    assert main(["compare", files[0], files[0]]) == 0


def examples(values, digests=None, index=None, fingerprint="b"):
    """An alignment document of two explainers whose r of each example is as given; LOO's is 1."""
    content = alignment(loo=(1.0, 1.0), attnlrp=(0.5, 0.5))
    keys = {"index": index or list(range(len(values))), **({"digests": digests} if digests else {})}
    content["examples"] = keys
    for row, column in zip(content["explainers"], ([1.0] * len(values), values), strict=True):
        row["examples"] = {"pearson_no_special": column, "delta": [0.25] * len(values)}
    content["data"]["fingerprint"] = fingerprint
    return typed(content)


def test_paired_differences_have_intervals_and_name_their_method():
    before, now = [0.1, 0.2, 0.3, 0.4, None, 0.6], [0.2, 0.25, 0.5, 0.41, 0.9, 0.7]
    compared = comparison.compare(examples(before), examples(now))
    rows = {(row.explainer, row.figure): row for row in compared.paired.differences}
    r = rows["attnlrp", "pearson_no_special"]
    changes = [0.1, 0.05, 0.2, 0.01, 0.1]
    assert r.n == 5
    assert r.difference == pytest.approx(sum(changes) / 5)
    half = 2.7764 * statistics.stdev(changes) / 5**0.5  # Student's t, as there are few
    assert (r.low, r.high) == pytest.approx((r.difference - half, r.difference + half), abs=1e-4)
    assert rows["loo", "pearson_no_special"].difference == 0
    assert compared.paired.sentence.startswith("6 examples that both measured: the mean of now − before")
    for page in (pages.to_terminal(compared, 200), pages.to_markdown(compared), pages.to_html(compared)):
        assert "Paired differences" in page
        assert "0.092" in page
        assert "bootstrap" in page


def test_examples_are_paired_by_their_content():
    """Another order, another number, a text that is there twice: each value meets that of the same text."""
    before = examples([0.1, 0.2, 0.3, 0.4], digests=["a", "b", "a", "c"])
    now = examples([0.7, 0.2, 0.3], digests=["b", "a", "a"], fingerprint="other")
    (row,) = (one for one in comparison.compare(before, now).paired.differences if one.difference)
    assert (row.explainer, row.n) == ("attnlrp", 3)
    assert row.difference == pytest.approx((0.1 + 0.5 + 0.0) / 3)


def test_what_cannot_be_paired_is_said():
    def sentence(old, new):
        return comparison.compare(old, new).paired.sentence

    without, other = typed(alignment(loo=(1.0, 1.0))), examples([0.1, 0.2])
    assert sentence(without, other).startswith("no example is paired: the documents do not hold")
    assert "do not hold" in sentence(other, examples([0.1, 0.2], fingerprint="other"))
    apart = [examples([0.1], digests=["a"]), examples([0.1], digests=["b"])]
    assert sentence(*apart) == "no example is paired: the two documents have none in common"
    moved = examples([0.1, 0.2], index=[1, 2])
    assert comparison.compare(other, moved).paired.differences[0].n == 1


# --- commits and catalogues ------------------------------------------------------------------------------------------


def test_the_run_names_the_commit_of_the_user_and_that_of_faithcheck():
    old = run("holds", environment={"commit": "f" * 40})  # of an older version: faithcheck's own
    new = run("holds", environment={"user_commit": "a" * 40 + "-dirty", "faithcheck_commit": "b" * 40})
    compared = comparison.compare(old, new)
    assert compared.before == "2026-01-01T00:00:00+00:00, faithcheck 0.1.0"
    assert compared.now == f"2026-01-01T00:00:00+00:00, commit {'a' * 12}-dirty, faithcheck 0.1.0 at {'b' * 12}"
    new.environment["faithcheck_commit"] = "a" * 40
    assert comparison.compare(old, new).now.endswith(f"commit {'a' * 12}-dirty, faithcheck 0.1.0")


def in_catalogue(status, pairs, **changed):
    """A document of one record on each pair, in a catalogue of these pairs by their digests."""
    catalogue = {"version": "2026.12", "tolerances": {"float64": 1e-9}, "axioms": {"invariance": "i"}, "pairs": pairs}
    records = [record(status, id=f"invariance/mine-{name}", explainer="mine", subject=name) for name in pairs]
    catalogue |= {"hash": str(sorted(pairs.items())), **changed}
    return document(records, catalogue=catalogue)


def test_two_catalogues_are_not_compared_silently(tmp_path, capsys):
    old = in_catalogue("holds", {"a.same": "1", "a.changed": "2", "a.removed": "3"})
    new = in_catalogue("broken claim", {"a.same": "1", "a.changed": "9", "a.added": "4"}, version="2027.03")
    files = [save(tmp_path / name, content) for name, content in (("old.json", old), ("new.json", new))]
    assert main(["compare", *files]) == 2
    refused = capsys.readouterr().err
    for part in ("2026.12", "2027.03", "pairs added: a.added", "pairs removed: a.removed", "pairs changed: a.changed"):
        assert part in refused
    assert len(refused.splitlines()) == 1
    assert main(["compare", *files, "--across-catalogues", "--md", "--html"]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("✗ 1 regression: invariance/mine-a.same: was green, is red")
    assert "not compared because their axiom or pair differs: 2 records before, 2 now" in " ".join(printed.split())
    assert "Of two catalogues" in (tmp_path / "new.compare.md").read_text()
    assert "pairs changed: a.changed" in (tmp_path / "new.compare.html").read_text()
    assert main(["compare", files[0], files[0]]) == 0


def test_models_of_a_changed_pair_and_checks_of_a_changed_axiom_are_left_out():
    old = in_catalogue("holds", {"a.b": "1", "a.c": "1"})
    old.records[0] = replace(old.records[0], subject="a.b.f")
    changed = replace(old.catalogue, hash="other", pairs={"a.b": "2", "a.c": "1"})
    assert comparison.compare(old, replace(old, catalogue=changed), across_catalogues=True).unchanged == 1
    changed = replace(changed, axioms={"invariance": "another"})
    assert comparison.compare(old, replace(old, catalogue=changed), across_catalogues=True).unchanged == 0


def test_other_tolerances_have_nothing_in_common():
    old, new = in_catalogue("holds", {}), in_catalogue("holds", {}, hash="other", tolerances={"float64": 1e-8})
    with pytest.raises(DocumentError, match="another tolerance of float64"):
        comparison.compare(old, new, across_catalogues=True)


def test_a_document_that_names_no_catalogue_is_compared_and_that_is_said():
    compared = comparison.compare(run("holds"), in_catalogue("holds", {"a.b": "1"}))
    assert [row[0] for row in compared.differences] == ["catalogue"]


# --- the command -----------------------------------------------------------------------------------------------------


def save(path, content):
    path.write_text(json.dumps(to_json(content)))
    return str(path)


def test_the_command_sets_its_exit_code_and_writes_the_page(tmp_path, capsys):
    green, red = (save(tmp_path / f"{name}.json", run(status)) for name, status in (("a", "holds"), ("b", "error")))
    assert main(["compare", green, green]) == 0
    assert capsys.readouterr().out.startswith("✓ no regression\n1 unchanged\n")
    assert main(["compare", red, red]) == 0, "red before and red now is no regression"
    assert "1 still red" in capsys.readouterr().out
    assert main(["compare", green, red, "--md"]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("✗ 1 regression: invariance/0: was green, is red")
    assert f"written: {tmp_path / 'b.compare.md'}" in printed
    assert (tmp_path / "b.compare.md").read_text().startswith("### ✗ faithcheck: 1 regression")
    assert main(["compare", green, red, "--md", str(tmp_path / "page.md"), "--html"]) == 1
    assert (tmp_path / "page.md").is_file()
    assert "1 regression" in (tmp_path / "b.compare.html").read_text()


def test_the_help_repeats_the_definition_of_a_regression(capsys):
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    for line in re.findall(r"\* ((?:.|\n(?!\*|\n))+)[;.]\n", comparison.__doc__):
        words = " ".join(line.split()).replace("(*unsupported*) ", "").split(":")[0]
        assert words in printed, words
