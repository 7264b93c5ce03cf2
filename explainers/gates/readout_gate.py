"""The readout gate: what a feature gives the readout row exactly, what it gives the others by its finite gate.

Most Transformers are read at one position: [CLS], a decoder's last token, a ViT's class token. A feature i reaches it
*directly*, through the readout row's own attention to i, or *indirectly*, through other rows that attend to i.

The direct part is computed exactly: for each i a copy of the readout row goes through the layers that attends to the
keys and values of the other rows, unchanged, and to its own, but not to key i; then through the norm behind the last
layer, if there is one. Where layers end in no LayerNorm, as in GPT-2, Llama and ViT, every layer adds to one sum that
the last norm divides, and none can be missed: that is n rows more, a forward pass. Where they do, as BERT's, each
forgets the scale of what came before. There the last third of the layers has most of the direct part, and few features
have much of one: copies are made of the eight that move most, by Σ |change| over rows and layers of the gates below.
The direct part of the others is by their gates.

In the layers below, and for the indirect part, rows have gates (`gates`). The derivative at the gate's 1 and the finite
change are both first-order, the one along m_i, the other along O(s) = (1 − s)·O + s·(O without i), and differ in A².
Neither is nearer to Leave-One-Out everywhere: their mean is taken. What is behind the last norm is linear here, by its
gradient at the readout row.

Long texts, of layers that end in a LayerNorm, are read otherwise. There the error is in a few features that move much,
and of those in a few rows. So the features that move most are taken away again from the readout row and from the rows
in which they move most, in every layer: copies of these rows attend to each other as changed, and to the other rows as
they were. What is left is first-order: for the rows of no copy the feature's own gate, and what reaches them of the
copies' changed values, by the gradient at these that does not come through the copies; what changed keys do to them is
left out, which moved r by less than 0.001. Where every row is copied, this is Leave-One-Out.

With the direct and the indirect part exact, r with Leave-One-Out is 0.99 (docs/remedies.md): what is lost is the
curvature of the indirect part. Derivation: this project's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from faithcheck.explainers.attention_observer import AttentionObserver, Kind, read_at
from faithcheck.explainers.gates.expectations import TANGENT
from faithcheck.explainers.gates.mask_gates import (
    CLAIMS,
    Gated,
    difference_gradient,
    gates_attention,
    long_texts,
    without_own_row,
)
from faithcheck.explainers.lrp.operation_call import OperationCall
from faithcheck.explainers.lrp.operations import Trait, operations_with
from faithcheck.explainers.lrp.softmax_bypass import transformer_layers
from faithcheck.explainers.protocol import Unsupported
from faithcheck.models.case import Case, select_target
from faithcheck.models.pair import Expectation

NOT_BY_ITSELF = (
    "layers that make something else of the readout row when it is run by itself (masks or positions made inside a "
    "layer, a cache): take finite_mask_gate"
)


SHARE = 0.12  # of a long text's features: how many rows are run again, in every layer
SHORT = 8  # how many of a short text's features are taken away again, in the last layers


@dataclass
class Product:
    """A matrix product of data, and the gradients that the backward pass leaves here.

    Attributes:
        first: the first factor, ``(…, queries, ·)``.
        second: the second, ``(…, ·, keys)`` or ``(…, keys, ·)``.
        at_second: of a long text's attention and values, the gradient at these; None in a first layer, below which
            nothing is asked for.
        at_result: likewise, the gradient at the product.
    """

    first: Tensor
    second: Tensor
    at_second: Tensor | None = None
    at_result: Tensor | None = None

    def follow(self, result: Tensor | None) -> None:
        """Let go of the graph, and keep the gradients at ``result``, if given, and the second factor as they pass."""
        if result is not None and self.second.requires_grad:
            self.second.register_hook(partial(setattr, self, "at_second"))  # type: ignore[no-untyped-call]
            result.register_hook(partial(setattr, self, "at_result"))  # type: ignore[no-untyped-call]
        self.first, self.second = self.first.detach(), self.second.detach()


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
        products: its matrix products of data.
        attention: the numbers of the products that give the logits and the output of the attention.
    """

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    hidden: Tensor
    output: Tensor | None = None
    normalised: bool = False
    products: list[Product] = field(default_factory=list)
    attention: tuple[int, int] | None = None


@dataclass
class Removed:
    """Features that are taken away again, each from a few rows: groups of copies of rows, as many rows in each.

    Attributes:
        feature: ``(batch, groups)`` the feature, −1 where none is.
        own: likewise, its position.
        rows: ``(batch, groups, rows)`` the positions of the rows, the readout row's first.
        counted: bool, likewise: what is not, is the readout row again, to fill up.
        since: ``(batch,)`` the first layer in which they are.
        long: bool, likewise: whether the text is read as a long one, by first order beside the copies.
    """

    feature: Tensor
    own: Tensor
    rows: Tensor
    counted: Tensor
    since: Tensor
    long: Tensor

    @property
    def flat(self) -> Tensor:
        """The positions, group after group, ``(batch, groups · rows)``."""
        return self.rows.flatten(1)

    @property
    def inside(self) -> Tensor:
        """The positions of the queries that no change is passed on through: the rows, and the feature's own."""
        return torch.cat([self.rows, self.own.unsqueeze(-1)], -1)

    @property
    def inside_counted(self) -> Tensor:
        """Which of `inside` are counted: the feature's own row, unless it is the readout row as well."""
        return torch.cat([self.counted, (self.own != self.rows[..., 0]).unsqueeze(-1)], -1)

    def grouped(self, values: Tensor) -> Tensor:
        """``(…, groups · rows, ·)`` to ``(…, groups, rows, ·)``."""
        return torch.unflatten(values, -2, self.rows.shape[1:])

    def taken(self, values: Tensor, rows: Tensor) -> Tensor:
        """What ``(…, positions, ·)`` has at rows ``(batch, groups, ·)``, ``(…, groups, ·, ·)``."""
        example = torch.arange(len(rows), device=rows.device)[:, None, None]
        return values.movedim(-2, 1)[example, rows].movedim((1, 2), (-3, -2))

    def pairs(self, values: Tensor) -> Tensor:
        """What ``(…, positions, positions)`` has at the queries inside and the rows' keys, ``(…, groups, ·, rows)``."""
        where = self.inside.unsqueeze(-1) * values.shape[-1] + self.rows.unsqueeze(-2)
        flat = where.reshape(len(where), *(1,) * (values.dim() - 3), -1).expand(*values.shape[:-2], -1)
        return torch.unflatten(values.flatten(-2).gather(-1, flat), -1, where.shape[1:])

    def keys(self, values: Tensor) -> Tensor:
        """For each row of ``(…, groups, rows, positions)`` the numbers of its group's keys, ``(…, rows, rows)``."""
        where = self.rows.reshape(len(self.rows), *(1,) * (values.dim() - 4), *self.rows.shape[1:2], 1, -1)
        return where.expand(*values.shape[:-1], -1)

    def of_counted(self, values: Tensor) -> Tensor:
        """``(…, groups, rows, rows)``, 0 where the key is not counted."""
        return values * self.counted.reshape(len(self.rows), *(1,) * (values.dim() - 4), -1, 1, self.rows.shape[2])


class Watched(AttentionObserver):
    """Attention that also keeps the keys and values of each layer, and the norm behind the last."""

    met = AttentionObserver.met | {*operations_with(Trait.MATRIX_PRODUCT)}

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.layers: list[Layer] = []
        self.behind: list[tuple[nn.Module, Tensor]] = []  # what keeps the shape of the last states, and its output
        self.long = bool(long_texts(case).any())
        self.last = False  # whether the last layer runs
        if self.long:
            self.met = self.met | {"linear"}

    def operate(self, call: OperationCall) -> Any:
        """See `AttentionObserver.operate`."""
        if call.name == "linear":
            return self.linear(call)
        factors = product_of_data(call)
        result = super().operate(call)
        if self.layers and factors:
            layer, product = self.layers[-1], Product(*factors)
            gives_output = layer.attention is not None and len(layer.products) == layer.attention[1]
            product.follow(result if self.long and gives_output else None)
            layer.products.append(product)
        return result

    def linear(self, call: OperationCall) -> Any:
        """A linear map, in the last layer `OfRows` unless its weights are computed."""
        values, *parameters = (call.argument(i, name) for i, name in enumerate(("input", "weight", "bias")))
        if self.last and all(x is None or x.is_leaf for x in parameters):
            return OfRows.apply(values, *parameters)  # type: ignore[no-untyped-call]
        return call.value()

    def attend(self, logits: Tensor, softmax: Callable[[Tensor], Tensor]) -> Tensor:
        """See `AttentionObserver.attend`; the product before gave the logits, the one behind gives the output."""
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
            self.last = module is last

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            self.layers[-1].output = end = states(output)
            self.layers[-1].normalised = end.grad_fn is not None and end.grad_fn.name() == "NativeLayerNormBackward0"
            self.last = False

        def follow(module: nn.Module, args: Any, output: Any) -> None:
            end = self.end if self.layers else None
            if end is not None and args and args[0] is end and getattr(output, "shape", ()) == end.shape:
                self.behind.append((module, output))

        layers = dict.fromkeys(transformer_layers(model))
        last = next(reversed(layers), None)
        handles: list[Any] = []
        try:
            for layer in layers:
                handles += [
                    layer.register_forward_pre_hook(enter, with_kwargs=True),
                    layer.register_forward_hook(leave),
                ]
            handles += [module.register_forward_hook(follow) for module in beside(model, layers)]
            yield
        finally:
            for handle in handles:
                handle.remove()

    @property
    def end(self) -> Tensor | None:
        """The last states, ``(batch, positions, width)``; None within a layer."""
        return self.behind[-1][1] if self.behind else self.layers[-1].output


class OfRows(torch.autograd.Function):
    """A linear map whose backward pass is of the rows alone that have a gradient: in the last layer, one of all.

    Of a long text, the zeros of the other rows would take about a twentieth of a plain forward and backward pass.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The linear map of ``(…, rows, inputs)``, ``(…, rows, outputs)``."""
        ctx.save_for_backward(weight)
        return nn.functional.linear(values, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """The gradient at the values, and none at weight and bias, which nobody asks for."""
        (weight,) = ctx.saved_tensors
        made = gradient.new_zeros(*gradient.shape[:-1], weight.shape[1])
        rows = gradient.any(-1)
        made[rows] = gradient[rows] @ weight.to(gradient)
        return made, None, None


class Copies(AttentionObserver):
    """Attention of copies of rows, each group to its own keys, to the others as they were, but not to its feature's.

    Args:
        case: what the model was run on.
        layer: the layer that is run again.
        removed: the groups.
        here: ``(batch,)`` bool, whether anything is taken away in this layer.
        passes: whether what changes is passed on through the rows of no copy.
    """

    met = AttentionObserver.met | {*operations_with(Trait.MATRIX_PRODUCT)}

    def __init__(self, case: Case, layer: Layer, removed: Removed, here: Tensor, passes: bool) -> None:
        super().__init__(case)
        self.layer, self.copies, self.here = layer, removed, here
        self.number, self.passes = 0, passes
        self.passed_on = layer.hidden.new_zeros(removed.feature.shape)

    def operate(self, call: OperationCall) -> Any:
        """See `AttentionObserver.operate`; the attention's products are with the keys and values of the unchanged rows."""
        if call.name == "scaled_dot_product_attention" and call.argument(5, "is_causal", False):
            seen = torch.arange(self.layer.hidden.shape[1], device=self.copies.rows.device)
            seen = seen <= self.copies.flat.unsqueeze(-1)
            options = {**call.kwargs, "is_causal": False, "attn_mask": seen.unsqueeze(1)}
            call = replace(call, args=call.args[:3], kwargs=options)
        factors = product_of_data(call)
        if not factors:
            return super().operate(call)
        assert self.layer.attention is not None
        if self.number not in self.layer.attention:
            raise Unsupported("a matrix product of data beside the attention's two")
        product = self.layer.products[self.number]
        logits = self.number == self.layer.attention[0]
        self.number += 1
        return (self.logits if logits else self.output)(call, product, *factors)

    def logits(self, call: OperationCall, product: Product, queries: Tensor, keys: Tensor) -> Tensor:
        """The logits ``(…, groups · rows, positions)``."""
        copies = self.copies
        logits = copies.grouped(call.operation(queries, product.second))
        inside = copies.grouped(queries) @ copies.grouped(keys.mT).mT
        return logits.scatter_(-1, copies.keys(logits), inside).flatten(-3, -2)

    def output(self, call: OperationCall, product: Product, weights: Tensor, values: Tensor) -> Tensor:
        """The outputs ``(…, groups · rows, width)``."""
        copies = self.copies
        change = copies.grouped(values) - copies.taken(product.second, copies.rows)
        if self.passes and product.at_second is not None and product.at_result is not None:
            self.passed_on += self.pass_on(change, product, product.at_second, product.at_result)
        grouped = copies.grouped(weights)
        inside = copies.of_counted(grouped.gather(-1, copies.keys(grouped)))
        outputs: Tensor = call.operation(weights, product.second) + (inside @ change).flatten(-3, -2)
        return outputs

    def pass_on(self, change: Tensor, product: Product, at_values: Tensor, at_output: Tensor) -> Tensor:
        """What a change of the rows' values does, to first order, through the rows of no copy, ``(batch, groups)``.

        Args:
            change: ``(…, groups, rows, width)``.
            product: of the weights and the values.
            at_values: the gradient at the values, ``(…, positions, width)``: through all queries.
            at_output: the gradient at the output, ``(…, queries, width)``.
        """
        copies, more = self.copies, (1,) * (change.dim() - 4)
        queries = copies.inside_counted.reshape(len(change), *more, *copies.inside.shape[1:], 1)
        counted = copies.counted.reshape(len(change), *more, *copies.rows.shape[1:], 1)
        through_inside = copies.pairs(product.first).mT @ (copies.taken(at_output, copies.inside) * queries)
        moved = (change * (copies.taken(at_values, copies.rows) - through_inside) * counted).sum((-1, -2))
        return moved.reshape(len(moved), -1, moved.shape[-1]).sum(1)

    def over_features(self, logits: Tensor) -> bool:
        """Whether these are the copies' logits: a row a copy, and a key a position."""
        return logits.dim() >= 3 and logits.shape[-2:] == (self.copies.flat.shape[1], self.layer.hidden.shape[1])

    def attend(self, logits: Tensor, softmax: Callable[[Tensor], Tensor]) -> Tensor:
        """The weights without each group's feature."""
        again = (self.copies.feature >= 0) & self.here.unsqueeze(-1)
        grouped = self.copies.grouped(logits)
        shape = len(again), *(1,) * (grouped.dim() - 4), again.shape[1], 1, 1
        own = self.copies.own.reshape(shape).expand(*grouped.shape[:-1], 1)
        left = grouped.gather(-1, own).masked_fill(again.reshape(shape), torch.finfo(logits.dtype).min)
        return softmax(grouped.scatter(-1, own, left).flatten(-3, -2))


def every_feature(case: Case, positions: int, readout: Tensor) -> Removed:
    """Every feature, from the readout row alone, in every layer.

    Args:
        case: what the model was run on.
        positions: how many there are; the features are the last.
        readout: ``(batch,)``.
    """
    batch, features = case.shape
    feature = torch.arange(features, device=readout.device).expand(batch, -1).masked_fill(~case.unpadded, -1)
    feature = with_none(feature, readout)
    rows = readout[:, None, None].expand(batch, features + 1, 1)
    own, since = feature.clamp_min(0) + positions - features, torch.zeros_like(readout)
    return Removed(feature, own, rows, torch.ones_like(rows, dtype=torch.bool), since, since.bool())


def chosen(case: Case, change: Tensor, readout: Tensor, since: int) -> Removed:
    """The features that move most: of short texts, from the readout row in the last layers; of long ones, see `SHARE`.

    Args:
        case: what the model was run on.
        change: ``(batch, queries, features)`` how much each feature's gate moves in each row, ≥ 0.
        readout: ``(batch,)``.
        since: the first layer in which those of short texts are.
    """
    present, long = case.unpadded.sum(1), long_texts(case)
    rows = torch.where(long, (present * SHARE / 2).sqrt().ceil().long(), 1)
    groups = torch.where(long, 2 * rows, SHORT).minimum(present)
    slots = torch.arange(int(groups.max()), device=change.device)
    feature = (
        change.sum(1).masked_fill(~case.unpadded, -1).argsort(dim=1, descending=True, stable=True)[:, : len(slots)]
    )
    feature = feature.masked_fill(slots >= groups.unsqueeze(1), -1)
    feature = with_none(feature, readout)
    example = torch.arange(len(present), device=change.device)
    score = change.mT[example.unsqueeze(1), feature]
    score[example, :, readout] = torch.inf
    best = score.topk(min(int(rows.max()), change.shape[1]))
    slots = torch.arange(best.values.shape[-1], device=change.device)
    counted = (best.values > 0) & (slots < rows[:, None, None])
    own = feature.clamp_min(0) + change.shape[1] - change.shape[2]
    where = torch.where(counted, best.indices, readout[:, None, None])
    return Removed(feature, own, where, counted, torch.where(long, 0, since), long)


def with_none(feature: Tensor, readout: Tensor) -> Tensor:
    """The groups' features, and a group that none is taken from: what its copies give is known.

    It is where no copy of the readout row can be what it was if the layer has its own idea of where a row is: the first
    row where a later one is read, and the last where the first is.
    """
    return nn.functional.pad(feature, (1, 0) if readout.any() else (0, 1), value=-1)


@dataclass(frozen=True)
class ReadoutGate:
    """The direct part exactly, the indirect part by gates: a forward and a backward pass, and some rows again.

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
            output = select_target(case.run(model), case.target)
        if len(watched.layers) != len(watched.weights):
            raise Unsupported(f"{len(watched.layers)} layers with {len(watched.weights)} attentions: expected one each")
        end = watched.end
        assert end is not None
        passed: list[Tensor] = []
        if end.requires_grad:
            end.register_hook(passed.append)  # type: ignore[no-untyped-call]
        normalised = watched.layers[-1].normalised
        kinds: tuple[Kind, ...] = ("change", "derivative")  # of long texts the first alone
        found = watched.moved(output, *kinds[: 1 if normalised and long_texts(case).all() else 2])
        change = found[0]
        if not passed:
            raise Unsupported("the explained output does not depend on the last states: take finite_mask_gate")
        gradient = passed[0]
        readout = position_read(gradient)
        there = torch.arange(change.shape[2], device=readout.device) == readout.unsqueeze(-1)
        first = 0
        if normalised:
            first = 2 * len(change) // 3
            removed = chosen(case, without_own_row(change.abs().sum(0), there), readout, first)
        else:
            removed = every_feature(case, change.shape[2], readout)
        long = removed.long[:, None, None]

        def gates(since: int) -> Tensor:
            moved = [kind[since:].sum(0) for kind in found]
            mean = moved[0] if len(moved) == 1 else torch.where(long, moved[0], (moved[0] + moved[1]) / 2)
            return without_own_row(mean, there)

        every = gates(0)
        late = every if removed.long.all() or not first else torch.where(long, every, gates(first))
        attribution = every.sum(1)
        again = removed.feature >= 0
        example, _ = again.nonzero(as_tuple=True)
        feature, rows = removed.feature[again].unsqueeze(1), removed.rows[again]
        # Where features are taken away again, it is not for the gates to say.
        known = (late[example.unsqueeze(1), rows, feature] * removed.counted[again]).sum(1)
        attribution[example, feature.squeeze(1)] += self._lost(case, watched, removed, gradient)[again] - known
        return (attribution * case.unpadded).to(case.inputs.dtype)

    @torch.no_grad()
    def _lost(self, case: Case, watched: Watched, removed: Removed, gradient: Tensor) -> Tensor:
        """f less f with each group's rows without its feature, first-order in the others: ``(batch, groups)``."""
        at = removed.flat
        example = torch.arange(len(at), device=at.device).unsqueeze(1)
        first, long = int(removed.since.min()), bool(removed.long.any())
        copies = watched.layers[first].hidden[example, at]
        passed_on = torch.zeros_like(removed.feature, dtype=gradient.dtype)
        try:
            for number, layer in enumerate(watched.layers[first:], first):
                args, kwargs = tree_map(lambda x: at_positions(x, at, gradient.shape[1]), (layer.args, layer.kwargs))
                passes = long and layer is not watched.layers[-1]  # of the last one, rows of no copy are not read
                with Copies(case, layer, removed, number >= removed.since, passes) as attention:
                    copies = states(layer.module(copies, *args, **kwargs))
                passed_on += attention.passed_on * removed.long.unsqueeze(1)
            for module, _ in watched.behind:
                copies = module(copies)
        except (RuntimeError, IndexError, TypeError) as error:
            raise Unsupported(f"{NOT_BY_ITSELF}: {error}") from error
        assert watched.end is not None
        whole = watched.end[example, at]
        lost = removed.grouped(whole - copies)
        # Round-off of a few layers.
        if bool((lost[removed.feature < 0].abs() > 1000 * torch.finfo(lost.dtype).eps * whole.abs().amax()).any()):
            raise Unsupported(f"{NOT_BY_ITSELF}: nothing is hidden from it, and it is not what it was")
        return (lost[:, :, 0] * removed.grouped(gradient[example, at])[:, :, 0]).sum(-1) - passed_on


def beside(module: nn.Module, layers: Collection[nn.Module]) -> Iterator[nn.Module]:
    """The module and those in it, but for the layers and what is in them."""
    yield module
    for child in module.children():
        if child not in layers:
            yield from beside(child, layers)


def states(output: Any) -> Tensor:
    """The hidden states that a layer gives, alone or first of several.

    Raises:
        Unsupported: it gives something else.
    """
    found = output[0] if isinstance(output, tuple | list) and output else output
    if not isinstance(found, Tensor):
        raise Unsupported(f"a layer that gives {type(found).__name__} and no hidden states: take finite_mask_gate")
    return found


def product_of_data(call: OperationCall) -> tuple[Tensor, Tensor] | None:
    """The factors of a matrix product of two batches, None of anything else.

    Raises:
        Unsupported: it is an einsum, whose factors may be in any order.
    """
    if call.name not in operations_with(Trait.MATRIX_PRODUCT):
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


def at_positions(value: Any, rows: Tensor, positions: int) -> Any:
    """What a layer is given for these rows ``(batch, rows)``, in place of what it is given for every position."""
    if not isinstance(value, Tensor) or positions not in value.shape:
        return value
    example = torch.arange(len(rows), device=value.device).unsqueeze(1)
    if value.dim() == 4 and value.shape[-2] == positions:  # a mask, (batch or 1, heads or 1, queries, keys)
        return value.expand(len(rows), -1, -1, -1)[example, :, rows].transpose(1, 2)
    if value.dim() >= 2 and value.shape[1] == positions:  # positions and their rotations, (batch or 1, positions, …)
        return value.expand(len(rows), *value.shape[1:])[example, rows]
    return value
