"""Linear attention explained at another point than its pixels: after standardisation, or at the tokens."""

from dataclasses import replace

import torch
from torch import nn


class UpperPart(nn.Module):
    """The part of a `LinearAttention` above a point inside it, on inputs read at that point."""

    def __init__(self, model, embedded):
        super().__init__()
        self.model, self.embedded = model, embedded

    def forward(self, inputs):
        """Tokens ``(batch, pixels, width)`` if embedded, else scaled pixels ``(batch, pixels)``, to ``(batch, 10)``."""
        return self.model.classify(inputs if self.embedded else self.model.embed(inputs))


def read_at(where, model, case):
    """The same explanation, with relevance read at another point: a model and a case that begin at that point.

    * ``pixel``: the model and the case unchanged; a removed pixel is black.
    * ``scaled pixel``: after standardisation, and a removed pixel is 0 there, the mean grey.
    * ``embedding``: at the tokens; a removed pixel is the token of a black one, which keeps its position embedding.
    * ``embedding from zero``: at the tokens; a removed token is 0, its position embedding included.
    """
    if where == "pixel":
        return model, case
    with torch.no_grad():
        inputs, baseline = model.scale(case.inputs), model.scale(case.baseline)
        if where != "scaled pixel":
            inputs, baseline = model.embed(inputs), model.embed(baseline)
        if where != "embedding":
            baseline = torch.zeros_like(inputs)
    return UpperPart(model, embedded=where != "scaled pixel").eval(), replace(case, inputs=inputs, baseline=baseline)
