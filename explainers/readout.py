"""The readout gate: what a feature gives the readout row exactly, what it gives the others by its finite gate.

Most Transformers are read at one position: [CLS], a decoder's last token, a ViT's class token. A feature i reaches it
*directly*, through the readout row's own attention to i, or *indirectly*, through other rows that attend to i.

The direct part is computed exactly: for each i a copy of the readout row goes through the layers that attends to the
keys and values of the other rows, unchanged, and to its own, but not to key i; then through the norm behind the last
layer, if there is one. That is n rows more, a forward pass. Where layers end in a LayerNorm, as BERT's do, each forgets
the scale of what came before, and the last third of them has most of the direct part: a third of a forward pass. Where
they do not, as in GPT-2, Llama and ViT, every layer adds to one sum that the last norm divides, and none can be missed.

In the layers below, and for the indirect part, rows have gates (`gates`). The derivative at the gate's 1 and the finite
change are both first-order, the one along m_i, the other along O(s) = (1 − s)·O + s·(O without i), and differ in A².
Neither is nearer to Leave-One-Out everywhere: their mean is taken. What is behind the last norm is linear here, by its
gradient at the readout row.

With the direct and the indirect part exact, r with Leave-One-Out is 0.99 (docs/remedies.md): what is lost is the
curvature of the indirect part. Derivation: this project's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._pytree import tree_map

from faithcheck.explainers.attention import Attention, read_at
from faithcheck.explainers.bypass import blocks
from faithcheck.explainers.gates import CLAIMS, Gated, difference_gradient, gates_attention, without_own_row
from faithcheck.explainers.gates_expected import TANGENT
from faithcheck.explainers.protocol import Unsupported
from faithcheck.explainers.rules import MATRIX_PRODUCTS, Call
from faithcheck.models.case import Case, explained
from faithcheck.models.pair import Expectation

NOT_BY_ITSELF = (
    "layers that make something else of the readout row when it is run by itself (masks or positions made inside a "
    "layer, a cache): take finite_mask_gate"
)


@dataclass
class Layer:
    """What one layer was given and made.

    Attributes:
        module: the layer.
        args: its arguments behind the hidden states.
        kwargs: its arguments by keyword.
        hidden: the states that it was given, ``(batch, positions, width)``.
        output: the states that it gave.
        normalised: whether a LayerNorm gave them.
        products: of each matrix product of data: the second operand.
        attention: the numbers of the products that give the logits and the output of the attention.
    """

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    hidden: Tensor
    output: Tensor | None = None
    normalised: bool = False
    products: list[Tensor] = field(default_factory=list)
    attention: tuple[int, int] | None = None


class Watched(Attention):
    """Attention that also keeps the keys and values of each layer, and the norm behind the last."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.layers: list[Layer] = []
        self.behind: list[tuple[nn.Module, Tensor]] = []  # what keeps the shape of the last states, and its output
        self._normalised: Any = None

    def operate(self, call: Call) -> Any:
        """See `Attention.operate`."""
        factors = product_of_data(call)
        if self.layers and factors:
            self.layers[-1].products.append(factors[1].detach())
        result = super().operate(call)
        if call.name == "layer_norm":
            self._normalised = result
        return result

    def attend(self, logits: Tensor, softmax: Callable[[Tensor], Tensor]) -> Tensor:
        """See `Attention.attend`; the product before gave the logits, the one behind gives the output."""
        if not self.layers or self.layers[-1].attention or not self.layers[-1].products:
            raise Unsupported("expected one attention in each layer, its logits a matrix product of queries and keys")
        made = len(self.layers[-1].products)
        self.layers[-1].attention = (made - 1, made)
        return super().attend(logits, softmax)

    @contextmanager
    def following(self, model: nn.Module) -> Iterator[None]:
        """Follow which layer runs, by hooks that are removed on the way out."""

        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not args:
                raise Unsupported(f"{type(module).__name__}: expected the hidden states as its first argument")
            self.layers.append(Layer(module, args[1:], kwargs, args[0].detach()))
            self.behind = []

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            self.layers[-1].output = states(output)
            self.layers[-1].normalised = states(output) is self._normalised

        def follow(module: nn.Module, args: Any, output: Any) -> None:
            end = self.end if self.layers else None
            if end is not None and args and args[0] is end and getattr(output, "shape", ()) == end.shape:
                self.behind.append((module, output))

        handles: list[Any] = [register_module_forward_hook(follow)]
        try:
            for layer in dict.fromkeys(blocks(model)):
                handles += [
                    layer.register_forward_pre_hook(enter, with_kwargs=True),
                    layer.register_forward_hook(leave),
                ]
            yield
        finally:
            for handle in handles:
                handle.remove()

    @property
    def end(self) -> Tensor | None:
        """The last states, ``(batch, positions, width)``; None within a layer."""
        return self.behind[-1][1] if self.behind else self.layers[-1].output


class Copies(Attention):
    """Attention of n copies of the readout row, copy i to the other rows as they were and to itself, but not to key i.

    There are two more, the first and the last, that attend to every key: what they are not, the row's layers are not
    functions of the row alone.

    Args:
        case: what the model was run on.
        layer: the layer that is run again.
        readout: ``(batch,)`` the position of the readout row.
    """

    def __init__(self, case: Case, layer: Layer, readout: Tensor) -> None:
        super().__init__(case)
        self.layer, self.readout = layer, readout
        self.number = 0

    def operate(self, call: Call) -> Any:
        """See `Attention.operate`; the attention's products are with the keys and values of the unchanged rows."""
        if call.name == "scaled_dot_product_attention" and call.argument(5, "is_causal", False):
            seen = torch.arange(self.layer.hidden.shape[1], device=self.readout.device) <= self.readout.unsqueeze(-1)
            options = {**call.kwargs, "is_causal": False, "attn_mask": seen[:, None, None]}
            call = replace(call, args=call.args[:3], kwargs=options)
        factors = product_of_data(call)
        if not factors:
            return super().operate(call)
        rows, columns = factors
        before, number = self.layer.products[self.number], self.number
        self.number += 1
        assert self.layer.attention is not None
        own = self.own(before.shape[self.keys_axis(number)], before)
        if number == self.layer.attention[0]:
            logits = call.operation(rows, before)
            at_itself = (rows * columns.transpose(-1, -2)).sum(-1, keepdim=True)
            return torch.where(own, at_itself, logits)
        if number == self.layer.attention[1]:
            others = call.operation(rows.masked_fill(own, 0), before)
            return others + (rows * own).sum(-1, keepdim=True) * columns
        raise Unsupported("a matrix product of data beside the attention's two")

    def keys_axis(self, number: int) -> int:
        """Where the keys are: the last axis of Kᵀ, the last but one of V."""
        assert self.layer.attention is not None
        return -1 if number == self.layer.attention[0] else -2

    def own(self, positions: int, like: Tensor) -> Tensor:
        """Where the readout row's own key is, ``(batch, 1 …, positions)`` bool."""
        here = torch.arange(positions, device=like.device) == self.readout.unsqueeze(-1)
        return here.reshape(len(here), *(1,) * (like.dim() - 2), positions)

    def over_features(self, logits: Tensor) -> bool:
        """Whether these are the copies' logits: a row a feature, and a key a position."""
        return logits.dim() >= 3 and logits.shape[-2:] == (self.case.shape[1] + 2, self.layer.hidden.shape[1])

    def attend(self, logits: Tensor, softmax: Callable[[Tensor], Tensor]) -> Tensor:
        """The weights without key i in row i."""
        features, positions = self.case.shape[1], logits.shape[-1]
        gone = torch.eye(positions, dtype=torch.bool, device=logits.device)[-features:]
        gone = nn.functional.pad(gone, (0, 0, 1, 1))
        return softmax(logits.masked_fill(gone, torch.finfo(logits.dtype).min))


@dataclass(frozen=True)
class ReadoutGate:
    """The direct part exactly, the indirect part by gates: a forward and a backward pass, and a third of one or all.

    Attributes:
        removal: see `gates.MaskGate`; by the baseline the gate is linear in its input, and this is `MaskGate`.
    """

    removal: Gated | None = None
    name: str = "readout_gate"
    claims: frozenset[str] = CLAIMS

    @property
    def expected(self) -> Mapping[tuple[str, str], Expectation]:
        """The suite's cells, which remove by the baseline."""
        return {} if self.removal == "attention_mask" else TANGENT

    @torch.enable_grad()
    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """The attribution ``(batch, features)``, 0 at padding.

        Raises:
            Unsupported: the model has no softmax attention over the features, hides it, is no stack of layers with one
                attention each, or is read at several positions.
            ValueError: no such removal.
        """
        if not gates_attention(case, self.removal):
            return difference_gradient(model, case)
        watched = Watched(case)
        with watched.following(model), watched:
            output = explained(case.run(model), case.target)
        if len(watched.layers) != len(watched.weights):
            raise Unsupported(f"{len(watched.layers)} layers with {len(watched.weights)} attentions: expected one each")
        end = watched.end
        assert end is not None
        derivative, change, _ = watched.moved(output, retain=True)
        (gradient,) = torch.autograd.grad(output.sum(), end)
        readout = position_read(gradient)
        upper = 2 * len(watched.layers) // 3 if watched.layers[-1].normalised else 0
        direct = self._direct(case, watched, upper, readout, gradient)
        early, late = (derivative + change)[:upper].sum(0) / 2, (derivative + change)[upper:].sum(0) / 2
        there = torch.arange(late.shape[1], device=readout.device) == readout.unsqueeze(-1)
        late = late.masked_fill(there.unsqueeze(-1), 0)
        indirect = (without_own_row(early, there) + without_own_row(late, torch.zeros_like(there))).sum(1)
        return ((direct + indirect) * case.present).to(case.inputs.dtype)

    @torch.no_grad()
    def _direct(self, case: Case, watched: Watched, upper: int, readout: Tensor, gradient: Tensor) -> Tensor:
        """f less f where the readout row alone is without key i, from layer ``upper`` on: ``(batch, features)``."""
        example = torch.arange(len(readout), device=readout.device)
        copies = watched.layers[upper].hidden[example, readout].unsqueeze(1).expand(-1, case.shape[1] + 2, -1)
        try:
            for layer in watched.layers[upper:]:
                args, kwargs = tree_map(
                    lambda x: at_position(x, readout, gradient.shape[1]), (layer.args, layer.kwargs)
                )
                with Copies(case, layer, readout):
                    copies = states(layer.module(copies, *args, **kwargs))
            for module, _ in watched.behind:
                copies = module(copies)
        except (RuntimeError, IndexError, TypeError) as error:
            raise Unsupported(f"{NOT_BY_ITSELF}: {error}") from error
        assert watched.end is not None
        whole = watched.end[example, readout].unsqueeze(1)
        lost = whole - copies
        # Round-off of a few layers.
        if bool((lost[:, [0, -1]].abs() > 1000 * torch.finfo(lost.dtype).eps * whole.abs().amax()).any()):
            raise Unsupported(f"{NOT_BY_ITSELF}: nothing is hidden from it, and it is not what it was")
        return (lost[:, 1:-1] * gradient[example, readout].unsqueeze(1)).sum(-1)


def states(output: Any) -> Tensor:
    """The hidden states that a layer gives, alone or first of several.

    Raises:
        Unsupported: it gives something else.
    """
    found = output[0] if isinstance(output, tuple | list) and output else output
    if not isinstance(found, Tensor):
        raise Unsupported(f"a layer that gives {type(found).__name__} and no hidden states: take finite_mask_gate")
    return found


def product_of_data(call: Call) -> tuple[Tensor, Tensor] | None:
    """The factors of a matrix product of two batches, None of anything else.

    Raises:
        Unsupported: it is an einsum, whose factors may be in any order.
    """
    if call.name not in MATRIX_PRODUCTS:
        return None
    if call.name == "einsum":
        raise Unsupported("attention by einsum: the readout gate knows matrix products alone; take finite_mask_gate")
    second = call.argument(1, "other", call.kwargs.get("mat2"))
    return (call.argument(0, "input"), second) if second.dim() > 2 else None


def position_read(gradient: Tensor) -> Tensor:
    """The one position at which the last states ``(batch, positions, width)`` are read, ``(batch,)``; 0 where none is.

    Raises:
        Unsupported: there are several.
    """
    read = read_at(gradient.abs().amax(-1))
    counts = read.sum(1)
    if (counts > 1).any():
        raise Unsupported(
            f"the output is read at {int(counts.max())} positions: the readout gate needs one; take finite_mask_gate"
        )
    return read.byte().argmax(1)


def at_position(value: Any, readout: Tensor, positions: int) -> Any:
    """What a layer is given for the readout row, in place of what it is given for every position."""
    if not isinstance(value, Tensor) or positions not in value.shape:
        return value
    if value.dim() == 4 and value.shape[-2] == positions:  # a mask, (batch or 1, heads or 1, queries, keys)
        rows = value.expand(len(readout), -1, -1, -1)
        return rows[torch.arange(len(readout), device=value.device), :, readout].unsqueeze(2)
    if value.dim() >= 2 and value.shape[1] == positions:  # positions and their rotations, (batch or 1, positions, …)
        rows = value.expand(len(readout), *value.shape[1:])
        return rows[torch.arange(len(readout), device=value.device), readout].unsqueeze(1)
    return value
