"""Text classifiers: the class of a whole text is explained."""

from __future__ import annotations

from torch import Tensor

from faithcheck.models.pretrained.text_model import TextModel


class TextClassifier(TextModel):
    """A sequence classifier: embeddings ``(batch, tokens, width)`` to logits ``(batch, classes)``."""

    def forward(self, inputs: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """The logits; ``attention_mask`` ``(batch, tokens)`` is 0 at padding and at tokens removed by the mask."""
        logits: Tensor = self.model(inputs_embeds=inputs, attention_mask=attention_mask).logits
        return self.explained(logits)
