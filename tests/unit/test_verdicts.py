"""The verdict of a run: a claim that is not measured is not green, and where nothing is claimed there is no verdict."""

import sys

import pytest
import torch

from faithcheck import check_explainer
from faithcheck.axioms.measure.expectations import refuse_malformed
from faithcheck.axioms.measure.statuses import Group
from faithcheck.claims import claiming
from faithcheck.cli.main import main
from faithcheck.explainers import IntegratedGradients, LeaveOneOut, Unsupported, builtin_explainers
from faithcheck.explainers.builtin import claims_of_kind, kinds
from faithcheck.models.pair import Pair, is_builtin, random_points, registered_pairs
from faithcheck.reports.documents import results
from faithcheck.reports.pages import terminal, wording
from faithcheck.tests.helpers.documents import document, record

THEIRS = """
import torch
from torch import nn
from faithcheck.explainers import Unsupported
from faithcheck.models import equivalent_pair
from faithcheck.models.pair import random_points

class Noise:
    name = "noise"
    claims = {"determinism", "dummy", "symmetry", "sensitivity"}
    def attribute(self, model, case):
        return torch.randn(case.shape, dtype=case.inputs.dtype)

class Zeros:
    name = "zeros"
    def attribute(self, model, case):
        return torch.zeros(case.shape, dtype=case.inputs.dtype)

class Refusing(Zeros):
    name = "refusing"
    claims = {"invariance", "completeness"}
    def attribute(self, model, case):
        raise Unsupported("no rule for anything")

class ClaimingWhatDoesNotApply(Zeros):
    name = "hopeful"
    claims = {"conservation"}

class Network(nn.Module):
    def __init__(self, extra):
        super().__init__()
        self.weight, self.extra = nn.Parameter(torch.tensor([[1.0], [2.0]])), extra
    def forward(self, x):
        return x @ self.weight + self.extra * x[:, :1].square()

@equivalent_pair("theirs.no_pair", case=random_points(3, 2), why="they look alike")
def no_pair(seed, dtype, device):
    return Network(0).to(dtype).eval(), Network(1).to(dtype).eval()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("theirs")
    (folder / "their_verdicts.py").write_text(THEIRS)
    return folder


@pytest.fixture
def theirs(folder, monkeypatch):
    """The current folder is that of a user, whose explainers and pair are in ``their_verdicts``."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    import their_verdicts

    return their_verdicts


def run(capsys, *arguments):
    """The exit code of ``faithcheck check`` and what it prints, in one line."""
    code = main(["check", *arguments])
    printed = capsys.readouterr()
    return code, " ".join((printed.out + printed.err).split())


# --- claims that are not measured ------------------------------------------------------------------------------------


def test_random_noise_that_claims_four_axioms_is_measured_on_each_and_red(theirs):
    records = check_explainer(theirs.Noise(), pairs=["control.mlp", "probe.perceptron"])
    judged = {one.axiom for one in records if one.expected == "HOLDS"}
    assert judged == {*theirs.Noise.claims, "trace"}
    # Noise is never 0, so that it is sensitive; it draws from torch's random state, which leaves a trace.
    assert {one.axiom for one in records if not one.passed} == judged - {"sensitivity"}


def test_a_claim_all_of_whose_checks_were_skipped_is_red_in_python(theirs):
    records = check_explainer(theirs.Refusing(), ["invariance", "completeness", "loo"], ["product.x1x2x3"])
    red = [one for one in records if not one.passed and one.status != "unsupported"]
    assert [(one.id, one.status) for one in red] == [
        ("completeness/refusing-*", "not measured"),
        ("invariance/refusing-*", "not measured"),
    ]
    assert red[0].detail["reason"] == "each of its 2 checks was skipped: no rule for anything"


def test_a_claim_all_of_whose_checks_were_skipped_fails_the_command(theirs, capsys):
    code, said = run(capsys, "their_verdicts:Refusing", "--axiom", "completeness", "--pairs", "product.x1x2x3")
    assert code == 1
    assert "claimed and not measured: completeness; claimed, outside this run: invariance" in said
    assert "3 planned" not in said  # the record of the claim is no check
    assert "2 planned, 0 ran, 0 passed, 0 failed, 2 skipped" in said


def test_a_claim_of_an_axiom_that_does_not_apply_is_red(theirs, capsys):
    code, said = run(capsys, "their_verdicts:ClaimingWhatDoesNotApply", "--pairs", "product.x1x2x3")
    assert code == 1
    assert "conservation: hopeful: claimed and not measured: conservation does not apply to hopeful" in said


def test_a_claim_outside_the_part_that_was_asked_for_is_named_and_not_red(theirs, capsys):
    arguments = ["--axiom", "determinism", "--claim", "batching", "--pairs", "control.mlp"]
    code, said = run(capsys, "their_verdicts:Zeros", "--claim", "determinism", *arguments)
    assert code == 0
    headline = "1 check as expected (1 of them on degenerate maps), 0 red, 0 skipped"
    assert f"{headline}; claimed, outside this run: batching" in said


def test_a_claim_that_one_check_measured_is_green_although_others_are_skipped():
    class Half:
        name, claims, refused = "half", frozenset({"completeness"}), False

        def attribute(self, model, case):
            if not Half.refused:
                Half.refused = True
                raise Unsupported("the first model")
            return IntegratedGradients().attribute(model, case)

    records = check_explainer(Half(), "completeness", "product.x1x2x3", progress=False)
    assert [one.status for one in records] == ["unsupported", "holds"]
    assert records.passed


def test_an_explainer_cannot_claim_what_is_measured_of_pairs():
    class Odd:
        name, claims = "odd", frozenset({"equivalence"})

    with pytest.raises(ValueError, match="odd claims equivalence, which is measured of pairs and not of explainers"):
        refuse_malformed(Odd())


# --- no verdict ------------------------------------------------------------------------------------------------------


def test_a_map_of_zeros_without_claims_has_no_verdict(theirs, capsys):
    code, said = run(capsys, "their_verdicts:Zeros", "--pairs", "control.mlp")
    assert code == results.NO_VERDICT
    assert "no verdict: nothing is claimed, 3 recorded without a claim, 0 skipped " in said
    assert "0 red" not in said
    assert "as expected" not in said.split("no verdict")[1]


def test_where_none_of_the_claims_was_asked_for_there_is_no_verdict(theirs, capsys):
    code, said = run(capsys, "their_verdicts:Noise", "--axiom", "loo", "--pairs", "control.mlp")
    assert code == results.NO_VERDICT
    assert "no verdict: nothing that is claimed was measured" in said


def test_mandatory_axioms_that_are_asked_for_have_a_verdict(theirs, capsys):
    code, said = run(capsys, "their_verdicts:Zeros", "--axiom", "trace", "--pairs", "control.mlp")
    assert (code, "1 check as expected, 0 red" in said) == (0, True)


def test_the_headline_names_the_explainers_without_a_verdict():
    holds, recorded = record("holds", explainer="a"), record("recorded", explainer="b", expected="UNCLAIMED")
    of_two = document([holds, recorded], {"claimed": {"a": ["invariance"], "b": []}})
    assert results.verdict(of_two) is Group.RECORDED
    assert wording.headline(of_two).startswith("no verdict on b: nothing is claimed, 1 check as expected, 0 red")
    of_two.settings.claimed.pop("b")
    assert (results.verdict(of_two), results.exit_code(of_two)) == (Group.PASS, 0)
    assert wording.headline(of_two).startswith("1 check as expected, 0 red")


def test_a_headline_names_the_explainers_and_a_red_one_begins_with_red():
    for names, said in ((["a"], "a: "), (["a", "b", "c"], "a, b, c: "), (list("abcd"), "4 explainers: "), ([], "")):
        red, green = (document([record(status)], {"explainers": names}) for status in ("error", "holds"))
        assert wording.headline(red).startswith(f"red: {said}1 red, 0 checks as expected")
        assert wording.headline(green).startswith(f"{said}1 check as expected, 0 red")
        assert terminal.render(red, 200).startswith(wording.headline(red)), "first, and last of what is red"
        assert terminal.render_screen(red, 200).rstrip().endswith(wording.headline(red))


def test_a_red_check_is_a_verdict_without_claims():
    broken = document([record("error", explainer="b")], {"claimed": {"b": []}})
    assert results.without_verdict(broken) == {}
    assert (results.exit_code(broken), "no verdict" in wording.headline(broken)) == (1, False)


def test_one_pair_of_a_module_is_named_with_the_module(theirs, capsys):
    code, said = run(capsys, "loo", "--axiom", "equivalence", "--pairs", "their_verdicts:theirs.no_*")
    assert code == 1
    assert "--pairs their_verdicts:theirs.no_pair" in said
    code, said = run(capsys, "loo", "--pairs", "their_verdicts:theirs.no_piar")
    assert code == 2
    assert "unknown pair of their_verdicts 'theirs.no_piar': did you mean theirs.no_pair?" in said


# --- claims of the user ----------------------------------------------------------------------------------------------


def test_a_claim_on_the_command_line_is_judged(theirs, capsys):
    arguments = ["their_verdicts:Zeros", "--axiom", "completeness", "--pairs", "control.mlp"]
    code, said = run(capsys, *arguments, "--claim", "completeness")
    assert code == 1
    assert "✗ broken claim: completeness: zeros on control.mlp.f" in said
    code, said = run(capsys, *arguments, "--claim", "completness")
    assert code == 2
    assert said.endswith(
        "--claim=completness: unknown axiom or kind of explainers 'completness': did you mean completeness?"
    )


def test_a_claim_in_python_is_an_axiom_or_a_kind(theirs):
    zeros = theirs.Zeros()
    by_kind = {one.axiom: one.passed for one in check_explainer(zeros, pairs=["control.mlp"], claims="gate")}
    assert by_kind["scale"]
    red = [one for one in check_explainer(zeros, ["sensitivity"], ["control.mlp"], claims=["sensitivity"])]
    assert {one.status for one in red} == {"broken claim"}
    assert not hasattr(zeros, "claims")


def test_every_built_in_explainer_is_of_one_kind_and_every_kind_claims_something():
    assert sorted(name for names in kinds().values() for name in names) == sorted(builtin_explainers())
    for kind, names in kinds().items():
        claims = claims_of_kind(kind)
        assert claims
        assert all(claims <= frozenset(builtin_explainers()[name].claims) for name in names)


def test_what_is_claimed_already_changes_nothing_and_fixed_claims_are_refused():
    loo, budgeted = builtin_explainers()["loo"], builtin_explainers()["budgeted_loo"]
    assert claiming(loo, ["dummy"]) is loo
    with pytest.raises(ValueError, match="the claims of budgeted_loo cannot be set: write them in its class"):
        claiming(budgeted, ["completeness"])


# --- what is not a pair ----------------------------------------------------------------------------------------------


def test_two_functions_are_not_a_pair_and_the_explainer_is_not_blamed(theirs, capsys):
    code, said = run(capsys, "integrated_gradients", "--pairs", "their_verdicts")
    assert code == 1
    difference = "f and g differ in the gradient of output 0 at feature 0 at the input ["
    assert f"equivalence: theirs.no_pair: not a pair: {difference}" in said
    assert "1 not judged, on what is not a pair (theirs.no_pair)" in said
    assert "invariance: integrated_gradients" not in said
    assert said.count("✗ broken claim") == 1


def test_what_compares_the_models_is_not_judged_and_what_measures_one_of_them_is(theirs):
    records = check_explainer(IntegratedGradients(), ["invariance", "completeness"], ["theirs.no_pair"])
    assert {(one.axiom, one.status) for one in records} == {
        ("equivalence", "broken claim"),
        ("invariance", "not a pair"),
        ("completeness", "holds"),
    }
    (not_judged,) = (one for one in records if one.status == "not a pair")
    assert not not_judged.passed
    assert not_judged.group is Group.UNMEASURED


def test_a_pair_that_is_one_is_proved_once_and_judged(monkeypatch):
    case = random_points(3, 2)
    model = torch.nn.Linear(2, 1).double()

    def build(seed, dtype, device):
        copy = torch.nn.Linear(2, 1).double()
        copy.load_state_dict(model.state_dict())
        return model.eval(), copy.eval()

    own = Pair("own.linear", build, case, "a copy")
    records = check_explainer(LeaveOneOut(), ["invariance"], [own])
    assert [(one.axiom, one.status) for one in records] == [("equivalence", "holds"), ("invariance", "holds")]
    assert not is_builtin(own)


def test_the_registrys_own_pairs_are_not_proved_again(theirs):
    assert is_builtin(registered_pairs()["product.x1x2x3"])
    assert is_builtin(registered_pairs()["basis.query_key_bert"])
    assert not is_builtin(registered_pairs()["theirs.no_pair"])
    assert {one.axiom for one in check_explainer(LeaveOneOut(), ["invariance"], ["product.x1x2x3"])} == {"invariance"}


def teardown_module():
    registered_pairs()
    from faithcheck.models import pair

    pair._registry.pop("theirs.no_pair", None)
    sys.modules.pop("their_verdicts", None)
