"""Masked attention: small models whose cases remove a feature by the attention mask, each beside its deep copy.

The gates in the attention and Leave-One-Out by the attention mask are held to closed forms
(`faithcheck.models.networks.masked_attention`). There are as many ordinary tokens as `GroupedMaskGate` has groups, at
most: so each has a group of its own, and the guess of the output that special tokens need is exact with one layer.
"""

import torch

from faithcheck.models.case import Case
from faithcheck.models.cases import generator
from faithcheck.models.expectation import Expectations, expect
from faithcheck.models.networks import masked_attention as exact
from faithcheck.models.networks.masked_attention import OUTPUTS, WIDTH, MaskedAttention
from faithcheck.models.pair import Build, MakeCase, control, copies
from faithcheck.models.pairs.control import NOTHING_FROM_PADDING

ONE_LAYER = "full_removal local_limit"
TWO_LAYERS = "local_limit loo"  # nothing but Leave-One-Out itself is exact there


def stack(layers: int, heads: int, causal: bool = False) -> Build:
    """A pair's ``build``: a stack of layers with random weights, and its deep copy."""
    return copies(lambda: MaskedAttention(layers, heads, causal))


def texts(*lengths: int, special: float = 0.0, read_last: bool = False) -> MakeCase:
    """A pair's ``case``: texts of these lengths, padded on the right, read at the first or the last token; baseline 0.

    The first and the last token are special, and ``special`` times as large as the others; if it is 0, none is special.
    """

    def case(seed: int, dtype: torch.dtype, device: torch.device) -> Case:
        n, count = torch.tensor(lengths).unsqueeze(1), max(lengths)
        inputs = torch.randn(len(lengths), count, WIDTH, dtype=torch.float64, generator=generator(seed))
        position = torch.arange(count)
        ends = ((position == 0) | (position == n - 1)) if special else None
        if ends is not None:
            inputs[ends] *= special
            ends = ends.to(device)
        arguments = {"attention_mask": (position < n).to(device, dtype)}
        if read_last:
            arguments["last"] = n.squeeze(1).to(device) - 1
        target = torch.arange(len(lengths), device=device) % OUTPUTS
        inputs = inputs.to(device, dtype)
        return Case(inputs, target, torch.zeros_like(inputs), ends, arguments)

    return case


CHORD = "the whole removal is not the removal of a small part"
OF_ONE_LAYER: Expectations = expect(
    "local_limit",
    "loo",
    f"{CHORD}: 1/(1 − a) of the derivative in each head",
    predict=exact.difference(exact.leave_one_out_of_one_layer, exact.derivative_of_one_layer),
)
OF_TWO_LAYERS: Expectations = expect(
    "local_limit", "loo", CHORD, predict=exact.difference(exact.leave_one_out, exact.derivative)
)
LENGTHS = 6, 6, 5, 5, 4, 4, 6, 6

control("masked.one_head", stack(1, 1), texts(5, 4, 3), ONE_LAYER, OF_ONE_LAYER)
PADDED = texts(6, 5, 4, 3, special=1)
control("masked.padded", stack(1, 2), PADDED, f"{ONE_LAYER} batching", OF_ONE_LAYER, NOTHING_FROM_PADDING)
control("masked.causal", stack(1, 2, True), texts(6, 5, 4, special=1, read_last=True), "full_removal")
control("masked.two_layers", stack(2, 2), texts(*LENGTHS, special=1), TWO_LAYERS, OF_TWO_LAYERS)
CAUSAL = texts(*LENGTHS, special=1, read_last=True)
control("masked.two_causal_layers", stack(2, 2, True), CAUSAL, TWO_LAYERS, OF_TWO_LAYERS)
# Large special tokens draw attention, as [CLS] and [SEP] do: without one of them every row changes by much.
control("masked.large_special", stack(2, 2), texts(*8 * [6], special=5), "loo")
control("masked.large_special_causal", stack(2, 2, True), texts(*12 * [10], special=5, read_last=True), "loo")
