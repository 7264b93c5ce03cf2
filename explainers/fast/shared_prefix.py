"""Rows of a decoder that begin alike: the tokens before the first difference are computed once.

A causal model computes a token from those before it. So rows without one token each of a text need not repeat what
comes before that token: `transformers` keeps the keys and values of a prefix (``past_key_values``), and a pass over the
remaining tokens reads them. Rows are taken in groups of neighbours, because a group shares the shortest of its
prefixes.

Plain twin: a pass over whole rows.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case

GROUP = 8
"""The most rows that share a prefix. Larger groups share less; a smaller one is slow for its few tokens."""


def equal_tokens(case: Case, row: int) -> Tensor:
    """How many tokens at the beginning each row has in common with this row, ``(rows,)`` int64."""
    differs = (case.inputs != case.inputs[row]).any(2)
    mask = case.forward_arguments.get("attention_mask")
    if mask is not None:
        differs |= mask != mask[row]
    return torch.where(differs.any(1), differs.byte().argmax(1), differs.shape[1])


def first_read(case: Case) -> int:
    """The first position at which an output of the case is read; 0 if that is not known."""
    if "last" in case.forward_arguments:
        return int(case.forward_arguments["last"].min())
    if "answer" in case.forward_arguments:
        return max(0, int((case.forward_arguments["answer"] >= 0).any(0).byte().argmax()) - 1)
    return 0


def without_first(case: Case, count: int) -> Case:
    """The case without its first tokens; KeyError if it is not known how one of its arguments refers to the tokens."""
    arguments = {}
    for name, value in case.forward_arguments.items():
        rest = value[..., count:]
        arguments[name] = {"attention_mask": rest, "last": value - count, "answer": rest}[name]
    shortened = replace(case, forward_arguments={}).with_features(lambda values: values[:, count:])
    return replace(shortened, forward_arguments=arguments)


class SharedPrefixes:
    """Runs a decoder on rows, of which neighbours begin alike.

    ``model`` maps a case to ``(rows, outputs)``, and ``decoder`` is the part of it that takes ``past_key_values``. The
    keys and values in ``cache`` are those of the row ``reference``.
    """

    def __init__(self, model: nn.Module, decoder: nn.Module) -> None:
        self.model, self.decoder = model, decoder
        self.reference: Case | None = None
        self.cache: Any = None

    def groups(self, case: Case) -> list[tuple[Tensor, int]]:
        """The rows of each group, and how many of their first tokens they have in common, the last group first."""
        found = []
        for rows in reversed(torch.split(torch.arange(len(case.inputs)), GROUP)):
            part = case.select(rows)
            found.append((rows, min(int(equal_tokens(part, -1).min()), first_read(part))))
        return found

    def outputs(self, case: Case, run: Any) -> Tensor:
        """The outputs of all rows, by passes ``run(case)`` over what each group does not have in common."""
        parts = []
        for rows, prefix in self.groups(case):
            group = case.select(rows)
            if prefix == 0:
                parts.append(run(group))
                continue
            self.keep(group.select(torch.tensor([len(rows) - 1])), prefix)
            with self.after_prefix(prefix, len(rows)):
                parts.append(run(without_first(group, prefix)))
        return torch.cat(parts[::-1])

    def keep(self, row: Case, prefix: int) -> None:
        """Compute the keys and values of this row, unless those of a row with the same beginning are there."""
        if self.reference is not None and self.reference.shape == row.shape:
            both = Case(
                torch.cat([self.reference.inputs, row.inputs]),
                torch.cat([self.reference.target, row.target]),
                torch.cat([self.reference.baseline, row.baseline]),
                forward_arguments={
                    name: torch.cat([value, row.forward_arguments[name]])
                    for name, value in self.reference.forward_arguments.items()
                },
            )
            if int(equal_tokens(both, -1)[0]) >= prefix:
                return
        self.reference = self.cache = None
        with past(self.decoder) as self.cache:
            row.run(self.model)
        self.reference = row

    @contextmanager
    def after_prefix(self, prefix: int, rows: int) -> Iterator[None]:
        """Within the block, the decoder runs after the first tokens of the reference row, in each row the same."""
        assert self.reference is not None
        mask = self.reference.forward_arguments.get("attention_mask")
        with past(self.decoder, None if mask is None else mask[:, :prefix].expand(rows, -1)) as cache:
            for number, layer in enumerate(self.cache.layers):
                keys, values = (kept[:, :, :prefix].expand(rows, -1, -1, -1) for kept in (layer.keys, layer.values))
                cache.update(keys, values, number)
            yield


@contextmanager
def past(decoder: nn.Module, mask: Tensor | None = None) -> Iterator[Any]:
    """Within the block, the decoder reads and extends this cache, whatever its caller says.

    ``mask``, the attention mask of the cached tokens, is put before that of the tokens after them.
    """
    from transformers import DynamicCache  # transformers takes seconds: this runs where a model has loaded it

    cache = DynamicCache()  # without a configuration: a layer with a sliding window keeps all tokens, too

    def use(module: nn.Module, arguments: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if mask is not None and (rest := named.get("attention_mask")) is not None:
            named = {**named, "attention_mask": torch.cat([mask.to(rest.dtype), rest], 1)}
        return arguments, {**named, "past_key_values": cache, "use_cache": True}

    handle = decoder.register_forward_pre_hook(use, with_kwargs=True)
    try:
        yield cache
    finally:
        handle.remove()
