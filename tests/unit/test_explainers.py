"""The explainers on functions whose attributions are known, and that they leave nothing on the model."""

from dataclasses import fields, replace

import pytest
import torch
from torch import nn

from faithcheck.explainers import (
    CPLRP,
    AttentionRollout,
    AttnLRP,
    EpsilonLRP,
    IntegratedGradients,
    LeaveOneOut,
    Unsupported,
    builtin_explainers,
    load_explainer,
)
from faithcheck.explainers import builtin as registered
from faithcheck.explainers.gradients import CompletenessWarning
from faithcheck.explainers.loo.budget import BudgetedLeaveOneOut
from faithcheck.explainers.loo.removal import AttentionMask
from faithcheck.explainers.protocol import InvalidAttribution, checked_attribution
from faithcheck.models import Case, select_target
from faithcheck.models.networks.scalar_product import Leaf, ProductNode
from faithcheck.models.pairs import control
from faithcheck.models.pairs.product import ScalarProduct, depths, left_comb, parenthesisations
from faithcheck.tests.helpers.attention_models import PyTorchEncoder, case_of, embedding_model, tokens
from faithcheck.tests.helpers.model_state import assert_same_state, state_of

CPU = torch.device("cpu")
LEFT, RIGHT = left_comb(3), ProductNode(Leaf(0), ProductNode(Leaf(1), Leaf(2)))


def at(*point: float) -> Case:
    inputs = torch.tensor([point], dtype=torch.float64)
    return Case(inputs, torch.zeros(1, dtype=torch.int64), torch.zeros_like(inputs))


@pytest.mark.parametrize(
    ("name", "tree", "expected"),
    [
        ("attnlrp", LEFT, [6, 6, 12]),
        ("attnlrp", RIGHT, [12, 6, 6]),
        ("cplrp", LEFT, [6, 6, 12]),
        ("gradient_x_input", RIGHT, [24, 24, 24]),
        ("loo", LEFT, [24, 24, 24]),
    ],
)
def test_x1x2x3_at_2_3_4_is_exact(name, tree, expected):
    attribution = builtin_explainers()[name].attribute(ScalarProduct(tree), at(2, 3, 4))
    assert attribution.tolist() == [expected]


def test_integrated_gradients_of_x1x2x3():
    attribution, error = IntegratedGradients().attribute_with_error(ScalarProduct(LEFT), at(2, 3, 4))
    torch.testing.assert_close(attribution, torch.full((1, 3), 8.0, dtype=torch.float64), rtol=1e-14, atol=0)
    assert abs(float(error)) < 1e-13


@pytest.mark.parametrize("epsilon", [1e-6, 1e-2])
def test_explicit_epsilon_on_a_product(epsilon):
    """Eqs. 3–4 by hand on (x₁x₂)x₃ at (2, 3, 4): each product keeps z/(2z + ε) of its relevance a side."""
    attribution = AttnLRP(epsilon=epsilon).attribute(ScalarProduct(LEFT), at(2, 3, 4))
    outer, inner = 24 / (48 + epsilon), 6 / (12 + epsilon)
    expected = torch.tensor([[24 * outer * inner, 24 * outer * inner, 24 * outer]], dtype=torch.float64)
    torch.testing.assert_close(attribution, expected, rtol=1e-14, atol=0)


def test_there_are_catalan_many_parenthesisations():
    counts = [len(parenthesisations(0, n - 1)) for n in range(1, 8)]
    assert counts == [1, 1, 2, 5, 14, 42, 132]
    trees = {tuple(depths(tree)) for tree in parenthesisations(0, 4)}
    assert len(trees) == 14, "the depths tell every tree apart"


def test_loo_does_not_depend_on_its_batch():
    model, _ = control.bert(0, torch.float64, CPU)
    case = control.sentences(0, torch.float64, CPU)
    reference = LeaveOneOut().attribute(model, case)
    for max_tokens in (1, 35, 196):
        torch.testing.assert_close(
            LeaveOneOut(max_tokens=max_tokens).attribute(model, case), reference, rtol=1e-12, atol=1e-12
        )
    inputs = case.inputs.clone()
    inputs[:, 3] = 0
    with torch.no_grad():
        removed = select_target(model(case.inputs), case.target) - select_target(model(inputs), case.target)
    torch.testing.assert_close(reference[:, 3], removed, rtol=1e-12, atol=1e-12)


def test_integrated_gradients_has_at_most_so_many_features_in_a_pass():
    model, rows = ScalarProduct(LEFT), []
    model.register_forward_hook(lambda module, inputs, output: rows.append(len(output)))
    all_at_once, in_parts = (
        IntegratedGradients(16, max_tokens=tokens).attribute(model, at(2, 3, 4)) for tokens in (2048, 12)
    )
    assert rows == [16, 1, 1, 4, 4, 4, 4, 1, 1], "four nodes of three features, then the input and the baseline"
    torch.testing.assert_close(in_parts, all_at_once)


def test_integrated_gradients_warns_when_it_has_too_few_steps():
    class Spike(nn.Module):
        def forward(self, x):
            return torch.sigmoid(200 * (x - 0.7)).sum(1, keepdim=True)

    with pytest.warns(CompletenessWarning, match=r"with 3 steps misses completeness by up to .*%"):
        IntegratedGradients(steps=3).attribute(Spike(), at(1.0, 1.0))


class OneHead(nn.Module):
    """Softmax attention with identity maps: its weights are softmax(XXᵀ). Output k reads row k, output 4 all."""

    def forward(self, x):
        return read(torch.softmax(x @ x.transpose(1, 2), -1) @ x)


def read(states):
    """The sum of each of four rows, and their mean: ``(batch, 4, width)`` to ``(batch, 5)``."""
    sums = states.sum(2)
    return torch.cat([sums, sums.mean(1, keepdim=True)], 1)


def four_tokens(*target):
    x = torch.randn(len(target), 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return Case(x, torch.tensor(target), torch.zeros_like(x))


def test_rollout_of_one_layer_is_the_attention_row_that_the_target_is_read_at():
    case = four_tokens(2, 0, 4)
    weights = torch.softmax(case.inputs @ case.inputs.transpose(1, 2), -1)
    torch.testing.assert_close(AttentionRollout(residual=False, row=1).attribute(OneHead(), case), weights[:, 1])
    mixed = (weights + torch.eye(4, dtype=torch.float64)) / 2
    expected = torch.stack([mixed[0, 2], mixed[1, 0], mixed[2].mean(0)])
    torch.testing.assert_close(AttentionRollout().attribute(OneHead(), case), expected)
    with torch.inference_mode():
        torch.testing.assert_close(AttentionRollout().attribute(OneHead(), case), expected)
    two = weights @ weights
    expected = torch.stack([two[0, 2], two[1, 0], two[2].mean(0)])
    torch.testing.assert_close(AttentionRollout(residual=False).attribute(nn.Sequential(TwoLayers()), case), expected)


def test_rollout_refuses_a_causal_model_that_does_not_show_its_row():
    class Causal(nn.Module):
        def forward(self, x):
            weights = torch.softmax((x @ x.mT).masked_fill(torch.ones(4, 4).triu(1).bool(), -torch.inf), -1)
            return (weights @ x).detach()[:, -1]

    case = four_tokens(0)
    with pytest.raises(Unsupported, match=r"which row is read is unknown: choose AttentionRollout\(row=…\)"):
        AttentionRollout().attribute(Causal(), case)
    by_index = replace(case, forward_arguments={"last": torch.tensor([3])})
    model = Causal()
    model.register_forward_pre_hook(lambda module, args, kwargs: (args, {}), with_kwargs=True)
    torch.testing.assert_close(
        AttentionRollout().attribute(model, by_index), AttentionRollout(row=-1).attribute(model, by_index)
    )


class TwoLayers(nn.Module):
    """The same weights twice."""

    def forward(self, x):
        for _ in range(2):
            weights = torch.softmax(x @ x.transpose(1, 2), -1)
        return read(weights @ x)


class FusedHead(nn.Module):
    """`OneHead` by scaled_dot_product_attention."""

    def forward(self, x):
        return read(nn.functional.scaled_dot_product_attention(x, x, x, scale=1.0))


class WrittenOutHead(nn.Module):
    """`OneHead` with its softmax written as exponential and division."""

    def forward(self, x):
        exponential = (x @ x.transpose(1, 2)).exp()
        return read(exponential / exponential.sum(-1, keepdim=True) @ x)


@pytest.mark.parametrize("model", [FusedHead(), WrittenOutHead()], ids=["sdpa", "written out"])
def test_rollout_runs_on_every_way_to_compute_a_softmax(model):
    case = four_tokens(3, 4)
    expected = AttentionRollout().attribute(OneHead(), case)
    torch.testing.assert_close(AttentionRollout().attribute(model, case), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "vit"])
def test_rollout_under_sdpa_is_rollout_of_eager_attention(name):
    case = case_of(name)
    eager = AttentionRollout().attribute(embedding_model(name), case)
    fused = AttentionRollout().attribute(embedding_model(name, "sdpa"), case)
    torch.testing.assert_close(fused, eager, rtol=1e-12, atol=1e-12)


class MergedHeads(nn.Module):
    """Heads and examples share the first axis of the attention weights."""

    def forward(self, x):
        return OneHead()(torch.cat([x, x]))[: len(x)]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (PyTorchEncoder().eval(), "hides its attention weights: load the model with attn_implementation='eager'"),
        (nn.Flatten(), "no softmax attention over the features"),
        (MergedHeads(), "attention of 4 rows for 2 examples"),
    ],
    ids=["hidden", "none", "merged"],
)
def test_rollout_refuses_models_without_visible_attention(model, message):
    case = replace(tokens(), forward_arguments={})
    with pytest.raises(Unsupported, match=message):
        AttentionRollout().attribute(model, case)


OWN_EXPLAINERS = (
    "loo gradient_x_input integrated_gradients attention_rollout mask_gate finite_mask_gate readout_gate "
    "grouped_mask_gate budgeted_loo"
).split()


@pytest.mark.parametrize("name", OWN_EXPLAINERS)
def test_explainers_describe_themselves(name):
    """Label and summary belong to the class: they are no settings, so that kept results stay valid."""
    explainer = builtin_explainers()[name]
    for text in (explainer.label, explainer.summary, explainer.settings):
        assert text
        assert "\n" not in text
    assert not {"label", "summary", "settings"} & {field.name for field in fields(explainer)}
    assert name in registered.builtin_explainers()


def test_settings_name_what_the_user_set():
    assert "16 nodes on the path from mask" in IntegratedGradients(16, baseline="mask").settings
    assert "row 3" in AttentionRollout(row=3).settings
    assert LeaveOneOut(AttentionMask()).settings == "removed: attention mask 0, as in the paper"
    assert BudgetedLeaveOneOut(0.1, correlation=0.9).settings == "10% of full LOO's rows; to a correlation of 0.9"


EVERY_EXPLAINER = [*builtin_explainers().values(), AttnLRP(), CPLRP(), EpsilonLRP()]


@pytest.mark.parametrize("explainer", EVERY_EXPLAINER, ids=lambda e: f"{e.name}-{getattr(e, 'epsilon', '')}")
@pytest.mark.parametrize("failing", [False, True], ids=["success", "failure"])
def test_nothing_is_left_on_the_model(explainer, failing):
    model, _ = control.bert(0, torch.float64, CPU)
    case = control.sentences(0, torch.float64, CPU)
    inputs = case.inputs.clone()
    if failing:
        model.model.classifier = nn.Linear(3, 2, dtype=torch.float64)  # the wrong width: the last layer raises
    before = state_of(model)
    try:
        explainer.attribute(model, case)
        raised = False
    except (RuntimeError, Unsupported):
        raised = True
    assert raised is (failing or explainer.name in ("epsilon_lrp", "deeplift_rescale"))
    assert_same_state(before, state_of(model))
    assert torch.equal(inputs, case.inputs)
    assert not case.inputs.requires_grad


def test_parameters_may_require_grad_or_not():
    model, frozen = control.bert(0, torch.float64, CPU)
    frozen.requires_grad_(False)
    case = control.sentences(0, torch.float64, CPU)
    assert torch.equal(AttnLRP().attribute(model, case), AttnLRP().attribute(frozen, case))


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (torch.zeros(1, 2), r"expected shape \(batch, features\) = \(1, 3\), got float32 \(1, 2\)"),
        (torch.zeros(1, 3, dtype=torch.int64), "expected floating point, got int64"),
        (torch.tensor([[0.0, float("nan"), float("inf")]]), "2 of 3 values are NaN or infinite"),
        (torch.zeros(1, 3, device="meta"), "expected a tensor on cpu, got .* on meta"),
        (torch.zeros(1, 3), "expected the inputs' torch.float64, got float32"),
        ([0.0, 0.0, 0.0], "expected a tensor, got list"),
        (None, "expected a tensor, got NoneType"),
    ],
    ids=["shape", "integers", "nan", "device", "dtype", "list", "none"],
)
def test_invalid_attributions_are_refused(returned, message):
    with pytest.raises(InvalidAttribution, match=message):
        checked_attribution(returned, at(1, 2, 3))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("atnlrp", "did you mean attnlrp"),
        ("collections:Ordereddict", "did you mean OrderedDict"),
        ("collections:OrderedDict", "is no explainer: expected .*attribute.*name"),
        ("faithcheck.explainers.loo.leave_one_out:LeaveOneOut", "built-in explainer's name"),
    ],
)
def test_specs_that_load_no_explainer_are_refused(spec, message):
    with pytest.raises(ValueError, match=message):
        load_explainer(spec)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": torch.zeros(3)}, "inputs must be floating point"),
        ({"inputs": torch.zeros(1, 3, dtype=torch.int64)}, "inputs must be floating point"),
        ({"baseline": torch.zeros(1, 2)}, "baseline must be shaped like inputs"),
        ({"target": torch.zeros(1)}, "target must be int64"),
        ({"special_tokens_mask": torch.zeros(1, 3)}, "special_tokens_mask must be bool"),
    ],
)
def test_a_case_that_does_not_fit_is_refused(change, message):
    whole = {"inputs": torch.zeros(1, 3), "baseline": torch.zeros(1, 3), "target": torch.zeros(1, dtype=torch.int64)}
    with pytest.raises(ValueError, match=message):
        Case(**whole | change)
