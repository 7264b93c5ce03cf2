"""The summary of an alignment: means over examples with their intervals, and paired comparisons of explainers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch

from faithcheck.axioms.alignment import statistics
from faithcheck.axioms.alignment.evaluate import Example, ExplainerResult, Json, measurable
from faithcheck.axioms.alignment.perturbation_curves import aopc, delta, mean_output
from faithcheck.axioms.loo_correlation import STATISTICS, correlations

SCOPES = ("no_special", "all")
CORRELATIONS = tuple(f"{name}_{scope}" for scope in SCOPES for name in STATISTICS)
CURVES = ("lerf", "morf", "delta", "lerf_aopc", "morf_aopc")
ROUND_OFF = 32  # units in the last place; the same output in different batches was measured to differ by 4 to 8
REFERENCE = "attnlrp"  # every other explainer is compared with it
COMPARED = ("pearson_no_special", "spearman_no_special", "pearson_all", "pearson_sum_to_one_no_special", "delta")


def summary(examples: Sequence[Example], results: Sequence[ExplainerResult], seed: int, dtype: torch.dtype) -> Json:
    """Means over examples with 95 % intervals, and every explainer against AttnLRP, in plain values.

    A figure that is undefined for an example is None. It is left out of means and pairs, and counted by reason.
    ``seed`` is that of the bootstrap. ``dtype`` is that of the model: a LOO map that varies by round-off is constant.

    Returns:
        ``counts`` of examples; ``examples``, the indices of the measured ones and their numbers of features that are
        not special; ``explainers``, each with ``figures`` {name: mean, low, high, n}, ``undefined``
        {scope: {reason: count}} and ``examples`` {name: a value per measured example}; ``comparisons``.
    """
    chosen = measurable(examples)
    loo = next((result.records for result in results if result.name == "loo"), {})
    rows = {
        result.name: [_figures(examples[i], result.records[i], loo.get(i), dtype) for i in chosen]
        for result in results
        if not result.refused
    }
    features = [int((~examples[i].special_tokens_mask).sum()) for i in chosen]
    return {
        "counts": {
            "examples": len(examples),
            "measured": len(chosen),
            "empty": sum(bool(example.special_tokens_mask.all()) for example in examples),
            "alone": sum(example.special_tokens_mask.tolist() == [False] for example in examples),
            "truncated": sum(example.truncated for example in examples),
            "one_feature": features.count(1),
        },
        "examples": {"index": chosen, "features": features},
        "explainers": [_summary(result, rows.get(result.name, []), seed) for result in results],
        "comparisons": [
            {
                "explainer": name,
                "against": REFERENCE,
                "figure": figure,
                **_compare(rows[name], rows[REFERENCE], figure, seed),
            }
            for name in rows
            for figure in COMPARED
            if REFERENCE in rows and name != REFERENCE
        ],
    }


def _figures(example: Example, record: Json, loo: Json | None, dtype: torch.dtype) -> Json:
    """One example's correlations with LOO, with the reason if they are undefined, and its perturbation figures."""
    scopes = {
        "no_special": (~example.special_tokens_mask).numpy(),
        "all": np.ones(len(example.special_tokens_mask), dtype=bool),
    }
    figures: Json = {"undefined": {}}
    noise = ROUND_OFF * torch.finfo(dtype).eps * abs(record["morf"][0])  # the curves begin with f(x)
    for scope, keep in scopes.items():
        attribution, loo_map = (
            np.asarray(map_)[keep] for map_ in (record["map"], loo["map"] if loo else record["map"])
        )
        defined = correlations(attribution, loo_map, noise) if loo else None
        figures |= {f"{name}_{scope}": defined[name] if defined else None for name in STATISTICS}
        if defined is None:
            figures["undefined"][scope] = statistics.undefined(attribution, loo_map, noise) if loo else "no LOO map"
    lerf, morf = record["lerf"], record["morf"]
    return figures | {
        "lerf": mean_output(lerf),
        "morf": mean_output(morf),
        "delta": delta(morf, lerf),
        "lerf_aopc": aopc(lerf),
        "morf_aopc": aopc(morf),
    }


def _summary(result: ExplainerResult, rows: Sequence[Json], seed: int) -> Json:
    first = f"the first: {result.warned[0]}" if result.warned else ""
    warned = f"warnings: {len(result.warned)}, batches: {result.batches}; {first}" if first else ""
    return {
        "name": result.name,
        "how": result.how,
        "refused": result.refused,
        "failed": result.failed,
        "warned": warned,
        "left_behind": "; ".join(result.left_behind),
        "smaller": result.smaller,
        **({"memory": {key: result.memory[key] for key in ("predicted", "measured")}} if result.memory else {}),
        "figures": {name: statistics.interval(_column(rows, name), seed) for name in (*CORRELATIONS, *CURVES)},
        "undefined": {
            scope: Counter(row["undefined"][scope] for row in rows if scope in row["undefined"]) for scope in SCOPES
        },
        "examples": {name: _column(rows, name) for name in (*CORRELATIONS, *CURVES)},
    }


def _compare(rows: Sequence[Json], reference: Sequence[Json], figure: str, seed: int) -> Json:
    """The paired comparison, and both means over the pairs with two defined values."""
    a, b = _column(rows, figure), _column(reference, figure)
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    mean, against = np.mean(pairs, axis=0).tolist() if pairs else (None, None)
    return {"mean": mean, "mean_against": against, **statistics.paired(a, b, seed)}


def _column(rows: Sequence[Json], name: str) -> list[float | None]:
    return [row[name] for row in rows]
