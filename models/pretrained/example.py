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

    If a model explains answers, the text's last tokens are the answer; ``answer`` is empty if the model gave none. A
    decoder's prompt is too long if it was cut although nobody asked for that: nothing is measured of it.
    """

    features: Tensor  # what the model embeds: token ids int64 (n,), or patches (n, values)
    special_tokens_mask: Tensor  # (n,) bool, true at [CLS] and [SEP], and at the token that a decoder is read at
    names: tuple[str, ...]
    truncated: bool = False  # cut to the length that the model, or the user, allows
    segments: Mapping[str, Tensor] = field(default_factory=dict)  # by level, int64 (n,); empty for an image
    answer: tuple[int, ...] | None = None  # ids; None if no answer is explained
    too_long: bool = False
    glued: tuple[bool, ...] = ()  # no space is before the feature; empty if none is known to be
    roles: tuple[str, ...] = ()  # of a chat, the role of the message that each token belongs to
    token_types: Tensor | None = None  # int64 (n,), which text of a pair, if the model is told

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
    """The examples of a data set, each made of its item when it is asked for; their sizes are in temporary files.

    ``features`` and ``non_special`` are numbers of features, int32 ``(examples,)``; ``truncated``, ``unanswered`` (the
    model gave an empty answer) and ``too_long`` are bool. ``digest`` is a SHA-256 of all features, special tokens and
    answers, and of which are too long.
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
