"""A small model of any class, random weights, called on embeddings or patches, and a case for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from faithcheck.models.architectures.architecture import spread
from faithcheck.models.architectures.embedding_model import KeepFloat64
from faithcheck.models.case import Case
from faithcheck.tests.helpers.installed.classes import ModelClass
from faithcheck.tests.helpers.installed.own_sizes import OTHER_INPUTS
from faithcheck.tests.helpers.installed.shrinking import CLASSES, IMAGE, PATCH, SPECIAL_TOKENS, small_configuration

EXAMPLES, TOKENS, CHANNELS = 2, 8, 3
LAST = torch.full((EXAMPLES,), TOKENS - 1)
PADDING, START, END = (SPECIAL_TOKENS[name] for name in ("pad_token_id", "bos_token_id", "eos_token_id"))
TEXT = 5  # the id of any word


class NotBuilt(Exception):
    """There is no small model of this class; the message says why."""


class Embedded(nn.Module):
    """A `transformers` text model, called on the embeddings of its (encoder's) tokens."""

    def __init__(self, model: Any, classifies: bool, by_ids: bool) -> None:
        super().__init__()
        self.model, self.classifies, self.by_ids = model, classifies, by_ids
        self.arguments = frozenset(signature(model.forward).parameters)
        self.options: dict[str, Any] = {"use_cache": False}

    def forward(self, inputs: Tensor, attention_mask: Tensor | None = None, last: Tensor | None = None) -> Tensor:
        """Embeddings ``(batch, tokens, width)`` to logits ``(batch, outputs)``."""
        arguments: dict[str, Any] = {"attention_mask": attention_mask, **self.options}
        if self.model.config.is_encoder_decoder and not self.classifies:
            arguments["decoder_input_ids"] = torch.tensor([[START, TEXT]], device=inputs.device).expand(len(inputs), -1)
        arguments = {name: value for name, value in arguments.items() if name in self.arguments}
        inputs = inputs.clone()  # some models write to their inputs
        with KeepFloat64(), float64_by_default():
            if self.by_ids:
                logits = self.run_on_ids(inputs, last, arguments)
            else:
                logits = self.model(inputs_embeds=inputs, **arguments).logits
        if logits.dim() == 2 or self.model.config.is_encoder_decoder or last is None or logits.shape[1] == 1:
            return logits if logits.dim() == 2 else logits[:, -1]
        return logits[torch.arange(len(last), device=last.device), last]

    def run_on_ids(self, inputs: Tensor, last: Tensor | None, arguments: dict[str, Any]) -> Tensor:
        """The logits of a text of any words, with its embeddings replaced by the inputs.

        A model may put embeddings of its own before those of the text.
        """
        batch, n = inputs.shape[:2]
        ends = torch.full((batch, 1), n - 1, device=inputs.device) if last is None else last.unsqueeze(1)
        places = torch.arange(n, device=inputs.device)
        ids = torch.full((batch, n), TEXT, device=inputs.device)
        ids = ids.masked_fill(places == ends, END).masked_fill(places > ends, PADDING)
        replaced: list[Tensor] = []

        def replace(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            before = output.shape[1] - n if output.dim() == 3 else -1
            if replaced or before < 0 or output.shape[::2] != inputs.shape[::2]:
                return output
            replaced.append(inputs)
            return torch.cat([output[:, :before], inputs], 1) if before else inputs

        handle = embedding_layer(self.model).register_forward_hook(replace)
        try:
            logits: Tensor = self.model(input_ids=ids, **arguments).logits
        finally:
            handle.remove()
        if not replaced:
            raise NotBuilt("its embedding layer makes nothing of the shape (batch, tokens, width)")
        return logits


@contextmanager
def float64_by_default() -> Iterator[None]:
    """Within the block torch makes tensors in float64: XGLM and ProphetNet make masks of its least number."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class Patches(nn.Module):
    """An image classifier called on square patches, ``(batch, patches, values)``, counted row by row.

    A model that takes images of any shape is called on the patches themselves, and on the shape.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.takes_patches = "spatial_shapes" in signature(model.forward).parameters

    def forward(self, inputs: Tensor) -> Tensor:
        """The logits, ``(batch, classes)``: the first output, which PP-LCNet calls last hidden state."""
        n = IMAGE // PATCH
        arguments = {"pixel_values": inputs}
        if self.takes_patches:
            shapes = torch.full((len(inputs), 2), n, device=inputs.device)
            mask = torch.ones(inputs.shape[:2], dtype=torch.int64, device=inputs.device)
            arguments |= {"spatial_shapes": shapes, "pixel_attention_mask": mask}
        else:
            grid = inputs.reshape(-1, n, n, CHANNELS, PATCH, PATCH)
            arguments["pixel_values"] = grid.permute(0, 3, 1, 4, 2, 5).reshape(-1, CHANNELS, IMAGE, IMAGE)
        with KeepFloat64():
            logits: Tensor = self.model(**arguments)[0]
        return logits


def small_model(kind: ModelClass, seed: int = 0) -> tuple[nn.Module, Case]:
    """A small model in float64 and eval mode with eager attention, random weights by seed, and its case."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = random_weights(kind)
        of_images = kind.task == "image_classification" and "pixel_values" in signature(model.forward).parameters
        return images(model) if of_images else texts(model, kind)  # ImageGPT reads the ids of colours, as a text


def random_weights(kind: ModelClass) -> Any:
    """The model, of the configuration of its model_type, or of the one within it that its class takes."""
    model_class = getattr(transformers, kind.name)
    if kind.model_type in OTHER_INPUTS:
        raise NotBuilt(f"it does not run on a text or an image alone: it takes {OTHER_INPUTS[kind.model_type]}")
    options: dict[str, Any] = {"num_labels": CLASSES} if "classification" in kind.task else {}
    configuration = small_configuration(kind.model_type, **options)
    if not isinstance(configuration, model_class.config_class):
        parts = [getattr(configuration, name) for name in configuration.sub_configs]
        configuration = next((part for part in parts if isinstance(part, model_class.config_class)), configuration)
    if kind.task == "causal_lm" and hasattr(configuration, "is_decoder"):
        configuration.is_decoder = True
    model = model_class._from_config(configuration, attn_implementation="eager", experts_implementation="eager")
    spread(model)
    return model.to(torch.float64).eval()


def texts(model: Any, kind: ModelClass) -> tuple[nn.Module, Case]:
    """The model called on embeddings in the first way that works, and a case of random embeddings."""
    classifies, failures = kind.task == "sequence_classification", []
    inputs = torch.randn(EXAMPLES, TOKENS, embedding_layer(model).weight.shape[1]).double()
    target = torch.randint(CLASSES, (EXAMPLES,))
    for by_ids in (classifies, not classifies):
        embedded = Embedded(model, classifies, by_ids).eval()
        case = Case(inputs, target, torch.zeros_like(inputs), forward_arguments={"last": LAST})
        try:
            case = with_mask(embedded, case)
            require_dependence(embedded, case)
            return embedded, case
        except Exception as error:
            failures.append(error)
    raise failures[0]


def with_mask(model: Embedded, case: Case) -> Case:
    """The case with an attention mask of ones, unless the model takes none or a 0 in it changes nothing."""
    mask = torch.ones(EXAMPLES, TOKENS, dtype=torch.int64)
    masked = replace(case, forward_arguments={**case.forward_arguments, "attention_mask": mask})
    halved = {**masked.forward_arguments, "attention_mask": mask * (torch.arange(TOKENS) % 2 == 0)}
    with torch.no_grad():
        without = replace(masked, forward_arguments=halved).run(model)
        return case if torch.allclose(masked.run(model), without) else masked


def images(model: Any) -> tuple[nn.Module, Case]:
    """The model called on patches, and a case of random pixels."""
    inputs = torch.randn(EXAMPLES, (IMAGE // PATCH) ** 2, CHANNELS * PATCH**2).double()
    case = Case(inputs, torch.randint(CLASSES, (EXAMPLES,)), torch.zeros_like(inputs))
    patches = Patches(model).eval()
    measure_batch_statistics(patches, case)
    require_dependence(patches, case)
    return patches, case


@torch.no_grad()
def measure_batch_statistics(model: nn.Module, case: Case) -> None:
    """Run the model once, and let every BatchNorm keep the statistics of this case.

    With the statistics of a new BatchNorm, a deep model shrinks its inputs' part until biases are all that is left. It
    runs without gradients: LeViT keeps the position biases of its first forward pass, and a graph of them with it.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
        norm.train()
    case.run(model)
    for norm in norms:
        norm.eval()


@torch.no_grad()
def require_dependence(model: nn.Module, case: Case) -> None:
    """Refuse a model that its inputs change nothing of."""
    outputs = case.run(model)
    if not outputs.isfinite().all():
        raise NotBuilt("in float64 its outputs are not finite")
    if torch.equal(outputs, replace(case, inputs=case.baseline).run(model)):
        raise NotBuilt("its output does not depend on its inputs")


def embedding_layer(model: Any) -> Any:
    """The layer that embeds the text; of a model that does not name it, the first one."""
    encoder = model.get_encoder() if model.config.is_encoder_decoder else model
    try:
        layer = encoder.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        layer = None
    named = isinstance(layer, nn.Module) and hasattr(layer, "weight")
    return layer if named else next(module for module in encoder.modules() if isinstance(module, nn.Embedding))
