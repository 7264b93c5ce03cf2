"""Which output of a loaded model is explained, and what it is contrasted with."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from faithcheck.models.targets import contrasted


class ExplainedOutput(nn.Module):
    """A loaded model whose explained output can be chosen. What is chosen is a part of the model's fingerprint.

    Attributes:
        target: the number of the explained output; None: the most likely output of each example.
        against: the number of the output that is subtracted from every other one; None: none is.
    """

    target: int | None = None
    against: int | None = None

    def explained(self, outputs: Tensor) -> Tensor:
        """What `forward` returns of the model's outputs, both ``(batch, outputs)``."""
        return outputs if self.against is None else contrasted(outputs, self.against)

    def targets(self, outputs: Tensor) -> Tensor:
        """The explained output of each example, ``(batch,)`` int64, from what `forward` returned."""
        most_likely = outputs.argmax(1)
        return most_likely if self.target is None else torch.full_like(most_likely, self.target)

    def extra_repr(self) -> str:
        """What was chosen; the fingerprint of a model has its ``repr``."""
        chosen = {"target": self.target, "against": self.against}
        return ", ".join(f"{name}={number}" for name, number in chosen.items() if number is not None)
