"""The summary of an alignment: means over examples with their intervals, and paired comparisons of explainers."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct, structs

from faithcheck.alignment.batches import measurable
from faithcheck.alignment.explainer_pass import ExplainerResult
from faithcheck.alignment.figures import CORRELATIONS, FIGURES, Figures
from faithcheck.axioms.measure import statistics
from faithcheck.models.pretrained import example
from faithcheck.reports.documents.alignment import (
    Comparison,
    Counts,
    Examples,
    Explainer,
    Mean,
    Means,
    Undefined,
)
from faithcheck.reports.documents.document import from_json

REFERENCE = "attnlrp"  # every other explainer is compared with it
EACH = 10_000
"""With more examples, a summary holds no value of a single one: 10,000 by eight explainers make 30 MB of JSON."""
COMPARED = ("pearson_no_special", "spearman_no_special", "pearson_all", "pearson_sum_to_one_no_special", "delta")


class Summary(Struct, frozen=True, kw_only=True):
    """What is measured of an alignment; the document adds what it was measured on."""

    counts: Counts
    examples: Examples | None
    explainers: list[Explainer]
    comparisons: list[Comparison]


def summary(
    examples: example.Examples, results: Sequence[ExplainerResult], figures: Mapping[str, Figures], seed: int
) -> Summary:
    """Means over examples with 95 % intervals (``seed`` is the bootstrap's), and every explainer against AttnLRP.

    A figure that is undefined for an example is None: left out of means and pairs, and counted by reason. With more
    than `EACH` measured examples there are no values of each.
    """
    chosen = measurable(examples)
    each = len(chosen) <= EACH
    labels = _labels(results)
    compared = [name for name in figures if name != REFERENCE] if REFERENCE in figures else []
    return Summary(
        counts=_counts(examples, chosen),
        examples=Examples(index=chosen.tolist(), features=examples.non_special[chosen].tolist()) if each else None,
        explainers=[_explainer(one, labels[one.name], figures.get(one.name), seed, each) for one in results],
        comparisons=[one for figure in COMPARED for one in _comparisons(compared, figure, figures, seed)],
    )


def _counts(examples: example.Examples, chosen: np.ndarray) -> Counts:
    return Counts(
        examples=len(examples),
        measured=len(chosen),
        empty=int(((examples.non_special == 0) & ~examples.unanswered & ~examples.too_long).sum()),
        unanswered=int(examples.unanswered.sum()),
        alone=int(((examples.features == 1) & (examples.non_special == 1)).sum()),
        too_long=int(examples.too_long.sum()),
        truncated=int((examples.truncated & ~examples.too_long).sum()),
        one_feature=int((examples.non_special[chosen] == 1).sum()),
    )


def _explainer(result: ExplainerResult, label: str, figures: Figures | None, seed: int, each: bool) -> Explainer:
    columns = figures.columns if figures else {}
    means = {
        name: from_json(statistics.interval(columns.get(name, []), seed, limits_of(name)), Mean) for name in FIGURES
    }
    reasons = {scope: Counter(figures.why_undefined(scope)) if figures else {} for scope in Undefined.__struct_fields__}
    return Explainer(
        name=result.name,
        label=label,
        how=result.how,
        refused=result.refused,
        failed=result.failed,
        warned=result.warned,
        left_behind="; ".join(result.left_behind),
        smaller=result.smaller,
        left_out=result.left_out,
        no_positions=result.no_positions,
        memory=result.memory,
        cost=result.cost,
        mean_curves=figures.mean_curves if figures else None,
        figures=Means(**means),
        undefined=Undefined(**reasons),
        examples={name: columns[name].tolist() if figures else [] for name in FIGURES} if each else {},
    )


def limits_of(figure: str) -> tuple[float, float]:
    """The least and the largest value that a figure can have."""
    return statistics.OF_CORRELATIONS if figure in CORRELATIONS else statistics.UNLIMITED


def _comparisons(names: Sequence[str], figure: str, figures: Mapping[str, Figures], seed: int) -> list[Comparison]:
    """The comparisons of these explainers; each p is corrected for their number, without LOO, which r refers to."""
    found = [_comparison(name, figure, figures, seed) for name in names]
    p = statistics.corrected([None if one.explainer == "loo" else one.p for one in found])
    return [structs.replace(one, corrected_p=value) for one, value in zip(found, p, strict=True)]


def _comparison(name: str, figure: str, figures: Mapping[str, Figures], seed: int) -> Comparison:
    """The paired comparison with the reference, and both means over the pairs with two defined values."""
    values, reference = figures[name].columns[figure], figures[REFERENCE].columns[figure]
    pairs = statistics.pairs(values, reference)
    mean, against = pairs.mean(axis=0).tolist() if len(pairs) else (None, None)
    about = {"explainer": name, "against": REFERENCE, "figure": figure, "mean": mean, "mean_against": against}
    return from_json({**about, **statistics.paired(values, reference, seed)}, Comparison)


def _labels(results: Sequence[ExplainerResult]) -> dict[str, str]:
    """The label of each explainer by its name; variants of one explainer, which share its label, also show the name."""
    counts = Counter(one.label for one in results)
    return {one.name: one.label if counts[one.label] == 1 else f"{one.label} ({one.name})" for one in results}
