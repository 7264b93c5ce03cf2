"""The badge: its words, its colour, and that nothing is green that was not judged or is old."""

import json
import xml.etree.ElementTree as ElementTree

import pytest
from msgspec.structs import replace

from faithcheck import catalogue
from faithcheck.axioms.measure.statuses import Group
from faithcheck.cli.main import main
from faithcheck.reports.documents import results
from faithcheck.reports.documents.document import to_json
from faithcheck.reports.pages import colours
from faithcheck.reports.pages.badge import Badge, badge, to_svg
from faithcheck.tests.helpers.documents import alignment, document, record

NOW = {"version": "2026.12", "hash": "a" * 64}
OLD = {"version": "2025.01", "hash": "b" * 64}


def run(*statuses, of=NOW, commit=None, **changed):
    named = {**of, "tolerances": {}, "axioms": {}, "pairs": {}}
    records = [record(status, id=f"invariance/mine-{i}", explainer="mine") for i, status in enumerate(statuses)]
    return document(records, catalogue=named, environment={"user_commit": commit}, **changed)


@pytest.mark.parametrize(
    ("content", "group", "message"),
    [
        (run(*["holds"] * 1200), Group.PASS, "0 red of 1,200"),
        (run("holds", "predicted violation", "unsupported", "recorded"), Group.PASS, "0 red of 2"),
        (run("holds", "broken claim"), Group.RED, "1 red of 2"),
        (run("holds", failures=[{"id": "t", "message": "m"}]), Group.RED, "1 red of 1"),
        (run("holds", "not run"), Group.RED, "1 not run"),
        (run("holds", of=OLD), Group.RECORDED, "stale: now 2026.12 (aaaaaaaa)"),
        (run("broken claim", of=OLD), Group.RED, "1 red of 1"),
        (run("holds", commit="c" * 40), Group.RECORDED, "stale: of commit cccccccc"),
        (run("holds", commit="d" * 40), Group.PASS, "0 red of 1"),
        (document([record("holds")]), Group.RECORDED, "stale: it names no catalogue"),
        (run(), Group.RECORDED, "no verdict: nothing is claimed"),
        (run("unsupported"), Group.RECORDED, "no verdict: nothing is claimed"),
    ],
)
def test_the_badge_says_what_the_document_does(content, group, message):
    made = badge(content, NOW["version"], NOW["hash"], "d" * 40)
    assert (made.group, made.message) == (group, message)
    assert made.label.startswith("faithcheck ")


def test_a_run_without_a_claim_is_not_green():
    content = run("recorded", "recorded")
    content.records[:] = [replace(one, expected="UNCLAIMED") for one in content.records]
    assert badge(content, NOW["version"], NOW["hash"], None).message == "no verdict: nothing is claimed"


def test_too_many_skips_are_red():
    content = run("holds", "unsupported", settings={"max_skips": 0})
    made = badge(content, NOW["version"], NOW["hash"], None)
    assert made == Badge("faithcheck 2026.12", "1 skipped, 0 allowed", Group.RED)


@pytest.mark.parametrize("group", [Group.PASS, Group.RED, Group.RECORDED])
def test_the_svg_is_read_aloud_and_loads_nothing(group):
    svg = to_svg(Badge("faithcheck <2026>", "0 red & \x1b", group))
    root = ElementTree.fromstring(svg)
    assert root.attrib["aria-label"] == "faithcheck <2026>: 0 red & \\x1b"
    assert "href" not in svg
    green = colours.PAGE[Group.PASS].text.light
    assert (green in svg) == (group is Group.PASS)
    assert len(svg) < 2000


def test_the_command_writes_the_badge(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = run("holds", of={key: catalogue.saved()[key] for key in ("version", "hash")})
    (tmp_path / "results.json").write_text(json.dumps(to_json(content)))
    assert main(["badge", "results.json", "badge.svg"]) == 0
    assert capsys.readouterr().out.startswith(f"faithcheck {catalogue.saved()['version']} | 0 red of 1\n")
    assert ElementTree.parse(tmp_path / "badge.svg").getroot().tag.endswith("svg")
    assert main(["badge", "results.json", "results.json"]) == 2
    assert to_json(results.load(tmp_path / "results.json")) == to_json(content)
    (tmp_path / "alignment.json").write_text(json.dumps(alignment(loo=(1.0, 1.0))))
    assert main(["badge", "alignment.json", "badge.svg"]) == 2
    assert "a document of kind 'alignment'" in capsys.readouterr().err
