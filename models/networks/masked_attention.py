"""Small softmax attention whose attention mask is a gate, and what explainers that follow Leave-One-Out give there.

A key of mask m in [0, 1] has m times its weight, A_k ∝ m_k exp z_k: a 0 removes a key, as in any other model, and the
derivative with respect to a gate is a limit of outputs of the model itself.

Maps are computed from the weights alone, by neither an explainer nor the model's own forward pass: each example by
itself, without its padding, A_jk = exp z_jk / Σ exp z_jk written out. So each explainer's definition can be followed to
the letter. One layer has closed forms. With a_h the weight of key i in the row r that is read, v_h its value, o_h the
row's output and w_h the readout of head h:

1. Without key i the other weights grow by 1/(1 − a_h), so that o_h becomes (o_h − a_h v_h)/(1 − a_h). Leave-One-Out is
   Σ_h a_h (v_h − o_h)·w_h / (1 − a_h).
2. With gate m the weight is m a_h/(1 − a_h + m a_h), and its derivative at m = 1 is a_h (1 − a_h). The derivative of
   the output is Σ_h a_h (v_h − o_h)·w_h.
3. The residual connection depends on no gate. So the output is linear in the row, and every finite change is exact.

Several layers have none: there gates are differentiated, and removals are run.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case

WIDTH, OUTPUTS = 8, 2


class MaskedLayer(nn.Module):
    """x + attention(x) W_O, without biases and without norms."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        for part in (self.query, self.key, self.value, self.output):
            nn.init.normal_(part.weight, std=WIDTH**-0.5)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (
            part(states).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        weights = torch.softmax(torch.matmul(q, k.transpose(-1, -2)) / q.shape[-1] ** 0.5 + mask, -1)
        attended = torch.matmul(weights, v).transpose(1, 2).flatten(2)
        return states + self.output(attended)


class MaskedAttention(nn.Module):
    """Layers of attention and a linear map at one row: tokens ``(batch, tokens, width)`` to ``(batch, outputs)``."""

    def __init__(self, layers: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal
        self.layers = nn.ModuleList(MaskedLayer(heads) for _ in range(layers))
        self.head = nn.Linear(WIDTH, OUTPUTS, bias=False)

    def forward(self, inputs: Tensor, attention_mask: Tensor, last: Tensor | None = None) -> Tensor:
        """The logits at the row ``last`` ``(batch,)``, by default the first; mask ``(batch, tokens)`` in [0, 1]."""
        lowest = torch.finfo(inputs.dtype).min
        mask = attention_mask.to(inputs).log().clamp_min(lowest)[:, None, None]
        if self.causal:
            after = torch.ones(inputs.shape[1], inputs.shape[1], dtype=torch.bool, device=inputs.device).triu(1)
            mask = torch.where(after, lowest, mask)
        states = inputs
        for layer in self.layers:
            states = layer(states, mask.expand(-1, -1, states.shape[1], -1))
        row = torch.zeros_like(attention_mask[:, 0], dtype=torch.int64) if last is None else last
        return self.head(states[torch.arange(len(states), device=states.device), row])


# --- the examples of a case -------------------------------------------------------------------------------------------

Change: TypeAlias = Callable[[int, Tensor], Tensor]
"""Takes the number of a layer and its weights ``(heads, queries, keys)``, and returns the changed weights."""

OracleMap: TypeAlias = Callable[["Example"], Tensor]
"""A map ``(tokens,)`` of one example."""


@dataclass(frozen=True)
class Example:
    """One example without padding, ``(tokens, width)``; its output is read at a row with the weights ``readout``."""

    model: MaskedAttention
    inputs: Tensor
    row: int
    readout: Tensor
    special: frozenset[int]

    @property
    def tokens(self) -> range:
        return range(len(self.inputs))

    @property
    def layers(self) -> list[MaskedLayer]:
        return [layer for layer in self.model.layers if isinstance(layer, MaskedLayer)]


def examples_of(model: MaskedAttention, case: Case) -> Iterator[Example]:
    """The examples of a case, padded on the right, in order."""
    for i, unpadded in enumerate(case.unpadded):
        last = case.forward_arguments.get("last")
        special = () if case.special_tokens_mask is None else case.special_tokens_mask[i, unpadded].nonzero().flatten()
        yield Example(
            model,
            case.inputs[i, unpadded],
            0 if last is None else int(last[i]),
            model.head.weight.detach()[case.target[i]],
            frozenset(int(token) for token in special),
        )


def of_case(oracle: OracleMap) -> Callable[[MaskedAttention, Case], Tensor]:
    """The oracle of a whole case, ``(batch, features)``, 0 at padding."""

    def predict(model: MaskedAttention, case: Case) -> Tensor:
        result = torch.zeros(case.shape).to(case.inputs)
        for i, example in enumerate(examples_of(model, case)):
            result[i, case.unpadded[i]] = oracle(example)
        return result

    return predict


def difference(one: OracleMap, other: OracleMap) -> Callable[[MaskedAttention, Case], Tensor]:
    return of_case(lambda example: one(example) - other(example))


# --- the model, written out ------------------------------------------------------------------------------------------


def by_heads(layer: MaskedLayer, states: Tensor) -> list[Tensor]:
    """Queries, keys and values, each ``(heads, tokens, width of a head)``."""
    parts = (layer.query, layer.key, layer.value)
    return [torch.stack((states @ part.weight.detach().T).chunk(layer.heads, -1)) for part in parts]


def weights_of(example: Example, queries: Tensor, keys: Tensor, rows: Tensor) -> Tensor:
    """A_jk = exp z_jk / Σ_k exp z_jk, ``(heads, queries, keys)``, of the queries at these rows."""
    exponentials = (torch.einsum("hjd,hkd->hjk", queries, keys) / math.sqrt(queries.shape[-1])).exp()
    if example.model.causal:
        exponentials = exponentials * (torch.arange(keys.shape[1]) <= rows[:, None]).to(keys)
    return exponentials / exponentials.sum(-1, keepdim=True)


def mixed(layer: MaskedLayer, states: Tensor, weights: Tensor, values: Tensor) -> Tensor:
    """The states after a layer, ``(rows, width)``."""
    attended = torch.cat(list(torch.einsum("hjk,hkd->hjd", weights, values)), -1)
    return states + attended @ layer.output.weight.detach().T


def run(example: Example, change: Change = lambda layer, weights: weights) -> Tensor:
    """The explained output with changed attention weights, a scalar."""
    states, rows = example.inputs, torch.arange(len(example.inputs))
    for number, layer in enumerate(example.layers):
        queries, keys, values = by_heads(layer, states)
        states = mixed(layer, states, change(number, weights_of(example, queries, keys, rows)), values)
    return states[example.row] @ example.readout


def without(weights: Tensor, keys: Tensor) -> Tensor:
    """The weights without these keys ``(keys,)`` bool: the others share the rest; all 0 in a row that has no other."""
    kept = weights.masked_fill(keys, 0)
    rest = kept.sum(-1, keepdim=True)
    return torch.where(rest > 0, kept / rest.clamp_min(torch.finfo(rest.dtype).tiny), kept)


def one_hot(example: Example, i: int) -> Tensor:
    return torch.arange(len(example.inputs)) == i


def run_without(example: Example, i: int) -> Tensor:
    """The explained output without token i, to which no row of any layer attends; a scalar."""
    return run(example, lambda layer, weights: without(weights, one_hot(example, i)))


# --- the maps --------------------------------------------------------------------------------------------------------


def leave_one_out(example: Example) -> Tensor:
    """f − f without key i, whose weight is 0 in every row of every layer."""
    whole = run(example)
    return torch.stack([whole - run_without(example, i) for i in example.tokens])


def derivative(example: Example) -> Tensor:
    """∂f/∂m_i at m = 1, A_jk ∝ m_k exp z_jk in every row of every layer."""
    gates = torch.ones(len(example.inputs)).to(example.inputs).requires_grad_()

    def gated(_: int, weights: Tensor) -> Tensor:
        return weights * gates / (weights * gates).sum(-1, keepdim=True)

    return torch.autograd.grad(run(example, gated), gates)[0]


def row_derivatives(example: Example) -> Tensor:
    """∂f/∂m_i of a gate in one row j of one layer alone, ``(layers, rows j, features i)``."""
    n = len(example.inputs)
    gates = torch.ones(len(example.layers), n, n).to(example.inputs).requires_grad_()

    def gated(layer: int, weights: Tensor) -> Tensor:
        return weights * gates[layer] / (weights * gates[layer]).sum(-1, keepdim=True)

    return torch.autograd.grad(run(example, gated), gates)[0]


def row_changes(example: Example, halfway: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The change of row j without key i times the output's gradient there, ``(layers, rows j, features i)``; and f.

    It is −∂f/∂s at s = 0 where row j of one layer has the weights (1 − s)·A + s·(A without i). The weights of the keys
    ``halfway`` ``(tokens,)`` are halved in every row of every layer, and the others grow by the factor ½ + ½/r, r the
    weight that they have. The gradient takes the factor for a constant.
    """
    n = len(example.inputs)
    steps = torch.zeros(len(example.layers), n, n).to(example.inputs).requires_grad_()

    def stepped(layer: int, weights: Tensor) -> Tensor:
        changed = weights
        if halfway is not None:
            rest = (weights * ~halfway).sum(-1, keepdim=True).detach()
            factor = torch.where(halfway, 0.5, 0.5 + 0.5 / rest)
            changed = torch.where(rest > 0, weights * factor / (weights * factor).sum(-1, keepdim=True), weights)
        for i in range(n):
            others = without(weights, one_hot(example, i))
            direction = torch.where(others.sum(-1, keepdim=True) > 0, others - weights, 0).detach()
            changed = changed + steps[layer, :, i, None] * direction
        return changed

    output = run(example, stepped)
    return -torch.autograd.grad(output, steps)[0], output.detach()


def sum_of_rows(example: Example, effects: Tensor, skip_readout: bool = False) -> Tensor:
    """The sum of effects ``(layers, rows, features)``; a token's own row counts only if the output is read there."""
    result = torch.zeros(len(example.inputs)).to(example.inputs)
    for i in example.tokens:
        for j in example.tokens:
            if (j != i or j == example.row) and not (skip_readout and j == example.row):
                result[i] += effects[:, j, i].sum()
    return result


def finite_changes(example: Example) -> Tensor:
    """The change of each row without key i, to first order in the rest: `FiniteMaskGate`."""
    return sum_of_rows(example, row_changes(example)[0])


def direct_effect(example: Example) -> Tensor:
    """f − f where the row that is read alone does not attend to key i, in every layer.

    The row attends to its own changed key and value, and to the unchanged ones of the other rows.
    """
    result = torch.zeros(len(example.inputs)).to(example.inputs)
    row, rows = example.row, torch.arange(len(example.inputs))
    for i in example.tokens:
        states, changed = example.inputs, example.inputs[row : row + 1]
        for layer in example.layers:
            queries, keys, values = by_heads(layer, states)
            mixed_states = states.clone()
            mixed_states[row] = changed[0]
            changed_queries, changed_keys, changed_values = by_heads(layer, mixed_states)
            weights = weights_of(example, changed_queries[:, row : row + 1], changed_keys, rows[row : row + 1])
            changed = mixed(layer, changed, without(weights, one_hot(example, i)), changed_values)
            states = mixed(layer, states, weights_of(example, queries, keys, rows), values)
        result[i] = (states[row] - changed[0]) @ example.readout
    return result


def direct_and_indirect(example: Example) -> Tensor:
    """The direct effect, and the mean of finite and first-order effects in the other rows: `ReadoutGate`."""
    indirect = (row_changes(example)[0] + row_derivatives(example)) / 2
    return direct_effect(example) + sum_of_rows(example, indirect, skip_readout=True)


def one_group_at_a_time(example: Example, groups: int = 4) -> Tensor:
    """`GroupedMaskGate` by its definition: ⅗ φ_i(½) + ⅖ φ_i(0), and special tokens removed alone.

    φ_i(½) is the finite change in the pass in which token i's group is halfway, φ_i(0) its mean over the other passes.
    A special token gets the mean over the groups of f with the group halfway plus ¼ Σ (φ(0) + φ(½)), less f without it.
    """
    ordinary = [i for i in example.tokens if i not in example.special]
    member = torch.zeros(groups, len(example.inputs), dtype=torch.bool)
    for turn, i in enumerate(ordinary):
        member[turn % groups, i] = True
    passes = [row_changes(example, group) for group in member]
    effects = torch.stack([sum_of_rows(example, changes) for changes, _ in passes])
    own, others = (effects * member).sum(0), (effects * ~member).sum(0) / (~member).sum(0)
    wholes = [output + (own + others)[group].sum() / 4 for (_, output), group in zip(passes, member, strict=True)]
    guessed = torch.stack(wholes).mean()
    result = 3 / 5 * own + 2 / 5 * others
    for i in example.special:
        result[i] = guessed - run_without(example, i)
    return result


# --- one layer -------------------------------------------------------------------------------------------------------


def contrasts(example: Example) -> tuple[Tensor, Tensor]:
    """a_h (v_h − o_h)·w_h and a_h of the only layer's readout row, each ``(heads, tokens)``."""
    (layer,) = example.layers
    queries, keys, values = by_heads(layer, example.inputs)
    (a,) = weights_of(example, queries, keys, torch.arange(len(example.inputs)))[:, example.row].unsqueeze(0)
    outputs = torch.einsum("hk,hkd->hd", a, values)
    readout = torch.stack((example.readout @ layer.output.weight.detach()).chunk(layer.heads))
    return a * torch.einsum("hkd,hd->hk", values - outputs.unsqueeze(1), readout), a


def derivative_of_one_layer(example: Example) -> Tensor:
    return contrasts(example)[0].sum(0)


def leave_one_out_of_one_layer(example: Example) -> Tensor:
    contrast, weight = contrasts(example)
    return (contrast / (1 - weight)).sum(0)


def rollout(example: Example) -> Tensor:
    """Attention Rollout: the row that is read of Π ½(A + I), the last layer first, A the mean over heads."""
    product = torch.eye(len(example.inputs)).to(example.inputs)

    def multiply(layer: int, weights: Tensor) -> Tensor:
        nonlocal product
        product = (weights.mean(0) @ product + product) / 2
        return weights

    run(example, multiply)
    return product[example.row]
