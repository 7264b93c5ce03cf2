"""Copied rows for the readout gate: run a few rows of each layer again, without attention to one feature each."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from faithcheck.explainers.fast.linear_map import linear_without_gradient
from faithcheck.explainers.gates.gate import is_long_text
from faithcheck.explainers.gates.gate_observer import GateObserver
from faithcheck.explainers.gates.readout_recording import (
    MATRIX_PRODUCTS,
    MatrixProduct,
    RecordedLayer,
    matrix_product_of_data,
)
from faithcheck.explainers.lrp.operation_call import OperationCall
from faithcheck.models.case import Case

COPIED_SHARE = 0.12
"""Copied rows of a long text, as a share of its features; all groups together, in every layer."""

COPIES_IN_SHORT_TEXTS = 8
"""Features of a short text that the last layers are run again without."""


@dataclass
class CopiedRows:
    """Groups of copied rows; each group is run without attention to one feature. All groups have as many rows.

    Attributes:
        feature: ``(batch, groups)`` int64, the removed feature; −1 in the control group and in groups that fill up.
        rows: ``(batch, groups, rows)``, the positions of the copied rows, the readout row first.
        valid: bool, likewise; false where the readout row is repeated to fill up.
        first_layer: ``(batch,)``, the first layer in which the feature is removed.
        is_long: ``(batch,)`` bool, whether the effects on rows without a copy are first-order, as in long texts.
    """

    feature: Tensor
    feature_position: Tensor
    rows: Tensor
    valid: Tensor
    positions: int
    first_layer: Tensor
    is_long: Tensor

    @cached_property
    def flat_rows(self) -> Tensor:
        """The positions of the copied rows, group after group, ``(batch, groups · rows)``."""
        return self.rows.flatten(1)

    @cached_property
    def excluded_queries(self) -> Tensor:
        """The queries that get no passed-on change, ``(batch, groups, rows + 1)``: the rows, and the feature's own."""
        return torch.cat([self.rows, self.feature_position.unsqueeze(-1)], -1)

    @cached_property
    def excluded_valid(self) -> Tensor:
        """Which of `excluded_queries` are valid: the feature's own row counts unless it is the readout row."""
        return torch.cat([self.valid, (self.feature_position != self.rows[..., 0]).unsqueeze(-1)], -1)

    def split_groups(self, values: Tensor) -> Tensor:
        """``(…, groups · rows, ·)`` to ``(…, groups, rows, ·)``."""
        return torch.unflatten(values, -2, self.rows.shape[1:])

    def gather_rows(self, values: Tensor, rows: Tensor) -> Tensor:
        """``(…, positions, ·)`` at rows ``(batch, groups, ·)``: ``(…, groups, ·, ·)``."""
        if len(rows) == 1:  # it copies whole rows, and takes a quarter of the time
            return torch.unflatten(values.index_select(-2, rows.flatten()), -2, rows.shape[1:])
        size = *values.shape[:-2], -1, values.shape[-1]
        index = rows.reshape(len(rows), *(1,) * (values.dim() - 3), -1, 1).expand(size)
        return values.gather(-2, index).reshape(*values.shape[:-2], *rows.shape[1:], values.shape[-1])

    @cached_property
    def own_features(self) -> Tensor:
        """Which key each copied row is run without, ``(batch, groups · rows, positions)`` bool."""
        is_feature = torch.arange(self.positions, device=self.rows.device) == self.feature_position.unsqueeze(-1)
        return (is_feature & (self.feature >= 0).unsqueeze(-1)).repeat_interleave(self.rows.shape[2], 1)

    def removed_keys(self, layers: int) -> Tensor:
        """Which keys the copied rows do not attend to in each layer, ``(layers, batch, groups · rows, positions)``."""
        layer = torch.arange(layers, device=self.rows.device).unsqueeze(1)
        return self.own_features & (self.first_layer <= layer)[..., None, None]

    def gather_excluded_weights(self, weights: Tensor) -> Tensor:
        """``(…, positions, positions)`` at the excluded queries and the copied rows' keys: ``(…, groups, ·, rows)``."""
        index = self.excluded_queries.unsqueeze(-1) * weights.shape[-1] + self.rows.unsqueeze(-2)
        flat = index.reshape(len(index), *(1,) * (weights.dim() - 3), -1).expand(*weights.shape[:-2], -1)
        return torch.unflatten(weights.flatten(-2).gather(-1, flat), -1, index.shape[1:])

    def key_index(self, values: Tensor) -> Tensor:
        """For each row of ``(…, groups, rows, positions)``, its group's keys, ``(…, groups, rows, rows)``."""
        index = self.rows.reshape(len(self.rows), *(1,) * (values.dim() - 4), *self.rows.shape[1:2], 1, -1)
        return index.expand(*values.shape[:-1], -1)

    def zero_invalid_keys(self, values: Tensor) -> Tensor:
        """``(…, groups, rows, rows)``, with 0 where the key is not valid."""
        return values * self.valid.reshape(len(self.rows), *(1,) * (values.dim() - 4), -1, 1, self.rows.shape[2])


class CopiedRowsAttention(GateObserver):
    """Attention of copied rows: each group attends to its own changed keys and to the other rows' unchanged keys.

    ``removed``, ``(batch, groups · rows, positions)`` bool, has the keys that a row does not attend to in this layer,
    such as its group's removed feature. If ``passes_on``, ``passed_on``, ``(batch, groups)``, is the first-order effect
    on the output of the changed values through the rows without a copy. In the first layer that the copied rows go
    through, their states are ``unchanged``: those of the rows that they are copies of, and so are their linear maps,
    keys and values.
    """

    operations = GateObserver.operations | MATRIX_PRODUCTS

    def __init__(
        self,
        case: Case,
        layer: RecordedLayer,
        copies: CopiedRows,
        removed: Tensor,
        passes_on: bool,
        unchanged: Tensor | None,
    ) -> None:
        super().__init__(case)
        self.linear = linear_without_gradient if unchanged is None else self.known_map
        self.layer, self.copies, self.removed, self.passes_on = layer, copies, removed, passes_on
        self.unchanged = unchanged
        self.products_run = 0
        self.passed_on = layer.hidden.new_zeros(copies.feature.shape)

    def compute(self, call: OperationCall) -> Any:
        """See `AttentionObserver.compute`; multiplies by the keys and values of the unchanged rows."""
        if call.name == "scaled_dot_product_attention" and call.argument(5, "is_causal", False):
            positions = torch.arange(self.layer.hidden.shape[1], device=self.copies.rows.device)
            mask = positions <= self.copies.flat_rows.unsqueeze(-1)
            options = {**call.kwargs, "is_causal": False, "attn_mask": mask.unsqueeze(1)}
            call = replace(call, args=call.args[:3], kwargs=options)
        factors = matrix_product_of_data(call)
        if not factors:
            return super().compute(call)
        assert self.layer.attention is not None
        if self.products_run not in self.layer.attention:
            raise call.unsupported("a matrix product of data beside the attention's two: take finite_mask_gate")
        product = self.layer.products[self.products_run]
        is_logits = self.products_run == self.layer.attention[0]
        self.products_run += 1
        return (self.logits if is_logits else self.output)(call, product, *factors)

    def known_map(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """A linear map; of the unchanged states as it was recorded."""
        if input is self.unchanged:
            for of_weight, of_bias, result in self.layer.maps:
                was_written_to = result._version > 0
                if of_weight is weight and of_bias is bias and not was_written_to:
                    return self.copies.gather_rows(result, self.copies.rows).flatten(1, 2)
        return linear_without_gradient(input, weight, bias)

    def logits(self, call: OperationCall, product: MatrixProduct, queries: Tensor, keys: Tensor) -> Tensor:
        """The attention logits, ``(…, groups · rows, positions)``."""
        copies = self.copies
        of_unchanged: Tensor = call.operation(queries, product.second)
        if self.unchanged is not None:
            self.require_of_copies(keys.mT, product.second.mT)
            return of_unchanged
        logits = copies.split_groups(of_unchanged)
        among_copies = copies.split_groups(queries) @ copies.split_groups(keys.mT).mT
        return logits.scatter_(-1, copies.key_index(logits), among_copies).flatten(-3, -2)

    def output(self, call: OperationCall, product: MatrixProduct, weights: Tensor, values: Tensor) -> Tensor:
        """The attention output, ``(…, groups · rows, width)``."""
        copies = self.copies
        of_unchanged: Tensor = call.operation(weights, product.second)
        if self.unchanged is not None:
            self.require_of_copies(values, product.second)
            return of_unchanged
        change = copies.split_groups(values) - copies.gather_rows(product.second, copies.rows)
        if self.passes_on and product.second_gradient is not None and product.result_gradient is not None:
            self.passed_on += self.pass_on(change, product, product.second_gradient, product.result_gradient)
        grouped = copies.split_groups(weights)
        among_copies = copies.zero_invalid_keys(grouped.gather(-1, copies.key_index(grouped)))
        return of_unchanged + (among_copies @ change).flatten(-3, -2)

    def require_of_copies(self, tokens: Tensor, of_rows: Tensor) -> None:
        """Refuse keys or values that are not those of the copied rows alone, as the layers that use them would.

        Raises RuntimeError if they are not ``(batch, …, groups · rows, width)``, as with a cache.
        """
        batch, copied = self.copies.flat_rows.shape
        expected = (batch, *of_rows.shape[1:-2], copied, of_rows.shape[-1])
        if tokens.shape != expected:
            raise RuntimeError(f"expected keys and values {expected} of the copied rows, got {tuple(tokens.shape)}")

    def pass_on(self, change: Tensor, product: MatrixProduct, at_values: Tensor, at_output: Tensor) -> Tensor:
        """The first-order effect of changed values through the rows without a copy, ``(batch, groups)``.

        It is Σ over copied rows r of (V_r changed − V_r) · Σ over rows j without a copy of A_jr S_j, S the gradient at
        the attention output. The inner sum is the gradient at V_r, which goes through all rows, less that through the
        excluded rows. The ``change`` of V is ``(…, groups, rows, width)``.
        """
        copies, more_axes = self.copies, (1,) * (change.dim() - 4)
        queries = copies.excluded_valid.reshape(len(change), *more_axes, *copies.excluded_queries.shape[1:], 1)
        valid = copies.valid.reshape(len(change), *more_axes, *copies.rows.shape[1:], 1)
        at_excluded = copies.gather_rows(at_output, copies.excluded_queries) * queries
        through_excluded = copies.gather_excluded_weights(product.first).mT @ at_excluded
        gradient = copies.gather_rows(at_values, copies.rows) - through_excluded
        effect = (change * gradient * valid).sum((-1, -2))
        return effect.reshape(len(effect), -1, effect.shape[-1]).sum(1)

    def is_over_features(self, logits: Tensor) -> bool:
        """Whether these are the copies' logits: one row per copy, and one key per position."""
        return logits.dim() >= 3 and logits.shape[-2:] == (self.copies.flat_rows.shape[1], self.layer.hidden.shape[1])

    def attend(self, logits: Tensor, softmax: Callable[[Tensor], Tensor]) -> Tensor:
        """The attention weights without each group's removed feature."""
        removed = self.removed.reshape(len(logits), *(1,) * (logits.dim() - 3), *logits.shape[-2:])
        return softmax(logits.masked_fill(removed, torch.finfo(logits.dtype).min))


def copies_for_every_feature(case: Case, positions: int, readout: Tensor) -> CopiedRows:
    """One group for each feature, which are the last positions: the readout row alone, from the first layer on."""
    batch, features = case.shape
    feature = torch.arange(features, device=readout.device).expand(batch, -1).masked_fill(~case.unpadded, -1)
    feature = with_control_group(feature, readout)
    rows = readout[:, None, None].expand(batch, features + 1, 1)
    feature_position, first_layer = feature.clamp_min(0) + positions - features, torch.zeros_like(readout)
    valid = torch.ones_like(rows, dtype=torch.bool)
    return CopiedRows(feature, feature_position, rows, valid, positions, first_layer, first_layer.bool())


def copies_for_largest_effects(case: Case, effects: Tensor, readout: Tensor, first_layer: int) -> CopiedRows:
    """Groups for the features with the largest effects, by their sizes in each row: ``(batch, queries, features)``.

    In a short text these are `COPIES_IN_SHORT_TEXTS` features, and the readout row is copied, from ``first_layer`` on.
    In a long text of n features with the share c = `COPIED_SHARE`, these are 2·√(c n / 2) features with √(c n / 2) rows
    each, those in which the feature has the largest effects, in every layer.
    """
    unpadded, is_long = case.unpadded.sum(1), is_long_text(case)
    groups = unpadded.clamp_max(COPIES_IN_SHORT_TEXTS)
    if has_long_text := bool(is_long.any()):
        row_count = torch.where(is_long, (unpadded * COPIED_SHARE / 2).sqrt().ceil().long(), 1)
        groups = torch.where(is_long, (2 * row_count).minimum(unpadded), groups)
    slots = torch.arange(int(groups.max()), device=effects.device)
    order = effects.sum(1).masked_fill(~case.unpadded, -1).argsort(dim=1, descending=True, stable=True)
    feature = order[:, : len(slots)].masked_fill(slots >= groups.unsqueeze(1), -1)
    feature = with_control_group(feature, readout)
    if has_long_text:
        rows, valid = rows_with_largest_effects(effects, feature, readout, row_count)
    else:
        rows = readout[:, None, None].expand(*feature.shape, 1)
        valid = torch.ones_like(rows, dtype=torch.bool)
    feature_position = feature.clamp_min(0) + effects.shape[1] - effects.shape[2]
    first_layers = torch.where(is_long, 0, first_layer)
    return CopiedRows(feature, feature_position, rows, valid, effects.shape[1], first_layers, is_long)


def rows_with_largest_effects(
    effects: Tensor, feature: Tensor, readout: Tensor, row_count: Tensor
) -> tuple[Tensor, Tensor]:
    """The rows in which each feature's effect is largest, the readout row first, and which of them are valid.

    Both are ``(batch, groups, rows)``, with the readout row where they are not valid; the effects are ``(batch,
    queries, features)``, ≥ 0. ``row_count``, ``(batch,)``, is how many rows each feature has at most.
    """
    example = torch.arange(len(feature), device=effects.device)
    score = effects.mT[example.unsqueeze(1), feature]
    score[example, :, readout] = torch.inf
    best = score.topk(min(int(row_count.max()), effects.shape[1]))
    slots = torch.arange(best.values.shape[-1], device=effects.device)
    valid = (best.values > 0) & (slots < row_count[:, None, None])
    return torch.where(valid, best.indices, readout[:, None, None]), valid


def with_control_group(feature: Tensor, readout: Tensor) -> Tensor:
    """Add a control group, from which no feature is removed: its copies must give the unchanged rows.

    The control group shows if a layer infers a row's position from its place among the rows. So it stands where its
    copy of the readout row cannot be at the right place: first, or last if the first row is read.
    """
    control = torch.full_like(feature[:, :1], -1)
    return torch.cat([control, feature] if readout.any() else [feature, control], 1)


def arguments_at_rows(value: Any, rows: Tensor, positions: int) -> Any:
    """A layer's argument for these rows ``(batch, rows)``, in place of its argument for all positions."""
    if not isinstance(value, Tensor) or positions not in value.shape:
        return value
    example = torch.arange(len(rows), device=value.device).unsqueeze(1)
    if value.dim() == 4 and value.shape[-2] == positions:  # a mask, (batch or 1, heads or 1, queries, keys)
        return value.expand(len(rows), -1, -1, -1)[example, :, rows].transpose(1, 2)
    if value.dim() >= 2 and value.shape[1] == positions:  # positions and their rotations, (batch or 1, positions, …)
        return value.expand(len(rows), *value.shape[1:])[example, rows]
    return value
