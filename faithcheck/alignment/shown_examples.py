"""The few examples whose maps the alignment document holds, so that a page can show them side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from statistics import fmean
from typing import Any

import numpy as np

from faithcheck.alignment.batches import measurable
from faithcheck.alignment.figures import Figures
from faithcheck.models.pretrained.example import Example, Examples
from faithcheck.reports.results import Json

SHORTEST, LONGEST = 5, 512
"""Of an example with fewer features that are not special, r says little. Longer ones would make the document large."""
R = "pearson_no_special"
BLOCK = 1024  # examples whose means are taken at once


def shown_examples(
    figures: Mapping[str, Figures],
    examples: Examples,
    records: Mapping[str, Mapping[int, Json]],
    pieces: Callable[[Example], Iterable[Json]],
) -> list[Json]:
    """The examples on which the explainers agree with LOO least, in the middle, and most, with every explainer's map.

    The agreement on an example is the mean of r over the explainers, LOO left out, that have one there.

    Args:
        figures: of the measured explainers, see `faithcheck.alignment.figures`.
        examples: all examples.
        records: {explainer: {example: record}}, of the measured explainers; its ``map`` has a value for each feature.
        pieces: the ``text`` of each feature, and whether it is ``glued`` to the one before it.

    Returns:
        For each example: its ``index`` in the data; ``agreement``: least, median or most, and the ``mean`` r;
        ``features``, what ``pieces`` says and whether the feature is ``special``; and ``maps``, for each explainer
        its ``explainer`` name, ``r`` and ``values``, rounded to four digits.
    """
    indices = measurable(examples)
    rs = {name: of.columns[R] for name, of in figures.items()}
    means = _means([column for name, column in rs.items() if name != "loo"], len(indices))
    can_be_shown = (examples.features[indices] <= LONGEST) & (examples.non_special[indices] >= SHORTEST)
    ranked = np.argsort(np.where(can_be_shown, means, np.nan), kind="stable")  # NaN comes last
    ranked = ranked[: int((can_be_shown & ~np.isnan(means)).sum())]
    places = {"least": 0, "median": (len(ranked) - 1) // 2, "most": len(ranked) - 1} if len(ranked) else {}
    chosen = {place: agreement for agreement, place in places.items()}  # one of each place: of two examples, two
    shown = []
    for place, agreement in sorted(chosen.items()):
        position = int(ranked[place])
        index = int(indices[position])
        about = {"index": index, "agreement": agreement, "mean": float(means[position])}
        of_example = {name: of[index] for name, of in records.items() if index in of}  # not if its batch was left out
        values = {name: rs[name][position] for name in of_example}
        shown.append({**about, **_shown(examples[index], of_example, values, pieces)})
    return shown


def _means(columns: list[np.ma.MaskedArray], examples: int) -> np.ndarray:
    """The mean over the columns in which an example has a value; NaN where it has none."""
    means = np.full(examples, np.nan)
    for start in range(0, examples if columns else 0, BLOCK):
        block = np.ma.stack([column[start : start + BLOCK] for column in columns], axis=1)
        for position, values in enumerate(block, start):
            if values.count():
                means[position] = fmean(values.compressed())
    return means


def _shown(
    example: Example,
    records: Mapping[str, Json],
    rs: Mapping[str, Any],
    pieces: Callable[[Example], Iterable[Json]],
) -> Json:
    special: list[Any] = example.special_tokens_mask.tolist()
    return {
        "features": [
            {**piece, "special": is_special} for piece, is_special in zip(pieces(example), special, strict=True)
        ],
        "maps": [
            {
                "explainer": name,
                "r": None if rs[name] is np.ma.masked else float(rs[name]),
                "values": [float(f"{value:.4g}") for value in record["map"]],
            }
            for name, record in records.items()
        ],
    }
