"""A model against one that accelerate dispatched by a device map: the last layers have no weights until they run.

`transformers` does the same with ``device_map="auto"`` where a model does not fit the device: accelerate replaces the
``forward`` of each module, brings the weights of a layer that is offloaded before each of its modules runs, and puts
tensors on the device ``meta`` in their place after it.

Why every map stays the same, bit for bit: the operations and their operands are the same. Autograd holds the weights
that it needs until the backward pass. Nothing may be read from the weights but while their module runs: PA-LRP and the
conservation ledger know constants by the names of weights, and look these up at that time.

On a CPU the offloaded part is one on the "disk", whose weights are in memory, so that no file is written; on a GPU it
is on the "cpu".
"""

from __future__ import annotations

import importlib.util
import logging
from typing import Any

from torch import nn

from faithcheck.models.expectation import expect
from faithcheck.models.pair import MissingLibrary
from faithcheck.models.transform import Requirement, function_preserving_transform

SAME = "the same operations on the same operands: autograd holds the weights that were brought until the backward pass"


def lists_of_layers(embedding_model: Any) -> list[tuple[str, nn.ModuleList]]:
    """The lists of at least two layers, with their names in the model of `transformers`."""
    named = embedding_model.model.named_modules()
    return [(name, module) for name, module in named if isinstance(module, nn.ModuleList) and len(module) > 1]


@function_preserving_transform(
    "execution.device_map",
    why="a layer gives the same values wherever its weights lie between its calls",
    cite="accelerate, big model inference",
    lrp=SAME,
    requires=[Requirement("at least two layers", lambda embedding_model: bool(lists_of_layers(embedding_model)))],
    too_slow_on=("bert_trained",),
    expected={
        **expect("invariance", "blockwise_lrp", SAME),
        **expect("invariance", "pa_lrp", f"{SAME}; position embeddings are named while their module runs"),
        **expect(
            "invariance",
            "attention_rollout mask_gate finite_mask_gate grouped_mask_gate readout_gate budgeted_loo",
            "attention weights, their gradients and values come from forward passes, in which a layer has its weights",
        ),
    },
)
def device_map(embedding_model: nn.Module) -> nn.Module:
    """Dispatch the model: the first layer and all else stay on the device, the other layers are offloaded.

    Raises:
        MissingLibrary: accelerate is not installed.
    """
    if importlib.util.find_spec("accelerate") is None:
        raise MissingLibrary("a model with a device map needs accelerate, which is missing: pip install accelerate")
    import accelerate

    model: Any = embedding_model.model
    name, layers = lists_of_layers(embedding_model)[0]
    offloaded = [f"{name}.{i}" for i in range(1, len(layers))]
    inside = tuple(f"{layer}." for layer in offloaded)
    kept = {key: weight.cpu() for key, weight in model.state_dict().items() if key.startswith(inside)}
    device = str(model.device)
    where = {"": device, **dict.fromkeys(offloaded, "disk" if device == "cpu" else "cpu")}
    log = logging.getLogger(accelerate.big_modeling.__name__)
    disabled, log.disabled = log.disabled, True  # it warns that weights are on meta
    try:
        accelerate.dispatch_model(model, where, main_device=device, state_dict=kept, offload_index={})
    finally:
        log.disabled = disabled
    return embedding_model
