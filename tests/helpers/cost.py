"""The cost of explainers at one point of the matrix of `make bench`: shapes, units, rows of its tables."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from faithcheck.axioms.measure.error_text import message_text
from faithcheck.explainers.builtin import builtin_explainers
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.explainers.protocol import Unsupported, display_label, input_gradient
from faithcheck.memory.peak_memory import peak_memory
from faithcheck.models.architectures.architecture import HEADS, random_weights
from faithcheck.models.architectures.base_models import ARCHITECTURES
from faithcheck.models.case import Case
from faithcheck.tests.helpers.every_peer import every_peer
from faithcheck.tests.helpers.timing import interval, until_precise

GRADIENT = "forward + backward"
ROWS = "forward of n + 1 rows"
PERTURBATION = {"loo", "budgeted_loo", "captum_feature_ablation"}
"""The explainers that run the model once for each feature: their unit is `ROWS`."""
LIBRARIES = ("captum", "autolrp", "zennit", "lxt")
COLUMNS = ("explainer", "unit", "ratio", "95 %", "cost", "95 %", "turns", "ms", "peak memory")
NOTE = (
    "Ratio: the time of a call to that of its unit; cost: in forward and backward passes of the reference. Medians of "
    "calls in turn and their 95 % intervals. Peak memory: beyond what is in use before, divided by that of the unit. "
)


class Size(NamedTuple):
    """A size of model and case: features an example, examples, layers, coordinates a feature."""

    length: int
    batch: int
    depth: int
    width: int


MIDDLE = {
    "cpu": Size(length=64, batch=1, depth=4, width=128),
    "cuda": Size(length=256, batch=4, depth=6, width=384),
}
PATCH = 16  # pixels, the side of a ViT's grey patch
SHAPES = ("bert", "gpt2", "llama", "vit")
FACTORS = {"length": (0.25, 0.5, 2), "batch": (2, 4), "depth": (0.5, 2), "width": (0.5, 2)}
POINTS = [
    (shape, dimension, factor)
    for shape in SHAPES
    for dimension, factors in {"middle": (1,), **FACTORS}.items()
    for factor in factors
]
"""Every shape at the middle point, and with one dimension multiplied by a factor."""


def size_of(middle: Size, dimension: str, factor: float) -> Size:
    """The size with one dimension multiplied."""
    return Size(**{name: int(of * (factor if name == dimension else 1)) for name, of in middle._asdict().items()})


def build(shape: str, size: Size, seed: int, device: torch.device) -> tuple[torch.nn.Module, Case]:
    """A model of this shape with random weights, which times do not depend on, and a case of random features."""
    model = random_weights(partial(ARCHITECTURES[shape].small, **configuration(shape, size)))(
        seed, torch.float32, device
    )
    generator = torch.Generator().manual_seed(seed)
    coordinates = PATCH**2 if shape == "vit" else size.width
    inputs = torch.randn(size.batch, size.length, coordinates, generator=generator).to(device)
    mask = {} if shape == "vit" else {"attention_mask": torch.ones(inputs.shape[:2], dtype=torch.int64, device=device)}
    target = torch.zeros(size.batch, dtype=torch.int64, device=device)
    return model, Case(inputs, target, torch.zeros_like(inputs), forward_arguments=mask)


def configuration(shape: str, size: Size) -> dict[str, object]:
    """The options of the shape's small model; a feed-forward layer is four times as wide."""
    wide = {"hidden_size": size.width, "num_hidden_layers": size.depth, "intermediate_size": 4 * size.width}
    match shape:
        case "gpt2":
            return {"n_embd": size.width, "n_layer": size.depth, "n_positions": size.length}
        case "vit":
            image = (PATCH * HEADS, PATCH * size.length // HEADS)
            return {**wide, "image_size": image, "patch_size": PATCH}
        case _:
            return {**wide, "max_position_embeddings": size.length}


def explainers() -> dict[str, object]:
    """Every built-in explainer, and those of other libraries, installed or not."""
    peers = {peer.name: peer for peer in every_peer() if peer.distribution in LIBRARIES}
    return {**builtin_explainers(), **peers}


@torch.no_grad()
def forward_of_rows(model: torch.nn.Module, case: Case, at_once: int = LeaveOneOut.max_tokens) -> None:
    """What LOO costs a model without an explainer: n + 1 rows an example, in passes of as many features as LOO's."""
    batch, features = case.shape
    rows = torch.arange(batch, device=case.inputs.device).repeat(features + 1)
    for part in rows.split(max(1, at_once // features)):
        case.select(part).run(model)


def why_not(call: Callable[[], object]) -> str:
    """Call once, to warm up; the reason why the explainer cannot be measured, or ``""``."""
    try:
        call()
    except (Unsupported, ImportError) as refusal:
        return message_text(refusal)
    except Exception as error:  # a library may raise anything
        return f"{type(error).__name__}: {message_text(error)}"
    return ""


def measured_rows(model, case, chosen, reference, limits, seed) -> dict[str, list[str]]:
    """The cells of `COLUMNS` for each plain pass and each explainer, by name; what is not measured says why."""
    plain = {GRADIENT: partial(input_gradient, model, case), ROWS: partial(forward_of_rows, model, case)}
    calls = plain | {name: partial(explainer.attribute, model, case) for name, explainer in chosen.items()}
    unit_of = {name: name if name in plain else ROWS if name in PERTURBATION else GRADIENT for name in calls}
    device = case.inputs.device
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an explainer's warnings are about its numbers, not about its cost
        for warm_up in (reference, *plain.values()):
            warm_up()
        reasons = {name: why_not(call) for name, call in calls.items()}
        able = {name: (call, plain[unit_of[name]], reference) for name, call in calls.items() if not reasons[name]}
        times = until_precise(able, device, limits, seed)
        peaks = {name: peak_memory(calls[name], device, model) for name in able}
    rows = {}
    for name, unit in unit_of.items():
        rows[name] = [display_label(chosen[name]) if name in chosen else name, unit]
        if name in able:
            own, of_unit, of_reference = times[name].T
            rows[name] += [*interval(own / of_unit).cells, *interval(own / of_reference).cells, str(len(own))]
            rows[name] += [f"{np.median(own):.3g}", f"{peaks[name] / peaks[unit]:.3g}" if peaks[unit] else ""]
        else:
            rows[name] += [f"not measured: {reasons[name]}", *[""] * (len(COLUMNS) - 3)]
    return rows
