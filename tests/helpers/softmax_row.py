"""The smallest model with a softmax to propagate through: attention rows whose logits and values are the inputs.

You et al. 2025 (arXiv 2510.18810, §3.2) argue that the softmax rule of AttnLRP (Eq. 5) departs from Leave-One-Out by a
structural bias and by a linearisation error. Here both have closed forms. With O = Σ_i A_i V_i and A = softmax(Z),

* removing key i changes the output by exactly A_i (V_i − O) / (1 − A_i);
* Eq. 5 gives its logit Z_i A_i (V_i − O);

so through one softmax a key's relevance is Z_i (1 − A_i) times its LOO.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case


class SoftmaxRow(nn.Module):
    """f = Σ_h Σ_i A_ih V_ih, A = softmax(Z) over the keys i: one attention row for each head h, and their sum.

    The module has no parameters: logits Z and values V are its inputs, see `row_case`.
    """

    def forward(self, inputs: Tensor, attention_mask: Tensor, values: Tensor | None = None) -> Tensor:
        """``(batch, keys, heads, 2)``, logits and values, to ``(batch, 1)``; a key whose mask is 0 is removed."""
        if not (attention_mask != 0).any(1).all():
            raise ValueError("a softmax over no key is undefined: keep at least one key of each example")
        logits, values = inputs.unbind(-1) if values is None else (inputs, values)
        weights = logits.masked_fill((attention_mask == 0).unsqueeze(-1), -math.inf).softmax(1)
        return torch.einsum("bih,bih->bh", weights, values).sum(1, keepdim=True)


def row_case(logits: Tensor, values: Tensor, *, explain_values: bool) -> Case:
    """The case of explaining each key by its logits alone, or by logits and values; the baseline is 0."""
    mask = torch.ones(logits.shape[:2], dtype=torch.int64, device=logits.device)
    inputs = torch.stack([logits, values], -1) if explain_values else logits
    arguments = {"attention_mask": mask} if explain_values else {"attention_mask": mask, "values": values}
    target = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
    return Case(inputs, target, torch.zeros_like(inputs), forward_arguments=arguments)


def contrast(logits: Tensor, values: Tensor) -> Tensor:
    """A_i (V_i − O), what Eq. 5 multiplies by the logit; ``(batch, keys, heads)`` as its operands.

    V_i − O is summed as Σ_j A_j (V_i − V_j): where A_i is nearly 1, it is far smaller than V_i.
    """
    weights = logits.softmax(1)
    return weights * (weights.unsqueeze(1) * (values.unsqueeze(2) - values.unsqueeze(1))).sum(2)


def exact_loo(logits: Tensor, values: Tensor) -> Tensor:
    """Leave-One-Out of each key, Σ_h A_i (V_i − O) / (1 − A_i): two ``(batch, keys, heads)`` to ``(batch, keys)``."""
    keys = logits.shape[1]
    without_own = 1 - torch.eye(keys, dtype=logits.dtype, device=logits.device).unsqueeze(-1)
    rest_of_weight = (logits.softmax(1).unsqueeze(1) * without_own).sum(2)  # 1 − A_i, also where A_i is nearly 1
    return (contrast(logits, values) / rest_of_weight).sum(2)


def exact_through_softmax(logits: Tensor, values: Tensor) -> Tensor:
    """Eq. 5 for each key's logits, Σ_h Z_i A_i (V_i − O): two ``(batch, keys, heads)`` to ``(batch, keys)``.

    Also gradient × input of the logits.
    """
    return (logits * contrast(logits, values)).sum(2)


def exact_through_values(logits: Tensor, values: Tensor) -> Tensor:
    """All relevance to the values (CP-LRP), Σ_h A_i V_i: two ``(batch, keys, heads)`` to ``(batch, keys)``."""
    return (logits.softmax(1) * values).sum(2)
