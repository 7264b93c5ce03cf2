"""Texts and images as a model's features: one of them, and all of a data set."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
from torch import Tensor

from faithcheck.models.case import digest
from faithcheck.models.data.stored import stored_array


@dataclass(frozen=True)
class Example:
    """One text or one image as its features.

    Attributes:
        features: what the model embeds: token ids int64 ``(n,)``, or patches ``(n, values)``.
        special_tokens_mask: ``(n,)`` bool, true at special tokens: [CLS] and [SEP], and a decoder's readout row.
        names: of each feature in a report; those of tokens see `faithcheck.models.pretrained.token_texts`.
        truncated: whether the text was cut to the length that the model, or the user, allows.
        segments: the part of the text that each feature belongs to, by level, int64 ``(n,)``; see
            `faithcheck.models.pretrained.segments`. Empty for an image.
        answer: the ids of the answer, which the text's last tokens are; empty if the model gave none; None if no answer
            is explained.
        too_long: whether a decoder's prompt was cut although nobody asked for that: nothing is measured of it.
        roles: of a chat, the role of the message that each token belongs to, or what takes its place, see
            `faithcheck.models.pretrained.chat`; else empty.
        token_types: of a pair of texts, which of the two each token belongs to, int64 ``(n,)``, if its model is told;
            otherwise None.
        glued: whether no space is between each feature and the one before it; empty if none is known to be.
    """

    features: Tensor
    special_tokens_mask: Tensor
    names: tuple[str, ...]
    truncated: bool = False
    segments: Mapping[str, Tensor] = field(default_factory=dict)
    answer: tuple[int, ...] | None = None
    too_long: bool = False
    glued: tuple[bool, ...] = ()
    roles: tuple[str, ...] = ()
    token_types: Tensor | None = None

    def __len__(self) -> int:
        return len(self.features)

    def pieces(self, level: str = "word") -> Iterator[dict[str, Any]]:
        """Of each feature what a report shows: as `Feature` of `faithcheck.reports`, ``word`` its part at a level."""
        words = self.segments[level].tolist() if level in self.segments else [None] * len(self)
        special: list[bool] = self.special_tokens_mask.tolist()
        of_features = zip(self.names, self.glued or (False,) * len(self), special, words, strict=True)
        for (name, glued, is_special, word), role in zip(of_features, self.roles or ("",) * len(self), strict=True):
            part = None if is_special else word
            yield {"text": name, "glued": glued, "special": is_special, "word": part, "role": role}


class Examples(Sequence[Example]):
    """The examples of a data set. Each is made when it is asked for; their sizes are in temporary files.

    Attributes:
        features: the number of features of each, int32 ``(examples,)``.
        non_special: the number of features of each that are not special, int32 ``(examples,)``.
        truncated: whether each was cut, bool ``(examples,)``.
        unanswered: whether the model gave an empty answer to each, bool ``(examples,)``.
        too_long: whether each is too long, see `Example`, bool ``(examples,)``.
        digest: SHA-256 of the features, the special tokens and the answers of all, and of which are too long.

    Args:
        items: the texts or images.
        make: makes the example of an item, always the same.
    """

    def __init__(self, items: Sequence[Any], make: Callable[[Any], Example]) -> None:
        self._items, self._make = items, make
        self.features, self.non_special = (stored_array(len(items), np.int32) for _ in range(2))
        self.truncated, self.unanswered, self.too_long = (stored_array(len(items), np.bool_) for _ in range(3))
        hashed = hashlib.sha256()
        for i, example in enumerate(self):
            self.features[i], self.truncated[i] = len(example), example.truncated
            self.non_special[i], self.unanswered[i] = int((~example.special_tokens_mask).sum()), example.answer == ()
            self.too_long[i] = example.too_long
            answer = "" if example.answer is None else f"{example.answer} "
            too_long = "too long " if example.too_long else ""
            types = "" if example.token_types is None else f"{digest(example.token_types)} "
            hashed.update(
                f"{digest(example.features)} {digest(example.special_tokens_mask)} {types}{answer}{too_long}".encode()
            )
        self.digest = hashed.hexdigest()

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, chosen: int) -> Example: ...

    @overload
    def __getitem__(self, chosen: slice) -> Examples: ...

    def __getitem__(self, chosen: int | slice) -> Example | Examples:
        if isinstance(chosen, slice):
            return Examples([self._items[i] for i in range(*chosen.indices(len(self)))], self._make)
        return self._make(self._items[chosen])
