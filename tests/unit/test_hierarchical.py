"""Leave-One-Out by sentence and hierarchically, against sums done by hand."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from faithcheck.explainers.attention_rollout import AttentionRollout
from faithcheck.explainers.gates.mask_gate import MaskGate
from faithcheck.explainers.gates.readout_gate import ReadoutGate
from faithcheck.explainers.loo.hierarchical import PROXY_ROWS, TOP_FIVE, HierarchicalLeaveOneOut, PartlyOpened, by_doubt
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.explainers.loo.removal import AttentionMask, Replacement
from faithcheck.explainers.protocol import Unsupported
from faithcheck.models import Case, select_target
from faithcheck.tests.helpers.attention_models import case_of, embedding_model
from faithcheck.tests.helpers.model_state import assert_same_state, state_of

SENTENCES = torch.tensor([[0, 1, 1, 2, 2, 3], [0, 1, 1, 2, -1, -1], [0, 1, 1, 1, 2, -1]])
BY = {"by": "sentence"}


def with_sentences(name):
    return replace(case_of(name), segments={"sentence": SENTENCES})


class Additive(nn.Module):
    """A weighted sum of scalar features, and a part of the square of some features' sum."""

    def __init__(self, weights, squared=()):
        super().__init__()
        self.weights, self.squared = torch.tensor(weights, dtype=torch.float64), list(squared)

    def forward(self, inputs):
        return (inputs @ self.weights + inputs[:, self.squared].sum(1) ** 2).unsqueeze(1)


def numbers(sentences, count=1):
    inputs = torch.ones(count, len(sentences), dtype=torch.float64)
    parts = {"sentence": torch.tensor([sentences]).expand(count, -1)}
    return Case(inputs, torch.zeros(count, dtype=torch.int64), torch.zeros_like(inputs), segments=parts)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
@pytest.mark.parametrize("removal", [AttentionMask(), Replacement()], ids=str)
def test_by_sentence_each_sentence_is_removed_as_a_whole(name, removal):
    """Its tokens get equal shares of f(x) − f(x without the sentence)."""
    model, case = embedding_model(name), with_sentences(name)
    attribution = LeaveOneOut(removal, **BY).attribute(model, case)
    with torch.no_grad():
        outputs = select_target(case.run(model), case.target)
        for sentence in range(4):
            is_there = sentence == SENTENCES
            without = select_target(removal.remove(case, is_there).run(model), case.target)
            for i in is_there.any(1).nonzero().flatten().tolist():
                share = (outputs[i] - without[i]) / is_there[i].sum()
                torch.testing.assert_close(attribution[i, is_there[i]], share.expand(int(is_there[i].sum())))
    assert not attribution[SENTENCES < 0].any()


def test_parts_of_one_token_are_leave_one_out_by_token():
    model, case = embedding_model("bert"), case_of("bert")
    each = torch.arange(6).masked_fill(~case.unpadded, -1)
    case = replace(case, segments={"word": each})
    assert torch.equal(LeaveOneOut(by="word").attribute(model, case), LeaveOneOut().attribute(model, case))


@pytest.mark.parametrize(
    "explainer", [LeaveOneOut(**BY), HierarchicalLeaveOneOut()], ids=lambda explainer: explainer.name
)
def test_a_case_that_does_not_say_its_sentences_is_refused(explainer):
    with pytest.raises(Unsupported, match=r"by sentence: case\.segments has no 'sentence' \(it has: none\)"):
        explainer.attribute(embedding_model("bert"), case_of("bert"))


# Sentences of 2, 3, 3 and 1 tokens, of effects 2, 9, 3 and 5 where the output is additive.
WEIGHTS, PARTS = [1, 1, 2, 3, 4, 0, 1, 2, 5], [0, 0, 1, 1, 1, 2, 2, 2, 3]


@pytest.mark.parametrize(
    ("budget", "opened", "rows"),
    [(0.5, [], 5), (0.7, [0], 7), (0.8, [1], 8), (0.999, [1], 8), (1.0, [1, 0], 10), (0.1, [], 5)],
)
def test_the_sentences_with_the_largest_effects_are_opened_within_the_budget(budget, opened, rows):
    """10 rows are full Leave-One-Out, 5 the first step; a sentence of one token is exact by then.

    A sentence that does not fit into what is left is passed over, for the next one that does.
    """
    model, case = Additive(WEIGHTS), numbers(PARTS)
    attribution, report = HierarchicalLeaveOneOut(budget).attribute_with_report(model, case)
    shares = {0: [1, 1], 1: [3, 3, 3], 2: [1, 1, 1], 3: [5]}
    exact = {sentence: [WEIGHTS[i] for i in range(9) if PARTS[i] == sentence] for sentence in opened}
    expected = [value for sentence in range(4) for value in {**shares, **exact}[sentence]]
    torch.testing.assert_close(attribution[0], torch.tensor(expected, dtype=torch.float64))
    assert report.exact[0].tolist() == [part in (*opened, 3) for part in PARTS]
    assert int(report.rows) == rows


def test_the_least_sure_place_is_the_fewest_steps_from_its_rival():
    """Rivals of the top three: 5 of the parts of the top, 6 of the others. They are 5, 5, 1, 6, 3, 1 and 2 apart."""
    sums = torch.tensor([[10.0, -1, 6, 0, -8, 5, 4]])
    equal, unequal = torch.ones_like(sums), torch.tensor([[0.5, 7, 1, 6, 1, 1, 4]])
    assert by_doubt(sums, equal, 3).tolist() == [[2, 5, 6, 4, 0, 1, 3]] == by_doubt(2 * sums, 2 * equal, 3).tolist()
    assert by_doubt(sums, unequal, 3).tolist() == [[6, 1, 2, 5, 3, 4, 0]]
    assert by_doubt(sums, equal, 1).tolist() == [[0, 4, 2, 5, 6, 1, 3]]
    assert by_doubt(sums, torch.zeros_like(sums), 3).tolist() == [[0, 4, 2, 5, 6, 1, 3]], "none can move: by size"
    assert by_doubt(torch.tensor([[5.0, 5, 1]]), torch.tensor([[0.0, 0, 1]]), 1).tolist() == [[2, 0, 1]]


@pytest.mark.parametrize(("top", "opened", "sums"), [(None, 1, [-5, 9, 4, 1]), (2, 0, [-3, 9, 4, 1])])
def test_the_top_parts_by_token_are_found_by_opening_an_unsure_one(top, opened, sums):
    """Sentence 0 has the effect −9 + 2² as a whole, and −9 + 2 · (2² − 1²) token by token; the others are additive."""
    model, case = Additive([-4, -5, 2, 3, 4, 4, 0, 0, 1], squared=[0, 1]), numbers(PARTS)
    attribution, report = HierarchicalLeaveOneOut(0.8, top=top).attribute_with_report(model, case)
    assert report.exact[0].tolist() == [part in (opened, 3) for part in PARTS]
    assert sums_by_part(attribution) == pytest.approx(sums)
    assert sums_by_part(LeaveOneOut().attribute(model, case)) == pytest.approx([-3, 9, 4, 1])


class Known:
    """An explainer that says the same of every example."""

    name = "known"

    def __init__(self, *values):
        self.values = torch.tensor([values], dtype=torch.float64)

    def attribute(self, model, case):
        return self.values.expand(case.shape).clone()


def test_a_part_on_which_the_estimates_differ_is_opened_first():
    """Sentence 0 has the effect 2² as a whole, by the proxy 7, and 2 · (2² − 1²) = 6 token by token.

    On the others, of effects 6, 3 and 3, the proxy agrees. Of 10 rows it takes 3 and the first step 5: two are left.
    """
    model, case = Additive([3, -3, 3, 3, 1, 2, 1, 1, 1], squared=[0, 1]), numbers([0, 0, 1, 1, 2, 2, 3, 3, 3])
    explainer = HierarchicalLeaveOneOut(1.0, top=2, proxy=Known(6, 1, 3, 3, 1, 2, 1, 1, 1))
    attribution, report = explainer.attribute_with_report(model, case)
    assert report.exact[0].tolist() == [True, True] + [False] * 7
    assert int(report.rows) == 5 + PROXY_ROWS + 2
    assert sums_by_part(attribution, [0, 0, 1, 1, 2, 2, 3, 3, 3]) == pytest.approx([6, 6, 3, 3])


def test_the_estimate_that_met_the_opened_parts_better_has_the_larger_weight():
    """Sentence 0 is 6, the first estimate says 4 and the proxy 7: squared errors of 4 and 1 weigh 1/5 and 4/5."""
    case, estimates = numbers(PARTS), torch.zeros(2, 1, 9, dtype=torch.float64)
    estimates[:, 0, 0] = torch.tensor([4, 7])
    estimates[:, 0, 5] = torch.tensor([10, 20])
    parts = PartlyOpened(case, torch.tensor([PARTS]), estimates)
    assert parts.values()[0, 5] == pytest.approx(15), "equal weights before any part is opened"
    opened = parts.open_next(None, torch.tensor([2]))
    assert opened[0].tolist() == [part == 0 for part in PARTS]
    parts.exact[0, 0] = 6
    assert parts.values()[0].tolist() == pytest.approx([6, 0, 0, 0, 0, 10 / 5 + 20 * 4 / 5, 0, 0, 0])
    assert not parts.open_next(None, torch.tensor([2])).any(), "the others do not fit"


def test_special_features_are_in_no_place():
    """Of effects 8, 30, 7 and 50, the top two are 30 and 8, if 50 is special; 8 is the least sure."""
    model, case = Additive([4, 4, 10, 10, 10, 3, 2, 2, 50]), numbers(PARTS)
    explainer = HierarchicalLeaveOneOut(0.8, top=2)
    assert explainer.attribute_with_report(model, case)[1].exact[0].tolist() == [part in (1, 3) for part in PARTS]
    case = replace(case, special_tokens_mask=torch.tensor([[part == 3 for part in PARTS]]))
    assert explainer.attribute_with_report(model, case)[1].exact[0].tolist() == [part in (0, 3) for part in PARTS]


def test_what_the_proxy_refuses_is_refused():
    with pytest.raises(Unsupported, match="softmax"):
        HierarchicalLeaveOneOut(proxy=AttentionRollout()).attribute(Additive(WEIGHTS), numbers(PARTS))


def test_the_top_five_are_found_with_the_readout_gate_as_proxy():
    assert TOP_FIVE.settings == (
        "by sentence, estimated by readout_gate too, then by token in those with the least sure places among the top "
        "5, 10% of full LOO's rows"
    )


def sums_by_part(attribution, parts=PARTS):
    return torch.zeros(4, dtype=torch.float64).index_add(0, torch.tensor(parts), attribution[0]).tolist()


def test_the_error_of_unopened_sentences_is_estimated_from_the_opened_ones():
    """Sentence 1, of effect 9, was opened: its tokens are off by 1, 0 and 1. Those of effects 2 and 3 were not."""
    case, model = numbers(PARTS), Additive(WEIGHTS)
    _, report = HierarchicalLeaveOneOut(0.8).attribute_with_report(model, case)
    assert report.error.item() == pytest.approx((2 / 9**2 * (2**2 + 3**2) / 9) ** 0.5)
    assert HierarchicalLeaveOneOut(0.5).attribute_with_report(model, case)[1].error.item() == float("inf")
    alone = numbers([0, 1, 2])
    assert HierarchicalLeaveOneOut(0.5).attribute_with_report(Additive([1, 2, 3]), alone)[1].error.item() == 0


def test_the_last_opened_sentences_measure_the_error():
    """Five of six sentences of two tokens are opened. The first is off by 10, but not in the sample."""
    weights = [20, 0, 9, 9, 7, 7, 5, 5, 4, 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0]
    case = numbers([i // 2 for i in range(12)] + [6] * 8)
    _, report = HierarchicalLeaveOneOut(0.86).attribute_with_report(Additive(weights), case)
    assert report.exact[0].tolist() == [i < 10 for i in range(20)]
    # Sentence 4 is off by 1 in both of its tokens; those of effects 2 and 0 were not opened.
    assert report.error.item() == pytest.approx((2 / (18**2 + 14**2 + 10**2 + 6**2) * 2**2 / 20) ** 0.5)


@pytest.mark.parametrize(("top", "proxy"), [(None, None), (1, None), (3, None), (1, MaskGate()), (2, ReadoutGate())])
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_examples_of_a_batch_are_explained_as_alone_and_opened_tokens_are_exact(name, top, proxy):
    model, case = embedding_model(name), with_sentences(name)
    explainer = HierarchicalLeaveOneOut(1.0, top=top, proxy=proxy)
    before = state_of(model)
    attribution, report = explainer.attribute_with_report(model, case)
    loo = LeaveOneOut().attribute(model, case)
    torch.testing.assert_close(attribution[report.exact], loo[report.exact])
    assert not attribution[~case.unpadded].any()
    assert bool((report.exact.sum(1) < case.unpadded.sum(1)).any()), "not all are opened"
    for i in range(len(case.inputs)):
        alone, its_report = explainer.attribute_with_report(model, case.select(torch.tensor([i])))
        torch.testing.assert_close(alone[0], attribution[i])
        assert int(its_report.rows) == int(report.rows[i])
    assert_same_state(before, state_of(model))


@pytest.mark.parametrize("budget", [0.0, 1.5, float("nan")])
def test_a_budget_or_a_number_of_parts_out_of_range_is_refused(budget):
    with pytest.raises(ValueError, match="a share of full LOO's rows"):
        HierarchicalLeaveOneOut(budget)
    with pytest.raises(ValueError, match="top must be at least 1 part, got 0"):
        HierarchicalLeaveOneOut(top=0)
