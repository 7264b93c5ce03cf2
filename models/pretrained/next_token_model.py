"""Decoders: the next token after a text is explained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from inspect import signature

import torch
from torch import Tensor

from faithcheck.models.pretrained.example import Example
from faithcheck.models.pretrained.text_model import TextModel


class NextTokenModel(TextModel):
    """A decoder: embeddings ``(batch, tokens, width)`` to the logits of the next token ``(batch, vocabulary)``.

    The output is read at a text's last token, so this token is special, as [CLS] is. It stays along a perturbation
    curve: otherwise, in texts without other special tokens, an attention row would be left with no key.

    What a decoder says next depends on the last tokens of its prompt. So a prompt that had to be cut is left out of a
    data set, unless the user gave the length at which to cut (``cuts_prompts``).
    """

    def _example(self, text: str) -> Example:
        example = super()._example(text)
        example.special_tokens_mask[-1:] = True
        return replace(example, too_long=example.truncated and not self.cuts_prompts)

    def forward(self, inputs: Tensor, attention_mask: Tensor, last: Tensor) -> Tensor:
        """The logits at position ``last`` ``(batch,)``, each text's last token, removed or not."""
        positions, row_of_example = last.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        # If the model can, compute no other logits: those of a large vocabulary at every token fill the memory.
        keep = {"logits_to_keep": positions} if "logits_to_keep" in signature(self.model.forward).parameters else {}
        logits: Tensor = self.model(inputs_embeds=inputs, attention_mask=attention_mask, use_cache=False, **keep).logits
        rows = torch.arange(len(last), device=last.device)
        return self.explained((logits if keep else logits[:, positions])[rows, row_of_example])

    def forward_arguments(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """The attention mask, and the position whose next token is explained."""
        return {**super().forward_arguments(examples), "last": self.lengths(examples) - 1}
