"""Compiled modules, flex attention and gradient checkpointing are refused by name; afterwards all run as before."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from faithcheck.explainers.builtin import builtin_explainers
from faithcheck.explainers.lrp.attnlrp import AttnLRP
from faithcheck.explainers.protocol import Unsupported, attribution_of
from faithcheck.explainers.refused_modules import RECOMPUTED
from faithcheck.models.architectures.base_models import BASE_MODELS
from faithcheck.models.case import Case

WHERE = (0, torch.float64, torch.device("cpu"))
RUN_THE_MODEL = {"gradient_x_input", "integrated_gradients"}  # torch compiles flex attention for them: 20 seconds


def hidden_layer():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).double().eval()


def case():
    inputs = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return Case(inputs, torch.zeros(3, dtype=torch.int64), torch.zeros_like(inputs))


class Recomputing(nn.Module):
    """Runs a layer by gradient checkpointing."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, inputs):
        return checkpoint(self.layer, inputs, use_reentrant=False)


def test_a_compiled_model_is_refused_and_the_original_is_explained():
    model = hidden_layer()
    compiled = torch.compile(model, backend="eager")
    with pytest.raises(Unsupported, match=r"the model \(OptimizedModule\) is compiled by torch.compile.*_orig_mod"):
        AttnLRP().attribute(compiled, case())
    assert torch.equal(AttnLRP().attribute(compiled._orig_mod, case()), AttnLRP().attribute(model, case()))


def test_a_part_that_is_compiled_in_place_is_named():
    model = hidden_layer()
    model[1].compile(backend="eager")
    with pytest.raises(Unsupported, match=r"1 \(Tanh\) is compiled by torch.compile"):
        AttnLRP().attribute(model, case())


@pytest.mark.filterwarnings("ignore")  # of torch, which compiles flex attention before it says that it has no gradient
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in RUN_THE_MODEL else ())
        for name in sorted(builtin_explainers().keys() - {"loo"})
    ],
)
def test_flex_attention_of_a_model_of_transformers_is_refused_with_the_way_out(name):
    model, features = BASE_MODELS["llama"].model(*WHERE), BASE_MODELS["llama"].case(*WHERE)
    model.model.set_attn_implementation("flex_attention")
    way_out = r"model \(LlamaForCausalLM\) computes flex attention.*attn_implementation='sdpa' or 'eager'"
    with pytest.raises(Unsupported, match=way_out):
        attribution_of(builtin_explainers()[name], model, features)


def test_gradient_checkpointing_is_refused_even_where_torch_would_not_see_a_difference():
    model = nn.Sequential(Recomputing(hidden_layer()))
    with pytest.raises(Unsupported, match=r"0 \(Recomputing\): gradient checkpointing"):
        AttnLRP().attribute(model, case())
    torch.autograd.grad(model(case().inputs.requires_grad_()).sum(), model.parameters())  # it runs again afterwards


def test_a_model_of_transformers_with_gradient_checkpointing_is_explained_in_eval_mode():
    """transformers recomputes in train mode alone, and explainers run a model in eval mode."""
    model, features = BASE_MODELS["gpt2"].model(*WHERE), BASE_MODELS["gpt2"].case(*WHERE)
    plain = AttnLRP().attribute(model, features)
    model.model.activation_checkpointing_enable()
    model.train()
    assert torch.equal(AttnLRP().attribute(model, features), plain)
    assert model.training


def test_an_error_of_the_model_itself_is_not_taken_for_a_refusal():
    class Failing(nn.Module):
        def forward(self, inputs):
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory") as caught:
        AttnLRP().attribute(Failing(), case())
    assert RECOMPUTED not in str(caught.value)
