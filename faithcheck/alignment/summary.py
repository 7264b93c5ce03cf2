"""The summary of an alignment: means over examples with their intervals, and paired comparisons of explainers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from faithcheck.alignment.batches import measurable
from faithcheck.alignment.evaluate import ExplainerResult
from faithcheck.alignment.figures import FIGURES, SCOPES, Figures
from faithcheck.axioms.measure import statistics
from faithcheck.json_object import Json
from faithcheck.models.pretrained.example import Examples

REFERENCE = "attnlrp"  # every other explainer is compared with it
EACH = 10_000
"""With more examples, a summary holds no value of a single one: 10,000 by eight explainers make 30 MB of JSON."""
COMPARED = ("pearson_no_special", "spearman_no_special", "pearson_all", "pearson_sum_to_one_no_special", "delta")


def summary(examples: Examples, results: Sequence[ExplainerResult], figures: Mapping[str, Figures], seed: int) -> Json:
    """Means over examples with 95 % intervals, and every explainer against AttnLRP, in plain values.

    A figure that is undefined for an example is None. It is left out of means and pairs, and counted by reason.

    Args:
        examples: all of them.
        results: of `faithcheck.alignment.evaluate.align`.
        figures: from `faithcheck.alignment.figures.figures_of`.
        seed: of the bootstrap.

    Returns:
        ``counts`` of examples; ``examples``, the indices of the measured ones and their numbers of features that are
        not special; ``explainers``, each with ``figures`` {name: mean, low, high, n}, ``undefined``
        {scope: {reason: count}}, ``examples`` {name: a value per measured example}, ``mean_curves`` and perhaps
        ``cost``, see `ExplainerResult`; ``comparisons``. Of more than `EACH` measured examples, no ``examples``.
    """
    chosen = measurable(examples)
    each = len(chosen) <= EACH
    return {
        "counts": {
            "examples": len(examples),
            "measured": len(chosen),
            "empty": int(((examples.non_special == 0) & ~examples.unanswered & ~examples.too_long).sum()),
            **({"unanswered": int(examples.unanswered.sum())} if examples.unanswered.any() else {}),
            "alone": int(((examples.features == 1) & (examples.non_special == 1)).sum()),
            **({"too_long": int(examples.too_long.sum())} if examples.too_long.any() else {}),
            "truncated": int((examples.truncated & ~examples.too_long).sum()),
            "one_feature": int((examples.non_special[chosen] == 1).sum()),
        },
        **({"examples": _of_examples(examples, chosen)} if each else {}),
        "explainers": [_summary(result, figures.get(result.name), seed, each) for result in results],
        "comparisons": [
            {
                "explainer": name,
                "against": REFERENCE,
                "figure": figure,
                **_compare(of.columns[figure], figures[REFERENCE].columns[figure], seed),
            }
            for name, of in figures.items()
            for figure in COMPARED
            if REFERENCE in figures and name != REFERENCE
        ],
    }


def _of_examples(examples: Examples, chosen: np.ndarray) -> Json:
    return {"index": chosen.tolist(), "features": examples.non_special[chosen].tolist()}


def _summary(result: ExplainerResult, figures: Figures | None, seed: int, each: bool) -> Json:
    columns = figures.columns if figures else {}
    return {
        "name": result.name,
        "how": result.how,
        "refused": result.refused,
        "failed": result.failed,
        "warned": result.warned,
        "left_behind": "; ".join(result.left_behind),
        "smaller": result.smaller,
        **({"left_out": result.left_out} if result.left_out else {}),
        **({"no_positions": result.no_positions} if result.no_positions else {}),
        **({"memory": {key: result.memory[key] for key in ("predicted", "measured")}} if result.memory else {}),
        **({} if result.cost is None else {"cost": result.cost}),
        **({"mean_curves": figures.mean_curves} if figures and figures.mean_curves else {}),
        "figures": {name: statistics.interval(columns.get(name, []), seed) for name in FIGURES},
        "undefined": {scope: Counter(figures.why_undefined(scope)) if figures else {} for scope in SCOPES},
        **({"examples": {name: columns[name].tolist() if figures else [] for name in FIGURES}} if each else {}),
    }


def _compare(values: np.ma.MaskedArray, reference: np.ma.MaskedArray, seed: int) -> Json:
    """The paired comparison, and both means over the pairs with two defined values."""
    pairs = statistics.pairs(values, reference)
    mean, against = pairs.mean(axis=0).tolist() if len(pairs) else (None, None)
    return {"mean": mean, "mean_against": against, **statistics.paired(values, reference, seed)}
