"""Unmodified `transformers` models that pairs are made from, and where their weights are.

Small ones of random weights for five architectures, the project's own trained BERT, and any checkpoint. Each is read at
its token embeddings (a ViT at its patches), so that it maps ``(batch, features, width)`` to ``(batch, outputs)``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from faithcheck.models.case import Case
from faithcheck.models.data.images import load_images
from faithcheck.models.data.texts import load_texts
from faithcheck.models.pair import MakeCase
from faithcheck.models.pretrained import SENTIMENT
from faithcheck.models.pretrained.errors import ModelError
from faithcheck.models.pretrained.example import Example
from faithcheck.models.pretrained.image_classifier import ImageClassifier
from faithcheck.models.pretrained.image_preparation import Preparation
from faithcheck.models.pretrained.loading import load
from faithcheck.models.pretrained.text_model import TextModel

Build = Callable[[int, torch.dtype, torch.device], nn.Module]
TOKENS, WIDTH, HEADS, CLASSES = 6, 16, 4, 3
EXAMPLES = 3
PADDING = 3  # tokens; what pads a text, see `faithcheck.models.pairs.batching`, needs positions for them
SMALL = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS, "vocab_size": 16}
SPECIAL = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3}


class KeepFloat64(TorchFunctionMode):
    """Float64 stays float64: Llama's RMSNorm and softmax and ViT's softmax would compute in float32.

    There two sums of 1e-16 difference can round to numbers 1e-7 apart, more than any pair may differ by.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if args and isinstance(args[0], Tensor) and args[0].dtype == torch.float64:
            if func is Tensor.float or (func is Tensor.to and args[1:] == (torch.float32,)):
                return args[0]
            if kwargs.get("dtype") == torch.float32:
                kwargs = {**kwargs, "dtype": torch.float64}
        return func(*args, **kwargs)


class EmbeddingModel(nn.Module):
    """A `transformers` model of text, read at its token embeddings: a decoder gives the logits after the last token."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Embeddings ``(batch, tokens, width)`` to logits ``(batch, outputs)``."""
        with KeepFloat64():
            logits: Tensor = self.model(inputs_embeds=inputs, attention_mask=attention_mask).logits
        return logits if logits.dim() == 2 else logits[:, -1]


class PatchModel(ImageClassifier):
    """A `transformers` image classifier, read at its patches."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Patches ``(batch, patches, values)`` to logits ``(batch, classes)``."""
        with KeepFloat64():
            return super().forward(inputs)


@dataclass(frozen=True)
class BaseModel:
    """A model that pairs are made from.

    Attributes:
        name: what the names of its pairs end in; begins with its ``model_type``, which an underscore may follow.
        model: ``model(seed, dtype, device)``, eager attention, eval mode.
        case: ``case(seed, dtype, device)``, the examples explained, all of one length, baseline 0.
    """

    name: str
    model: Build
    case: MakeCase


def bert(**options: Any) -> PreTrainedModel:
    """A small `BertForSequenceClassification`; ``options`` of its configuration go before ours, here and below."""
    sizes: dict[str, Any] = {**SMALL, "intermediate_size": 24, "max_position_embeddings": 32, "num_labels": CLASSES}
    return transformers.BertForSequenceClassification(transformers.BertConfig(**sizes | options))


def roberta(**options: Any) -> PreTrainedModel:
    """A small `RobertaForSequenceClassification`."""
    sizes: dict[str, Any] = {**SMALL, **SPECIAL, "intermediate_size": 24, "max_position_embeddings": 34}
    config = transformers.RobertaConfig(**sizes | {"num_labels": CLASSES} | options)
    return transformers.RobertaForSequenceClassification(config)


def gpt2(**options: Any) -> PreTrainedModel:
    """A small `GPT2LMHeadModel`: causal, pre-LayerNorm, fused query, key and value, GELU in its tanh form."""
    sizes: dict[str, Any] = {"n_embd": WIDTH, "n_layer": 2, "n_head": HEADS, "n_positions": 32, "vocab_size": 16}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**SPECIAL | sizes | {"use_cache": False} | options))


def llama(**options: Any) -> PreTrainedModel:
    """A small `LlamaForCausalLM`: RMSNorm, rotary positions, two heads of keys and values for four queries, SwiGLU."""
    sizes: dict[str, Any] = {**SMALL, **SPECIAL, "num_key_value_heads": 2, "intermediate_size": 24}
    config = transformers.LlamaConfig(**sizes | {"max_position_embeddings": 32, "use_cache": False} | options)
    return transformers.LlamaForCausalLM(config)


def vit(**options: Any) -> PreTrainedModel:
    """A small `ViTForImageClassification`: pre-LayerNorm, a class token, 2 × 3 patches of 2 × 2 grey pixels."""
    sizes: dict[str, Any] = {key: SMALL[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
    shape = {"image_size": (4, 6), "patch_size": 2, "num_channels": 1, "intermediate_size": 24, "num_labels": CLASSES}
    return transformers.ViTForImageClassification(transformers.ViTConfig(**sizes | shape | options))


@torch.no_grad()
def spread(model: nn.Module) -> None:
    """Move every weight, biases and norms too, so far that softmax and activations are well away from linear."""
    for weight in model.parameters():
        weight.add_(torch.randn_like(weight), alpha=0.2)


def random_weights(make: Callable[[], PreTrainedModel]) -> Build:
    """The model's ``build``: random weights by seed, eager attention, read at its features."""

    def build(seed: int, dtype: torch.dtype, device: torch.device) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = make()
            spread(model)
        model.set_attn_implementation("eager")
        images = isinstance(model, transformers.ViTForImageClassification)
        plain = Preparation(None, None, "nearest", (0.0,), (1.0,))
        embedding_model = PatchModel(model, plain) if images else EmbeddingModel(model)
        return embedding_model.to(device, dtype).eval()

    return build


def random_features(width: int = WIDTH) -> MakeCase:
    """Random features, the first and the last special, each example with a random target."""

    def case(seed: int, dtype: torch.dtype, device: torch.device) -> Case:
        numbers = torch.Generator().manual_seed(seed)
        inputs = torch.randn(EXAMPLES, TOKENS, width, dtype=torch.float64, generator=numbers).to(device, dtype)
        special = torch.zeros(EXAMPLES, TOKENS, dtype=torch.bool, device=device)
        special[:, [0, -1]] = True
        target = torch.randint(CLASSES, (EXAMPLES,), generator=numbers).to(device)
        return Case(inputs, target, torch.zeros_like(inputs), special)

    return case


@lru_cache(maxsize=2)
def _reader(path: str) -> TextModel | ImageClassifier:
    return load(path)


def trained(name: str, path: str) -> BaseModel:
    """A trained model as a base model, given as `faithcheck.models.pretrained.loading.load` takes it.

    Its case is three of the project's own sentences, the first that are equally long, the shortest such length, so that
    there is no padding (which is a pair of its own), cut where the model would have no positions left for padding; for
    an image classifier, three digits.

    Raises:
        ModelError: from ``load``, when the model is built; or, with the case, it takes too few tokens to be padded.
    """

    def model(seed: int, dtype: torch.dtype, device: torch.device) -> nn.Module:
        embedding_model = deepcopy(_reader(path))
        base_model = (
            EmbeddingModel(embedding_model.model)
            if isinstance(embedding_model, TextModel)
            else PatchModel(embedding_model.model, embedding_model.preparation)
        )
        return base_model.to(device, dtype).eval()

    def case(seed: int, dtype: torch.dtype, device: torch.device) -> Case:
        embedding_model = _reader(path)
        if isinstance(embedding_model, TextModel):
            found = embedding_model.case(_sentences(embedding_model, path))
        else:
            found = embedding_model.case(embedding_model.encode(load_images().images[:EXAMPLES]))
        inputs = found.inputs.to(device, dtype)
        special = None if found.special_tokens_mask is None else found.special_tokens_mask.to(device)
        return Case(inputs, found.target.to(device), torch.zeros_like(inputs), special)

    return BaseModel(name, model, case)


def _sentences(embedding_model: TextModel, path: str) -> list[Example]:
    room, least = embedding_model.max_length - PADDING, embedding_model.tokenizer.num_special_tokens_to_add() + 1
    if room < least:
        raise ModelError(
            f"{path}: takes {embedding_model.max_length} tokens at most, and its pairs need {least + PADDING}, {PADDING} of "
            "them for padding: give a checkpoint that takes more"
        )
    examples = type(embedding_model)(embedding_model.model, embedding_model.tokenizer, room).encode(
        load_texts("own").texts
    )
    counts = Counter(len(example) for example in examples)
    shortest = min(length for length, count in counts.items() if count >= EXAMPLES)
    return [example for example in examples if len(example) == shortest][:EXAMPLES]


BASE_MODELS = {
    base_model.name: base_model
    for base_model in (
        BaseModel("bert", random_weights(bert), random_features()),
        BaseModel("bert_relu", random_weights(lambda: bert(hidden_act="relu")), random_features()),
        trained("bert_trained", str(SENTIMENT)),
        BaseModel("roberta", random_weights(roberta), random_features()),
        BaseModel("gpt2", random_weights(gpt2), random_features()),
        BaseModel("llama", random_weights(llama), random_features()),
        BaseModel("vit", random_weights(vit), random_features(4)),
    )
}
ARCHITECTURES = ("bert", "bert_trained", "roberta", "gpt2", "llama", "vit")
"""The base models of whatever does not need a special one."""


# --- where the weights are -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Linear:
    """A linear map's weights as views of the model's own, so that what is written to them changes the model.

    Attributes:
        weight: ``(outputs, inputs)``.
        bias: ``(outputs,)``, or None.
    """

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True)
class Layer:
    """One Transformer layer.

    Attributes:
        module: the layer.
        attention: its attention module, which holds ``scaling``, the factor of its logits.
        query, key, value, output: the attention's maps; a head owns consecutive rows of the first three and columns
            of the last.
        heads: of queries.
        key_value_heads: of keys and values.
        up: the maps into the feed-forward block's hidden neurons: one, or SwiGLU's gate and up.
        down: the map out of them.
        norms: where a norm precedes nothing but linear maps: the norm with these maps. In post-LayerNorm models that is
            the last one; the residual takes the output of the others too.
        rotary: whether positions rotate queries and keys.
    """

    module: nn.Module
    attention: Any
    query: Linear
    key: Linear
    value: Linear
    output: Linear
    heads: int
    key_value_heads: int
    up: tuple[Linear, ...]
    down: Linear
    norms: tuple[tuple[Any, tuple[Linear, ...]], ...] = ()
    rotary: bool = False


@torch.no_grad()
def linear(module: Any) -> Linear:
    """The views of a `torch.nn.Linear` or of a `Conv1D`, which stores its weight transposed."""
    weight, bias = module.weight.detach(), None if module.bias is None else module.bias.detach()
    return Linear(weight.T if isinstance(module, Conv1D) else weight, bias)


def as_module(weights: Linear) -> nn.Linear:
    """A linear map of its own with these weights."""
    outputs, inputs = weights.weight.shape
    made = nn.Linear(inputs, outputs, weights.bias is not None, device="meta")  # draws no weights, which go now
    made.weight = nn.Parameter(weights.weight.clone())
    if weights.bias is not None:
        made.bias = nn.Parameter(weights.bias.clone())
    return made


def thirds(fused: Linear) -> tuple[Linear, Linear, Linear]:
    """Query, key and value of a fused map."""
    assert fused.bias is not None
    query, key, value = (Linear(w, b) for w, b in zip(fused.weight.chunk(3), fused.bias.chunk(3), strict=True))
    return query, key, value


def layers(embedding_model: nn.Module) -> Iterator[Layer]:
    """The layers of a base model's model, first to last.

    Raises:
        ValueError: an architecture whose parts are not known here.
    """
    model: Any = embedding_model.model
    config = model.config
    heads = config.num_attention_heads
    kind = config.model_type
    if kind in ("bert", "roberta"):
        for layer in getattr(model, kind).encoder.layer:
            attention = layer.attention.self
            maps = (attention.query, attention.key, attention.value, layer.attention.output.dense)
            query, key, value, output = map(linear, maps)
            up, down = linear(layer.intermediate.dense), linear(layer.output.dense)
            last = layer is getattr(model, kind).encoder.layer[-1]
            head = model.bert.pooler if kind == "bert" else model.classifier
            behind = ((layer.output.LayerNorm, (linear(head.dense),)),) if last else ()
            yield Layer(layer, attention, query, key, value, output, heads, heads, (up,), down, behind)
    elif kind == "vit":
        for layer in model.vit.layers:
            attention = layer.attention
            maps = (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
            query, key, value, output = map(linear, maps)
            up, down = linear(layer.mlp.fc1), linear(layer.mlp.fc2)
            norms = ((layer.layernorm_before, (query, key, value)), (layer.layernorm_after, (up,)))
            yield Layer(layer, attention, query, key, value, output, heads, heads, (up,), down, norms)
    elif kind == "gpt2":
        for layer in model.transformer.h:
            query, key, value = thirds(linear(layer.attn.c_attn))
            output, up, down = linear(layer.attn.c_proj), linear(layer.mlp.c_fc), linear(layer.mlp.c_proj)
            norms = ((layer.ln_1, (query, key, value)), (layer.ln_2, (up,)))
            yield Layer(layer, layer.attn, query, key, value, output, heads, heads, (up,), down, norms)
    elif kind == "llama":
        for layer in model.model.layers:
            attention = layer.self_attn
            maps = (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
            query, key, value, output = map(linear, maps)
            gated, down = (linear(layer.mlp.gate_proj), linear(layer.mlp.up_proj)), linear(layer.mlp.down_proj)
            before = ((layer.input_layernorm, (query, key, value)), (layer.post_attention_layernorm, gated))
            shared = config.num_key_value_heads
            yield Layer(layer, attention, query, key, value, output, heads, shared, gated, down, before, rotary=True)
    else:
        raise ValueError(f"the parts of {kind!r} are not known here: expected bert, roberta, gpt2, llama or vit")
