"""Gates on the attention mask of models that use it elsewhere than in self-attention: closed forms and oracles."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from faithcheck.explainers import LeaveOneOut, Unsupported
from faithcheck.explainers.gates import gated_mask, mask_gate
from faithcheck.explainers.gates.followed_mask import FollowedMask
from faithcheck.explainers.gates.gated_mask import GatedKeys, every_second_feature, gated_outputs, mask_derivatives
from faithcheck.explainers.gates.mask_gate import MaskGate
from faithcheck.explainers.loo.removal import AttentionMask
from faithcheck.models import Case, select_target
from faithcheck.tests.helpers.attention_models import TEXT_MODELS, OneLayer, case_of, embedding_model, tokens
from faithcheck.tests.helpers.installed.classes import installed_classes
from faithcheck.tests.helpers.installed.small_model import small_model

# Round-off of a few layers in float64, of outputs of about 1.
EXACT = {"rtol": 1e-9, "atol": 1e-11}
NAMES = [
    "BartForConditionalGeneration",  # keys of cross-attention
    "BartForSequenceClassification",  # its decoder has as many tokens as the encoder
    "MambaForCausalLM",  # a product, which it leaves out if the mask has no 0
    "GptOssForCausalLM",  # a sink beside the keys
    "GraniteSWAForCausalLM",  # a logsumexp
    "DeepseekV32ForCausalLM",  # the keys with the largest scores
    "EuroBertForSequenceClassification",  # a mean, divided in place
    "XLNetLMHeadModel",  # a removed token keeps its own row
    "XLMWithLMHeadModel",  # a product in place
    "TrOCRForCausalLM",  # heads and examples in one axis
]
KINDS = {kind.name: kind for kind in installed_classes()}


@pytest.fixture(scope="module", params=NAMES)
def installed(request):
    """A small model of an installed class, and its case."""
    return small_model(KINDS[request.param])


def test_a_gate_of_0_is_leave_one_out(installed):
    model, case = installed
    loo = LeaveOneOut(AttentionMask()).attribute(model, case)
    assert loo.abs().max() > 1e-3, "Leave-One-Out is almost 0: the test would prove nothing"
    removed = every_second_feature(case)
    with torch.no_grad():
        whole = select_target(case.run(model), case.target)
        for i in range(case.shape[1]):
            gates = torch.ones(case.shape, dtype=torch.float64)
            gates[:, i] = 0
            without = gated_outputs(model, case, gates, removed)[0]
            torch.testing.assert_close(whole - without, loo[:, i], **EXACT)


def test_the_mask_gate_is_the_limit_of_output_differences(installed):
    model, case = installed
    attribution, h = MaskGate().attribute(model, case), 1e-5
    assert attribution.abs().max() > 1e-3
    direction = torch.randn(case.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        up, down = (
            gated_outputs(model, case, 1 + sign * h * direction, every_second_feature(case))[0] for sign in (1, -1)
        )
    # A central difference errs by h²/6 of the third derivative, and by round-off over h.
    torch.testing.assert_close((attribution * direction).sum(1), (up - down) / (2 * h), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", TEXT_MODELS)
def test_where_one_pass_is_enough_two_ways_agree(name, side, monkeypatch):
    model, case = embedding_model(name), case_of(name, side)
    expected = mask_derivatives(model, case) * case.unpadded
    monkeypatch.setattr(mask_gate, "mask_derivatives", None)  # it is not called
    torch.testing.assert_close(MaskGate().attribute(model, case), expected, **EXACT)


# --- closed forms ----------------------------------------------------------------------------------------------------


class Weighted(nn.Module):
    """Σ_i m_i w·x_i with the mask m, over the sum of the mask if ``mean``."""

    def __init__(self, mean=False, asks=False):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
        self.mean, self.asks = mean, asks

    def forward(self, inputs, attention_mask=None):
        if attention_mask is None or (self.asks and torch.all(attention_mask == 1)):
            total = inputs.sum(1)
        else:
            total = (inputs * attention_mask[:, :, None].to(inputs)).sum(1)
        return total @ self.weight / (attention_mask.sum(1, keepdim=True).clamp(min=1) if self.mean else 1)


def contributions(model, case):
    """w·x_i, ``(batch, features)``."""
    return (case.inputs @ model.weight).gather(2, case.target[:, None, None].expand(*case.shape, 1)).squeeze(2).detach()


@pytest.mark.parametrize("asks", [False, True], ids=["always", "if the mask has a 0"])
def test_the_gate_of_a_sum_by_the_mask_is_leave_one_out(asks):
    model, case = Weighted(asks=asks), tokens()
    attribution = MaskGate().attribute(model, case)
    torch.testing.assert_close(attribution, contributions(model, case), **EXACT)
    torch.testing.assert_close(attribution, LeaveOneOut().attribute(model, case), **EXACT)


class Hybrid(nn.Module):
    """The sum of an attention and of a sum by the mask, which leaves the mask out if it has no 0."""

    def __init__(self):
        super().__init__()
        self.attention, self.weighted = OneLayer(), Weighted(asks=True)

    def forward(self, inputs, attention_mask=None):
        return self.attention(inputs, attention_mask) + self.weighted(inputs, attention_mask)


def test_the_gate_of_a_sum_of_models_is_the_sum_of_their_gates():
    model, case = Hybrid(), tokens()
    expected = MaskGate().attribute(model.attention, case) + contributions(model.weighted, case)
    torch.testing.assert_close(MaskGate().attribute(model, case), expected, **EXACT)


def test_the_gate_of_a_mean_by_the_mask():
    """f = Σ m_i a_i / Σ m_i, so ∂f/∂m_i = (a_i − f) / n at m = 1."""
    model, case = Weighted(mean=True), tokens()
    each = contributions(model, case)
    torch.testing.assert_close(MaskGate().attribute(model, case), (each - each.mean(1, keepdim=True)) / 5, **EXACT)


def test_features_of_padding_get_0_and_change_nothing():
    model, case = Weighted(mean=True), tokens()
    mask = torch.ones(2, 5, dtype=torch.int64)
    mask[0, 3:] = 0
    padded = replace(case, forward_arguments={"attention_mask": mask})
    each = contributions(model, case)[0, :3]
    expected = torch.cat([(each - each.mean()) / 3, torch.zeros(2, dtype=torch.float64)])
    torch.testing.assert_close(MaskGate().attribute(model, padded)[0], expected, **EXACT)


class Pooled(OneLayer):
    """Attention, then attention pooling of its outputs, which reads the mask or does not."""

    def __init__(self, masked):
        super().__init__()
        self.masked = masked

    def forward(self, inputs, attention_mask=None):
        weights, values = self.attention(inputs, attention_mask)
        states = (weights @ values).transpose(1, 2).flatten(2)
        logits = states.sum(-1)
        if self.masked:
            logits = logits.masked_fill(attention_mask == 0, torch.finfo(logits.dtype).min)
        return (torch.softmax(logits, -1).unsqueeze(1) @ states).squeeze(1) @ self.head


def test_a_pooling_has_gates_if_the_mask_removes_features_from_it(monkeypatch):
    case, gated = tokens(), []
    original = GatedKeys.log_gates_of
    monkeypatch.setattr(GatedKeys, "log_gates_of", lambda *of: gated.append(original(*of)) or gated[-1])
    for masked in (True, False):
        gated.clear()
        with torch.no_grad():
            gated_outputs(Pooled(masked), case, torch.ones(2, 5).double(), every_second_feature(case))
        assert [gates is not None for gates in gated] == [True, masked]
        MaskGate().attribute(Pooled(masked), case)  # it is not refused


# --- what is refused -------------------------------------------------------------------------------------------------


def test_positions_by_the_mask_are_refused_by_name():
    with pytest.raises(Unsupported, match=r"attention_mask in \S+embed_positions \(OPTLearnedPositionalEmbedding\): "):
        MaskGate().attribute(*small_model(KINDS["OPTForCausalLM"]))


@pytest.mark.parametrize("name", ["MambaForCausalLM", "BartForConditionalGeneration"])
def test_gates_that_miss_a_part_of_the_removal_are_refused(name, monkeypatch):
    monkeypatch.setattr(FollowedMask, "_counterpart", lambda *of: None)
    monkeypatch.setattr(GatedKeys, "log_gates_of", lambda *of: None)
    with pytest.raises(
        Unsupported, match=r"attention_mask in model\.\S+ \(\w+\): it removes features in a way that has"
    ):
        MaskGate().attribute(*small_model(KINDS[name]))


def test_a_model_that_does_not_read_its_mask_is_refused():
    class Sum(nn.Module):
        def forward(self, inputs, attention_mask=None):
            return inputs.sum(1)

    with pytest.raises(Unsupported, match=r"attention_mask in the model \(Sum\): the explained output does not depend"):
        MaskGate().attribute(Sum(), tokens())


def test_a_text_of_one_token_is_refused_where_two_passes_are_needed():
    with pytest.raises(Unsupported, match="one token"):
        MaskGate().attribute(Weighted(), tokens(1))


# --- which features, which keys --------------------------------------------------------------------------------------


def test_every_second_feature():
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 1, 1], [0, 1, 1, 1, 0], [1, 1, 0, 0, 0]])
    inputs = torch.zeros(4, 5, 1)
    case = Case(inputs, torch.zeros(4, dtype=torch.int64), inputs, forward_arguments={"attention_mask": mask})
    expected = [[0, 1, 0, 1, 0], [0, 0, 1, 0, 1], [0, 0, 1, 0, 0], [0, 1, 0, 0, 0]]
    assert every_second_feature(case).int().tolist() == expected
    assert not every_second_feature(case.select(torch.tensor([3]))).logical_xor(torch.tensor([[0, 1, 0, 0, 0]])).any()


@pytest.mark.parametrize(("before", "after"), [(0, 0), (0, 1), (2, 0), (1, 3)])
def test_the_keys_of_the_features_are_found_among_others(before, after):
    case = tokens()
    removed = every_second_feature(case)
    logits = torch.zeros(4, 3, before + 5 + after)
    logits[2:, :, before : before + 5].masked_fill_(removed.unsqueeze(1), torch.finfo(logits.dtype).min)
    twice = case.select(torch.tensor([0, 1, 0, 1]))
    keys = GatedKeys(twice, torch.ones(2, 5), removed)
    assert keys.first_key(logits.softmax(-1) > 0) == before
    assert keys.first_key(torch.ones(4, 3, before + 5 + after).bool()) is None


def test_the_difference_that_is_refused_is_far_above_round_off():
    a = torch.ones(3, dtype=torch.float64)
    assert not gated_mask.differ(a, a + 1e-12)
    assert gated_mask.differ(a, a + 1e-6)
