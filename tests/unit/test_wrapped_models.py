"""Models in wrappers, as DistributedDataParallel's and PEFT's: the same maps as without, from every explainer."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from faithcheck.explainers import Unsupported
from faithcheck.explainers.registry import builtin_explainers
from faithcheck.models import registered_pairs

PAIR = registered_pairs()["control.bert"]
SEED = 0, torch.float64, torch.device("cpu")


class Parallel(nn.Module):
    """As DistributedDataParallel: the model under another name, called with whatever arguments."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *inputs, **arguments):
        return self.module(*inputs, **arguments)


class Adapted(nn.Module):
    """As a PeftModel: it has all attributes of the model that it wraps."""

    def __init__(self, model):
        super().__init__()
        self.base_model = model

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.base_model, name)

    def forward(self, *inputs, **arguments):
        return self.base_model(*inputs, **arguments)


class LowRank(nn.Module):
    """As PEFT's lora.Linear: the layer in a layer, dropout, adapters in dictionaries, the weight as a property."""

    def __init__(self, base):
        super().__init__()
        self.base_layer = base
        self.lora_dropout = nn.ModuleDict({"default": nn.Dropout(0.1)})
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base.in_features, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, base.out_features, bias=False)})

    @property
    def weight(self):
        return self.base_layer.weight

    def forward(self, x, *arguments, **options):
        low = self.lora_A["default"](self.lora_dropout["default"](x))
        return self.base_layer(x) + self.lora_B["default"](low) * 2.0

    def merged(self):
        linear = deepcopy(self.base_layer)
        with torch.no_grad():
            linear.weight += 2.0 * self.lora_B["default"].weight @ self.lora_A["default"].weight
        return linear


def replace_layers(model, replace):
    for module in list(model.modules()):
        for name, layer in list(module.named_children()):
            if name in ("query", "value"):
                setattr(module, name, replace(layer))
    return model.to(torch.float64).eval()


def inside(wrapper):
    """The model of transformers is wrapped, within faithcheck's own."""

    def wrapped(model):
        model = deepcopy(model)
        model.model = wrapper(model.model)
        return model

    return wrapped


WRAPPED = {
    "parallel": Parallel,
    "parallel inside": inside(Parallel),
    "DataParallel": nn.DataParallel,
    "adapted": Adapted,
    "adapted inside": inside(Adapted),
    "twice": lambda model: Parallel(Adapted(model)),
}


def same_maps(model, other, case):
    """Compare all built-in explainers; how many of them gave a map."""
    found = 0
    for explainer in builtin_explainers().values():
        try:
            expected = explainer.attribute(model, case)
        except Unsupported:
            with pytest.raises(Unsupported):
                explainer.attribute(other, case)
            continue
        torch.testing.assert_close(explainer.attribute(other, case), expected, msg=explainer.name)
        found += 1
    return found


@pytest.mark.parametrize("wrapper", WRAPPED.values(), ids=WRAPPED)
def test_a_wrapper_changes_no_map(wrapper):
    model, _ = PAIR.build(*SEED)
    assert same_maps(model, wrapper(model).eval(), PAIR.case(*SEED)) >= 12


def test_low_rank_layers_have_the_maps_of_merged_ones():
    model, merged = PAIR.build(*SEED)
    torch.manual_seed(1)
    replace_layers(model, LowRank)
    layers = iter([module.merged() for module in model.modules() if isinstance(module, LowRank)])
    replace_layers(merged, lambda layer: next(layers))
    case = PAIR.case(*SEED)
    torch.testing.assert_close(case.run(model), case.run(merged))
    assert same_maps(merged, inside(Adapted)(model), case) >= 12
