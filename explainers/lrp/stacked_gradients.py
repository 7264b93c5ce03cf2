"""The backward pass of AttnLRP by closed forms, for many sets of bypassed layers at once.

1. `RowRecorder` records the closed forms of one forward pass.
2. Tokens that have no gradient in any layer, such as padding, are found from the attention weights, and left out:
   examples of similar length go through all layers together, with as many tokens as the longest of them reads.
3. Each part of the examples goes from the last operation to the first. Gradients are stacked: one for each set of
   bypassed layers as far as sets differ in the layers above.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from faithcheck.explainers.fast.linear_map import product_with_weight
from faithcheck.explainers.lrp.engine import LRP
from faithcheck.explainers.lrp.row_recorder import NoClosedForm, RowRecorder
from faithcheck.explainers.lrp.row_steps import Attention, Branch, Contribution, Node, Part, Step
from faithcheck.models.case import Case

MOST_TOGETHER = 600
"""Up to how many tokens of several examples go through the layers together; see docs/results/cost.md."""

TOKENS_OF_A_PART = 60
"""How many tokens take as long as what every part of the examples takes, however small it is; measured likewise."""


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
    keep_freed_memory()
    order = case.unpadded.sum(1).argsort()  # examples of similar length stand side by side
    in_order = case.select(order)
    recorder, output = lrp.propagate(model, in_order, RowRecorder)
    assert isinstance(recorder, RowRecorder)
    numbers = [step.number for step in recorder.steps if isinstance(step, Attention)]
    if numbers != list(range(depth)) or recorder.calls["softmax"] != depth or not recorder.read:
        raise NoClosedForm
    at_read = gradients_at_read(recorder, output)
    branches = branches_of(chosen, depth)
    inputs = in_order.inputs.detach().reshape(*case.shape, -1)
    attentions = (i for i, step in enumerate(recorder.steps) if isinstance(step, Attention))
    first_attention = next(attentions, len(recorder.steps))
    below, steps = recorder.steps[:first_attention], recorder.steps[first_attention:]
    images = images_of_inputs(below, inputs)
    found = inputs.new_zeros(len(chosen), *case.shape)
    for part in parts(tokens_read(steps, at_read)):
        found[:, part.examples, part.tokens] = relevance(steps, at_read, images, part, branches)
    return found[:, order.argsort()]


def keep_freed_memory() -> None:
    """Have the C library keep freed memory up to 62 MB, as it does once a block of 31 MB has been freed.

    It would give the memory of each step back to the system, and fault it in again in the next: a quarter of the time.
    It is glibc's rule, see M_TRIM_THRESHOLD in mallopt(3); elsewhere nothing happens. The block is never touched.
    """
    torch.empty(31 * 2**20, dtype=torch.uint8)


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


def parts(read: Tensor) -> list[Part]:
    """The examples in parts of similar length, each with the tokens from the first to the last that one of them reads.

    Of all ways to cut the examples it is the one with the fewest tokens, where each part counts as `TOKENS_OF_A_PART`
    more. An example that reads no token is in no part, unless others are around it.
    """
    tokens = torch.arange(read.shape[1], device=read.device)
    first = torch.where(read, tokens, len(tokens)).amin(1).tolist()
    end = torch.where(read, tokens + 1, 0).amax(1).tolist()
    fewest = [(0, list[Part]())]  # of the examples before each: the count, and the parts
    for stop in range(1, len(read) + 1):
        options = list[tuple[int, int, int, int]]()
        low, high = len(tokens), 0
        for start in reversed(range(stop)):
            low, high = min(low, first[start]), max(high, end[start])
            together = (stop - start) * max(0, high - low)
            if options and together > MOST_TOGETHER:
                break
            options.append((fewest[start][0] + together + TOKENS_OF_A_PART, start, low, high))
        count, start, low, high = min(options)
        fewest.append((count, [*fewest[start][1], Part(slice(start, stop), slice(low, high))]))
    _, found = fewest[-1]
    return [part for part in found if part.tokens.start < part.tokens.stop]


@dataclass(frozen=True)
class Branches:
    """How the stack of gradients branches for some sets of bypassed layers.

    Attributes:
        below: the branch at each layer's attention.
        of_sets: for each set the number of its gradient in the stack below all layers.
    """

    below: list[Branch]
    of_sets: list[int]


def branches_of(chosen: Sequence[Collection[int]], depth: int) -> Branches:
    """The branches of these sets in a model of this depth. Sets that agree in the layers above share a gradient."""
    sets = [frozenset(layers) for layers in chosen]
    above, branches = [frozenset[int]()], list[Branch]()
    for layer in reversed(range(depth)):
        wanted = {layers - set(range(layer)) for layers in sets}
        plain = [i for i, layers in enumerate(above) if layers in wanted]
        bypassed = [i for i, layers in enumerate(above) if layers | {layer} in wanted]
        branches.append(Branch(slices(plain), slices(bypassed)))
        above = [above[i] for i in plain] + [above[i] | {layer} for i in bypassed]
    return Branches(branches[::-1], [above.index(layers) for layers in sets])


def slices(numbers: Sequence[int]) -> list[slice]:
    """Slices of a stack that have these gradients, in this order; without numbers an empty one."""
    found = list[slice]()
    for number in numbers:
        start = found.pop().start if found and found[-1].stop == number else number
        found.append(slice(start, number + 1))
    return found or [slice(0, 0)]


def images_of_inputs(steps: Sequence[Step], inputs: Tensor) -> dict[Node, Tensor]:
    """What the linear maps of the steps below the first attention make of the inputs, by node.

    The relevance of a token is ⟨x, JᵀG⟩ = ⟨Jx, G⟩ for the map J from its row to a tensor with gradient G. So below the
    first attention one token goes up in place of all its gradients down.
    """
    images = {0: inputs}
    for step in steps:
        images[step.result] = step.forward([images[node] for node in step.operands])  # type: ignore[union-attr]
    return images


def relevance(
    steps: Sequence[Step], at_read: Mapping[Node, Tensor], images: Mapping[Node, Tensor], part: Part, branches: Branches
) -> Tensor:
    """The relevance ``(sets, examples, tokens)`` of a part of the examples, by the steps from the first attention."""
    pending = {node: [part.of_rows(gradient).unsqueeze(0)] for node, gradient in at_read.items()}
    for step in reversed(steps):
        known = pending.pop(step.result, None)
        contributions: Iterable[Contribution] = ()
        if isinstance(step, Attention):
            branch = branches.below[step.number]
            pending = {node: [branch.around(total(gradients))] for node, gradients in pending.items()}
            if known:
                contributions = step.backward(total(known), part, branch)
        elif known:
            contributions = step.backward(total(known), part)
        for contribution in contributions:
            add(pending.setdefault(contribution.node, []), contribution)
    of_stacks = [(g * part.of_rows(images[node])).sum(-1) for node, stacks in pending.items() for g in stacks]
    return total(of_stacks)[branches.of_sets]


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
        highest = highest.clone()
        highest[: len(lower)] += lower
    return highest
