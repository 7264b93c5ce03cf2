"""Unmodified `transformers` models: `load` for all of them, and those of text, read at their word embeddings.

A `Classifier` or a `NextToken` is a module from word embeddings ``(batch, tokens, width)`` and an attention mask to
logits, so that an explainer can differentiate it and a token can be removed from it. It also makes the cases: from
texts to `Example`s, from examples to a right-padded `Case`. Relevance that reaches position and type embeddings is
therefore not in an attribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.hub import cached_file

from faithcheck.models.case import Case

if TYPE_CHECKING:
    from faithcheck.models.pretrained.images import ImageClassifier

SENTIMENT = Path(__file__).parent / "sentiment"  # the project's own 12-layer BERT
PADDING_ERROR = 1e-4  # of the largest logit: float32 leaves 1e-6, a model that reads padding is off by far more


class ModelError(ValueError):
    """A model cannot be loaded or read. The message names it, the reason and the way out."""


@dataclass(frozen=True)
class Example:
    """One text, or one image, as its features.

    Attributes:
        features: what the model embeds: token ids int64 ``(n,)``, or patches ``(n, values)``.
        special: ``(n,)`` bool, true at special positions: [CLS] and [SEP], and the one that a decoder is read at.
        names: what to call each feature in a report; tokens of a text.
        truncated: whether the text was cut to the length that the model, or the caller, allows.
    """

    features: Tensor
    special_tokens_mask: Tensor
    names: tuple[str, ...]
    truncated: bool = False

    def __len__(self) -> int:
        return len(self.features)


class TextModel(nn.Module):
    """What text models share: from texts to examples, and from examples to a case.

    Args:
        model: an unmodified `transformers` model with eager attention, in eval mode.
        tokenizer: its tokenizer.
        max_length: the most tokens a text, special ones included; longer texts are cut, and counted by `Example`.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int | None = None
    ) -> None:
        super().__init__()
        self.model, self.tokenizer = model, tokenizer
        # A tokenizer does not cut its special tokens off, and a text should have one token more.
        least, limit = tokenizer.num_special_tokens_to_add() + 1, length_limit(model, tokenizer)
        if max_length is not None and not least <= max_length <= limit:
            raise ModelError(
                f"max length {max_length} is out of range: {type(model).__name__} takes {least} to {limit}"
            )
        self.max_length = max_length or limit

    def encode(self, texts: Sequence[str]) -> list[Example]:
        """Tokenise texts, special tokens added, the longest cut to ``max_length``.

        Raises:
            ModelError: the tokenizer is another model's.
        """
        return [self._example(text) for text in texts]

    def _example(self, text: str) -> Example:
        whole = self.tokenizer(text, truncation=False, verbose=False)["input_ids"]
        cut = self.tokenizer(text, truncation=True, max_length=self.max_length, return_special_tokens_mask=True)
        ids = cut["input_ids"]
        if max(ids, default=0) >= (known := vocabulary(self.model)):
            raise ModelError(f"the tokenizer gives id {max(ids)}, but the model embeds {known}: it is another model's")
        return Example(
            torch.tensor(ids, dtype=torch.int64),
            torch.tensor(cut["special_tokens_mask"], dtype=torch.bool),
            tuple(self.tokenizer.convert_ids_to_tokens(ids)),
            len(whole) > len(ids),
        )

    @torch.no_grad()
    def case(self, examples: Sequence[Example]) -> Case:
        """The case of these examples, padded on the right, the predicted output explained, baseline 0.

        Raises:
            ValueError: no examples, or one without any token.
        """
        if not examples or min(map(len, examples)) == 0:
            raise ValueError("a case needs at least one example, and every example at least one token")
        device = self.model.device
        padded = torch.nn.utils.rnn.pad_sequence
        lengths = torch.tensor([len(example) for example in examples], device=device)
        inputs = padded([self.embed(example.features) for example in examples], batch_first=True)
        special = padded(
            [example.special_tokens_mask for example in examples], batch_first=True, padding_value=True
        ).to(device)
        context = self.forward_arguments(lengths)
        return Case(
            inputs,
            self(inputs, **context).argmax(1),
            torch.zeros_like(inputs),
            special,
            context,
            self.replacements(),
        )

    def forward_arguments(self, lengths: Tensor) -> dict[str, Tensor]:
        """What `forward` takes besides the embeddings, for texts of these lengths, right-padded."""
        positions = torch.arange(int(lengths.max()), device=lengths.device)
        return {"attention_mask": (positions < lengths.unsqueeze(1)).long()}

    def replacements(self) -> dict[str, Tensor]:
        """Embeddings that can stand for a removed token: zero, the vocabulary's mean, [MASK] and [PAD] if there are."""
        tokens = {"mask": self.tokenizer.mask_token_id, "pad": self.tokenizer.pad_token_id}
        known = vocabulary(self.model)  # some tokenizers have a [PAD] that their model does not
        named = {name: self.embed(torch.tensor(i)) for name, i in tokens.items() if i is not None and i < known}
        return {"zero": torch.zeros_like(self._mean), "mean": self._mean, **named}

    @torch.no_grad()
    def embed(self, ids: Tensor) -> Tensor:
        """Word embeddings ``(…, width)`` of token ids ``(…)``, by the model's own module, which may scale them."""
        embeddings: Tensor = self.model.get_input_embeddings()(ids.to(self.model.device))
        return embeddings

    @cached_property
    def _mean(self) -> Tensor:
        # Kept: a large vocabulary takes longer to embed than a short text takes to run.
        return self.embed(torch.arange(vocabulary(self.model))).mean(0)


class Classifier(TextModel):
    """A sequence classifier: embeddings ``(batch, tokens, width)`` to logits ``(batch, classes)``."""

    def forward(self, inputs: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """The logits; ``attention_mask`` ``(batch, tokens)`` is 0 at padding and at removed tokens."""
        logits: Tensor = self.model(inputs_embeds=inputs, attention_mask=attention_mask).logits
        return logits


class NextToken(TextModel):
    """A decoder: embeddings ``(batch, tokens, width)`` to the logits of the next token ``(batch, vocabulary)``.

    A text's last token, at which the output is read, is special as [CLS] is: it stays along a perturbation curve, as a
    row of attention that has nothing to attend to has no meaning, and without it many a text has no special token.
    """

    def encode(self, texts: Sequence[str]) -> list[Example]:
        """See `TextModel.encode`."""
        examples = super().encode(texts)
        for example in examples:
            example.special_tokens_mask[-1:] = True
        return examples

    def forward(self, inputs: Tensor, attention_mask: Tensor, last: Tensor) -> Tensor:
        """The logits at position ``last`` ``(batch,)``, each text's last token, whether removed or not."""
        positions, which = last.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        # Where the model can leave the others out: a large vocabulary's logits at every token fill the memory.
        keep = {"logits_to_keep": positions} if "logits_to_keep" in signature(self.model.forward).parameters else {}
        logits: Tensor = self.model(inputs_embeds=inputs, attention_mask=attention_mask, use_cache=False, **keep).logits
        return (logits if keep else logits[:, positions])[torch.arange(len(which), device=which.device), which]

    def forward_arguments(self, lengths: Tensor) -> dict[str, Tensor]:
        """The attention mask, and the position whose next token is explained."""
        return {**super().forward_arguments(lengths), "last": lengths - 1}


def vocabulary(model: PreTrainedModel) -> int:
    """How many tokens the model embeds."""
    weight: Any = model.get_input_embeddings().weight
    return len(weight)


def length_limit(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """The most tokens that a text can have."""
    limit = getattr(model.config, "max_position_embeddings", None) or tokenizer.model_max_length
    words = model.get_input_embeddings()
    for module in model.modules():
        if (
            isinstance(module, nn.Embedding)
            and module is not words
            and module.num_embeddings == limit
            and module.padding_idx is not None
        ):
            limit -= module.padding_idx + 1  # RoBERTa counts its positions from there
            break
    return min(int(limit), int(tokenizer.model_max_length))


def load(
    name: str | Path = SENTIMENT,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    max_length: int | None = None,
    allow_pickle: bool = False,
) -> TextModel | ImageClassifier:
    """Load a model by local path or hub name, unmodified, with eager attention, in eval mode.

    The architecture that it was saved as says how it is read: ``…ForSequenceClassification`` as a `Classifier`,
    ``…ForCausalLM`` or ``…LMHeadModel`` as a decoder (`NextToken`), ``…ForImageClassification`` as an
    `ImageClassifier`. Remote code is never run; weights stored as pickle are refused unless ``allow_pickle``.

    Args:
        name: a hub name, or a folder with config.json, model.safetensors and a tokenizer, or preprocessor_config.json
            for images.
        device: where to put it.
        dtype: the weights are converted to it, however they are stored.
        max_length: see `TextModel`.
        allow_pickle: also load ``pytorch_model.bin``, through torch's restricted unpickler.

    Raises:
        ModelError: it is not there, has no head of these kinds, does not ignore padding, or cannot mask a token.
    """
    source = str(name)
    options: dict[str, Any] = {"trust_remote_code": False}
    try:
        config = AutoConfig.from_pretrained(source, **options)
        auto = _architecture(source, config)
        if auto is AutoModelForImageClassification:
            prepare: Any = cached_file(source, "preprocessor_config.json")
        else:
            prepare = _tokenizer(source, **options)
        model, loading = auto.from_pretrained(
            source,
            dtype=dtype,
            attn_implementation="eager",
            use_safetensors=None if allow_pickle else True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # said below, by name
            **options,
        )
    except ModelError:
        raise
    except (OSError, ValueError, ImportError, SafetensorError, UnpicklingError) as error:
        raise ModelError(_unloadable(source, error)) from error
    unfit = sorted({*loading["missing_keys"], *(key for key, *_ in loading["mismatched_keys"])})
    if unfit:
        named = ", ".join(unfit[:4]) + (f" and {len(unfit) - 4} more" if len(unfit) > 4 else "")
        raise ModelError(
            f"{source}: no weights, or none of that shape, for {named}: not a trained {type(model).__name__}"
        )
    model = model.to(device).eval()
    if auto is AutoModelForImageClassification:
        return _image_classifier(model, Path(prepare), max_length).eval()
    embedding_model = (NextToken if auto is AutoModelForCausalLM else Classifier)(model, prepare, max_length)
    _check_masking(embedding_model, source)
    return embedding_model.eval()


def _tokenizer(source: str, **options: Any) -> PreTrainedTokenizerBase:
    """The tokenizer; `transformers` makes an empty one up where there is none."""
    tokenizer = AutoTokenizer.from_pretrained(source, **options)
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        raise OSError("there is no tokenizer, or it knows no words")
    return tokenizer


def _architecture(source: str, config: Any) -> Any:
    """The head that the model was saved with, as the `transformers` class that loads it."""
    kinds = {
        ("ForCausalLM", "LMHeadModel"): AutoModelForCausalLM,
        ("ForSequenceClassification",): AutoModelForSequenceClassification,
        ("ForImageClassification",): AutoModelForImageClassification,
    }
    architectures = config.architectures or []
    for endings, auto in kinds.items():
        if any(name.endswith(endings) for name in architectures):
            return auto
    expected = ", ".join(f"…{ending}" for endings in kinds for ending in endings)
    raise ModelError(f"{source}: expected one of {expected}, got {', '.join(architectures) or 'none named'}")


def _image_classifier(model: PreTrainedModel, preparation: Path, max_length: int | None) -> ImageClassifier:
    from faithcheck.models.pretrained.images import ImageClassifier, read_preparation

    if max_length is not None:
        raise ModelError(f"max length {max_length} is out of place: {type(model).__name__} takes images, not texts")
    return ImageClassifier(model, read_preparation(preparation, model.config.num_channels))


def _unloadable(source: str, error: Exception) -> str:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    files = (
        "config.json, model.safetensors and tokenizer.json (or, for images, preprocessor_config.json); weights stored "
        "as pickle are to be saved anew, by save_pretrained, or given to `faithcheck align --allow-pickle`"
    )
    if Path(source).is_dir():
        return f"{source}: cannot be loaded: {reason}. Expected {files}"
    return (
        f"{source}: neither a local folder nor a model that can be downloaded here: {reason}. "
        f"Without network, give the path of a folder with {files}"
    )


@torch.no_grad()
def _check_masking(embedding_model: TextModel, source: str) -> None:
    """Refuse a model whose output padding changes, as its maps would depend on the batch, or masking makes NaN.

    Raises:
        ModelError: it does, or it cannot be read at its word embeddings.
    """
    device = embedding_model.model.device
    inputs = embedding_model.embed(torch.arange(4) % vocabulary(embedding_model.model)).unsqueeze(0)
    three, four = (embedding_model.forward_arguments(torch.tensor(lengths, device=device)) for lengths in ([3], [3, 4]))
    first_masked = {**three, "attention_mask": torch.tensor([[0, 1, 1]], device=device)}
    try:
        alone = embedding_model(inputs[:, :3], **three)
        padded = embedding_model(inputs.expand(2, -1, -1), **four)[:1]
        without_first = embedding_model(inputs[:, :3], **first_masked)
    except Exception as error:  # of the model: its words are kept
        raise ModelError(f"{source}: cannot be read at its word embeddings: {error}") from error
    change, largest = (padded - alone).abs().max(), alone.abs().max()
    if not alone.isfinite().all():
        raise ModelError(f"{source}: its output is not finite in {inputs.dtype}")
    if not change <= max(PADDING_ERROR, 8 * torch.finfo(inputs.dtype).eps) * largest:
        raise ModelError(
            f"{source}: padding changes its output by {change / largest:.1%}, so that its maps depend on the batch"
        )
    if not without_first.isfinite().all():
        # Llama's softmax runs in float32, where the lowest float64 is −∞: a row with nothing to attend to becomes NaN.
        raise ModelError(f"{source}: its output is NaN in {inputs.dtype} where the first token is masked: use float32")
