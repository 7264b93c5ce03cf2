"""The tables of the alignment document: Table 2 of the paper, comparisons, correlations, curves."""

from __future__ import annotations

from collections.abc import Iterator

from faithcheck.reports.pages.alignment_wording import (
    CORRELATIONS,
    FIGURES,
    PAPER,
    SCOPES,
    interval,
    label,
    number,
    paper_data,
    singular,
)
from faithcheck.reports.results import Json


def tables(document: Json) -> list[Json]:
    """The tables of a page: ``title``, ``note``, ``columns`` and ``rows``, whose cells are strings."""
    measured = [explainer for explainer in document["explainers"] if not explainer["refused"]]
    return [
        _table_2(document, measured),
        *([_paper_table(data)] if (data := paper_data(document)) else []),
        _comparisons(document),
        *(_correlations(document, scope, measured) for scope in SCOPES),
        _curves(document, measured),
        *_undefined(document, measured),
    ]


def _table_2(document: Json, measured: list[Json]) -> Json:
    settings, rows = document["settings"], []
    for explainer in measured:
        figures = explainer["figures"]
        r, delta = figures["pearson_no_special"], figures["delta"]
        rows.append(
            [label(document, explainer["name"]), number(r["mean"]), interval(r)]
            + [number(figures[key]["mean"]) for key in ("pearson_sum_to_one_no_special", "lerf", "morf")]
            + [number(delta["mean"]), interval(delta), str(r["n"])]
        )
    items, features = document["data"]["items"], document["model"]["features"]
    removed = f"one {singular(features)}" if settings["chunk"] == 1 else f"{settings['chunk']} neighbouring {features}"
    note = (
        f"r: mean over {items} of Pearson's correlation with LOO, special {features} left out; sum to one: each map "
        "divided by its sum first, as in the paper. LeRF and MoRF: mean explained output along the curve, "
        f"{removed} removed at each step, least or most relevant first; Δ = LeRF − MoRF. "
        f"Brackets: bootstrap 95 % intervals over {items}. n: {items} whose r is defined."
    )
    columns = ["explainer", "r", "95 %", "sum to one", "LeRF", "MoRF", "Δ", "95 %", "n"]
    return {"title": "Alignment with Leave-One-Out", "note": note, "columns": columns, "rows": rows}


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
            f"{row['p']:.0e}" if row["p"] is not None and row["p"] < 1e-3 else number(row["p"]),
            str(row["n"]),
        ]
        for row in sorted(compared, key=lambda row: (order.index(row["figure"]), row["explainer"] != "cplrp"))
    ]
    note = (
        "Mean difference over the examples where both are defined, its bootstrap 95 % interval, and the p of "
        "Wilcoxon's signed-rank test, not corrected for the number of comparisons."
    )
    columns = ["figure", "explainer", "difference", "95 %", "p", "n"]
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


def _curves(document: Json, measured: list[Json]) -> Json:
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
