"""Unmodified `transformers` models of text, read at their word embeddings.

A `Classifier` or a `NextToken` is a module from word embeddings ``(batch, tokens, width)`` and an attention mask to
logits, so that an explainer can differentiate it and a token can be removed from it. It also makes the cases: from
texts to `Example`s, from examples to a right-padded `Case`. Relevance that reaches position and type embeddings is
therefore not in an attribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from faithcheck.models.case import Case

SENTIMENT = Path(__file__).parent / "sentiment"  # the project's own 12-layer BERT
PADDING_ERROR = 1e-3  # of the largest logit, in float32; a model that reads padding is off by far more


class ModelError(ValueError):
    """A model cannot be loaded or read. The message names it, the reason and the way out."""


@dataclass(frozen=True)
class Example:
    """One text, or one image, as its features.

    Attributes:
        features: what the model embeds: token ids int64 ``(n,)``, or patches ``(n, values)``.
        special: ``(n,)`` bool, true at special positions such as [CLS] and [SEP].
        names: what to call each feature in a report; tokens of a text.
        truncated: whether the text was cut to the length that the model, or the caller, allows.
    """

    features: Tensor
    special: Tensor
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
        limit = length_limit(model, tokenizer)
        if max_length is not None and not 0 < max_length <= limit:
            raise ModelError(f"max length {max_length} is out of range: {type(model).__name__} takes 1 to {limit}")
        self.max_length = max_length or limit

    def encode(self, texts: Sequence[str]) -> list[Example]:
        """Tokenise texts, special tokens added, the longest cut to ``max_length``."""
        return [self._example(text) for text in texts]

    def _example(self, text: str) -> Example:
        whole = self.tokenizer(text, truncation=False, verbose=False)["input_ids"]
        cut = self.tokenizer(text, truncation=True, max_length=self.max_length, return_special_tokens_mask=True)
        ids = cut["input_ids"]
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
        embed, device = self.model.get_input_embeddings(), self.model.device
        padded = torch.nn.utils.rnn.pad_sequence
        lengths = torch.tensor([len(example) for example in examples], device=device)
        inputs = padded([embed(example.features.to(device)) for example in examples], batch_first=True)
        special = padded([example.special for example in examples], batch_first=True, padding_value=True).to(device)
        context = self.context(lengths)
        return Case(
            inputs,
            self(inputs, **context).argmax(1),
            torch.zeros_like(inputs),
            special,
            context,
            self.references(),
        )

    def context(self, lengths: Tensor) -> dict[str, Tensor]:
        """What `forward` takes besides the embeddings, for texts of these lengths, right-padded."""
        positions = torch.arange(int(lengths.max()), device=lengths.device)
        return {"attention_mask": (positions < lengths.unsqueeze(1)).long()}

    def references(self) -> dict[str, Tensor]:
        """Embeddings that can stand for a removed token: zero, the vocabulary's mean, [MASK] and [PAD] if there are."""
        table = self.model.get_input_embeddings().weight.detach()
        tokens = {"mask": self.tokenizer.mask_token_id, "pad": self.tokenizer.pad_token_id}
        named = {name: table[token] for name, token in tokens.items() if token is not None}
        return {"zero": torch.zeros_like(table[0]), "mean": table.mean(0), **named}


class Classifier(TextModel):
    """A sequence classifier: embeddings ``(batch, tokens, width)`` to logits ``(batch, classes)``."""

    def forward(self, inputs: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """The logits; ``attention_mask`` ``(batch, tokens)`` is 0 at padding and at removed tokens."""
        logits: Tensor = self.model(inputs_embeds=inputs, attention_mask=attention_mask).logits
        return logits


class NextToken(TextModel):
    """A decoder: embeddings ``(batch, tokens, width)`` to the logits of the next token ``(batch, vocabulary)``."""

    def forward(self, inputs: Tensor, attention_mask: Tensor, last: Tensor) -> Tensor:
        """The logits at position ``last`` ``(batch,)``, each text's last token, whether removed or not."""
        logits: Tensor = self.model(inputs_embeds=inputs, attention_mask=attention_mask, use_cache=False).logits
        return logits[torch.arange(len(logits), device=logits.device), last]

    def context(self, lengths: Tensor) -> dict[str, Tensor]:
        """The attention mask, and the position whose next token is explained."""
        return {**super().context(lengths), "last": lengths - 1}


def length_limit(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """The most tokens that a text can have."""
    limit = getattr(model.config, "max_position_embeddings", None) or tokenizer.model_max_length
    for module in model.modules():
        # RoBERTa counts its positions from padding_idx + 1.
        if isinstance(module, nn.Embedding) and module.num_embeddings == limit and module.padding_idx is not None:
            limit -= module.padding_idx + 1
            break
    return min(int(limit), int(tokenizer.model_max_length))


def load(
    name: str | Path = SENTIMENT,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    max_length: int | None = None,
    allow_pickle: bool = False,
) -> TextModel:
    """Load a model of text by local path or hub name, unmodified, with eager attention.

    A model saved as ``…ForCausalLM`` or ``…LMHeadModel`` is read as a decoder (`NextToken`), any other as a sequence
    classifier. Remote code is never run; weights stored as pickle are refused unless ``allow_pickle``.

    Args:
        name: a folder with config.json, model.safetensors and a tokenizer, or a hub name.
        device: where to put it.
        dtype: the weights are converted to it, however they are stored.
        max_length: see `TextModel`.
        allow_pickle: also load ``pytorch_model.bin``, through torch's restricted unpickler.

    Raises:
        ModelError: it is not there, has no head of these kinds, or does not ignore padding.
    """
    source = str(name)
    options: dict[str, Any] = {"trust_remote_code": False}
    try:
        config = AutoConfig.from_pretrained(source, **options)
        kind, auto = _kind(source, config)
        model, loading = auto.from_pretrained(
            source,
            dtype=dtype,
            attn_implementation="eager",
            use_safetensors=None if allow_pickle else True,
            output_loading_info=True,
            **options,
        )
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
    except (OSError, ValueError, ImportError) as error:
        raise ModelError(_unloadable(source, error)) from error
    if loading["missing_keys"]:
        raise ModelError(
            f"{source}: no weights for {', '.join(sorted(loading['missing_keys'])[:4])}: not a trained {kind.__name__}"
        )
    reader = kind(model.to(device).eval(), tokenizer, max_length)
    _check_padding(reader, source)
    return reader


def _kind(source: str, config: Any) -> tuple[type[TextModel], Any]:
    """How to read the model, by the architecture that it was saved as."""
    architectures = config.architectures or []
    if any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in architectures):
        return NextToken, AutoModelForCausalLM
    if any(name.endswith("ForSequenceClassification") for name in architectures):
        return Classifier, AutoModelForSequenceClassification
    found = ", ".join(architectures) or "none named"
    raise ModelError(f"{source}: expected a …ForSequenceClassification or …ForCausalLM model, got {found}")


def _unloadable(source: str, error: Exception) -> str:
    reason = str(error).strip().splitlines()[0]
    files = "config.json, model.safetensors and tokenizer.json"
    if Path(source).is_dir():
        return f"{source}: cannot be loaded: {reason}. Expected {files}; weights stored as pickle need --allow-pickle"
    return (
        f"{source}: neither a local folder nor a model that can be downloaded here: {reason}. Without network, give the "
        f"path of a folder with {files}"
    )


@torch.no_grad()
def _check_padding(reader: TextModel, source: str) -> None:
    """Refuse a model whose output padding changes: its maps would depend on the batch.

    Raises:
        ModelError: it does.
    """
    device = reader.model.device
    ids = torch.arange(4, device=device) % reader.model.get_input_embeddings().num_embeddings
    inputs = reader.model.get_input_embeddings()(ids).unsqueeze(0)
    alone = reader(inputs[:, :3], **reader.context(torch.tensor([3], device=device)))
    both = reader(inputs.expand(2, -1, -1), **reader.context(torch.tensor([3, 4], device=device)))
    error = float((both[0] - alone[0]).abs().max() / alone.abs().max())
    if not error <= PADDING_ERROR:
        raise ModelError(f"{source}: padding changes its output by {error:.1%}, so that its maps depend on the batch")
