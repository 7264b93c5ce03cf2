"""Maps made elsewhere: a file of them gets the verdicts of the explainer that made them."""

import numpy as np
import pytest

from faithcheck import check_explainer
from faithcheck.axioms import AXIOMS
from faithcheck.cli.main import main
from faithcheck.explainers import CPLRP, AttnLRP, GradientTimesInput, load_explainer
from faithcheck.explainers.map_files import SUFFIXES
from faithcheck.explainers.stored_maps import load_maps, save_maps, subjects

PAIRS = ("product.x1x2x3", "probe.perceptron", "probe.affine")
JUDGED = {"bounds", "invariance", "completeness", "loo", "dummy", "full_removal", "ground_truth", "local_limit"}


def maps_of(explainer, *pairs, **settings):
    return [(one, explainer.attribute(one.model, one.case)) for one in subjects(*pairs, **settings)]


@pytest.fixture(scope="module")
def maps():
    return maps_of(AttnLRP(), *PAIRS)


def verdicts(report):
    return {(one.axiom, one.subject): (one.status, one.gap) for one in report if one.axiom in JUDGED}


def test_the_axioms_that_need_no_new_run_are_these():
    assert {axiom.name for axiom in AXIOMS.values() if axiom.of_given_maps} == JUDGED


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_of_maps_gets_the_verdicts_of_the_explainer(suffix, maps, tmp_path):
    file = tmp_path / f"maps{suffix}"
    save_maps(file, maps)
    report = check_explainer(str(file), sorted(JUDGED), PAIRS, like="attnlrp", progress=False)
    itself = check_explainer(AttnLRP(), sorted(JUDGED), PAIRS, progress=False)
    assert verdicts(report) == verdicts(itself)
    assert {one.status for one in report} >= {"predicted violation", "recorded"}


def test_the_axioms_that_run_the_explainer_anew_say_so(maps, tmp_path):
    save_maps(tmp_path / "maps.npz", maps)
    stored = load_maps(tmp_path / "maps.npz")
    reasons = {axiom.name: axiom.not_applicable(stored) for axiom in AXIOMS.values() if axiom.needs_explainer}
    assert {name for name, reason in reasons.items() if reason is None} == JUDGED
    assert reasons["shift"] == "it runs the explainer anew, and these maps were made elsewhere"


def test_the_command_takes_a_file_and_measures_the_pairs_that_it_has_maps_of(maps, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save_maps("maps.npz", maps)
    assert main(["check", "maps.npz", "--claim", "invariance"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "invariance: maps.npz on product.x1x2x3: expected to hold" in said
    assert "maps.npz: generated, trace do not apply: it runs the explainer anew" in said
    assert main(["check", "nowhere.npz"]) == 2
    assert "there is no file nowhere.npz" in capsys.readouterr().err


def test_a_missing_map_is_named(tmp_path):
    save_maps(tmp_path / "maps.npz", [one for one in maps_of(CPLRP(), "product.x1x2x3") if one[0].name.endswith(".f")])
    f, g = check_explainer(str(tmp_path / "maps.npz"), "completeness", "product.x1x2x3", progress=False)
    assert f.status == "recorded"
    assert (g.status, g.detail["reason"]) == ("unsupported", "maps.npz has no map of product.x1x2x3.g")


def test_a_map_of_other_inputs_is_refused_by_name(tmp_path):
    save_maps(tmp_path / "maps.npz", maps_of(GradientTimesInput(), "product.x1x2x3", seed=1))
    f, _ = check_explainer(str(tmp_path / "maps.npz"), "completeness", "product.x1x2x3", progress=False)
    assert f.status == "error"
    assert "the map of product.x1x2x3.f in maps.npz is of other inputs" in f.detail["error"]


def test_a_map_with_a_hole_is_refused(tmp_path):
    (subject, values), *_ = maps_of(GradientTimesInput(), "product.x1x2x3")
    values[0, 1] = float("nan")
    save_maps(tmp_path / "maps.parquet", [(subject, values)])
    f, _ = check_explainer(str(tmp_path / "maps.parquet"), "completeness", "product.x1x2x3", progress=False)
    assert "1 of" in f.detail["error"]
    assert "NaN" in f.detail["error"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_damaged_file_is_refused_by_name(suffix, tmp_path):
    (tmp_path / f"maps{suffix}").write_bytes(b"no maps at all")
    with pytest.raises(ValueError, match=f"maps{suffix}: not a file of maps: "):
        load_explainer(str(tmp_path / f"maps{suffix}"))


def test_a_map_without_the_hash_of_its_inputs_and_pickles_are_refused(tmp_path):
    np.savez(tmp_path / "bare.npz", **{"product.x1x2x3.f": np.zeros((2, 3))})
    with pytest.raises(ValueError, match=r"the map of product\.x1x2x3\.f has no hash of its inputs"):
        load_maps(tmp_path / "bare.npz")
    np.savez(tmp_path / "pickled.npz", **{"product.x1x2x3.f": np.array([{}], dtype=object)})
    with pytest.raises(ValueError, match=r"pickled.npz: not a file of maps: .*allow_pickle"):
        load_maps(tmp_path / "pickled.npz")
    with pytest.raises(ValueError, match=r"ends in \.npz, \.safetensors, \.parquet"):
        save_maps(tmp_path / "maps.txt", [])
