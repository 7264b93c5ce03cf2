"""The command that measures a record again."""

import shlex

import pytest

from faithcheck.cli.main import parser
from faithcheck.models.pair import registered_pairs
from faithcheck.reports import causes
from faithcheck.tests.helpers.documents import document, record

RED = {"id": "loo/mine-a.b.f", "axiom": "loo", "explainer": "mine", "subject": "a.b.f"}


def command(settings=None, **changed):
    """The words of the command for a red record, in a run with these settings."""
    red = record(**{"status": "broken claim", **RED, **changed})
    return shlex.split(causes.command(document([red], settings), red))


def test_the_command_names_explainer_axiom_pair_seed_and_device():
    words = command({"specs": {"mine": "my_explainers:Mine"}})
    assert shlex.join(words) == ("faithcheck check my_explainers:Mine --axiom loo --pairs a.b --seed 7 --device cpu")
    parsed = parser().parse_args(words[1:])
    assert (parsed.explainers, parsed.axiom, parsed.pairs) == (["my_explainers:Mine"], ["loo"], ["a.b"])
    assert parsed.seed == 7


def test_options_of_the_run_that_decide_are_in_the_command():
    ran = ["faithcheck", "check", "m:Mine", "--like=attnlrp", "--expectations", "known failures.toml", "--isolate"]
    words = command({"specs": {"mine": "m:Mine"}, "arguments": ran})
    parsed = parser().parse_args(words[1:])
    assert (parsed.like, parsed.expectations, parsed.isolate) == (["attnlrp"], "known failures.toml", True)


def test_the_like_of_another_explainer_is_left_out():
    settings = {"specs": {"mine": "m:Mine"}, "arguments": ["--like=m:Mine=loo", "--like=m:Other=attnlrp"]}
    assert command(settings)[-2:] == ["--like", "loo"]


def test_a_pair_of_the_users_module_is_loaded_by_the_module():
    words = command({"pair_origins": {"a.b": "my_pairs, entry point mine of them 1.0"}})
    assert words[words.index("--pairs") + 1] == "my_pairs:a.b"


def test_a_claim_that_was_not_measured_is_looked_for_on_the_pairs_of_the_run():
    ran = ["faithcheck", "check", "m:Mine", "--pairs", "my_pairs", "--pairs=product.*"]
    words = command({"arguments": ran}, status="not measured", subject="*")
    assert parser().parse_args(words[1:]).pairs == ["my_pairs", "product.*"]
    assert "--pairs" not in command({"arguments": ran[:3]}, status="not measured", subject="*")


@pytest.mark.parametrize("option", ["--checkpoint=folder", "--data-dir=folder"])
def test_what_only_the_suite_takes_is_reproduced_by_the_suite(option):
    words = command({"arguments": ["-m", "loo", option]})
    assert words[:3] == ["python", "-m", "pytest"]
    assert words[-2:] == option.split("=")
    assert "--explainer=mine" in words


def test_a_check_of_the_pair_itself_takes_any_explainer():
    words = command({"explainers": ["attnlrp"]}, axiom="equivalence", explainer=None, subject="a.b")
    assert words[:5] == ["faithcheck", "check", "attnlrp", "--axiom", "equivalence"]


def test_hostile_names_stay_within_their_words():
    words = command(explainer="x; rm -rf ~", subject="$(touch y).f")
    assert words[2] == "x; rm -rf ~"
    assert words[words.index("--pairs") + 1] == "$(touch y)"


def test_no_registered_pair_is_named_like_a_side():
    assert not [name for name in registered_pairs() if record("holds", subject=name).pair != name]
