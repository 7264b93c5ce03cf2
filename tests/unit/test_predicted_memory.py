"""The predicted peak memory of an attribution against the measured one."""

import pytest
import torch
from torch import nn

from faithcheck.axioms.traces.model_snapshot import restored
from faithcheck.explainers import AttnLRP, GradientTimesInput, IntegratedGradients
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.explainers.protocol import Unsupported
from faithcheck.memory.peak_memory import changes_in_history, peak_memory
from faithcheck.memory.predicted_memory import PeakPredictor, ShortRun, with_length
from faithcheck.tests.helpers import larger_models

WITHIN = 0.05
"""The tensors are predicted to the byte; the rest is scratch memory of kernels and masks of booleans."""


class OneAfterTheOther:
    """A user's own occlusion: a forward pass a feature."""

    name = "one_after_the_other"

    @torch.no_grad()
    def attribute(self, model, case):
        attribution = torch.zeros(case.shape)
        for i in range(case.shape[1]):
            inputs = case.inputs.clone()
            inputs[:, i] = 0
            attribution[:, i] = model(inputs, **case.forward_arguments)[:, 0]
        return attribution


@pytest.fixture(scope="module")
def bert():
    return larger_models.model("bert")


@pytest.fixture(scope="module")
def predictor(bert):
    return PeakPredictor(bert, larger_models.case("bert", 2, 7))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::faithcheck.explainers.gradients.CompletenessWarning")
@pytest.mark.parametrize(
    "explainer",
    [
        GradientTimesInput(),
        AttnLRP(),
        LeaveOneOut(max_tokens=1080),
        IntegratedGradients(8, max_tokens=1080),
        OneAfterTheOther(),
    ],
    ids=lambda explainer: explainer.name,
)
def test_the_peak_of_longer_and_more_examples_is_predicted(bert, predictor, explainer):
    predicted = predictor.peak(explainer, 3, 90)
    case = larger_models.case("bert", 3, 90)
    measured = peak_memory(lambda: explainer.attribute(bert, case), model=bert)
    assert measured > 2**20, "megabytes, not noise"
    if explainer.name == "loo":  # the short run is plain, and fast rows take less: see `fast.removal_rows`
        assert measured <= predicted * (1 + WITHIN)
        assert predicted <= 1.25 * measured
    else:
        assert predicted == pytest.approx(measured, rel=WITHIN)


def test_what_the_explainer_leaves_behind_is_undone(bert, predictor):
    class TrainMode(GradientTimesInput):
        def attribute(self, model, case):
            torch.rand(1)
            model.train()
            return super().attribute(model, case)

    with restored(bert) as left_behind:
        predictor.peak(TrainMode(name="train_mode"), 1, 40)
    assert not left_behind


def test_a_model_of_one_number_of_patches_is_run_once_at_this_number():
    model = larger_models.model("vit")
    predicted = PeakPredictor(model, larger_models.case("vit", 1, 196)).peak(GradientTimesInput(), 3, 196)
    case = larger_models.case("vit", 3, 196)
    measured = peak_memory(lambda: GradientTimesInput().attribute(model, case))
    assert predicted == pytest.approx(measured, rel=WITHIN)


def test_the_errors_of_the_explainer_are_its_own(predictor):
    class Refuses:
        name = "refuses"

        def attribute(self, model, case):
            raise Unsupported("no rule")

    with pytest.raises(Unsupported, match="no rule"):
        predictor.peak(Refuses(), 1, 40)


def test_each_size_grows_with_its_own_power_of_the_length():
    p, weight = 61, 4 * 64 * 64
    changes = [4 * p * 64, 4 * 3 * p**2, 4 * (p + 1) * p, weight, -4 * 3 * p**2, 8]
    run = ShortRun(1, p, 0, changes, frozenset({weight}))
    assert run.peak(1, 100, 0) == 4 * 100 * 64 + 4 * 3 * 100**2 + 4 * 101 * 100 + weight
    assert run.peak(5, 100, 0) == 5 * (4 * 100 * 64 + 4 * 3 * 100**2 + 4 * 101 * 100) + weight


def test_a_full_pass_has_the_rows_of_max_tokens():
    run = ShortRun(1, 61, 5, [4 * 5 * 61 * 64, -4 * 5 * 61 * 64], frozenset())
    assert run.peak(1, 100, 20) == 4 * 20 * 100 * 64


def test_a_short_example_repeats_or_cuts_the_features():
    case = larger_models.case("bert", 1, 4)
    for features in (3, 10):
        short = with_length(case, features)
        assert torch.equal(short.inputs[0, features - 1], case.inputs[0, (features - 1) % 4])
        assert short.forward_arguments["attention_mask"].shape == (1, features)


def test_the_history_of_cuda_gives_the_sizes_that_were_asked_for():
    """As recorded by its allocator; a block that is older than the history is not in it."""
    history = [
        {"action": "alloc", "addr": 1, "size": 100},
        {"action": "free_requested", "addr": 7, "size": 5},
        {"action": "free_requested", "addr": 1, "size": 512},
        {"action": "free_completed", "addr": 1, "size": 512},
        {"action": "segment_alloc", "addr": 0, "size": 2**21},
        {"action": "alloc", "addr": 1, "size": 30},
    ]
    assert changes_in_history(history) == [100, -100, 30]


def test_weights_that_are_copied_do_not_grow():
    model = nn.Sequential(nn.Linear(64, 4096), nn.Linear(4096, 1)).eval()

    class CopiesWeights:
        name = "copies_weights"

        def attribute(self, model, case):
            copied = model[0].weight.abs()
            return (case.inputs @ copied.T).sum(-1).detach()

    class Features(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, inputs, attention_mask):
            return self.model(inputs)

        def __getitem__(self, index):
            return self.model[index]

    whole = Features().eval()
    case = larger_models.case("bert", 1, 90)
    case = type(case)(case.inputs[..., :64], case.target, case.baseline[..., :64])
    predicted = PeakPredictor(whole, case).peak(CopiesWeights(), 1, 90)
    measured = peak_memory(lambda: CopiesWeights().attribute(whole, case))
    assert predicted == pytest.approx(measured, rel=WITHIN)
