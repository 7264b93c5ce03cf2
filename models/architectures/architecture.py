"""What the file of a family needs: the types `Architecture` and `BaseModel`, and functions that make base models."""

from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from faithcheck.models.architectures.embedding_model import EmbeddingModel, PatchModel
from faithcheck.models.architectures.transformer_layer import TransformerLayer
from faithcheck.models.case import Case
from faithcheck.models.data.images import load_images
from faithcheck.models.data.texts import load_texts
from faithcheck.models.pair import BuildModel, MakeCase, seeded
from faithcheck.models.pretrained.example import Example
from faithcheck.models.pretrained.folder import ModelError
from faithcheck.models.pretrained.image_classifier import ImageClassifier
from faithcheck.models.pretrained.image_preparation import Preparation
from faithcheck.models.pretrained.loading import load
from faithcheck.models.pretrained.text_model import TextModel

TOKENS, WIDTH, HEADS, CLASSES = 6, 16, 4, 3
EXAMPLES = 3
PADDING = 3  # tokens; the pairs of `faithcheck.models.pairs.batching_and_padding` pad texts by so many
SMALL_SIZES = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS, "vocab_size": 16}
SPECIAL_TOKENS = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3}


@dataclass(frozen=True)
class BaseModel:
    """A model that transforms are applied to, in eval mode, with eager attention, called on embeddings."""

    name: str  # the last part of the names of its pairs
    model: BuildModel
    case: MakeCase  # examples of one length, baseline 0
    variant: bool = False  # only the transforms that name it are applied to it
    blueprint: BuildModel | None = None  # of the same structure, faster to build: shows which transforms apply


@dataclass(frozen=True)
class Architecture:
    """A family of `transformers` models."""

    name: str  # the ``model_type`` of its configuration, and the name of its small base model
    small: Callable[..., PreTrainedModel]  # of few random weights; the arguments override its configuration
    layers: Callable[[Any], Iterator[TransformerLayer]]  # of a model, first to last
    decoder: bool = False  # predicts the next token; else it classifies
    images: bool = False  # takes images; else texts
    further_base_models: tuple[BaseModel, ...] = ()

    @cached_property
    def base_model(self) -> BaseModel:
        """The small model of random weights."""
        return BaseModel(self.name, random_weights(self.small), random_features(PATCH if self.images else WIDTH))

    @property
    def base_models(self) -> tuple[BaseModel, ...]:
        """All base models of the family."""
        return (self.base_model, *self.further_base_models)


# --- small models of random weights ----------------------------------------------------------------------------------

PATCH = 4  # values: 2 × 2 grey pixels


@torch.no_grad()
def spread(model: nn.Module) -> None:
    """Add noise to every weight, including biases and norms, so that no softmax or activation is nearly linear."""
    for weight in model.parameters():
        weight.add_(torch.randn_like(weight), alpha=0.2)


def random_weights(make: Callable[[], PreTrainedModel]) -> BuildModel:
    """A base model's ``model``: the result of ``make``, with random weights by seed and eager attention."""

    def build(seed: int, dtype: torch.dtype, device: torch.device) -> nn.Module:
        with seeded(seed):
            model = make()
            spread(model)
        model.set_attn_implementation("eager")
        images = model.main_input_name == "pixel_values"
        unprepared = Preparation(None, None, "nearest", (0.0,), (1.0,))
        embedding_model = PatchModel(model, unprepared) if images else EmbeddingModel(model)
        return embedding_model.to(device, dtype).eval()

    return build


def random_features(width: int = WIDTH) -> MakeCase:
    """A base model's ``case``: random features, the first and the last special, a random target in each example."""

    def case(seed: int, dtype: torch.dtype, device: torch.device) -> Case:
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randn(EXAMPLES, TOKENS, width, dtype=torch.float64, generator=generator).to(device, dtype)
        special = torch.zeros(EXAMPLES, TOKENS, dtype=torch.bool, device=device)
        special[:, [0, -1]] = True
        target = torch.randint(CLASSES, (EXAMPLES,), generator=generator).to(device)
        return Case(inputs, target, torch.zeros_like(inputs), special)

    return case


# --- trained models --------------------------------------------------------------------------------------------------


@lru_cache(maxsize=2)
def _load(path: str) -> TextModel | ImageClassifier:
    return load(path)


def trained(name: str, path: str, blueprint: BuildModel | None = None) -> BaseModel:
    """A trained model (a folder or hub name) as a base model; building it raises `ModelError` if it cannot be loaded.

    A text model's case is three of the project's own sentences of equal length: the first three of the shortest length
    that three sentences have. So the case has no padding, which has pairs of its own. Sentences are cut so that the
    model has positions left for these pairs (`ModelError` if it has none). An image classifier's case is three digits.
    """

    def model(seed: int, dtype: torch.dtype, device: torch.device) -> nn.Module:
        loaded = deepcopy(_load(path))
        if isinstance(loaded, TextModel):
            return EmbeddingModel(loaded.model).to(device, dtype).eval()
        return PatchModel(loaded.model, loaded.preparation).to(device, dtype).eval()

    def case(seed: int, dtype: torch.dtype, device: torch.device) -> Case:
        loaded = _load(path)
        if isinstance(loaded, TextModel):
            encoded = _sentences(loaded, path)
            examples, names = loaded.case(encoded), tuple(example.names for example in encoded)
        else:
            examples, names = loaded.case(loaded.encode(load_images().images[:EXAMPLES])), ()
        inputs = examples.inputs.to(device, dtype)
        special = None if examples.special_tokens_mask is None else examples.special_tokens_mask.to(device)
        return Case(inputs, examples.target.to(device), torch.zeros_like(inputs), special, feature_names=names)

    return BaseModel(name, model, case, blueprint=blueprint)


@lru_cache(maxsize=2)  # each pair of a trained model asks for them
def _sentences(loaded: TextModel, path: str) -> list[Example]:
    limit, least = loaded.max_length - PADDING, loaded.tokenizer.num_special_tokens_to_add() + 1
    if limit < least:
        raise ModelError(
            f"{path}: takes {loaded.max_length} tokens at most, and its pairs need {least + PADDING}, {PADDING} of "
            "them for padding: give a checkpoint that takes more"
        )
    texts = load_texts("own").texts
    reads_pairs = getattr(loaded, "reads_pairs", False)
    items = [(str(a), str(b)) for a, b in zip(texts[::2], texts[1::2], strict=False)] if reads_pairs else texts
    examples = type(loaded)(loaded.model, loaded.tokenizer, limit).encode(items)
    counts = Counter(len(example) for example in examples)
    shortest = min(length for length, count in counts.items() if count >= EXAMPLES)
    return [example for example in examples if len(example) == shortest][:EXAMPLES]
