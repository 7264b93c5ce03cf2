"""A user's own implementation of a built-in explainer: held to that one's claims and closed forms, if it says so."""

import sys

import pytest

from faithcheck import Settings, check_explainer
from faithcheck.axioms.measure.expectations import claims_of, held_like, stated_axioms
from faithcheck.cli.main import main
from faithcheck.explainers import AttnLRP, IntegratedGradients, builtin_explainers, from_function
from faithcheck.explainers.registry import load_explainer, origin
from faithcheck.models import registered_pairs
from faithcheck.options import OptionError
from faithcheck.options.explainers import hold_like
from faithcheck.plan import plan

PRODUCT = registered_pairs()["product.x1x2x3"]


class Own:
    """AttnLRP times a factor, under a name of its own."""

    name = "own"

    def __init__(self, factor=1.0, name="own"):
        self.factor, self.name = factor, name

    def attribute(self, model, case):
        return self.factor * AttnLRP().attribute(model, case)


def statuses(explainer, axiom="invariance", **options):
    return [one.status for one in check_explainer(explainer, [axiom], [PRODUCT], **options)]


def test_an_own_implementation_is_held_to_the_closed_forms_of_the_built_in_one():
    assert statuses(Own(1.01)) == ["recorded"]
    assert statuses(Own(), like="attnlrp") == ["predicted violation"]
    assert statuses(Own(1.01), like="attnlrp") == ["inconclusive"]
    assert statuses(Own(1.01), "symbolic", like="attnlrp") == ["broken claim"]
    with pytest.raises(ValueError, match="symbolic does not apply to own: it has no symbolic derivation"):
        statuses(Own(1.01), "symbolic")  # theory derives what an explainer of this name does


def test_it_is_held_to_the_claims_and_the_known_violations_too():
    blockwise = builtin_explainers()["blockwise_lrp"]
    own = held_like(from_function(lambda model, inputs, target: inputs, name="own"), "blockwise_lrp")
    assert claims_of(own) == blockwise.claims
    pairs = [registered_pairs()["generated.exp_of_sum"]]
    (settled,) = (check.run(Settings()) for check in plan("invariance", [own], pairs))
    assert (settled.expected, settled.status) == ("VIOLATES", "violation vanished")
    assert {*stated_axioms(own, list(registered_pairs().values()))} > {*blockwise.claims, "dummy", "symmetry"}


def test_an_attribute_of_the_explainer_says_the_same():
    def own(model, inputs, target):
        return inputs

    own.like = "integrated_gradients"
    (settled,) = check_explainer(own, ["invariance"], [PRODUCT])
    assert settled.expected == "HOLDS"
    own.like = "integrated_gradient"
    with pytest.raises(
        ValueError, match=r"held to an unknown built-in explainer .*: did you mean integrated_gradients"
    ):
        check_explainer(own, ["invariance"], [PRODUCT])


def test_the_users_object_stays_as_it_was():
    own = Own()
    held = held_like(own, "attnlrp")
    assert (held.like, held.factor) == ("attnlrp", own.factor)
    assert not hasattr(own, "like")


def test_an_explainer_that_takes_no_attribute_is_told_where_to_write_it():
    class Slotted:
        __slots__ = ()
        name = "slotted"

        def attribute(self, model, case):
            return case.inputs

    with pytest.raises(ValueError, match="write like = 'attnlrp' in its class"):
        held_like(Slotted(), "attnlrp")


def test_the_name_of_a_built_in_explainer_is_refused_for_another_class():
    with pytest.raises(ValueError, match=r"Own is named 'attnlrp', which is a built-in .* it says like = 'attnlrp'"):
        check_explainer(Own(name="attnlrp"), ["invariance"], [PRODUCT])
    assert check_explainer(IntegratedGradients(steps=4), ["invariance"], [PRODUCT]), "its own class with other settings"
    borrowed = Own(name="attnlrp")
    borrowed.like = "attnlrp"
    assert check_explainer(borrowed, ["invariance"], [PRODUCT]), "it says so"


# --- the option ------------------------------------------------------------------------------------------------------

FIRST, SECOND = Own(name="first"), Own(name="second")


def test_the_option_is_about_the_one_explainer_that_is_not_built_in():
    held = hold_like(["cplrp"], ["loo", "m:First"], [builtin_explainers()["loo"], FIRST])
    assert [getattr(one, "like", "") for one in held] == ["", "cplrp"]


def test_of_several_it_names_the_one():
    held = hold_like(["m:Second=cplrp", "m:First=loo"], ["m:First", "m:Second"], [FIRST, SECOND])
    assert [one.like for one in held] == ["loo", "cplrp"]


@pytest.mark.parametrize(
    ("likes", "specs", "message"),
    [
        (["atnlrp"], ["m:First"], "--like=atnlrp: unknown built-in explainer 'atnlrp': did you mean attnlrp"),
        (["attnlrp"], [], "this run has no explainer of your own"),
        (["attnlrp"], ["loo"], "this run has no explainer of your own"),
        (["attnlrp"], ["m:First", "m:Second"], "which explainer is it about.* --like=m:First=attnlrp"),
        (["m:Third=attnlrp"], ["m:First"], "which explainer is it about.* --like=m:First=attnlrp"),
        (["attnlrp", "cplrp"], ["m:First"], "two of --like are about m:First"),
    ],
)
def test_an_unclear_option_is_refused_in_one_line(likes, specs, message):
    with pytest.raises(OptionError, match=message) as refusal:
        hold_like(likes, specs, [FIRST, SECOND][: len(specs)])
    assert "\n" not in str(refusal.value)


THEIRS = """
from faithcheck.explainers import AttnLRP

class Own:
    name = "own"
    claims = {"symmetry", "invariance"}
    def attribute(self, model, case):
        return 1.01 * AttnLRP().attribute(model, case)

class NamedAttnLRP(Own):
    name = "attnlrp"
"""


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    """The current folder is that of a user, whose explainers are in ``their_like_module``."""
    (tmp_path / "their_like_module.py").write_text(THEIRS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "their_like_module:Own"
    sys.modules.pop("their_like_module", None)


def test_the_command_takes_the_option_and_the_report_shows_it(theirs, capsys):
    selection = ["--axiom", "invariance", "--pairs", "product.x1x2x3"]
    assert main(["check", theirs, *selection, "--like", "attnlrp"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "away from what theory predicts" in said
    assert "held to the claims and expectations of attnlrp" in said
    assert main(["check", theirs, *selection, "--like", "atnlrp"]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_the_registry_names_the_way_out(theirs):
    with pytest.raises(ValueError, match="choose another name; --like=attnlrp holds it to"):
        load_explainer("their_like_module:NamedAttnLRP")
    assert origin(theirs, held_like(load_explainer(theirs), "loo")).endswith("expectations of loo")


# --- what is measured by default -------------------------------------------------------------------------------------


def test_whatever_is_claimed_is_measured_by_default(theirs):
    pairs = [registered_pairs()[name] for name in ("product.x1x2x3", "control.product")]
    records = check_explainer(load_explainer(theirs), pairs=pairs)
    assert {"symmetry", "invariance", "completeness"} == {one.axiom for one in records}
