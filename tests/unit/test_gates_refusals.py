"""Models and settings that the gates refuse, because their attribution would be wrong without a warning."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from faithcheck.explainers import AttentionRollout, LeaveOneOut, Unsupported
from faithcheck.explainers.gates.attention_gates import output_without
from faithcheck.explainers.gates.finite_mask_gate import FiniteMaskGate
from faithcheck.explainers.gates.grouped_mask_gate import GroupedMaskGate
from faithcheck.explainers.gates.mask_gate import MaskGate
from faithcheck.explainers.gates.readout_gate import ReadoutGate
from faithcheck.explainers.loo.budget import BudgetedLeaveOneOut
from faithcheck.explainers.loo.removal import AttentionMask
from faithcheck.models.case import Case
from faithcheck.tests.helpers.attention_models import OneLayer, case_of, embedding_model, tokens

GATES = [MaskGate(), FiniteMaskGate(), GroupedMaskGate(2), ReadoutGate()]
every_gate = pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.name)


class Pooled(OneLayer):
    """Attention, then attention pooling of its outputs: the softmax of the pooling has no gate."""

    def forward(self, inputs, attention_mask=None):
        weights, values = self.attention(inputs, attention_mask)
        states = (weights @ values).transpose(1, 2).flatten(2)
        share = torch.softmax(states.sum(-1), -1)
        return (share.unsqueeze(1) @ states).squeeze(1) @ self.head


class Mixture(OneLayer):
    """Attention with a residual, and one of its experts for each token, by top-k, or by the largest weight.

    A router has logits ``(batch · tokens, experts)``, or with ``axes=3`` ``(batch, tokens, experts)``.
    """

    def __init__(self, experts, choose="after", axes=2):
        super().__init__()
        self.choose, self.axes = choose, axes
        numbers = torch.Generator().manual_seed(1)
        self.router = torch.randn(6, experts, dtype=torch.float64, generator=numbers)
        self.experts = torch.randn(experts, 6, dtype=torch.float64, generator=numbers)
        self.values = torch.randn(3, 6, dtype=torch.float64, generator=numbers)

    def forward(self, inputs, attention_mask=None):
        weights, values = self.attention(inputs, attention_mask)
        states = inputs + (weights @ values).squeeze(1) @ self.values
        tokens = states.flatten(0, 3 - self.axes)
        logits = tokens @ self.router
        if self.choose == "after":
            weight, chosen = torch.softmax(logits, -1).topk(2, -1)
        elif self.choose == "largest":
            weight, chosen = torch.softmax(logits, -1).max(-1, keepdim=True)
        else:
            values, chosen = torch.topk(logits, len(self.experts))
            weight = torch.softmax(values, -1)
        mixed = tokens + (weight.unsqueeze(-1) * torch.tanh(self.experts[chosen] * tokens.unsqueeze(-2))).sum(-2)
        return mixed.view_as(states)[:, 0, :2]


class ByKeyword(OneLayer):
    """The same operations by keyword."""

    def attention(self, x, attention_mask=None):
        q, k, v = (torch.matmul(x.unsqueeze(1), other=weight) for weight in (self.query, self.key, self.value))
        return torch.softmax(input=q @ k.transpose(-1, -2), dim=-1), v


class ResidualAttention(nn.Module):
    """A layer of attention with a residual, which may make its causal mask or its positions itself."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.query, self.key, self.value = (nn.Linear(6, 6, dtype=torch.float64) for _ in range(3))

    def forward(self, x):
        rows = x.shape[1]
        if self.kind == "positions":
            x = x + torch.linspace(0, 1, rows, dtype=x.dtype).unsqueeze(-1)
        logits = self.query(x) @ self.key(x).transpose(-1, -2)
        if self.kind == "causal":
            mask = torch.ones(8, 8, dtype=torch.bool).tril()[:rows, : logits.shape[-1]]
            logits = logits.masked_fill(~mask, torch.finfo(logits.dtype).min)
        return x + torch.softmax(logits, -1) @ self.value(x)


class Stack(nn.Module):
    """Two such layers, read at the last token."""

    def __init__(self, kind):
        super().__init__()
        self.layers = nn.ModuleList(ResidualAttention(kind) for _ in range(2))
        self.norm = nn.Identity() if kind != "mixing" else Mixing()
        self.head = nn.Linear(6, 2, dtype=torch.float64)

    def forward(self, inputs, attention_mask=None):
        for layer in self.layers:
            inputs = layer(inputs)
        return self.head(self.norm(inputs)[:, -1])


class Mixing(nn.Module):
    """Keeps the shape of the states and mixes positions."""

    def forward(self, x):
        return x - x.mean(1, keepdim=True)


READERS = [*GATES[1:3], AttentionRollout()]


@pytest.mark.parametrize("gate", READERS, ids=lambda gate: gate.name)
def test_a_softmax_beside_the_attention_is_refused(gate):
    with pytest.raises(Unsupported, match=r"softmax in the model \(Pooled\): over the features beside .*pooling"):
        gate.attribute(Pooled(), tokens())


@pytest.mark.parametrize("choose", ["after", "before", "largest"])
@pytest.mark.parametrize("gate", GATES[:3], ids=lambda gate: gate.name)
def test_a_router_with_as_many_experts_as_tokens_is_no_attention(gate, choose):
    """With padding the text has six positions, and no router is as long as they are."""
    model, case = Mixture(5, choose), tokens(6)
    padding = torch.arange(6) == 5
    mask = {"attention_mask": (~padding).long().expand(2, -1)}
    padded = replace(case, special_tokens_mask=padding.expand(2, -1), forward_arguments=mask)
    inputs, baseline = case.inputs[:, :5], case.baseline[:, :5]
    alone = Case(inputs, case.target, baseline, forward_arguments={"attention_mask": mask["attention_mask"][:, :5]})
    torch.testing.assert_close(gate.attribute(model, alone), gate.attribute(model, padded)[:, :5])


@pytest.mark.parametrize("gate", READERS, ids=lambda gate: gate.name)
def test_a_router_that_was_taken_for_attention_is_refused(gate):
    assert gate.attribute(Mixture(4, axes=3), tokens()).any()
    with pytest.raises(Unsupported, match=r"topk in the model \(Mixture\): chooses among .* as many experts"):
        gate.attribute(Mixture(5, axes=3), tokens())


def test_output_without_refuses_a_softmax_beside_the_attention():
    case = tokens()
    with pytest.raises(Unsupported, match="pooling"):
        output_without(Pooled(), case, torch.zeros_like(case.unpadded))


@pytest.mark.parametrize("gate", GATES[:3], ids=lambda gate: gate.name)
def test_operations_called_by_keyword_are_recognised(gate):
    torch.testing.assert_close(gate.attribute(ByKeyword(), tokens()), gate.attribute(OneLayer(), tokens()))


@pytest.mark.parametrize("kind", ["causal", "positions", "mixing"])
def test_layers_that_depend_on_the_place_of_a_row_are_refused(kind):
    torch.manual_seed(0)
    with pytest.raises(Unsupported, match=r"run by itself|5 positions"):
        ReadoutGate().attribute(Stack(kind), tokens())


def test_layers_that_do_not_depend_on_the_place_of_a_row_are_explained():
    torch.manual_seed(0)
    model, case = Stack("plain"), tokens()
    assert torch.isfinite(ReadoutGate().attribute(model, case)).all()


def test_a_model_read_at_all_positions_is_refused_in_bfloat16_too():
    class Mean(Stack):
        def forward(self, inputs, attention_mask=None):
            for layer in self.layers:
                inputs = layer(inputs)
            return self.head(inputs.mean(1))

    torch.manual_seed(0)
    model, case = Mean("plain").bfloat16(), tokens()
    low = case.__class__(
        case.inputs.bfloat16(), case.target, case.baseline.bfloat16(), forward_arguments=case.forward_arguments
    )
    with pytest.raises(Unsupported, match="5 positions"):
        ReadoutGate().attribute(model, low)


@pytest.mark.parametrize("arguments", [{"groups": 2.5}, {"groups": 1}, {"groups": "4"}, {"max_tokens": 0}])
def test_grouped_gate_refuses_bad_arguments(arguments):
    with pytest.raises(ValueError, match=r"groups|max_tokens"):
        GroupedMaskGate(**arguments)


def test_budget_refuses_the_name_of_a_removal():
    with pytest.raises(ValueError, match=r"AttentionMask\(\)"):
        BudgetedLeaveOneOut(removal="attention_mask")


@pytest.mark.parametrize("target", [{"error": 0.0}, {"correlation": 0.999999999}])
def test_a_full_budget_is_exact_with_a_target_too(target):
    model, case = embedding_model("bert"), case_of("bert")
    attribution, report = BudgetedLeaveOneOut(1.0, **target).attribute_with_report(model, case)
    torch.testing.assert_close(attribution, LeaveOneOut(AttentionMask()).attribute(model, case), rtol=0, atol=1e-12)
    assert report.exact.equal(case.unpadded)
    assert (report.rows == case.unpadded.sum(1) + 2).all()


def test_a_target_error_gives_up_the_claim_of_scale():
    assert "scale" in BudgetedLeaveOneOut(correlation=0.9).claims
    assert "scale" not in BudgetedLeaveOneOut(error=0.1).claims
