"""One model of `transformers` run in several ways: with a cache, after a prefix, in chunks, on two devices.

Why AttnLRP and CP-LRP stay the same, at ε = 0:

1. *A cache.* In a causal model the keys and values of a prefix do not depend on later tokens. Computed first or
   together with them, they are the same linear maps; concatenation passes the gradient on. A constant prefix carries no
   relevance, whether it runs beside the features or was cached.
2. *Packing.* The texts of a row mask each other. A masked logit has weight 0: neither its value nor its logit gets
   relevance.
3. *Chunks.* A feed-forward block works token by token: splitting and concatenating are rearrangements.
4. *A device map*, as ``device_map="auto"`` makes it: accelerate brings the weights of a layer before each of its
   modules runs (`faithcheck.models.offloaded_weights`). Every map stays the same, bit for bit: operations and operands
   are the same, and autograd holds the weights that it needs until the backward pass. Explainers must read weights only
   while their module runs.
"""

import importlib.util
import logging
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from faithcheck.models.architectures.architecture import WIDTH, BaseModel
from faithcheck.models.architectures.base_models import ARCHITECTURES
from faithcheck.models.architectures.embedding_model import KeepFloat64
from faithcheck.models.expectation import Expectation, expect, expect_lrp
from faithcheck.models.networks.derived import Derived
from faithcheck.models.pair import MissingLibrary, invariance_pair
from faithcheck.models.transform import Requirement, function_preserving_transform, is_architecture

DECODER = is_architecture("a decoder", lambda architecture: architecture.decoder)
CACHED = "keys and values of a prefix are the same maps, cached or not, and a concatenation passes the gradient on"


class Cached(Derived):
    """A decoder that runs all tokens but the last two first, and these two with the cached keys and values."""

    def forward(self, inputs: Tensor) -> Tensor:
        model, first = self.model.model, inputs.shape[1] - 2
        with KeepFloat64():
            past = model(inputs_embeds=inputs[:, :first], use_cache=True).past_key_values
            logits: Tensor = model(inputs_embeds=inputs[:, first:], past_key_values=past, use_cache=True).logits
        return logits[:, -1]


@function_preserving_transform(
    "execution.cached",
    why="in a causal model the keys and values of a prefix do not depend on what follows",
    lrp=CACHED,
    requires=[DECODER],
)
def cached(embedding_model: nn.Module) -> nn.Module:
    return Cached(embedding_model)


class AfterPrefix(nn.Module):
    """A decoder that runs a constant prefix ``(1, prefix, width)`` with each example, or with ``reuse`` once."""

    def __init__(self, embedding_model: Any, prefix: Tensor, reuse: bool) -> None:
        super().__init__()
        self.embedding_model, self.reuse = embedding_model, reuse
        self.prefix = nn.Buffer(prefix)

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.reuse:
            prefix = self.prefix.expand(len(inputs), -1, -1)
            return self.embedding_model(torch.cat([prefix, inputs], 1))
        model = self.embedding_model.model
        with KeepFloat64():
            with torch.no_grad():
                past = model(inputs_embeds=self.prefix, use_cache=True).past_key_values
            past.batch_repeat_interleave(len(inputs))
            logits = model(inputs_embeds=inputs, past_key_values=past, use_cache=True).logits
        return logits[:, -1]


def register_prefix(base_model: BaseModel) -> None:
    def build(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
        f = base_model.model(seed, dtype, device)
        prefix = torch.randn(1, 3, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        models = (AfterPrefix(model, prefix.to(device, dtype), i == 1) for i, model in enumerate((f, deepcopy(f))))
        first, second = (model.eval() for model in models)
        return first, second

    invariance_pair(
        f"execution.prefix_{base_model.name}",
        build,
        base_model.case,
        expect_lrp("the keys and values of a constant prefix are constants, with or without gradients"),
        {
            ("invariance", "attention_rollout"): Expectation(
                "UNCLAIMED",
                "with a prefix there are more positions than features, and with a cache more keys than queries",
            )
        },
        why="in a causal model the keys and values of a prefix do not depend on what follows",
    )


for architecture in ARCHITECTURES.values():
    if architecture.decoder:
        register_prefix(architecture.base_model)


class Packed(Derived):
    """A decoder that runs two texts in one row, where a mask keeps them apart and each has positions of its own."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Embeddings ``(batch, tokens, width)`` to the logits after each text's last token."""
        batch, n, width = inputs.shape
        rows = torch.cat([inputs, inputs[batch - batch % 2 :]]).reshape(-1, 2 * n, width)
        text, position = (
            f(torch.arange(2 * n, device=inputs.device), n) for f in (torch.floor_divide, torch.remainder)
        )
        seen = (text.unsqueeze(1) == text).tril().expand(len(rows), 1, -1, -1)
        mask = torch.zeros(seen.shape).to(inputs).masked_fill(~seen, torch.finfo(inputs.dtype).min)
        positions = position.expand(len(rows), -1)
        with KeepFloat64():
            model = self.model.model
            logits: Tensor = model(inputs_embeds=rows, attention_mask=mask, position_ids=positions).logits
        return logits[:, [n - 1, 2 * n - 1]].flatten(0, 1)[:batch]


@function_preserving_transform(
    "execution.packed",
    why="a masked token has attention weight 0, no other operation combines tokens, and position ids are explicit",
    lrp="the attention weights of another text are 0, so that neither its values nor its logits get relevance",
    requires=[DECODER],
)
def packed(embedding_model: nn.Module) -> nn.Module:
    return Packed(embedding_model)


def chunked_layers(embedding_model: nn.Module) -> list[Any]:
    return [module for module in embedding_model.modules() if hasattr(module, "chunk_size_feed_forward")]


@function_preserving_transform(
    "execution.chunked_feed_forward",
    why="the feed-forward block works token by token",
    lrp="splitting and concatenating tokens are rearrangements, and every rule of the block works token by token",
    requires=[Requirement("layers with a chunk size of their feed-forward block", lambda m: bool(chunked_layers(m)))],
    too_slow_on=("bert_trained",),
)
def chunked_feed_forward(embedding_model: nn.Module) -> nn.Module:
    for layer in chunked_layers(embedding_model):
        layer.chunk_size_feed_forward = 1
    return embedding_model


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
    device = str(model.device)  # from a CPU to the "disk", with the weights in memory: no file is written
    where = {"": device, **dict.fromkeys(offloaded, "disk" if device == "cpu" else "cpu")}
    log = logging.getLogger(accelerate.big_modeling.__name__)
    disabled, log.disabled = log.disabled, True  # it warns that weights are on meta
    try:
        accelerate.dispatch_model(model, where, main_device=device, state_dict=kept, offload_index={})
    finally:
        log.disabled = disabled
    return embedding_model
