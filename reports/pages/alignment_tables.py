"""The tables of the alignment document: Table 2 of the paper, comparisons, correlations, curves."""

from __future__ import annotations

from collections.abc import Iterator

from faithcheck.reports.pages.alignment_wording import (
    CORRELATIONS,
    DECIDES,
    FIGURES,
    PAPER,
    SCOPES,
    SHARES,
    in_short,
    interval,
    label,
    number,
    paper_data,
    probability,
    singular,
)
from faithcheck.reports.results import Json

R = "pearson_no_special"
"""The figure that explainers are sorted by."""
COST = (
    "Cost: the arithmetic of an attribution, in plain forward passes of the same inputs, counted in one batch of 16 "
    "from the shortest inputs on."
)
SINKS = (
    "The share of a map, in absolute values, at the first token, at other special tokens, and at tokens without a "
    "letter or digit; positions: what the position embeddings that a model adds keep, as a share of the map and them. "
    "Means over examples and bootstrap 95 % intervals. LOO's shares are the effects of removals. n: examples whose map "
    "is not all zero."
)
_TABLE_2 = ("explainer", "r", "95 %", "sum to one", "LeRF", "MoRF", "Δ", "95 %", "cost", "n")
_OF_CURVES = range(4, 8)


def tables(document: Json) -> list[Json]:
    """The tables of a page: ``title``, ``note``, ``columns`` and ``rows``, whose cells are strings."""
    measured = by_agreement(document)
    return [
        _table_2(document, measured),
        *([_paper_table(data)] if (data := paper_data(document)) else []),
        *([compared] if (compared := _comparisons(document))["rows"] else []),
        *(_correlations(document, scope, measured) for scope in SCOPES),
        *([_curves(measured_curves(document), document)] if measured_curves(document) else []),
        *_shares(document, measured),
        *_undefined(document, measured),
    ]


def by_agreement(document: Json) -> list[Json]:
    """The measured explainers: LOO, which is the reference, then the others from the largest r; undefined ones last."""

    def place(explainer: Json) -> tuple[bool, bool, float]:
        r = explainer["figures"][R]["mean"]
        return explainer["name"] != "loo", r is None, -(r or 0.0)

    return sorted((one for one in document["explainers"] if not one["refused"]), key=place)


def measured_curves(document: Json) -> list[Json]:
    """The explainers of `by_agreement` whose perturbation curves were measured."""
    return [one for one in by_agreement(document) if one["figures"]["delta"]["n"]]


def _table_2(document: Json, measured: list[Json]) -> Json:
    curves = bool(measured_curves(document))
    cells = [_row_of_table_2(document, explainer) for explainer in measured]
    shown = [i for i in range(len(_TABLE_2)) if curves or i not in _OF_CURVES]
    return {
        "title": "Alignment with Leave-One-Out",
        "note": _note_of_table_2(document, curves),
        "columns": [_TABLE_2[i] for i in shown],
        "rows": [[row[i] for i in shown] for row in cells],
    }


def _row_of_table_2(document: Json, explainer: Json) -> list[str]:
    figures = explainer["figures"]
    r, delta = figures[R], figures["delta"]
    return [
        *(label(document, explainer["name"]), number(r["mean"]), interval(r)),
        *(number(figures[key]["mean"]) for key in ("pearson_sum_to_one_no_special", "lerf", "morf")),
        *(number(delta["mean"]), interval(delta), number(explainer.get("cost"), 1), str(r["n"])),
    ]


def _note_of_table_2(document: Json, curves: bool) -> str:
    settings = document["settings"]
    items, features = document["data"]["items"], document["model"]["features"]
    removed = f"one {singular(features)}" if settings["chunk"] == 1 else f"{settings['chunk']} neighbouring {features}"
    of_curves = (
        f"LeRF and MoRF: mean explained output along the curve, {removed} removed at each step, least or most relevant "
        "first; Δ = LeRF − MoRF. "
    )
    return (
        f"r: mean over {items} of Pearson's correlation with LOO, special {features} left out; sum to one: each map "
        f"divided by its sum first, as in the paper. {of_curves if curves else ''}"
        f"Brackets: bootstrap 95 % intervals over {items}. {COST} n: {items} whose r is defined."
    )


def _paper_table(data: str) -> Json:
    return {
        "title": f"The paper's Table 2: BERT-base, {data}",
        "note": "Figures of the paper (arXiv 2510.18810), not measured here. They are of another model, of maps that "
        "sum to one, and of rollout without a residual term; faithcheck's rollout mixes in ½I.",
        "columns": ["explainer", "r", "LeRF", "MoRF", "Δ"],
        "rows": [[name, *(number(figure, 2) for figure in figures)] for name, figures in PAPER[data].items()],
    }


def _comparisons(document: Json) -> Json:
    compared = [row for row in document["comparisons"] if row["explainer"] != "loo"]
    order = list(FIGURES)
    rows = [
        [
            FIGURES[row["figure"]],
            label(document, row["explainer"]),
            number(row["difference"]),
            interval(row),
            probability(row["p"]),
            in_short(row),
            str(row["n"]),
        ]
        for row in sorted(compared, key=lambda row: (order.index(row["figure"]), row["explainer"] != "cplrp"))
    ]
    note = (
        "Mean difference over the examples where both are defined, its bootstrap 95 % interval, and the p of "
        f"Wilcoxon's signed-rank test, not corrected for the number of comparisons. {DECIDES}"
    )
    columns = ["figure", "explainer", "difference", "95 %", "p", "than AttnLRP's", "n"]
    return {"title": "Every explainer less AttnLRP, paired", "note": note, "columns": columns, "rows": rows}


def _correlations(document: Json, scope: str, measured: list[Json]) -> Json:
    keys = [f"{key}_{scope}" for key in CORRELATIONS]
    columns = [cell for name in CORRELATIONS.values() for cell in (name, "95 %")]
    rows = [
        [label(document, explainer["name"])]
        + [cell for key in keys for cell in _with_interval(explainer["figures"][key])]
        + [str(explainer["figures"][keys[0]]["n"])]
        for explainer in measured
    ]
    features = document["model"]["features"]
    which = {"no_special": f"special {features} left out", "all": f"all {features}"}[scope]
    title = f"Correlation with Leave-One-Out, {which}"
    note = "Means over examples and bootstrap 95 % intervals; n: examples whose correlation is defined."
    return {"title": title, "note": note, "columns": ["explainer", *columns, "n"], "rows": rows}


def _curves(measured: list[Json], document: Json) -> Json:
    keys = ("lerf", "morf", "delta", "lerf_aopc", "morf_aopc")
    rows = [
        [label(document, explainer["name"])]
        + [cell for key in keys for cell in _with_interval(explainer["figures"][key])]
        for explainer in measured
    ]
    names = ("LeRF", "MoRF", "Δ", "LeRF, AOPC", "MoRF, AOPC")
    note = (
        "LeRF and MoRF: the mean of f over k = 0…K, as the paper's figures read. AOPC (Samek et al. 2017): the mean of "
        "f(x) − f(x without the first k), a drop. Δ is one by both: LeRF − MoRF of the means, MoRF − LeRF of the drops."
    )
    columns = ["explainer", *(cell for name in names for cell in (name, "95 %"))]
    return {"title": "Perturbation curves, both readings", "note": note, "columns": columns, "rows": rows}


def _shares(document: Json, measured: list[Json]) -> Iterator[Json]:
    """Where relevance sinks; patches have no first token and no punctuation. Older documents lack some shares."""
    known = set.intersection(*(set(explainer["figures"]) for explainer in measured)) if measured else set()
    of_tokens = document["model"]["features"] == "tokens"
    shown = [share for share in SHARES if share in known and (of_tokens or share == "share_positions")]
    if shown:
        rows = [
            [label(document, explainer["name"])]
            + [cell for share in shown for cell in _of_share(explainer, share)]
            + [str(max(explainer["figures"][share]["n"] for share in shown))]
            for explainer in measured
        ]
        columns = ["explainer", *(cell for share in shown for cell in (SHARES[share], "95 %")), "n"]
        yield {"title": "Where relevance sinks", "note": SINKS, "columns": columns, "rows": rows}


def _of_share(explainer: Json, share: str) -> tuple[str, str]:
    """The mean and its interval; or why no relevance of positions is known."""
    figure = explainer["figures"][share]
    if share == "share_positions" and not figure["n"]:
        return explainer.get("no_positions") or "–", "–"
    return _with_interval(figure)


def _with_interval(figure: Json) -> tuple[str, str]:
    return number(figure["mean"]), interval(figure)


def _undefined(document: Json, measured: list[Json]) -> Iterator[Json]:
    rows = [
        [label(document, explainer["name"]), SCOPES.get(scope, scope), reason, str(count)]
        for explainer in measured
        for scope, reasons in explainer["undefined"].items()
        for reason, count in reasons.items()
    ]
    if rows:
        note = "These examples have no correlation. No mean, interval or paired comparison includes them."
        columns = ["explainer", "correlation", "why", "examples"]
        yield {"title": "Undefined correlations", "note": note, "columns": columns, "rows": rows}
