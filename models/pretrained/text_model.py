"""Text models read at their word embeddings: tokenising texts into examples, and making cases of examples.

An attribution does not include the relevance of position and type embeddings.

Most models compute the same from word embeddings as from the ids of the tokens. Some do not: they look up further
embeddings of the ids, rescale embeddings by how many tokens are masked, or count positions or the last token by the
padding's id. Such a model runs on the ids, with the given embeddings in the place of those that it looks up.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from inspect import signature
from typing import Any, TypeAlias, TypeGuard, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from faithcheck.models.case import Case
from faithcheck.models.data.texts import Item
from faithcheck.models.offloaded_weights import device_of
from faithcheck.models.pretrained.chat import TEMPLATE, Messages, chat
from faithcheck.models.pretrained.example import Example, Examples
from faithcheck.models.pretrained.folder import ModelError
from faithcheck.models.pretrained.segments import LEVELS, numbered, segments
from faithcheck.models.pretrained.token_texts import decoded, token_texts
from faithcheck.models.targets import ExplainedOutput

NO_TOKEN = -1
"""The id of padding for a model that knows none."""
Given: TypeAlias = Item | Messages
"""What a model of text reads: one text, a pair of texts, or the messages of a chat."""
NAMES_FOR_PAIRS = frozenset("entailment contradiction not_entailment duplicate not_duplicate equivalent".split())
"""Names of outputs that say something of two texts."""
BETWEEN = "\n\n"
"""What is put between the two texts of a pair where they are shown; no word and no sentence runs over it."""
LENGTH_LIMITS = ("max_position_embeddings", "max_seq_len")
"""The names that configurations have for the most positions; MPT has the second."""


class TextModel(ExplainedOutput):
    """A text model on word embeddings: it tokenises texts into examples, and makes cases of examples.

    A subclass has ``forward(inputs, attention_mask, …)`` from embeddings ``(batch, tokens, width)`` to logits, so an
    explainer can differentiate it and remove tokens.

    ``max_length`` counts special tokens, too; it is at most, and by default, what model and tokenizer allow (else
    `ModelError`). Longer texts are cut, and marked as truncated. ``by_ids``: the model runs on ids, with the embeddings
    in the place of those that it looks up.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int | None = None,
        by_ids: bool = False,
    ) -> None:
        super().__init__()
        self.model, self.tokenizer, self.by_ids = model, tokenizer, by_ids
        # A tokenizer never cuts off its special tokens, and a text should have at least one other token.
        least, limit = tokenizer.num_special_tokens_to_add() + 1, length_limit(model, tokenizer)
        if max_length is not None and not least <= max_length <= limit:
            raise ModelError(
                f"max length {max_length} is out of range: {type(model).__name__} takes {least} to {limit} tokens"
            )
        self.max_length = max_length or limit
        self.cuts_prompts = max_length is not None  # see `NextTokenModel`

    def encode(self, texts: Sequence[Given]) -> Examples:
        """Tokenise texts with special tokens, or chats by the tokenizer's template; the longest cut to ``max_length``.

        `ModelError` if the tokenizer gives an id that the model does not embed; for one text to a model of pairs, or a
        pair to a decoder; or see `chat`.
        """
        return Examples(texts, self._example)

    def _example(self, item: Given) -> Example:
        prompt = None if isinstance(item, str) or is_pair(item) else chat(self.tokenizer, cast(Messages, item))
        texts: tuple[str, ...] = item if is_pair(item) else (str(item) if prompt is None else prompt.text,)
        text = BETWEEN.join(texts)
        asked = {"return_special_tokens_mask": True, "return_offsets_mapping": self.tokenizer.is_fast}
        asked["add_special_tokens"] = prompt is None  # the template writes those that the model knows
        cut = whole = self.tokenizer(*texts, truncation=False, verbose=False, **asked)
        if len(whole["input_ids"]) > self.max_length:
            cut = self.tokenizer(*texts, truncation=True, max_length=self.max_length, **asked)
        ids, offsets = cut["input_ids"], cut.get("offset_mapping")
        types = cut.get("token_type_ids") if is_pair(item) and _takes_token_types(self.model) else None
        if is_pair(item) and offsets is not None:
            shift = len(texts[0]) + len(BETWEEN)
            of_second = [number == 1 for number in cut.sequence_ids()]
            offsets = [(i + shift, j + shift) if b else (i, j) for (i, j), b in zip(offsets, of_second, strict=True)]
        if max(ids, default=0) >= (known := vocabulary_size(self.model)):
            raise ModelError(
                f"the tokenizer gives id {max(ids)}, but the model embeds only {known} tokens: "
                "use the model's own tokenizer"
            )
        added = cut["special_tokens_mask"]
        special = [bool(is_added) or i in self.special_ids for is_added, i in zip(added, ids, strict=True)]
        if offsets is None:
            text, offsets = decoded(self.tokenizer, ids)
        shown = token_texts(text, offsets, self.tokenizer.convert_ids_to_tokens(ids), special)
        places = [token.place for token in shown]
        roles: tuple[str, ...] = ()
        if prompt is not None:  # white space belongs to what it stands in, not to what follows
            spans = zip(offsets, places, strict=True)
            roles = tuple(prompt.role(place if text[start:end].strip() else start) for (start, end), place in spans)
            special = [one or role == TEMPLATE for one, role in zip(special, roles, strict=True)]
        breaks = () if prompt is None else prompt.starts
        parts = {level: segments(text, places, special, level, breaks) for level in LEVELS}
        if roles:
            parts["role"] = numbered(roles, special)
        return Example(
            torch.tensor(ids, dtype=torch.int64),
            torch.tensor(special, dtype=torch.bool),
            tuple(token.name for token in shown),
            len(whole["input_ids"]) > len(ids),
            {level: torch.tensor(numbers, dtype=torch.int64) for level, numbers in parts.items()},
            glued=tuple(token.glued for token in shown),
            roles=roles,
            token_types=None if types is None else torch.tensor(types, dtype=torch.int64),
        )

    @torch.no_grad()
    def case(self, examples: Sequence[Example]) -> Case:
        """The case of these examples, padded on the right, baseline 0. Explained is the predicted output, or `target`.

        `ValueError` if there are no examples, or one has no token.
        """
        if not examples or min(map(len, examples)) == 0:
            raise ValueError("a case needs at least one example, and every example at least one token")
        device = device_of(self.model)
        padded = torch.nn.utils.rnn.pad_sequence
        inputs = padded([self.embed(example.features) for example in examples], batch_first=True)
        special = padded(
            [example.special_tokens_mask for example in examples], batch_first=True, padding_value=True
        ).to(device)
        arguments = self.forward_arguments(examples)
        levels = set.intersection(*(set(example.segments) for example in examples))
        parts = {
            level: padded([example.segments[level] for example in examples], batch_first=True, padding_value=-1)
            for level in sorted(levels)
        }
        return Case(
            inputs,
            self.targets(self(inputs, **arguments)),
            torch.zeros_like(inputs),
            special,
            arguments,
            self.replacements(),
            segments={level: numbers.to(device) for level, numbers in parts.items()},
        )

    def forward_arguments(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """The arguments of `forward` besides the embeddings, for these texts padded on the right."""
        lengths = self.lengths(examples)
        positions = torch.arange(int(lengths.max()), device=lengths.device)
        arguments = {"attention_mask": (positions < lengths.unsqueeze(1)).long()}
        types = [example.token_types for example in examples]
        if any(one is not None for one in types):
            of_each = [
                torch.zeros(len(example), dtype=torch.int64) if one is None else one
                for one, example in zip(types, examples, strict=True)
            ]
            arguments["token_type_ids"] = torch.nn.utils.rnn.pad_sequence(of_each, True).to(lengths.device)
        if self.by_ids:
            padding = self.model.config.pad_token_id
            ids = torch.nn.utils.rnn.pad_sequence(
                [example.features for example in examples], True, NO_TOKEN if padding is None else padding
            )
            arguments["input_ids"] = ids.to(lengths.device)
        return arguments

    def outputs(self, inputs: Tensor, input_ids: Tensor | None, **options: Any) -> Tensor:
        """The unmodified model's logits of word embeddings; ``input_ids`` ``(batch, tokens)`` if it runs on ids."""
        if input_ids is None:
            logits: Tensor = self.model(inputs_embeds=inputs, **options).logits
            return logits
        ids = input_ids.clamp(min=0)  # behind a text, where no token is read, any id will do
        with embeddings_replaced(self.model, inputs):
            logits = self.model(input_ids=ids, **options).logits
        return logits

    def lengths(self, examples: Sequence[Example]) -> Tensor:
        """The number of tokens of each, ``(batch,)``."""
        return torch.tensor([len(example) for example in examples], device=device_of(self.model))

    def replacements(self) -> dict[str, Tensor]:
        """Baselines of one token by name: zero, the vocabulary's mean and, if the model has them, [MASK] and [PAD]."""
        tokens = {"mask": self.tokenizer.mask_token_id, "pad": self.tokenizer.pad_token_id}
        known = vocabulary_size(self.model)  # some tokenizers have a [PAD] that their model does not embed
        named = {name: self.embed(torch.tensor(i)) for name, i in tokens.items() if i is not None and i < known}
        return {"zero": torch.zeros_like(self._mean_embedding), "mean": self._mean_embedding, **named}

    @torch.no_grad()
    def embed(self, ids: Tensor) -> Tensor:
        """Word embeddings ``(…, width)`` of token ids ``(…)``, by the model's own module, which may scale them."""
        embeddings: Tensor = self.model.get_input_embeddings()(ids.to(device_of(self.model)))
        return embeddings

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids of the special tokens, such as [SEP] or a chat's markers, wherever they stand in a text.

        Some tokenizers do not mark a chat's markers as special: those are the added tokens in brackets that its
        template has. The token of unknown words stands for a word, and is not among them.
        """
        template, ids = str(self.tokenizer.chat_template or ""), set(self.tokenizer.all_special_ids)
        for i, token in self.tokenizer.added_tokens_decoder.items():
            is_in_brackets = token.content[:1] + token.content[-1:] in ("<>", "[]")
            if token.special or (is_in_brackets and token.content in template):
                ids.add(i)
        return frozenset(ids - {self.tokenizer.unk_token_id})

    @cached_property
    def _mean_embedding(self) -> Tensor:
        # Cached: a large vocabulary takes longer to embed than a short text to classify.
        return self.embed(torch.arange(vocabulary_size(self.model))).mean(0)


@contextmanager
def embeddings_replaced(model: PreTrainedModel, embeddings: Tensor) -> Iterator[None]:
    """Within the block, what the model's word embeddings give is replaced by these, ``(batch, tokens, width)``.

    Padding that the model itself puts behind them keeps its embeddings. The block ends with `ModelError` if the model
    looked up no word embeddings of this shape.
    """
    replaced = False

    def replace(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        nonlocal replaced
        n = embeddings.shape[1]
        if output.shape[0::2] != embeddings.shape[0::2] or output.shape[1] < n:
            return output
        replaced = True
        return embeddings if output.shape[1] == n else torch.cat([embeddings, output[:, n:]], 1)

    handle = model.get_input_embeddings().register_forward_hook(replace)
    try:
        yield
    finally:
        handle.remove()
    if not replaced:
        raise ModelError(f"{type(model).__name__} does not look up the embeddings of its tokens one by one")


def is_pair(item: Given) -> TypeGuard[tuple[str, str]]:
    """Whether it is a pair of texts."""
    return isinstance(item, tuple) and all(isinstance(one, str) for one in item)


def _takes_token_types(model: PreTrainedModel) -> bool:
    return "token_type_ids" in signature(model.forward).parameters


def vocabulary_size(model: PreTrainedModel) -> int:
    """How many tokens the model embeds."""
    weight: Any = model.get_input_embeddings().weight
    return len(weight)


def length_limit(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """The most tokens that a text of this model can have, special tokens included."""
    named = (getattr(model.config, name, None) for name in LENGTH_LIMITS)
    limit = next(filter(None, named), tokenizer.model_max_length)
    word_embeddings = model.get_input_embeddings()
    for module in model.modules():
        if (
            isinstance(module, nn.Embedding)
            and module is not word_embeddings
            and module.num_embeddings == limit
            and module.padding_idx is not None
        ):
            limit -= module.padding_idx + 1  # RoBERTa's positions start after padding_idx
            break
    return min(int(limit), int(tokenizer.model_max_length))


class TextClassifier(TextModel):
    """A sequence classifier: embeddings ``(batch, tokens, width)`` to logits ``(batch, classes)``."""

    @property
    def reads_pairs(self) -> bool:
        """Whether its outputs are named as those of a model of two texts."""
        return not NAMES_FOR_PAIRS.isdisjoint(name.lower() for name in self._names())

    def _names(self) -> list[str]:
        return [str(name) for name in (self.model.config.id2label or {}).values()]

    def _example(self, item: Given) -> Example:
        if isinstance(item, str) and self.reads_pairs:
            raise ModelError(
                f"{item!r:.60} is one text, and the outputs {', '.join(self._names())} are those of a model of two: "
                "give pairs, by two columns such as premise and hypothesis or, to explain, by --text-pair"
            )
        return super()._example(item)

    def forward(
        self,
        inputs: Tensor,
        attention_mask: Tensor | None = None,
        input_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        """The logits; ``attention_mask`` ``(batch, tokens)`` is 0 at padding and at tokens removed by the mask."""
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        if input_ids is None or self.model.config.pad_token_id is not None:
            return self.explained(self.outputs(inputs, input_ids, attention_mask=attention_mask, **types))
        # The model reads the last token, and knows no padding: each text runs by itself, without any.
        rows = []
        for row, ids in enumerate(input_ids):
            one, n = slice(row, row + 1), int((ids != NO_TOKEN).sum())
            mask = None if attention_mask is None else attention_mask[one, :n]
            of_row = {name: value[one, :n] for name, value in types.items()}
            rows.append(self.outputs(inputs[one, :n], input_ids[one, :n], attention_mask=mask, **of_row))
        return self.explained(torch.cat(rows))


class NextTokenModel(TextModel):
    """A decoder: embeddings ``(batch, tokens, width)`` to the logits of the next token ``(batch, vocabulary)``.

    The output is read at a text's last token, so this token is special, as [CLS] is. It stays along a perturbation
    curve: otherwise, in texts without other special tokens, an attention row would be left with no key.

    What a decoder says next depends on the last tokens of its prompt. So a prompt that had to be cut is left out of a
    data set, unless the user gave the length at which to cut (``cuts_prompts``).
    """

    def _example(self, item: Given) -> Example:
        if is_pair(item):
            raise ModelError("a decoder continues one text, and this is a pair: put both texts into one prompt")
        example = super()._example(item)
        example.special_tokens_mask[-1:] = True
        return replace(example, too_long=example.truncated and not self.cuts_prompts)

    def forward(self, inputs: Tensor, attention_mask: Tensor, last: Tensor, input_ids: Tensor | None = None) -> Tensor:
        """The logits at position ``last`` ``(batch,)``, each text's last token, removed or not."""
        positions, row_of_example = last.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        # If the model can, compute no other logits: those of a large vocabulary at every token fill the memory.
        keep = {"logits_to_keep": positions} if "logits_to_keep" in signature(self.model.forward).parameters else {}
        logits = self.outputs(inputs, input_ids, attention_mask=attention_mask, use_cache=False, **keep)
        rows = torch.arange(len(last), device=last.device)
        return self.explained((logits if keep else logits[:, positions])[rows, row_of_example])

    def forward_arguments(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """The attention mask, and the position whose next token is explained."""
        return {**super().forward_arguments(examples), "last": self.lengths(examples) - 1}
