"""The figures of every example, in columns: correlations with LOO, perturbation figures, and shares of the map."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from faithcheck.alignment.batch_result import MeasuredExample
from faithcheck.alignment.batches import measurable
from faithcheck.alignment.explainer_pass import ExplainerResult
from faithcheck.alignment.perturbation_curves import aopc, delta, mean_output
from faithcheck.axioms.loo_correlation import STATISTICS, correlations
from faithcheck.axioms.measure import statistics
from faithcheck.models.data.stored import stored_array
from faithcheck.models.pretrained.example import Example, Examples
from faithcheck.models.token_places import PLACES, places
from faithcheck.reports.documents.alignment import Curves, Means, Undefined

SCOPES = Undefined.__struct_fields__
CORRELATIONS = tuple(f"{name}_{scope}" for scope in SCOPES for name in STATISTICS)
SHARES = {place: f"share_{place}" for place in (*PLACES, "positions")}
"""The figures that are the share of a map, in absolute values, at a place; and what position embeddings keep."""
FIGURES = Means.__struct_fields__
ROUND_OFF = 32  # units in the last place; the same output in different batches was measured to differ by 4 to 8
POINTS = 21  # of a mean curve
LEFT_OUT = "its batch was left out"
NO_LOO = "no LOO map"
REASONS = (LEFT_OUT, None, NO_LOO, statistics.FEW_FEATURES, statistics.CONSTANT_LOO, statistics.CONSTANT_ATTRIBUTION)
"""Why the correlations of an example are undefined; None if they are defined."""


@dataclass(frozen=True)
class Figures:
    """One explainer's figures in the data's order, in temporary files (`faithcheck.models.data.stored`)."""

    examples: np.ndarray  # the index of each in the data, increasing, ``(examples,)``
    columns: Mapping[str, np.ma.MaskedArray]  # {figure: float64 ``(examples,)``}, masked where the figure is undefined
    # {scope: uint8 ``(examples,)``}: the place in `REASONS` of why its correlations are undefined
    undefined: Mapping[str, np.ndarray]
    # The means of the curves; between steps a curve is straight. None if no example was measured.
    mean_curves: Curves | None

    def why_undefined(self, scope: str) -> Iterator[str]:
        """The reason of each example whose correlations are undefined."""
        reasons = (REASONS[place] for place in self.undefined[scope])
        return (reason for reason in reasons if reason is not None)


def figures_of(examples: Examples, results: Sequence[ExplainerResult], dtype: torch.dtype) -> dict[str, Figures]:
    """The figures by explainer, each batch read once. LOO maps that vary by round-off of ``dtype`` are constant."""
    loo = next((result.records for result in results if result.name == "loo"), {})
    found = measurable(examples)
    chosen = stored_array(len(found), found.dtype)
    chosen[:] = found
    del found
    return {
        result.name: _columns(examples, chosen, result.records, loo, dtype) for result in results if not result.refused
    }


def _columns(
    examples: Examples,
    chosen: np.ndarray,
    records: Mapping[int, MeasuredExample],
    loo: Mapping[int, MeasuredExample],
    dtype: torch.dtype,
) -> Figures:
    shape = len(FIGURES), len(chosen)
    values, masked = stored_array(shape, np.float64), stored_array(shape, np.bool_)
    masked[:] = True
    undefined = {scope: stored_array(len(chosen), np.uint8) for scope in SCOPES}
    shares, sums = np.linspace(0, 1, POINTS), {"lerf": np.zeros(POINTS), "morf": np.zeros(POINTS)}
    for i, record in records.items():
        place = int(np.searchsorted(chosen, i))
        figures, reasons = _figures(examples[i], record, loo.get(i), dtype)
        masked[:, place] = [figures[name] is None for name in FIGURES]
        values[:, place] = [figures[name] or 0.0 for name in FIGURES]
        for scope in SCOPES:
            undefined[scope][place] = REASONS.index(reasons[scope])
        for name, total in sums.items():
            curve = getattr(record, name)
            total += np.interp(shares, np.linspace(0, 1, len(curve)), curve)
    columns = {name: np.ma.array(values[row], mask=masked[row]) for row, name in enumerate(FIGURES)}
    means = {name: (total / len(records)).tolist() for name, total in sums.items()} if records else None
    return Figures(chosen, columns, undefined, Curves(removed=shares.round(9).tolist(), **means) if means else None)


def _figures(
    example: Example, record: MeasuredExample, loo: MeasuredExample | None, dtype: torch.dtype
) -> tuple[dict[str, float | None], dict[str, str | None]]:
    """One example's figures, and of each scope the reason why its correlations with LOO are undefined."""
    keep = {
        "no_special": (~example.special_tokens_mask).numpy(),
        "all": np.ones(len(example.special_tokens_mask), dtype=bool),
    }
    noise = ROUND_OFF * torch.finfo(dtype).eps * abs(record.morf[0])  # the curves begin with f(x)
    figures: dict[str, float | None] = dict.fromkeys(CORRELATIONS)
    reasons: dict[str, str | None] = dict.fromkeys(SCOPES, NO_LOO)
    if loo is not None:
        for scope in SCOPES:
            attribution, loo_map = (np.asarray(of.map)[keep[scope]] for of in (record, loo))
            defined = correlations(attribution, loo_map, noise) or dict.fromkeys(STATISTICS)
            figures |= {f"{name}_{scope}": defined[name] for name in STATISTICS}
            reasons[scope] = statistics.undefined(attribution, loo_map, noise)
    lerf, morf = record.lerf, record.morf
    figures |= {"lerf": mean_output(lerf), "morf": mean_output(morf), "delta": delta(morf, lerf)}
    figures |= {"lerf_aopc": aopc(lerf), "morf_aopc": aopc(morf)}
    return figures | _shares(example, np.abs(record.map), record.positions), reasons


def _shares(example: Example, sizes: np.ndarray, positions: float | None) -> dict[str, float | None]:
    """The share of the absolute values ``(features,)`` at each place, and what position embeddings keep of all."""
    total = float(sizes.sum())
    masks = places(example.special_tokens_mask, example.names)
    shares = {place: _share(float(sizes[mask.numpy()].sum()), total) for place, mask in masks.items()}
    kept = None if positions is None else _share(abs(positions), total + abs(positions))
    return {SHARES[place]: share for place, share in (shares | {"positions": kept}).items()}


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
