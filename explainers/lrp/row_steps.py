"""Closed forms of AttnLRP's backward pass through one operation, in the limit ε → 0, for many gradients at once.

AttnLRP's backward pass is linear in the gradient, and all operations of a Transformer's layer but attention map each
token by itself. So a gradient here is a stack of matrices, ``(stack, batch, tokens, columns)``, see `row_layout`. Each
step below maps the gradients at an operation's result to those at its operands. The equations are those of
`modified_gradient`. Each step holds what it needs for all examples, and is run on a `Part` of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

Node: TypeAlias = int
"""The number of a tensor with rows in a forward pass."""


@dataclass(frozen=True)
class Part:
    """Some of the examples, and some of their tokens."""

    examples: slice
    tokens: slice

    def of_rows(self, x: Tensor) -> Tensor:
        """The part of ``(batch, tokens, columns)``."""
        return x[self.examples, self.tokens]

    def of_heads(self, x: Tensor) -> Tensor:
        """The part of ``(batch, heads, tokens, width)``, as ``(batch · heads, tokens, width)``."""
        return x[self.examples, :, self.tokens].flatten(0, 1)

    def of_pairs(self, x: Tensor) -> Tensor:
        """The part of ``(batch, heads, tokens, tokens)``, as ``(batch · heads, tokens, tokens)``."""
        return x[self.examples, :, self.tokens, self.tokens].flatten(0, 1)


@dataclass(frozen=True)
class Contribution:
    """A gradient at an operand, or with a weight ``(outputs, inputs)`` the gradient at a linear map of the operand."""

    node: Node
    gradient: Tensor
    weight: Tensor | None = None


@dataclass(frozen=True)
class Elementwise:
    """An operation whose gradient is, value by value, a multiple of the gradient at its result.

    Attributes:
        result: the result.
        operands: the operands.
        factors: for each operand the multiples, ``(batch, tokens, columns)``, or one number.
    """

    result: Node
    operands: tuple[Node, ...]
    factors: tuple[Tensor | float, ...]

    def backward(self, gradient: Tensor, part: Part) -> Iterator[Contribution]:
        """The gradients at the operands."""
        for node, factor in zip(self.operands, self.factors, strict=True):
            if isinstance(factor, Tensor):
                yield Contribution(node, gradient * part.of_rows(factor))
            else:
                yield Contribution(node, gradient if factor == 1 else gradient * factor)

    def forward(self, operands: list[Tensor]) -> Tensor:
        """The linear map whose transpose `backward` is, of ``(batch, tokens, columns)`` for each operand."""
        return torch.stack([x * factor for x, factor in zip(operands, self.factors, strict=True)]).sum(0)


@dataclass(frozen=True)
class MovedColumns:
    """An operation that shows columns of its operands in other places, see `row_layout.moved_columns`.

    Attributes:
        result: the result.
        operands: the operands.
        widths: how many columns each operand has.
        columns: the operands' column that each column of the result shows.
    """

    result: Node
    operands: tuple[Node, ...]
    widths: tuple[int, ...]
    columns: Tensor

    def backward(self, gradient: Tensor, part: Part) -> Iterator[Contribution]:
        """The gradients at the operands; a column that is shown twice adds both."""
        at_operands = gradient.new_zeros(*gradient.shape[:-1], sum(self.widths))
        at_operands.index_add_(-1, self.columns, gradient)
        for node, at_operand in zip(self.operands, at_operands.split_with_sizes(self.widths, -1), strict=True):
            yield Contribution(node, at_operand)

    def forward(self, operands: list[Tensor]) -> Tensor:
        """The columns that are shown."""
        return torch.cat(operands, -1)[..., self.columns]


@dataclass(frozen=True)
class LinearMap:
    """x Wᵀ + b by constants: Eq. 1."""

    result: Node
    operands: tuple[Node]
    weight: Tensor

    def backward(self, gradient: Tensor, part: Part) -> Iterator[Contribution]:
        """The gradient at the operand, G W."""
        yield Contribution(self.operands[0], gradient, self.weight)

    def forward(self, operands: list[Tensor]) -> Tensor:
        """x Wᵀ."""
        return operands[0] @ self.weight.mT.to(operands[0])


@dataclass(frozen=True)
class LayerNorm:
    """(x − mean x)/σ ⊙ γ + β with σ held constant.

    Attributes:
        result: the result.
        operands: the operand.
        gamma: γ, ``(columns,)``; None: ones.
        inverse_sigma: 1/σ, ``(batch, tokens, 1)``.
    """

    result: Node
    operands: tuple[Node]
    gamma: Tensor | None
    inverse_sigma: Tensor

    def backward(self, gradient: Tensor, part: Part) -> Iterator[Contribution]:
        """The gradient at the operand, (G⊙γ − mean(G⊙γ))/σ.

        It is LayerNorm's plain gradient at an x of zeros with the mean 0: what σ adds to it is a multiple of x − mean.
        """
        rows, width = gradient.flatten(0, -2), gradient.shape[-1]
        sigma = part.of_rows(self.inverse_sigma).expand(*gradient.shape[:-1], 1).flatten(0, -2)
        x, mean, masks = torch.zeros_like(rows), torch.zeros_like(sigma), [True, False, False]
        at_operand, _, _ = torch.ops.aten.native_layer_norm_backward(
            rows, x, [width], mean, sigma, self.gamma, None, masks
        )
        yield Contribution(self.operands[0], at_operand.view_as(gradient))

    def forward(self, operands: list[Tensor]) -> Tensor:
        """(x − mean x)/σ ⊙ γ."""
        (x,) = operands
        scaled = (x - x.mean(-1, keepdim=True)) * self.inverse_sigma
        return scaled if self.gamma is None else scaled * self.gamma


@dataclass(frozen=True)
class Branch:
    """How the stack of gradients goes on below an attention: which gradients go through it, and how.

    Attributes:
        plain: the parts of the stack above, each a slice, that go through values, queries and keys.
        bypassed: those that go through the values alone, with the attention weights held constant. A gradient may be in
            both, or twice in one. The stack below has the plain ones first.
    """

    plain: list[slice]
    bypassed: list[slice]

    def around(self, above: Tensor) -> Tensor:
        """The stack below, ``(stack, …)``, of gradients that go around the attention, from the stack above."""
        return torch.cat([above[some] for some in (*self.plain, *self.bypassed)])


@dataclass(frozen=True)
class Attention:
    """O = AV with A = softmax Z and Z = scale ⊙ QKᵀ + constants: Eqs. 3–5.

    Attributes:
        result: O.
        query: Q.
        key: K.
        value: V.
        q: the values of Q, ``(batch, heads, tokens, width)``.
        k: of K.
        v: of V.
        output: of O.
        weights: A, ``(batch, heads, tokens, tokens)``.
        scale: a number, or shaped like A.
        number: how many softmaxes come before in the forward pass.
    """

    result: Node
    query: Node
    key: Node
    value: Node
    q: Tensor
    k: Tensor
    v: Tensor
    output: Tensor
    weights: Tensor
    scale: Tensor | float
    number: int

    def backward(self, gradient: Tensor, part: Part, branch: Branch) -> Iterator[Contribution]:
        """The gradients at values, keys and queries; at keys and queries of the plain ones alone, which come first.

        1. S, the gradient at O, is halved if weights and values both carry relevance. At V it is AᵀS.
        2. At A it is S Vᵀ, and at Z A ⊙ (S Vᵀ − Σ A ⊙ S Vᵀ), where the sum of a query is S·O, because O = AV.
        3. It is halved once more at Q and K, which share Z's relevance: the plain gradient counts ¼ there.

        All gradients of an example's head are one product of matrices: the stack is put beside the width.
        """
        weights = part.of_pairs(self.weights)
        of_plain, of_bypassed = (self.to_heads(gradient, slices) for slices in (branch.plain, branch.bypassed))
        heights = of_plain.shape[2], of_bypassed.shape[2]
        at_values = gradient.new_empty(sum(heights), *gradient.shape[1:])
        plain, bypassed = at_values.split_with_sizes(heights)
        self.to_rows(torch.bmm(weights.mT / 2, of_plain.flatten(2)).view_as(of_plain), plain)
        self.to_rows(torch.bmm(weights.mT, of_bypassed.flatten(2)).view_as(of_bypassed), bypassed)
        yield Contribution(self.value, at_values)
        if not len(plain):
            return
        at_logits = self.at_logits(of_plain, weights, part)
        number = self.scale if isinstance(self.scale, float) else 1.0
        q, k = (part.of_heads(x) * (number / 4) for x in (self.q, self.k))
        at_keys = torch.bmm(at_logits.flatten(2).mT, q).view(len(q), len(plain), *k.shape[1:]).transpose(1, 2)
        yield Contribution(self.key, self.to_rows(at_keys, torch.empty_like(plain)))
        at_queries = torch.bmm(at_logits.flatten(1, 2), k).view_as(of_plain)
        yield Contribution(self.query, self.to_rows(at_queries, torch.empty_like(plain)))

    def at_logits(self, gradient: Tensor, weights: Tensor, part: Part) -> Tensor:
        """The plain gradient at QKᵀ, ``(batch · heads, queries, stack, keys)``, from that at O, in `to_heads`'s shape.

        A number for the scale is left to the caller.
        """
        v, o = part.of_heads(self.v), part.of_heads(self.output)
        at_logits = torch.bmm(gradient.flatten(1, 2), v.mT).view(*gradient.shape[:3], -1)
        at_logits -= (gradient * o.unsqueeze(2)).sum(-1, keepdim=True)
        at_logits *= weights.unsqueeze(2)
        if isinstance(self.scale, Tensor):
            at_logits *= part.of_pairs(self.scale).unsqueeze(2)
        return at_logits

    def to_heads(self, gradient: Tensor, slices: Sequence[slice]) -> Tensor:
        """Slices of ``(stack, batch, tokens, heads · width)`` as ``(batch · heads, tokens, stack, width)``."""
        heads, width = self.v.shape[1], self.v.shape[3]
        of_heads = gradient.view(*gradient.shape[:-1], heads, width).permute(1, 3, 2, 0, 4)
        return torch.cat([of_heads[:, :, :, some] for some in slices], 3).flatten(0, 1).contiguous()

    def to_rows(self, of_heads: Tensor, rows: Tensor) -> Tensor:
        """Write ``(batch · heads, tokens, stack, width)`` to ``(stack, batch, tokens, heads · width)``."""
        heads, (together, tokens, stack, width) = self.v.shape[1], of_heads.shape
        moved = of_heads.view(together // heads, heads, tokens, stack, width).permute(3, 0, 2, 1, 4)
        rows.view(moved.shape).copy_(moved)
        return rows


RowStep: TypeAlias = Elementwise | MovedColumns | LinearMap | LayerNorm
Step: TypeAlias = RowStep | Attention
