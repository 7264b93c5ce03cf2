"""Known answers: the right attribution from all sets of features, what explainers give, and the page about them."""

import math
import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

import faithcheck.tests
from faithcheck.axioms.ground_truth import ground_truth
from faithcheck.check import Check
from faithcheck.explainers.gradients import GradientTimesInput
from faithcheck.explainers.registry import builtin_explainers
from faithcheck.models.cases import examples
from faithcheck.models.known_answer import known_answer, right_of, wrong_of
from faithcheck.models.networks.hand_built_attention import SELF, to_the_previous
from faithcheck.models.networks.probes import Probe
from faithcheck.models.pair import registered_pairs
from faithcheck.plan import plan
from faithcheck.request import Settings
from faithcheck.tests.helpers.faults.catalogue import FAULTS

PAGE = Path(faithcheck.tests.__path__[0]).resolve().parent / "docs" / "explanation" / "known_answers.md"
PAIRS = {name: pair for name, pair in registered_pairs().items() if name.startswith("known_answer.")}
ROWS = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if re.match(r"\| (`\w+`,? ?)+ \| [✓✗–] ", line)]
"""The rows of the page's table: explainers, and ✓, ✗ or – for each subject."""
EXPLAINERS = builtin_explainers()
ON_THE_PAGE = [name for row in ROWS for name in re.findall(r"`(\w+)`", row)]
"""What another explainer gives is measured and recorded, and not stated."""
STATED = [(name, explainer) for name, pair in PAIRS.items() for _, explainer in pair.expected]
WRONG = [key for key in STATED if PAIRS[key[0]].expected["ground_truth", key[1]].verdict == "VIOLATES"]
CPU = torch.device("cpu")


def record_of(pair, explainer, seed=1):
    return Check("ground_truth", explainer, pair, "f").run(Settings(seed=seed))


def built(name, seed=1):
    pair = PAIRS[name]
    return pair.build(seed, torch.float64, CPU)[0], pair.case(seed, torch.float64, CPU)


class Shapley:
    """Shapley values by their definition, from all sets of features."""

    name = "shapley"

    def attribute(self, model, case):
        batch, n = case.shape
        values = {}
        for present in product((False, True), repeat=n):
            shown = torch.tensor(present).reshape(1, n, *[1] * (case.inputs.dim() - 2))
            rows = replace(case, inputs=torch.where(shown, case.inputs, case.baseline))
            values[present] = rows.run(model)[torch.arange(batch), case.target]
        result = torch.zeros(batch, n, dtype=case.inputs.dtype)
        for present, value in values.items():
            size = sum(present)
            for i in range(n):
                without = tuple(here and j != i for j, here in enumerate(present))
                if present[i]:
                    weight = math.factorial(size - 1) * math.factorial(n - size) / math.factorial(n)
                    result[:, i] += weight * (value - values[without]).detach()
        return result


# What is right.


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("name", PAIRS)
def test_the_right_attribution_is_the_shapley_value(name, seed):
    model, case = built(name, seed)
    measured = ground_truth(Shapley(), model, case)
    assert measured.gap <= 1e-12, measured.values
    assert measured.detail["why it is right"] == model.why


def test_every_situation_has_a_subject():
    assert len(PAIRS) >= 12
    assert all(len(built(name)[0].why.split()) >= 4 for name in PAIRS)


@pytest.mark.parametrize("name", PAIRS)
def test_a_map_that_is_right_but_for_one_part_in_a_thousand_is_red(name):
    class Near(Shapley):
        def attribute(self, model, case):
            right = super().attribute(model, case)
            return right + 1e-3 * (torch.arange(case.shape[1]) == 0)

    claimed = replace(PAIRS[name], expected=right_of("loo", "it is said to be right"))
    near = Near()
    near.name, near.like = "near", "loo"
    assert record_of(claimed, near).status == "broken claim"


def test_a_model_without_a_known_answer_is_not_measured():
    pair = registered_pairs()["probe.linear"]
    model, case = pair.build(0, torch.float64, CPU)[0], pair.case(0, torch.float64, CPU)
    measured = ground_truth(GradientTimesInput(), model, case)
    assert measured.gap is None
    assert "register it by known_answer" in measured.detail["reason"]


# What explainers give.


@pytest.mark.parametrize("name", PAIRS)
def test_what_each_explainer_gives_is_stated_or_it_refuses(name):
    for check in plan("ground_truth", EXPLAINERS.values(), [PAIRS[name]]):
        record = check.run(Settings(seed=3))
        stated = ("ground_truth", check.explainer.name) in PAIRS[name].expected
        unstated = ("unsupported",) if check.explainer.name in ON_THE_PAGE else ("unsupported", "recorded")
        assert record.status in (("holds", "predicted violation") if stated else unstated), record


@pytest.mark.parametrize(("name", "explainer"), WRONG)
def test_a_violation_that_vanishes_or_has_another_size_is_red(name, explainer):
    pair, expected = PAIRS[name], PAIRS[name].expected["ground_truth", explainer]

    class Right(Shapley):
        like = explainer

    assert record_of(pair, Right()).status == "violation vanished"

    def slightly_off(model, case):
        return expected.predict(model, case) * 1.001

    off = replace(pair, expected={("ground_truth", explainer): replace(expected, predict=slightly_off)})
    assert record_of(off, EXPLAINERS[explainer]).status == "inconclusive"


# The models.


@pytest.mark.parametrize("name", ["retrieval", "induction", "agreement", "agreement_by_preposition"])
def test_a_softmax_is_a_choice(name):
    model, case = built(f"known_answer.{name}")
    for head in model.model.heads:
        states = case.inputs
        logits = head.query(states) @ head.key(states).transpose(1, 2) + head.positions
        weights = torch.softmax(logits, -1)
        assert set(weights.unique().tolist()) <= {0, 1}
        case = replace(case, inputs=head(states).detach())


def test_the_first_row_reads_itself_and_every_other_one_the_row_before():
    assert to_the_previous(4).argmax(1).tolist() == [0, 0, 1, 2]
    assert to_the_previous(4).diagonal().unique().tolist() == [SELF]


def test_what_the_induction_head_copies():
    """Of C A B D A it finds B, and of C A D B A it finds D, of which the output has nothing."""
    model, case = built("known_answer.induction")
    assert torch.equal(case.run(model)[:, 0], case.inputs[:, 2, 1])
    other = replace(case, inputs=case.inputs[:, [0, 1, 3, 2, 4]])
    assert case.run(model).abs() > 0
    assert other.run(model) == 0


def test_the_verb_agrees_with_the_nearer_noun_where_no_preposition_stands_before_it():
    model, case = built("known_answer.agreement_by_preposition")
    m, d = case.inputs[0, 1, 2], case.inputs[0, 3, 2]
    assert case.run(model).item() == m
    inputs = case.inputs.clone()
    inputs[:, 2] = 0
    torch.testing.assert_close(replace(case, inputs=inputs).run(model)[0, 0], (m + d) / 2)
    inputs[:, 1] = 0
    assert replace(case, inputs=inputs).run(model).item() == d


# Seeded faults: each keeps a property that other axioms ask for, and is no longer the right map.


@pytest.mark.parametrize(
    ("fault", "subject"),
    [
        ("integrated_gradients: evidence against is netted", "cancellation"),
        ("loo: evidence against is netted", "cancellation"),
        ("integrated_gradients: absent features left out", "pertinent_negative"),
        ("loo: absent features left out", "pertinent_negative"),
        ("deeplift_rescale: the largest feature takes all", "conjunction"),
        ("integrated_gradients: the largest feature takes all", "disjunction"),
    ],
)
def test_a_seeded_fault_is_red(fault, subject):
    (found,) = [one for one in FAULTS if one.id == fault]
    with found.faulty() as explainer:
        assert record_of(PAIRS[f"known_answer.{subject}"], explainer).status == "broken claim"


# The page.


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_the_page_says_what_is_expected():
    """Its table has ✓ where an explainer is right, ✗ where it is wrong, and – where it refuses."""
    header = next(line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| explainer |"))
    subjects = [word.strip().strip("`") for word in header.strip("|").split("|")[1:]]
    assert {f"known_answer.{subject}" for subject in subjects} == set(PAIRS)
    assert {explainer for _, explainer in STATED} <= set(ON_THE_PAGE) <= set(EXPLAINERS)
    stated = {}
    for row in ROWS:
        names, *marks = (cell.strip() for cell in row.strip("|").split("|"))
        for explainer in re.findall(r"`(\w+)`", names):
            stated |= {
                (f"known_answer.{subject}", explainer): mark for subject, mark in zip(subjects, marks, strict=True)
            }
    verdicts = {key: PAIRS[key[0]].expected.get(("ground_truth", key[1])) for key in product(PAIRS, ON_THE_PAGE)}
    words = {"HOLDS": "✓", "VIOLATES": "✗"}
    assert stated == {key: words[one.verdict] if one else "–" for key, one in verdicts.items()}


def test_the_example_of_the_page_is_a_subject(monkeypatch):
    monkeypatch.setattr("faithcheck.models.pair._registry", {})
    (code,) = blocks("python")
    exec(compile(code, str(PAGE), "exec"), {"__name__": "my_answer"})
    from faithcheck.models.pair import _registry

    (pair,) = _registry.values()
    assert pair.name == "known_answer.majority"
    model, case = pair.build(0, torch.float64, CPU)[0], pair.case(0, torch.float64, CPU)
    assert ground_truth(Shapley(), model, case).gap <= 1e-12
    for _, explainer in pair.expected:
        assert record_of(pair, EXPLAINERS[explainer]).status in ("holds", "predicted violation")


def test_a_wrong_answer_is_found():
    """The right attribution of a model is a claim, which Shapley's definition refutes."""

    def wrong(x):
        return x

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("faithcheck.models.pair._registry", {})
        known_answer("wrong", examples([[1, 1]]), wrong, "it is not", wrong_of("loo", wrong, "no"))(
            lambda: Probe(lambda x: torch.relu(x.sum(1, keepdim=True) - 1))
        )
        from faithcheck.models.pair import _registry

        pair = _registry["known_answer.wrong"]
    model, case = pair.build(0, torch.float64, CPU)[0], pair.case(0, torch.float64, CPU)
    assert ground_truth(Shapley(), model, case).gap == pytest.approx(0.5)
