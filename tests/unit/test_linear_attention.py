"""Linear attention: the equivalence of its pair, its closed forms on trained weights and real digits, its training."""

import logging
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import linear

from faithcheck.explainers.gradients import GradientTimesInput, IntegratedGradients
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.explainers.lrp.attnlrp import AttnLRP
from faithcheck.explainers.lrp.cplrp import CPLRP
from faithcheck.explainers.protocol import input_gradient
from faithcheck.models import registered_pairs, select_target
from faithcheck.models.case import Case
from faithcheck.models.data.handwritten_digits import load_digits
from faithcheck.models.files import cache_folder
from faithcheck.models.networks import digit_classifier
from faithcheck.models.networks import linear_attention as closed_forms
from faithcheck.models.networks.digit_classifier import Recipe, train, trained
from faithcheck.models.networks.linear_attention import LinearAttention, path_gradients
from faithcheck.tests.helpers.reading_points import read_at

CPU = torch.device("cpu")
SEED = 0


@pytest.fixture(scope="module")
def pair():
    return registered_pairs()["linear_attention.assoc"]


@pytest.fixture(scope="module")
def models(pair):
    return pair.build(SEED, torch.float64, CPU)


@pytest.fixture(scope="module")
def case(pair):
    return pair.case(SEED, torch.float64, CPU)


def relative(a, b):
    a, b = a.detach(), b.detach()
    return float((a - b).abs().max() / b.abs().max())


class HalvingProduct(torch.autograd.Function):
    """A product of two operands with relevance, the gradient of each halved: AttnLRP with ε → 0."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, gradient):
        a, b = ctx.saved_tensors
        return gradient @ b.transpose(1, 2) / 2, a.transpose(1, 2) @ gradient / 2


def attnlrp_by_hand(model, case):
    """AttnLRP written for this architecture alone, from its weights, without the engine and without path gradients."""
    x = case.inputs.clone().requires_grad_()
    tokens = linear(x.unsqueeze(-1), model.pixel) + model.position
    q, k, v = (tokens @ layer.weight.T for layer in (model.query, model.key, model.value))
    if model.order == "left":
        output = HalvingProduct.apply(HalvingProduct.apply(q, k.transpose(1, 2)), v)
    else:
        output = HalvingProduct.apply(q, HalvingProduct.apply(k.transpose(1, 2), v))
    logits = (output / x.shape[1]).mean(1) @ model.head.weight.T
    assert relative(logits, model(case.inputs)) < 1e-12, "the hand-written forward is not the model's"
    return x.detach() * torch.autograd.grad(select_target(logits, case.target).sum(), x)[0]


def test_the_two_orders_are_one_function(models, case):
    f, g = models
    assert (f.order, g.order) == ("left", "right")
    inputs = torch.rand(5, case.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(SEED))
    target = torch.arange(5)
    assert relative(f(inputs), g(inputs)) < 1e-12
    random_case = Case(inputs, target, torch.zeros_like(inputs))
    assert relative(input_gradient(f, random_case), input_gradient(g, random_case)) < 1e-12
    assert f.state_dict().keys() == g.state_dict().keys()
    assert all(torch.equal(f.state_dict()[name], g.state_dict()[name]) for name in f.state_dict())


def test_the_case_is_real_digits_and_their_predicted_classes(models, case):
    assert torch.equal(case.inputs, load_digits().dev_images[:8])
    assert torch.equal(case.target, models[1](case.inputs).argmax(1))
    assert not case.baseline.any()


def test_path_gradients_sum_to_the_gradient_and_differ(models, case):
    f, _ = models
    g_q, g_k, g_v = path_gradients(f, case)
    assert relative(g_q + g_k + g_v, input_gradient(f, case)) < 1e-12
    assert relative(g_q, g_v) > 0.1, "equal paths would make every closed form of this pair trivial"
    assert relative(f.forward_paths(*[case.inputs] * 3), f(case.inputs)) < 1e-14


@pytest.mark.parametrize("seed", [0, 1])
def test_attnlrp_by_hand_has_the_closed_form(pair, seed):
    f, g = pair.build(seed, torch.float64, CPU)
    case = pair.case(seed, torch.float64, CPU)
    left, right = attnlrp_by_hand(f, case), attnlrp_by_hand(g, case)
    assert relative(closed_forms.propagated(closed_forms.ATTNLRP, f, case), left) < 1e-12
    assert relative(closed_forms.propagated(closed_forms.ATTNLRP, g, case), right) < 1e-12

    g_q, _, g_v = path_gradients(f, case)
    quarter = case.inputs * (g_v - g_q) / 4
    gap = left - right
    assert gap.abs().max() > 1e-3 * left.abs().max()
    assert relative(quarter, gap) < 1e-9
    assert relative(closed_forms.attnlrp_gap(f, g, case), gap) < 1e-9
    assert relative(closed_forms.attnlrp_gap(g, f, case), -gap) < 1e-9


@pytest.mark.parametrize(
    ("explainer", "shares"),
    [
        (AttnLRP(epsilon=0), closed_forms.ATTNLRP),
        (CPLRP(epsilon=0), closed_forms.CPLRP),
        (GradientTimesInput(), closed_forms.GRADIENT),
    ],
    ids=["attnlrp", "cplrp", "gradient_x_input"],
)
def test_the_explainers_equal_their_closed_forms(models, case, explainer, shares):
    for model in models:
        assert relative(explainer.attribute(model, case), closed_forms.propagated(shares, model, case)) < 1e-9


def test_integrated_gradients_are_exact_with_two_nodes(models, case):
    two, many = (IntegratedGradients(steps=steps).attribute(models[0], case) for steps in (2, 16))
    assert relative(two, many) < 1e-12
    single, _ = IntegratedGradients(steps=1).attribute_with_error(models[0], case)
    assert relative(single, many) > 1e-3, "one node must not be exact, or the test shows nothing"


def test_without_positions_integrated_gradients_give_each_path_a_third():
    torch.manual_seed(SEED)
    model = LinearAttention(pixels=9, position=False, pooling="flatten").double().eval()
    inputs = torch.rand(2, 9, dtype=torch.float64)
    case = Case(inputs, torch.tensor([3, 7]), torch.zeros_like(inputs))
    third = inputs * sum(path_gradients(model, case)) / 3
    assert relative(IntegratedGradients(steps=2).attribute(model, case), third) < 1e-12


@pytest.mark.parametrize("where", ["scaled pixel", "embedding", "embedding from zero"])
def test_reading_at_another_point_explains_the_same_output(where):
    torch.manual_seed(SEED)
    model = LinearAttention(pixels=9, mean=0.2, std=0.5).double().eval()
    inputs = torch.rand(2, 9, dtype=torch.float64)
    case = Case(inputs, torch.tensor([3, 7]), torch.zeros_like(inputs))
    upper, read_case = read_at(where, model, case)
    assert relative(upper(read_case.inputs), model(inputs)) < 1e-14
    assert read_case.shape == case.shape
    if where == "embedding":
        assert relative(upper(read_case.baseline), model(case.baseline)) < 1e-14
        loo = LeaveOneOut()
        assert relative(loo.attribute(upper, read_case), loo.attribute(model, case)) < 1e-12
    else:
        assert not read_case.baseline.any()


def test_unknown_options_are_refused():
    for wrong in ({"order": "up"}, {"pooling": "max"}, {"std": 0.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            LinearAttention(**{"pixels": 4, **wrong})


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-12)])
def test_the_pair_is_built_in_any_dtype(pair, dtype, tolerance):
    f, g = pair.build(SEED, dtype, CPU)
    case = pair.case(SEED, dtype, CPU)
    assert {p.dtype for p in f.parameters()} == {case.inputs.dtype} == {dtype}
    assert relative(f(case.inputs), g(case.inputs)) < tolerance
    assert not f.training
    assert not g.training


# Training and its cache.

QUICK = Recipe(epochs=1, batch_size=64)


def few_digits():
    """The first 256 images of each part: a cache does not depend on how many they are."""
    digits = load_digits()
    parts = ("train_images", "train_labels", "dev_images", "dev_labels")
    return replace(digits, **{part: getattr(digits, part)[:256] for part in parts})


def quickly_trained(seed=SEED):
    digits = few_digits()
    return trained(LinearAttention, {"order": "right", "pixels": digits.pixels}, digits, seed, QUICK)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "faithcheck"


@pytest.fixture
def trainings(monkeypatch):
    """The seeds of the trainings that ran, instead of a read from the cache."""
    seeds = []

    def counted(*args):
        seeds.append(args[3])
        return train(*args)

    monkeypatch.setattr(digit_classifier, "train", counted)
    return seeds


def same(a, b):
    return a.accuracy == b.accuracy and all(torch.equal(a.weights[name], b.weights[name]) for name in a.weights)


def test_five_epochs_reach_about_85_percent():
    digits = load_digits()
    result = trained(LinearAttention, {"order": "right", "pixels": digits.pixels}, digits, SEED)
    assert result.accuracy > 0.8
    model = LinearAttention(pixels=digits.pixels)
    model.load_state_dict(result.weights)
    right = model(digits.dev_images.float()).argmax(1) == digits.dev_labels
    assert right.double().mean().item() == pytest.approx(result.accuracy, abs=2 / len(right))


def test_the_second_call_reads_the_cache(cache, trainings):
    first, second = quickly_trained(), quickly_trained()
    assert trainings == [SEED]
    assert same(first, second)
    (file,) = cache.iterdir()
    assert file.suffix == ".safetensors"


def test_another_seed_recipe_or_option_is_another_file(cache, trainings):
    first = quickly_trained()
    assert not same(first, quickly_trained(seed=1))
    digits = few_digits()
    trained(LinearAttention, {"order": "right", "pixels": digits.pixels}, digits, SEED, Recipe(epochs=0))
    trained(LinearAttention, {"order": "right", "pixels": digits.pixels, "width": 4}, digits, SEED, QUICK)
    assert trainings == [SEED, 1, SEED, SEED]
    assert len(list(cache.iterdir())) == 4


@pytest.mark.parametrize(
    "damage",
    [
        lambda good: good[:100],
        lambda good: b"",
        lambda good: b"junk" * 99,
        lambda good: good[:-1] + bytes([good[-1] ^ 1]),
        lambda good: good[:-1001] + bytes([good[-1001] ^ 64]) + good[-1000:],
        lambda good: good.replace(b'accuracy\\": 0.', b'accuracy\\": 1.'),
    ],
    ids=["cut", "empty", "junk", "a bit of the last weight", "a bit of a weight", "the accuracy"],
)
def test_a_damaged_file_is_replaced_by_a_new_training_with_a_warning(cache, trainings, caplog, damage):
    first = quickly_trained()
    (file,) = cache.iterdir()
    good = file.read_bytes()
    damaged = damage(good)
    assert damaged != good
    file.write_bytes(damaged)
    with caplog.at_level(logging.WARNING):
        assert same(first, quickly_trained())
    assert trainings == [SEED, SEED]
    assert str(file) in caplog.text
    assert "damaged" in caplog.text
    assert file.read_bytes() == good
    assert list(cache.iterdir()) == [file], "no temporary file is left"


def test_a_cache_that_cannot_be_written_costs_only_the_training(tmp_path, monkeypatch, trainings, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    with caplog.at_level(logging.INFO):
        assert same(quickly_trained(), quickly_trained())
    assert trainings == [SEED, SEED]
    assert "not cached" in caplog.text


def test_the_cache_folder_follows_xdg(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "faithcheck"


def test_training_keeps_the_random_state_and_the_number_of_threads(cache):
    torch.manual_seed(1234)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    quickly_trained()
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_building_the_pair_keeps_the_random_state(pair):
    state = torch.get_rng_state()
    pair.build(SEED, torch.float64, CPU)
    assert torch.equal(torch.get_rng_state(), state)
