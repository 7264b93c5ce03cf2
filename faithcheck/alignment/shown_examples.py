"""The few examples whose maps the alignment document holds, so that a page can show them side by side."""

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any, Literal

import numpy as np

from faithcheck.alignment.batch_result import MeasuredExample
from faithcheck.alignment.batches import measurable
from faithcheck.alignment.figures import Figures
from faithcheck.models.pretrained.example import Examples
from faithcheck.reports.documents.alignment import Shown, ShownMap
from faithcheck.reports.documents.words import Feature

SHORTEST, LONGEST = 5, 512
"""Of an example with fewer features that are not special, r says little. Longer ones would make the document large."""
R = "pearson_no_special"
BLOCK = 1024  # examples whose means are taken at once


def shown_examples(
    figures: Mapping[str, Figures],
    examples: Examples,
    records: Mapping[str, Mapping[int, MeasuredExample]],
) -> list[Shown]:
    """The examples on which the mean r over the explainers but LOO is least, median and largest, with every map."""
    indices = measurable(examples)
    rs = {name: of.columns[R] for name, of in figures.items()}
    means = _means([column for name, column in rs.items() if name != "loo"], len(indices))
    can_be_shown = (examples.features[indices] <= LONGEST) & (examples.non_special[indices] >= SHORTEST)
    ranked = np.argsort(np.where(can_be_shown, means, np.nan), kind="stable")  # NaN comes last
    ranked = ranked[: int((can_be_shown & ~np.isnan(means)).sum())]
    places: dict[Literal["least", "median", "most"], int]
    places = {"least": 0, "median": (len(ranked) - 1) // 2, "most": len(ranked) - 1} if len(ranked) else {}
    chosen = {place: agreement for agreement, place in places.items()}  # one of each place: of two examples, two
    shown = []
    for place, agreement in sorted(chosen.items()):
        position = int(ranked[place])
        index = int(indices[position])
        shown.append(
            Shown(
                index=index,
                agreement=agreement,
                mean=float(means[position]),
                features=[Feature(**piece) for piece in examples[index].pieces()],
                maps=[
                    ShownMap(explainer=name, r=_defined(rs[name][position]), values=_rounded(of[index].map))
                    for name, of in records.items()
                    if index in of  # not if its batch was left out
                ],
            )
        )
    return shown


def _rounded(values: Iterable[float]) -> list[float]:
    """The values with four digits."""
    return [float(f"{value:.4g}") for value in values]


def _defined(value: Any) -> float | None:
    return None if value is np.ma.masked else float(value)


def _means(columns: list[np.ma.MaskedArray], examples: int) -> np.ndarray:
    """The mean over the columns in which an example has a value; NaN where it has none."""
    means = np.full(examples, np.nan)
    for start in range(0, examples if columns else 0, BLOCK):
        block = np.ma.stack([column[start : start + BLOCK] for column in columns], axis=1)
        for position, values in enumerate(block, start):
            if values.count():
                means[position] = fmean(values.compressed())
    return means
