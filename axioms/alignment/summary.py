"""What the maps and curves of `alignment` say: means over examples, their intervals, and comparisons in pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch

from faithcheck.axioms.alignment import statistics
from faithcheck.axioms.alignment.evaluate import Example, Json, Outcome, measurable
from faithcheck.axioms.alignment.perturbation_curves import aopc, delta, mean_output
from faithcheck.axioms.loo_correlation import STATISTICS, correlations

SCOPES = ("no_special", "all")
CORRELATIONS = tuple(f"{name}_{scope}" for scope in SCOPES for name in STATISTICS)
CURVES = ("lerf", "morf", "delta", "lerf_aopc", "morf_aopc")
ROUND_OFF = 32  # units in the last place by which outputs of other batches differ, measured: 4 to 8 in float32
AGAINST = "attnlrp"  # every explainer is compared with it
COMPARED = ("pearson_no_special", "spearman_no_special", "pearson_all", "pearson_sum_to_one_no_special", "delta")


def summary(examples: Sequence[Example], outcomes: Sequence[Outcome], seed: int, dtype: torch.dtype) -> Json:
    """Means over examples with 95 % intervals, and every explainer against AttnLRP, in plain values.

    A figure that is undefined for an example is None there, is left out of means and pairs, and is counted by reason.
    ``seed`` is the bootstrap's, and ``dtype`` that of the model's arithmetic, in whose round-off a LOO map is constant.

    Returns:
        ``counts`` of examples; ``examples``, which of them were measured (index) and their features that are not
        special; ``explainers``, each with ``figures`` {name: mean, low, high, n}, ``undefined``
        {scope: {reason: count}} and ``examples`` {name: a value per measured example}; ``comparisons``.
    """
    chosen = measurable(examples)
    loo = next((outcome.records for outcome in outcomes if outcome.name == "loo"), {})
    rows = {
        outcome.name: [_figures(examples[i], outcome.records[i], loo.get(i), dtype) for i in chosen]
        for outcome in outcomes
        if not outcome.refused
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
        "explainers": [_summary(outcome, rows.get(outcome.name, []), seed) for outcome in outcomes],
        "comparisons": [
            {
                "explainer": name,
                "against": AGAINST,
                "figure": figure,
                **_compare(rows[name], rows[AGAINST], figure, seed),
            }
            for name in rows
            for figure in COMPARED
            if AGAINST in rows and name != AGAINST
        ],
    }


def _figures(example: Example, record: Json, loo: Json | None, dtype: torch.dtype) -> Json:
    """One example's correlations with LOO, None where they are undefined and why; and its perturbation figures."""
    kept = {
        "no_special": (~example.special_tokens_mask).numpy(),
        "all": np.ones(len(example.special_tokens_mask), dtype=bool),
    }
    found: Json = {"undefined": {}}
    noise = ROUND_OFF * torch.finfo(dtype).eps * abs(record["morf"][0])  # the curves begin with f(x)
    for scope, keep in kept.items():
        attribution, removed = (
            np.asarray(map_)[keep] for map_ in (record["map"], loo["map"] if loo else record["map"])
        )
        defined = correlations(attribution, removed, noise) if loo else None
        found |= {f"{name}_{scope}": defined[name] if defined else None for name in STATISTICS}
        if defined is None:
            found["undefined"][scope] = statistics.undefined(attribution, removed, noise) if loo else "no LOO map"
    lerf, morf = record["lerf"], record["morf"]
    return found | {
        "lerf": mean_output(lerf),
        "morf": mean_output(morf),
        "delta": delta(morf, lerf),
        "lerf_aopc": aopc(lerf),
        "morf_aopc": aopc(morf),
    }


def _summary(outcome: Outcome, rows: Sequence[Json], seed: int) -> Json:
    first = f"the first: {outcome.warned[0]}" if outcome.warned else ""
    warned = f"warnings: {len(outcome.warned)}, batches: {outcome.batches}; {first}" if first else ""
    return {
        "name": outcome.name,
        "how": outcome.how,
        "refused": outcome.refused,
        "warned": warned,
        "figures": {name: statistics.interval(_column(rows, name), seed) for name in (*CORRELATIONS, *CURVES)},
        "undefined": {
            scope: Counter(row["undefined"][scope] for row in rows if scope in row["undefined"]) for scope in SCOPES
        },
        "examples": {name: _column(rows, name) for name in (*CORRELATIONS, *CURVES)},
    }


def _compare(rows: Sequence[Json], others: Sequence[Json], figure: str, seed: int) -> Json:
    """The paired comparison, and both means over the pairs that it is made of."""
    a, b = _column(rows, figure), _column(others, figure)
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    mean, against = np.mean(pairs, axis=0).tolist() if pairs else (None, None)
    return {"mean": mean, "mean_against": against, **statistics.paired(a, b, seed)}


def _column(rows: Sequence[Json], name: str) -> list[float | None]:
    return [row[name] for row in rows]
