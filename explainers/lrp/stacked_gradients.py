"""The backward pass of AttnLRP by closed forms, for many sets of bypassed layers at once.

1. `RowRecorder` records the closed forms of one forward pass.
2. Tokens that have no gradient in any layer, such as padding, are found from the attention weights, and left out:
   examples of similar length go through all layers together, with as many tokens as the longest of them reads.
3. Each part of the examples goes from the last operation to the first. Gradients are stacked: one for each set of
   bypassed layers as far as sets differ in the layers above.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from faithcheck.explainers.linear_map import product_with_weight
from faithcheck.explainers.lrp.engine import LRP
from faithcheck.explainers.lrp.row_recorder import NoClosedForm, RowRecorder
from faithcheck.explainers.lrp.row_steps import Attention, Branch, Contribution, Node, Part, Step
from faithcheck.models.case import Case

ROWS_TOGETHER = 250
"""About how many tokens go through the layers together, so that a layer's gradients stay in a core's cache; measured on
the model of docs/cost.md."""


def attributions_by_closed_forms(
    lrp: LRP, model: nn.Module, case: Case, chosen: Sequence[Collection[int]], depth: int
) -> Tensor:
    """The attributions for each set of bypassed layers, ``(sets, batch, features)``.

    Raises:
        NoClosedForm: the model has operations without a closed form below its last attention; or not one attention
            with a softmax in each layer; or autocast mixes types.
        Unsupported: see `LRP.attribute`.
    """
    if torch._C._is_any_autocast_enabled():
        raise NoClosedForm
    order = case.unpadded.sum(1).argsort()  # examples of similar length stand side by side
    in_order = case.select(order)
    recorder, output = lrp.propagate(model, in_order, RowRecorder)
    assert isinstance(recorder, RowRecorder)
    numbers = [step.number for step in recorder.steps if isinstance(step, Attention)]
    if numbers != list(range(depth)) or recorder.calls["softmax"] != depth or not recorder.read:
        raise NoClosedForm
    at_read = gradients_at_read(recorder, output)
    branches, final = branches_of(chosen, depth)
    inputs = in_order.inputs.detach().flatten(2)
    found = inputs.new_zeros(len(chosen), *case.shape)
    for part in parts(tokens_read(recorder.steps, at_read)):
        gradient = backward(recorder.steps, at_read, part, branches)
        found[:, part.examples, part.tokens] = (gradient * part.of_rows(inputs)).sum(-1)[final]
    return found[:, order.argsort()]


def gradients_at_read(recorder: RowRecorder, output: Tensor) -> dict[Node, Tensor]:
    """The gradient at each tensor that an operation without a closed form reads, ``(batch, tokens, columns)``."""
    tensors = [tensor for tensor, _ in recorder.read.values()]
    gradients = torch.autograd.grad(output.sum(), tensors, materialize_grads=True)
    layouts = [layout for _, layout in recorder.read.values()]
    matrices = (layout.matrix(gradient) for layout, gradient in zip(layouts, gradients, strict=True))
    return dict(zip(recorder.read, matrices, strict=True))


def tokens_read(steps: Sequence[Step], at_read: Mapping[Node, Tensor]) -> Tensor:
    """The tokens that have a gradient in some layer, ``(batch, tokens)`` bool.

    Attention passes a gradient on from a query to those keys alone whose weight is not 0; all else keeps it in its row.
    """
    read = torch.stack([gradient.any(-1) for gradient in at_read.values()]).any(0)
    for step in reversed(steps):
        if isinstance(step, Attention):
            weights = step.weights.amax(1)
            read |= ((weights != 0) & read.unsqueeze(-1)).any(1)
    return read


def parts(read: Tensor) -> Iterator[Part]:
    """The examples in parts of similar length, each with the tokens from the first to the last that one of them reads.

    An example that reads no token is in no part, unless others are around it.
    """
    tokens = torch.arange(read.shape[1], device=read.device)
    first = torch.where(read, tokens, len(tokens)).amin(1).tolist()
    end = torch.where(read, tokens + 1, 0).amax(1).tolist()
    start = 0
    for stop in range(1, len(read) + 1):
        low, high = min(first[start : stop + 1]), max(end[start : stop + 1])
        if stop == len(read) or (stop + 1 - start) * (high - low) > ROWS_TOGETHER:
            low, high = min(first[start:stop]), max(end[start:stop])
            if low < high:
                yield Part(slice(start, stop), slice(low, high))
            start = stop


def branches_of(chosen: Sequence[Collection[int]], depth: int) -> tuple[list[Branch], list[int]]:
    """The branch at each layer's attention; and for each set the number of its gradient in the stack at the inputs."""
    sets = [frozenset(layers) for layers in chosen]
    above, branches = [frozenset[int]()], []
    for layer in reversed(range(depth)):
        wanted = {layers - set(range(layer)) for layers in sets}
        plain = [i for i, layers in enumerate(above) if layers in wanted]
        bypassed = [i for i, layers in enumerate(above) if layers | {layer} in wanted]
        branches.append(Branch(torch.tensor(plain, dtype=torch.int64), torch.tensor(bypassed, dtype=torch.int64)))
        above = [above[i] for i in plain] + [above[i] | {layer} for i in bypassed]
    return branches[::-1], [above.index(layers) for layers in sets]


def backward(steps: Sequence[Step], at_read: Mapping[Node, Tensor], part: Part, branches: Sequence[Branch]) -> Tensor:
    """The gradients at the inputs, ``(stack, batch, tokens, columns)``, of a part of the examples."""
    pending = {node: [part.of_rows(gradient).unsqueeze(0)] for node, gradient in at_read.items()}
    for step in reversed(steps):
        known = pending.pop(step.result, None)
        if isinstance(step, Attention):
            branch = branches[step.number]
            pending = {node: [total(gradients)[branch.parents]] for node, gradients in pending.items()}
            contributions = step.backward(total(known), part, branch) if known else ()
        else:
            contributions = step.backward(total(known), part) if known else ()
        for contribution in contributions:
            add(pending.setdefault(contribution.node, []), contribution)
    return total(pending[0])


def add(known: list[Tensor], contribution: Contribution) -> None:
    """Add a gradient to the gradients at the same tensor, of which there is one for each height of their stacks."""
    gradient, weight = contribution.gradient, contribution.weight
    same = next((i for i, x in enumerate(known) if len(x) == len(gradient)), None)
    added = None if same is None else known.pop(same)
    if weight is not None:
        known.append(product_with_weight(gradient, weight, added))
    else:
        known.append(gradient if added is None else gradient + added)


def total(gradients: Sequence[Tensor]) -> Tensor:
    """The sum of stacks of gradients; a lower stack has the first gradients alone."""
    highest, *others = sorted(gradients, key=len, reverse=True)
    for lower in others:
        highest = torch.cat([highest[: len(lower)] + lower, highest[len(lower) :]])
    return highest
