"""The batch on which two models are compared: where explainers evaluate a model, and inputs far from there."""

from dataclasses import replace

import torch
from torch import Tensor

from faithcheck.models.case import Case

ROWS = (40, 256)
"""The least and the most rows that are added to the case."""
NUMBERS = 2**12
"""The most numbers in a batch of more than the least rows."""
MAGNITUDES, STEPS = (2, 8, 32), 128
"""Of random inputs, and in how many steps. In float32 without the last: logits are of its square there, and an exp of
them overflows in float32 alone; what does not overflow has lost four of its seven digits."""


def large_batch(case: Case, outputs: int) -> Case:
    """A batch of many rows; the last ones are the case's own examples, in reverse order: each has other neighbours.

    Each of five parts has as many rows as the others:

    1. points between baseline and input, the first ones the baselines themselves, as on the path of Integrated
       Gradients;
    2. inputs with one feature at its baseline, as for Leave-One-Out;
    3. inputs with normal noise of a tenth of their standard deviation;
    4. random multiples of 1/64 in [−2, 2], of 1/16 in [−8, 8], or (in float64 alone) of 1/4 in [−32, 32]: they are
       short to read, and two features are equal now and then;
    5. the same with about two of three numbers set to 0.

    Row i has the forward arguments of example i modulo the batch; in the third part an attention mask hides one more
    feature, as for Leave-One-Out by the mask. The targets are all ``outputs`` in turn, or as many as there are rows,
    evenly spaced; those of the case's own examples are the case's.
    """
    batch, numbers = len(case.inputs), case.inputs[0].numel()
    rows = min(max(NUMBERS // numbers, ROWS[0]), ROWS[1]) // 5 * 5
    index = torch.arange(rows, device=case.inputs.device)
    in_reverse = torch.arange(batch - 1, -1, -1, device=case.inputs.device)
    many = case.select(torch.cat([index % batch, in_reverse]))
    inputs = torch.cat([part(case, rows // 5) for part in (path, removed, noisy, uniform, sparse)])
    target = index * max(1, outputs // rows) % outputs
    arguments = dict(many.forward_arguments)
    if "attention_mask" in arguments:
        hidden = slice(rows // 5 * 2, rows // 5 * 3)
        arguments["attention_mask"] = one_more_hidden(arguments["attention_mask"], hidden)
    return replace(
        many,
        forward_arguments=arguments,
        inputs=torch.cat([inputs, many.inputs[rows:]]),
        target=torch.cat([target, many.target[rows:]]),
    )


def path(case: Case, rows: int) -> Tensor:
    """Random points between baselines and inputs; the first ones are the baselines."""
    share = random(case, rows, uniform=True)[(slice(None), *[slice(0, 1)] * (case.inputs.dim() - 1))].clone()
    share[: len(case.inputs)] = 0
    inputs, baseline = (repeated(x, rows) for x in (case.inputs, case.baseline))
    return baseline + share * (inputs - baseline)


def removed(case: Case, rows: int) -> Tensor:
    """Inputs with one feature at its baseline, the features in turn."""
    inputs = repeated(case.inputs, rows).clone()
    index = torch.arange(rows, device=inputs.device)
    feature = index // len(case.inputs) % case.shape[1]
    inputs[index, feature] = repeated(case.baseline, rows)[index, feature]
    return inputs


def one_more_hidden(mask: Tensor, rows: slice) -> Tensor:
    """The mask ``(batch, features)`` with one more feature hidden in these rows, in turn; at least one stays."""
    mask = mask.clone()
    for row, hidden in enumerate(mask[rows]):
        kept = hidden.nonzero().flatten()
        if len(kept) > 1:
            hidden[kept[row % len(kept)]] = 0
    return mask


def noisy(case: Case, rows: int) -> Tensor:
    """Inputs with normal noise of a tenth of their standard deviation."""
    return repeated(case.inputs, rows) + case.inputs.std(correction=0) / 10 * random(case, rows)


def uniform(case: Case, rows: int) -> Tensor:
    """Random multiples of 1/128 of the magnitudes in turn, by row."""
    magnitudes = MAGNITUDES if case.inputs.dtype == torch.float64 else MAGNITUDES[:-1]
    magnitude = case.inputs.new_tensor([magnitudes[i % len(magnitudes)] for i in range(rows)])
    shape = (rows, *[1] * (case.inputs.dim() - 1))
    return magnitude.view(shape) * (2 * random(case, rows, uniform=True) - 1).mul(STEPS).round() / STEPS


def sparse(case: Case, rows: int) -> Tensor:
    """The same, with about two of three numbers set to 0."""
    return uniform(case, rows) * (random(case, rows, uniform=True) < 1 / 3)


def random(case: Case, rows: int, uniform: bool = False) -> Tensor:
    """Normal or uniform random numbers, ``(rows, features, …)``, from torch's generator; the same on every device."""
    draw = torch.rand if uniform else torch.randn
    return draw(rows, *case.inputs.shape[1:], dtype=torch.float64).to(case.inputs)


def repeated(x: Tensor, rows: int) -> Tensor:
    """The rows of a tensor in turn, so many."""
    return x[torch.arange(rows, device=x.device) % len(x)]
