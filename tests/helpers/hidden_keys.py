"""Slow oracles of the gates: add a bias to the attention logits, in the model's own eager attention.

The attention of a `transformers` model adds a mask to its logits. The oracles add a bias as well: log m for a gate m,
and the lowest number for a hidden key, in some rows and some layers only. They do not read attention weights.
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
def replaced_attention(embedding_model, replacement):
    """Replace the attention output of each layer by ``replacement(number, attend)``.

    ``attend(bias)`` is the model's own output, ``(batch, queries, heads, width)``, with this bias on the logits:
    ``(batch, queries or 1, features)``, or with heads as its second axis, at the last keys. ``attend(weight_of=keys)``
    is the attention that these keys ``(batch, features)`` and all positions other than features get together:
    ``(batch, heads, queries)``.
    """
    module, numbers = sys.modules[type(embedding_model.model).__module__], count()
    own = module.eager_attention_forward

    def forward(layer, query, key, value, mask, **options):
        def attend(bias=None, weight_of=None):
            if weight_of is not None:
                selected = pad(weight_of.to(value), (query.shape[2] - weight_of.shape[-1], 0), value=1.0)
                values = selected[:, None, :, None].expand_as(value)
                return own(layer, query, key, values, mask, **options)[0][..., 0].transpose(1, 2)
            if bias is None:
                return own(layer, query, key, value, mask, **options)[0]
            bias = pad(bias, (query.shape[2] - bias.shape[-1], 0))
            bias = bias if bias.dim() == 4 else bias.unsqueeze(1)
            return own(layer, query, key, value, bias if mask is None else mask + bias, **options)[0]

        return replacement(next(numbers), attend), None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "eager_attention_forward", forward)
        yield


def hiding(keys):
    """The bias that hides these keys, ``(batch, features)`` bool, from every row."""
    return (keys.double() * HIDDEN).unsqueeze(1)


def single(case, i):
    """Feature i alone, ``(batch, features)`` bool; none where it is padding, which is hidden already."""
    return (torch.arange(case.shape[1]) == i) & case.unpadded


def run(embedding_model, case, bias):
    """The explained output with this bias on the logits of every layer."""
    with replaced_attention(embedding_model, lambda number, attend: attend(bias)):
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

    def replacement(number, attend):
        queries = attend().shape[1]
        gates.append(torch.ones(len(case.inputs), queries, case.shape[1], dtype=torch.float64, requires_grad=True))
        return attend(gates[-1].log())

    with replaced_attention(embedding_model, replacement):
        output = select_target(case.run(embedding_model), case.target)
    return torch.stack(torch.autograd.grad(output.sum(), gates)).transpose(-1, -2)


def leave_one_out(embedding_model, case):
    """f − f with key i hidden from every row, ``(batch, features)``."""
    with torch.no_grad():
        whole = select_target(case.run(embedding_model), case.target)
        without = [run(embedding_model, case, hiding(single(case, i))) for i in range(case.shape[1])]
    return whole.unsqueeze(1) - torch.stack(without, 1)


def leave_one_out_of_rows(embedding_model, case, rows, layers):
    """f − f with key i hidden from these rows ``(batch, queries)`` only, in these layers; other rows are unchanged."""
    plain = []

    def record(number, attend):
        plain.append(attend())
        return plain[-1]

    def without(i):
        def replacement(number, attend):
            hidden = attend(hiding(single(case, i))) if number in layers else attend()
            return torch.where(rows[..., None, None], hidden, plain[number])

        with replaced_attention(embedding_model, replacement):
            return select_target(case.run(embedding_model), case.target)

    with torch.no_grad():
        with replaced_attention(embedding_model, record):
            whole = select_target(case.run(embedding_model), case.target)
        return whole.unsqueeze(1) - torch.stack([without(i) for i in range(case.shape[1])], 1)


def finite_changes(embedding_model, case, halfway=None):
    """The finite effects, and f itself.

    1. t_ji is a step from O_j towards O_j without i, in each layer separately. The finite effect is −∂f/∂t_ji at 0.
    2. With ``halfway``, ``(batch, features)`` bool, all outputs are halfway to those without these keys, except for
       rows that attend to nothing else. The weights of these keys are halved, and those of the other keys grow by the
       factor 1 + 1/r for r, the attention that the other keys have; the gradient takes the factor as a constant.
    """
    steps = []

    def replacement(number, attend):
        whole = attend()
        without = torch.stack([attend(hiding(single(case, i))) for i in range(case.shape[1])], 1)
        steps.append(torch.zeros(without.shape[:3], dtype=torch.float64, requires_grad=True))
        output = whole
        if halfway is not None:
            rest = attend(weight_of=~halfway).detach()
            growth = torch.where(rest > 0, 1 + 1 / rest, 1.0)
            output = attend(-growth.log().unsqueeze(-1) * halfway[:, None, None])
            middle = torch.where((rest > 0).transpose(1, 2).unsqueeze(-1), (whole + attend(hiding(halfway))) / 2, whole)
            torch.testing.assert_close(output, middle, rtol=1e-10, atol=1e-12)
        return output + (steps[-1][..., None, None] * (without - whole.unsqueeze(1))).sum(1)

    with replaced_attention(embedding_model, replacement):
        output = select_target(case.run(embedding_model), case.target)
    return -torch.stack(torch.autograd.grad(output.sum(), steps)), output.detach()
