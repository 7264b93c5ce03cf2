"""Models that return ``logits.float()``: a map has the dtype of the inputs."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import MambaConfig, MambaForCausalLM

from faithcheck.explainers import LeaveOneOut, builtin_explainers
from faithcheck.explainers.loo.hierarchical import HierarchicalLeaveOneOut
from faithcheck.explainers.loo.removal import Deletion
from faithcheck.explainers.protocol import attribution_of
from faithcheck.models.case import Case, select_target
from faithcheck.tests.helpers.attention_models import case_of, embedding_model

DTYPES = [torch.bfloat16, torch.float16, torch.float64]
NO_RULE = {"deeplift_rescale", "epsilon_lrp"}  # for the products of attention
EXPLAINERS = [
    *(one for name, one in builtin_explainers().items() if name not in NO_RULE),
    LeaveOneOut(Deletion()),
    HierarchicalLeaveOneOut(by="half", budget=1.0, proxy=builtin_explainers()["finite_mask_gate"]),
]


class Upcast(nn.Module):
    """A model that returns its outputs in float32."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, **arguments):
        return self.model(x, **arguments).float()


@pytest.mark.filterwarnings("ignore:Integrated Gradients with:UserWarning")  # in bfloat16, by its round-off
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("explainer", EXPLAINERS, ids=lambda explainer: explainer.name)
def test_a_map_has_the_dtype_of_what_was_explained(explainer, dtype):
    model, case = Upcast(embedding_model("bert")), case_of("bert").to(dtype)
    halves = (torch.arange(case.shape[1]) // 2).expand(case.shape)
    special = torch.arange(case.shape[1]).expand(case.shape) == 0  # always kept, so that no row is empty
    case = replace(case, segments={"half": halves}, special_tokens_mask=special)
    try:
        attribution = attribution_of(explainer, model.to(dtype), case)
    finally:
        model.to(torch.float64)
    assert attribution.dtype == dtype
    assert attribution.abs().max() > 0


@pytest.mark.parametrize("dtype", DTYPES[::2], ids=str)
@torch.no_grad()
def test_loo_of_mamba_is_the_difference_of_its_logits(dtype):
    torch.manual_seed(0)
    config = MambaConfig(vocab_size=7, hidden_size=16, num_hidden_layers=2, state_size=4)
    mamba = MambaForCausalLM(config).eval().to(dtype)

    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.mamba = mamba

        def forward(self, x):
            return self.mamba(inputs_embeds=x, use_cache=False).logits[:, -1]

    x = torch.randn(1, 4, 16).to(dtype)
    case, model = Case(x, torch.tensor([3]), torch.zeros_like(x)), Last().eval()
    found = attribution_of(LeaveOneOut(), model, case)
    assert model(x).dtype == torch.float32
    assert found.dtype == dtype
    for i in range(4):
        without = x.clone()
        without[:, i] = 0
        change = select_target(model(x), case.target) - select_target(model(without), case.target)
        torch.testing.assert_close(found[:, i], change.to(dtype), rtol=2**-7, atol=2**-7 * float(model(x).abs().max()))
