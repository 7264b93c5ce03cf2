"""Slow oracles of the gates: what a bias on attention's logits does, in the model's own eager attention.

A `transformers` model's attention takes a mask that is added to its logits. Here more is added: log m for a gate m, the
lowest number for a key that is hidden, from some rows and in some layers only. Nothing is known of attention weights.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from itertools import count

import pytest
import torch
from torch.nn.functional import pad

from faithcheck.models import select_target

HIDDEN = torch.finfo(torch.float64).min


@contextmanager
def attending(embedding_model, otherwise):
    """Attention whose output in a layer is ``otherwise(number, attend)``.

    ``attend(bias)`` is the model's own output, ``(batch, queries, heads, width)``, with this bias on the logits:
    ``(batch, queries or 1, features)``, or with heads as its second axis, at the last keys. ``attend(weight_of=keys)``
    is how much attention these keys ``(batch, features)`` get, and what is no feature: ``(batch, heads, queries)``.
    """
    module, numbers = sys.modules[type(embedding_model.model).__module__], count()
    own = module.eager_attention_forward

    def forward(layer, query, key, value, mask, **options):
        def attend(bias=None, weight_of=None):
            if weight_of is not None:
                there = pad(weight_of.to(value), (query.shape[2] - weight_of.shape[-1], 0), value=1.0)
                values = there[:, None, :, None].expand_as(value)
                return own(layer, query, key, values, mask, **options)[0][..., 0].transpose(1, 2)
            if bias is None:
                return own(layer, query, key, value, mask, **options)[0]
            bias = pad(bias, (query.shape[2] - bias.shape[-1], 0))
            bias = bias if bias.dim() == 4 else bias.unsqueeze(1)
            return own(layer, query, key, value, bias if mask is None else mask + bias, **options)[0]

        return otherwise(next(numbers), attend), None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "eager_attention_forward", forward)
        yield


def hiding(keys):
    """The bias that hides these keys, ``(batch, features)`` bool, from every row."""
    return (keys.double() * HIDDEN).unsqueeze(1)


def single(case, i):
    """Feature i alone, ``(batch, features)`` bool; not where it is padding, which is hidden already."""
    return (torch.arange(case.shape[1]) == i) & case.unpadded


def run(embedding_model, case, bias):
    """The explained output with this bias on the logits of every layer."""
    with attending(embedding_model, lambda number, attend: attend(bias)):
        return select_target(case.run(embedding_model), case.target)


def gated(embedding_model, case, gates):
    """The explained output with every row's weights A_k ∝ m_k exp z_k, gates m ``(batch, features)``."""
    return run(embedding_model, case, gates.log().unsqueeze(1))


def derivatives(embedding_model, case):
    """∂f/∂m at m = 1, ``(batch, features)``."""
    gates = torch.ones(case.shape, dtype=torch.float64, requires_grad=True)
    return torch.autograd.grad(gated(embedding_model, case, gates).sum(), gates)[0]


def row_derivatives(embedding_model, case):
    """∂f/∂m of gates in one row of one layer alone, at m = 1: ``(layers, batch, features, queries)``."""
    gates = []

    def otherwise(number, attend):
        queries = attend().shape[1]
        gates.append(torch.ones(len(case.inputs), queries, case.shape[1], dtype=torch.float64, requires_grad=True))
        return attend(gates[-1].log())

    with attending(embedding_model, otherwise):
        output = select_target(case.run(embedding_model), case.target)
    return torch.stack(torch.autograd.grad(output.sum(), gates)).transpose(-1, -2)


def leave_one_out(embedding_model, case):
    """f less f with key i hidden from every row, ``(batch, features)``."""
    with torch.no_grad():
        whole = select_target(case.run(embedding_model), case.target)
        without = [run(embedding_model, case, hiding(single(case, i))) for i in range(case.shape[1])]
    return whole.unsqueeze(1) - torch.stack(without, 1)


def leave_one_out_of_rows(embedding_model, case, rows, layers):
    """The same, key i hidden from these rows ``(batch, queries)`` alone, in these layers; others stay as they are."""
    plain = []

    def watch(number, attend):
        plain.append(attend())
        return plain[-1]

    def without(i):
        def otherwise(number, attend):
            hidden = attend(hiding(single(case, i))) if number in layers else attend()
            return torch.where(rows[..., None, None], hidden, plain[number])

        with attending(embedding_model, otherwise):
            return select_target(case.run(embedding_model), case.target)

    with torch.no_grad():
        with attending(embedding_model, watch):
            whole = select_target(case.run(embedding_model), case.target)
        return whole.unsqueeze(1) - torch.stack([without(i) for i in range(case.shape[1])], 1)


def finite_changes(embedding_model, case, halfway=None):
    """How f falls, to first order, as row j's output goes to what it is without key i, and f itself.

    A step t_ji from O_j towards O_j without i, in each layer on its own, and −∂f/∂t at 0. With ``halfway``, ``(batch,
    features)`` bool, all outputs are halfway to those without these keys, but for rows that attend to nothing else:
    weights A_k of these are halved and others grow by 1 + 1/(what the others have), a constant to the gradient.

    Returns:
        ``(layers, batch, features, queries)`` and ``(batch,)``.
    """
    steps = []

    def otherwise(number, attend):
        whole = attend()
        without = torch.stack([attend(hiding(single(case, i))) for i in range(case.shape[1])], 1)
        steps.append(torch.zeros(without.shape[:3], dtype=torch.float64, requires_grad=True))
        output = whole
        if halfway is not None:
            left = attend(weight_of=~halfway).detach()
            growth = torch.where(left > 0, 1 + 1 / left, 1.0)
            output = attend(-growth.log().unsqueeze(-1) * halfway[:, None, None])
            middle = torch.where((left > 0).transpose(1, 2).unsqueeze(-1), (whole + attend(hiding(halfway))) / 2, whole)
            torch.testing.assert_close(output, middle, rtol=1e-10, atol=1e-12)
        return output + (steps[-1][..., None, None] * (without - whole.unsqueeze(1))).sum(1)

    with attending(embedding_model, otherwise):
        output = select_target(case.run(embedding_model), case.target)
    return -torch.stack(torch.autograd.grad(output.sum(), steps)), output.detach()
