"""One text or one image as a model's features."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Example:
    """One text or one image as its features.

    Attributes:
        features: what the model embeds: token ids int64 ``(n,)``, or patches ``(n, values)``.
        special_tokens_mask: ``(n,)`` bool, true at special tokens: [CLS] and [SEP], and a decoder's readout row.
        names: of each feature in a report; the tokens of a text.
        truncated: whether the text was cut to the length that the model, or the user, allows.
    """

    features: Tensor
    special_tokens_mask: Tensor
    names: tuple[str, ...]
    truncated: bool = False

    def __len__(self) -> int:
        return len(self.features)
