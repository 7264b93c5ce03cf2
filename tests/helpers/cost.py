"""The cost of explainers at one point of the matrix of `make bench`: shapes, units, rows of the benchmark document."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
import torch

from faithcheck.axioms.engine.error_text import message_text
from faithcheck.axioms.engine.peak_memory import peak_memory
from faithcheck.explainers.builtin import builtin_explainers
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.explainers.peers import every_peer
from faithcheck.explainers.protocol import Unsupported, display_label, input_gradient
from faithcheck.models.architectures.architecture import HEADS, random_weights
from faithcheck.models.architectures.base_models import ARCHITECTURES
from faithcheck.models.case import Case
from faithcheck.reports.benchmark import interval
from faithcheck.tests.helpers.timing import ratios, until_precise

REFERENCE = "forward + backward, middle point"
GRADIENT = "forward + backward"
ROWS = "forward of n + 1 rows"
PERTURBATION = {"loo", "budgeted_loo", "captum_feature_ablation"}
"""The explainers that run the model once for each feature: their unit is `ROWS`."""
LIBRARIES = ("captum", "autolrp", "zennit", "lxt")


@dataclass(frozen=True)
class Size:
    """A size of model and case: features an example, examples, layers, coordinates a feature."""

    length: int
    batch: int
    depth: int
    width: int


MIDDLE = {"cpu": Size(64, 1, 4, 128), "cuda": Size(256, 4, 6, 384)}
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
    return Size(**{name: int(value * (factor if name == dimension else 1)) for name, value in asdict(middle).items()})


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


def measured_rows(model, case, chosen, reference, limits, seed) -> list[dict]:
    """A row of the benchmark document for each plain pass and each explainer.

    Args:
        model: the model.
        case: the case.
        chosen: explainers by name.
        reference: a function, the plain pass in whose units costs are given.
        limits: of the turns.
        seed: of the order in a turn.
    """
    plain = {REFERENCE: reference, GRADIENT: partial(input_gradient, model, case)}
    plain[ROWS] = partial(forward_of_rows, model, case)
    calls = {name: partial(explainer.attribute, model, case) for name, explainer in chosen.items()}
    unit_of = {name: ROWS if name in PERTURBATION else GRADIENT for name in calls}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an explainer's warnings are about its numbers, not about its cost
        for warm_up in plain.values():
            warm_up()
        reasons = {name: why_not(call) for name, call in calls.items()}
        able = {name: call for name, call in calls.items() if not reasons[name]}
        units = {name: unit_of[name] for name in able}
        times = until_precise({**plain, **able}, units, case.inputs.device, limits, seed)
        peaks = {name: peak_memory(call, case.inputs.device, model) for name, call in {**plain, **able}.items()}
    rows = [
        {"explainer": name, "label": name, "origin": "", "unit": name, "why": "", **figures(times, peaks, name, name)}
        for name in (GRADIENT, ROWS)
    ]
    for name, explainer in chosen.items():
        about = {"explainer": name, "label": display_label(explainer), "origin": getattr(explainer, "origin", "")}
        figures_ = figures({name: [], **times}, peaks, name, unit_of[name])
        rows.append({**about, "unit": unit_of[name], "why": reasons[name], **figures_})
    if case.inputs.device.type != "cuda":  # on a CPU, ratios only
        rows = [{**row, "milliseconds": None} for row in rows]
    return rows


def figures(times, peaks, name, unit) -> dict:
    """The ratio to the unit, the cost in the reference, milliseconds and peak memory; None where nothing was called."""
    of = times[name]
    none = dict.fromkeys(("median", "low", "high"))
    return {
        "turns": len(of),
        "ratio": interval(ratios(of, times[unit])) if of else none,
        "cost": interval(ratios(of, times[REFERENCE])) if of else none,
        "milliseconds": float(np.median(of)) if of else None,
        "peak_bytes": peaks.get(name),
        "unit_peak_bytes": peaks.get(unit),
    }


def about_device(device: torch.device) -> dict:
    """The device's name and memory."""
    if device.type != "cuda":
        return {"name": platform.processor() or platform.machine(), "memory_bytes": None}
    return {
        "name": torch.cuda.get_device_name(device),
        "memory_bytes": torch.cuda.get_device_properties(device).total_memory,
    }


def state_of_device(device: torch.device) -> dict:
    """The clock of a GPU in MHz and its power in watts, or why they are unknown."""
    state = {"clock_mhz": None, "power_watts": None, "unknown": ""}
    if device.type != "cuda":
        return state
    try:
        return {
            **state,
            "clock_mhz": torch.cuda.clock_rate(device),
            "power_watts": torch.cuda.power_draw(device) / 1e3,
        }
    except Exception as error:  # NVML's errors have a base class that is not importable without it
        return {**state, "unknown": f"Clock and power are unknown: {message_text(error)}"}
