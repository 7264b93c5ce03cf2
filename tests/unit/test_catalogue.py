"""The catalogue: its file is what the registries have, its hash is of what verdicts follow from, and it is named."""

import dataclasses
import json
from functools import partial

import pytest
import torch
from msgspec.structs import asdict

from faithcheck import catalogue, check_explainer, outcomes
from faithcheck.axioms.measure import measurement, roundoff
from faithcheck.axioms.measure.registry import AXIOMS
from faithcheck.cli.main import main
from faithcheck.explainers.gradients import GradientTimesInput
from faithcheck.models import pair as pairs
from faithcheck.models.expectation import Expectation
from faithcheck.models.pair import Pair, registered_pairs
from faithcheck.options.pairs import pair_origins
from faithcheck.reports.pages import report, wording
from faithcheck.tests.helpers.documents import document, record


@pytest.fixture
def registry(monkeypatch):
    """A copy of the registry of pairs, which the test may change."""
    registered_pairs()
    monkeypatch.setattr(pairs, "_registry", dict(pairs._registry))
    return pairs._registry


def named(run):
    return run["version"], run["hash"]


def test_the_file_is_what_the_registries_have():
    changed = catalogue.changes(catalogue.saved(), catalogue.registered())
    changed += catalogue.changed_names(catalogue.saved()["explainers"], catalogue.explainers())
    assert not changed, f"{'; '.join(changed)}: run make catalogue, and commit faithcheck/catalogue.json"
    assert catalogue.saved()["removals"] == catalogue.removals(), "run make catalogue, and commit the file"
    assert catalogue.saved()["hash"] == catalogue.digest(catalogue.summary(catalogue.registered()), 64)
    assert named(asdict(catalogue.of_run())) == named(catalogue.saved())


def test_its_content_is_the_same_in_every_process():
    text = catalogue.FILE.read_text(encoding="utf-8")
    assert "<lambda>" not in text, "give the closed form a name, by which the catalogue calls it"
    assert "0x" not in text


def test_a_digest_stands_for_its_content():
    """A document holds the hash and what it is the hash of."""
    run = asdict(catalogue.of_run())
    assert catalogue.digest({part: run[part] for part in catalogue.PARTS}, 64) == run["hash"]
    assert len(json.dumps(run)) < 16_000


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"name": "product.another"}, "pairs added: product.another"),
        ({"control": True}, "pairs changed: product.x1x2x3"),
        ({"axioms": frozenset({"invariance"})}, "pairs changed: product.x1x2x3"),
        ({"expected": {("invariance", "loo"): Expectation("HOLDS", "because")}}, "pairs changed: product.x1x2x3"),
        ({"why": "the same, in other words"}, None),
    ],
)
def test_the_hash_changes_with_what_verdicts_follow_from(registry, change, line):
    pair = dataclasses.replace(registry["product.x1x2x3"], **change)
    registry[pair.name] = pair
    before, now = catalogue.saved(), asdict(catalogue.of_run())
    assert catalogue.changes(catalogue.summary(before), now) == ([line] if line else [])
    assert (now["hash"] != before["hash"]) == (line is not None)
    assert now["version"] == before["version"] + ("+changed" if line else "")


def test_the_tolerances_count(monkeypatch):
    monkeypatch.setitem(roundoff.TOLERANCES, torch.float64, 1e-8)
    assert catalogue.changes(catalogue.summary(catalogue.saved()), asdict(catalogue.of_run())) == [
        "tolerances changed: float64"
    ]
    assert catalogue.of_run().version.endswith("+changed")


@pytest.mark.parametrize(
    ("expectation", "words"),
    [
        (Expectation("HOLDS", "w"), "HOLDS"),
        (Expectation("HOLDS", "w", ceiling=1e-3), "HOLDS gap ≤ 0.001"),
        (Expectation("VIOLATES", "w", floor=0.25, ceiling=0.5), "VIOLATES gap ≥ 0.25, gap ≤ 0.5"),
        (Expectation("ERROR", "w", error="no rule"), "ERROR with 'no rule'"),
        (Expectation("VIOLATES", "w", roundoff.tolerance), "VIOLATES by tolerance"),
        (Expectation("VIOLATES", "w", partial(measurement.relative_gap, 0.5)), "VIOLATES by relative_gap(0.5)"),
    ],
)
def test_an_expectation_in_words(expectation, words):
    assert catalogue._in_words(expectation) == words


def test_pairs_of_the_user_are_not_part_of_it(registry):
    registry["their.pair"] = Pair("their.pair", lambda *_: None, None, "why")
    registry["basis.x_checkpoint"] = dataclasses.replace(registry["basis.query_key_bert"], name="basis.x_checkpoint")
    registry["their.pair"].build.__module__ = "their_pairs"
    assert named(asdict(catalogue.of_run())) == named(catalogue.saved())
    assert pair_origins(registry.values()) == {"their.pair": "their_pairs"}, "the built-in pairs have no origin"


def test_declared_tolerances_are_those_of_the_records():
    axioms = ["determinism", "randomisation", "symbolic", "trace", "invariance"]
    records = check_explainer(GradientTimesInput(), axioms, ["product.x1x2x3", "control.mlp"])
    of_dtype = roundoff.TOLERANCES[torch.float64]
    tolerances = {r.axiom: r.tol for r in records if r.explainer}
    assert tolerances.keys() == {*axioms}
    for axiom, tolerance in tolerances.items():
        declared = AXIOMS[axiom].tolerance
        assert tolerance == (of_dtype if declared is None else declared), axiom


def test_writing_says_what_changed_and_repeats(tmp_path, monkeypatch, registry):
    monkeypatch.setattr(catalogue, "FILE", tmp_path / "catalogue.json")
    catalogue.write("2030.01")
    first = catalogue.FILE.read_text(encoding="utf-8")
    assert catalogue.write() == []
    assert catalogue.FILE.read_text(encoding="utf-8") == first
    del registry["product.x1x2x3"]
    assert catalogue.write("2030.02") == ["version: 2030.01 → 2030.02", "pairs removed: product.x1x2x3"]
    assert catalogue.saved()["hash"] != json.loads(first)["hash"]
    for version in ("--help", "2030", "next"):
        with pytest.raises(ValueError, match="a year and a month"):
            catalogue.write(version)
    assert catalogue.saved()["version"] == "2030.02"


# --- where it is named -----------------------------------------------------------------------------------------------


def test_a_results_document_names_it_and_what_the_user_added():
    origins = {"their.pair": "their_pairs", "their.other": "their_pairs"}
    content = document([record("holds"), record("holds", axiom="theirs")], {"pair_origins": origins})
    content = outcomes.document(
        content.settings, {}, counts=content.counts, skips=[], failures=[], records=content.records
    )
    assert named(asdict(content.catalogue)) == named(catalogue.saved())
    name = f"faithcheck {content.catalogue.version} ({content.catalogue.hash[:8]})"
    assert wording.catalogue(content) == f"{name}, and 1 axiom and 2 pairs of the user"
    for page in (report.to_markdown(content), report.to_html(content)):
        assert f"{name}, and 1 axiom and 2 pairs of the user" in page.replace("\\", "")


def test_documents_of_older_versions_do_not_name_it():
    content = document([record("holds")])
    assert wording.catalogue(content) is None
    assert "None" not in report.to_markdown(content)


def test_the_command_lists_it(capsys):
    assert main(["catalogue"]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    saved = catalogue.saved()
    assert lines[0][:3] == [f"faithcheck {saved['version']}", "catalogue", saved["hash"][:8]]
    assert {line[0] for line in lines[1:]} == {name for part in catalogue.PARTS for name in saved[part]}
    assert main(["catalogue", "product.x1x2x3"]) == 0
    assert "invariance VIOLATES by reassociation_gap: attnlrp, cplrp" in capsys.readouterr().out
