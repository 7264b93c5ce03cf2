"""`@parametrize_with_axioms` in a user's own test file, and the generator behind it."""

import pytest
import torch

from faithcheck import axiom_checks, parametrize_with_axioms
from faithcheck.explainers import Unsupported

PRODUCT = "product.x1x2x3"
ON_PRODUCT = {"axioms": ("invariance", "completeness"), "pairs": PRODUCT}
INVARIANCE = f"invariance-sizes-{PRODUCT}"
COMPLETENESS = [f"completeness-sizes-{PRODUCT}.{side}" for side in "fg"]


class Sizes:
    """Green under invariance; not complete, and it does not claim to be."""

    name = "sizes"
    claims = frozenset({"invariance"})

    def attribute(self, model, case):
        return case.inputs.abs()


class Claims(Sizes):
    """It claims what it breaks."""

    claims = frozenset({"invariance", "completeness"})


class Refuses(Sizes):
    """It supports no model."""

    def attribute(self, model, case):
        raise Unsupported("no rule for products")


class Raises(Claims):
    """It has a bug."""

    def attribute(self, model, case):
        raise RuntimeError("their own bug")


class Half(Sizes):
    """It supports only the model with parentheses on the left, under invariance none."""

    claims = frozenset({"completeness"})
    calls = 0

    def attribute(self, model, case):
        type(self).calls += 1
        if self.calls % 2:
            raise Unsupported("not every second time")
        return case.inputs.abs()


def test_one_explainer_needs_no_list():
    assert [check.id for check in axiom_checks(Sizes(), **ON_PRODUCT)] == [
        check.id for check in axiom_checks([Sizes()], **ON_PRODUCT)
    ]


def outcome(check):
    """What a test that calls the check ends with, and the message."""
    for kind in ("fail", "skip", "xfail"):
        try:
            check()
        except getattr(pytest, kind).Exception as error:
            if type(error) is getattr(pytest, kind).Exception:
                return kind, str(error)
        except BaseException as error:  # of another kind
            if kind == "xfail":
                raise error
    return "pass", ""


def outcomes(*arguments, **options):
    """The outcome of each check by its id, without the messages."""
    return {check.id: outcome(check)[0] for check in axiom_checks(*arguments, **options)}


# --- what a test ends with --------------------------------------------------------------------------------------------


def test_a_check_is_green_if_it_is_measured_and_as_expected():
    green = dict.fromkeys([INVARIANCE, *COMPLETENESS, "claim-sizes-invariance"], "pass")
    assert outcomes([Sizes()], **ON_PRODUCT) == green


def test_a_broken_claim_fails_with_the_whole_record():
    red, *_ = [check for check in axiom_checks([Claims()], **ON_PRODUCT) if check.id == COMPLETENESS[0]]
    kind, message = outcome(red)
    assert kind == "fail"
    assert message.startswith(f"completeness: sizes on {PRODUCT}.f: expected to hold, but the gap ")
    assert "why               sizes claims completeness" in message


def test_what_is_unsupported_is_skipped_with_the_reason_and_the_claim_fails():
    settled = {check.id: outcome(check) for check in axiom_checks([Refuses()], **ON_PRODUCT)}
    assert {settled[name] for name in (INVARIANCE, *COMPLETENESS)} == {("skip", "sizes: no rule for products")}
    assert settled["claim-sizes-invariance"] == (
        "fail",
        "sizes claims invariance, and no check measured it: each of 1 checks was skipped, the first because no rule "
        "for products",
    )


def test_a_claim_without_a_check_fails():
    class ClaimsSymmetry(Sizes):
        claims = frozenset({"invariance", "symmetry"})

    settled = {check.id: outcome(check) for check in axiom_checks([ClaimsSymmetry()], pairs=PRODUCT)}
    assert settled["claim-sizes-invariance"] == ("pass", "")
    kind, message = settled["claim-sizes-symmetry"]
    assert kind == "fail"
    assert message.endswith("no check measured it: it has no check on these pairs; give it others by pairs=")


def test_a_claim_outside_the_axioms_that_were_asked_for_is_of_another_test():
    assert "claim-sizes-completeness" not in outcomes([Claims()], axioms="invariance", pairs=PRODUCT)


def test_the_test_of_a_claim_is_right_alone_and_measures_no_more_than_it_must():
    """In another process than the checks, as pytest-xdist may have it, and after them."""
    Half.calls = 0
    *checks, claim = axiom_checks([Half()], axioms="completeness", pairs=PRODUCT)
    assert outcome(claim)[0] == "pass"
    assert Half.calls == 2  # the first model refused, the second was measured
    assert [outcome(check)[0] for check in checks] == ["skip", "fail"]
    assert Half.calls == 2


# --- expected failures ------------------------------------------------------------------------------------------------


def test_an_expected_failure_is_xfailed_with_its_reason():
    expected = {"completeness-sizes-*": "sizes are no shares"}
    checks = {check.id: check for check in axiom_checks([Claims()], expected_failures=expected, **ON_PRODUCT)}
    assert {outcome(checks[name]) for name in COMPLETENESS} == {("xfail", "sizes are no shares")}
    assert outcome(checks[INVARIANCE]) == ("pass", "")
    assert outcome(checks["claim-sizes-completeness"]) == ("pass", "")


@pytest.mark.parametrize(("explainer", "status"), [(Sizes(), "holds"), (Refuses(), "unsupported")])
def test_an_expected_failure_that_vanished_is_red(explainer, status):
    (check, *_) = axiom_checks([explainer], expected_failures={INVARIANCE: "it should"}, **ON_PRODUCT)
    assert outcome(check) == (
        "fail",
        f"{INVARIANCE} is expected to fail (it should), and it settled as '{status}': remove it from expected_failures",
    )


def test_an_error_is_no_expected_failure():
    (check, *_) = axiom_checks([Raises()], expected_failures={INVARIANCE: "it should"}, **ON_PRODUCT)
    kind, message = outcome(check)
    assert kind == "fail"
    assert "their own bug" in message


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({"completenes-*": "why"}, rf"'completenes-\*' matches none of the 3 checks, such as '{INVARIANCE}'"),
        ({INVARIANCE: ""}, "has no reason: say why the check is known to be red"),
        ({"claim-*": "why"}, "matches none of the 3 checks"),
    ],
)
def test_an_expected_failure_of_no_check_or_without_a_reason_is_refused(expected, message):
    with pytest.raises(ValueError, match=message):
        [*axiom_checks([Sizes()], expected_failures=expected, **ON_PRODUCT)]


# --- names and refusals -----------------------------------------------------------------------------------------------


def test_ids_and_their_order_are_the_same_every_time():
    explainers = [Sizes(), "gradient_x_input"]
    ids = [check.id for check in axiom_checks(explainers, pairs="product.*")]
    assert ids == [check.id for check in axiom_checks(explainers, pairs="product.*")]
    assert len(set(ids)) == len(ids) > 50
    assert all(name.isprintable() and " " not in name for name in ids)


def test_one_string_is_one_name():
    assert outcomes("gradient_x_input", axioms="invariance", pairs=PRODUCT) == {
        f"invariance-gradient_x_input-{PRODUCT}": "pass",
        "claim-gradient_x_input-invariance": "pass",
    }


def test_a_pair_is_tested_once_whatever_the_number_of_explainers():
    explainers, axioms = ["loo", "attnlrp"], ["equivalence", "invariance"]
    assert [check.id for check in axiom_checks(explainers, axioms=axioms, pairs=PRODUCT)] == [
        f"equivalence-{PRODUCT}",
        f"invariance-loo-{PRODUCT}",
        "claim-loo-invariance",
        f"invariance-attnlrp-{PRODUCT}",
        "claim-attnlrp-invariance",
    ]


def test_what_has_no_check_and_what_has_one_name_are_refused():
    with pytest.raises(ValueError, match="nothing to check: symmetry on the 1 pairs"):
        parametrize_with_axioms([Sizes()], axioms="symmetry", pairs=PRODUCT)
    with pytest.raises(ValueError, match="two of the explainers have one name"):
        parametrize_with_axioms([Sizes(), Claims()], **ON_PRODUCT)


def test_an_explainer_of_which_nothing_is_claimed_is_refused():
    silent = Sizes()
    silent.claims = frozenset()
    with pytest.raises(ValueError, match="nothing is claimed of sizes, so that its tests could not fail"):
        parametrize_with_axioms([silent], **ON_PRODUCT)


# --- in pytest --------------------------------------------------------------------------------------------------------

THEIR_TESTS = """
import torch
from faithcheck import parametrize_with_axioms


class Sizes:
    name = "sizes"
    claims = {"invariance", "completeness", "symmetry"}

    def attribute(self, model, case):
        return case.inputs.abs()


@parametrize_with_axioms(
    [Sizes(), "attention_rollout"],
    axioms=["invariance", "completeness", "symmetry"],
    pairs="product.x1x2x3",
    expected_failures={"completeness-sizes-*.f": "sizes are no shares"},
)
def test_axioms(check):
    check()
"""


class Reports:
    """A plugin that keeps the outcome of each test."""

    def __init__(self):
        self.outcomes = {}

    def pytest_runtest_logreport(self, report):
        if report.when == "call":
            name = report.nodeid.partition("[")[2].removesuffix("]")
            self.outcomes[name] = "xfailed" if hasattr(report, "wasxfail") else report.outcome


EXPECTED = {
    INVARIANCE: "passed",
    COMPLETENESS[0]: "xfailed",
    COMPLETENESS[1]: "failed",
    "claim-sizes-invariance": "passed",
    "claim-sizes-completeness": "passed",
    "claim-sizes-symmetry": "failed",
    f"invariance-attention_rollout-{PRODUCT}": "skipped",
}


def test_a_test_file_needs_no_plugin_and_no_flag(tmp_path):
    (tmp_path / "test_theirs.py").write_text(THEIR_TESTS)
    reports = Reports()
    arguments = ["-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, "-c", "/dev/null", tmp_path / "test_theirs.py"]
    threads = torch.get_num_threads()
    assert pytest.main([str(argument) for argument in arguments], plugins=[reports]) == pytest.ExitCode.TESTS_FAILED
    assert torch.get_num_threads() == threads
    settled = {name: kind for name, kind in reports.outcomes.items() if name in EXPECTED}
    assert settled == EXPECTED
