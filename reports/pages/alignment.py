"""The alignment document: how well explainers agree with Leave-One-Out over a data set, as words, tables and pages.

Everything here is a pure function of the document, which `faithcheck.reports.commands.align` makes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from faithcheck.reports.pages import report, terminal
from faithcheck.reports.results import Json, ResultsError

KIND = "alignment"
SCHEMA_VERSION = 1
FEWEST = 6  # examples: 2 · 2⁻⁶ < 0.05
KEYS = frozenset({"faithcheck", "environment", "model", "data", "settings", "counts", "explainers", "comparisons"})

NAMES = {
    "loo": "LOO",
    "ig_zero": "IG, zero",
    "ig_pad": "IG, [PAD]",
    "ig_mask": "IG, [MASK]",
    "attention_rollout": "Attention Rollout",
    "gradient_x_input": "gradient × input",
    "attnlrp": "AttnLRP",
    "cplrp": "CP-LRP",
}
# The paper's figures, arXiv 2510.18810, Table 2, BERT-base: r (maps sum to one), LeRF, MoRF, Δ. Not ours.
PAPER = {
    "SST-2": {
        "loo": (1.00, 1.11, 0.33, 0.78),
        "ig": (-0.05, 0.48, 0.36, 0.12),
        "attention_rollout": (0.08, 0.72, 0.38, 0.35),
        "attnlrp": (0.22, 0.88, 0.05, 0.83),
        "cplrp": (0.52, 1.00, 0.22, 0.79),
    },
    "IMDB": {
        "loo": (1.00, 2.20, -0.94, 3.14),
        "ig": (0.00, 1.98, 2.70, -0.72),
        "attention_rollout": (0.04, 2.85, 1.38, 1.47),
        "attnlrp": (0.25, 3.72, -2.64, 6.36),
        "cplrp": (0.26, 3.73, -3.02, 6.75),
    },
}
CORRELATIONS = {
    "pearson": "r",
    "pearson_sum_to_one": "r, sum to one",
    "spearman": "Spearman's ρ",
    "kendall": "Kendall's τ",
}
SCOPES = {"no_special": "without special ones", "all": "all"}
FIGURES = {
    **{f"{key}_{scope}": f"{name}, {where}" for scope, where in SCOPES.items() for key, name in CORRELATIONS.items()},
    "delta": "Δ",
}


def check(document: Json, path: Path) -> Json:
    """Return the document if this version can read it.

    Raises:
        ResultsError: another schema version, or something is missing.
    """
    if document["schema_version"] != SCHEMA_VERSION:
        found = document["schema_version"]
        raise ResultsError(
            f"{path}: alignment schema version {found!r}, this faithcheck reads {SCHEMA_VERSION}: run faithcheck align "
            "again"
        )
    missing = sorted(KEYS - document.keys())
    if missing:
        raise ResultsError(f"{path}: damaged alignment document, without {', '.join(missing)}")
    return document


# --- words -----------------------------------------------------------------------------------------------------------


def label(name: str) -> str:
    """What a page calls an explainer."""
    return NAMES.get(name, name)


def number(value: object, digits: int = 3) -> str:
    """A figure with a true minus sign; a dash for one that is undefined."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return "–"
    return f"{value:.{digits}f}".replace("-", "−")


def interval(figure: Json) -> str:
    """``[0.700, 0.771]``; a dash where there are too few examples for one."""
    return "–" if figure["low"] is None else f"[{number(figure['low'])}, {number(figure['high'])}]"


def paper_data(document: Json) -> str | None:
    """Which of the paper's data sets this is, by the name of the source; None if neither."""
    name = document["data"]["name"].lower().replace("-", "").replace("_", "")
    return "SST-2" if "sst2" in name else "IMDB" if "imdb" in name else None


def verdict(comparison: Json) -> str:
    """Beats, does not beat, no difference, or cannot be told.

    A difference is one where the 95 % interval leaves 0 out and the signed-rank test has p < 0.05: over few examples
    the bootstrap's interval is too short, and below `FEWEST` the test cannot reach 0.05 at all.
    """
    if comparison["low"] is None or comparison["n"] < FEWEST:
        return "cannot be told"
    if comparison["p"] is None or comparison["p"] >= 0.05:
        return "no difference"
    return "beats" if comparison["low"] > 0 else "does not beat" if comparison["high"] < 0 else "no difference"


def claim(comparison: Json) -> str:
    """The verdict as a clause: ``CP-LRP does not beat AttnLRP on this model``."""
    one, other = label(comparison["explainer"]), label(comparison["against"])
    return {
        "beats": f"{one} beats {other} on this model",
        "does not beat": f"{one} does not beat {other} on this model",
        "no difference": f"No difference between {one} and {other} shows on this model",
        "cannot be told": f"Whether {one} beats {other} cannot be told",
    }[verdict(comparison)]


def finding(document: Json, comparison: Json) -> str:
    """The clause with its figures, and for CP-LRP with what the paper found."""
    n = comparison["n"]
    if comparison["difference"] is None:
        return f"{claim(comparison)}: the correlation of both is defined on no example."
    said = (
        f"{claim(comparison)}: mean r {number(comparison['mean'])} against {number(comparison['mean_against'])}, "
        f"difference {number(comparison['difference'])} {interval(comparison)} over {n} {document['data']['items']}"
    )
    return f"{said}{_paper_found(document, comparison)}."


def _paper_found(document: Json, comparison: Json) -> str:
    if comparison["explainer"] != "cplrp":
        return ""
    data = paper_data(document) or "SST-2"
    ours, theirs = PAPER[data]["cplrp"][0], PAPER[data]["attnlrp"][0]
    how = {
        "beats": "the paper found the same",
        "does not beat": "the paper found the opposite",
        "no difference": "the paper found that it beats AttnLRP",
        "cannot be told": "the paper found that it does",
    }[verdict(comparison)]
    return f"; {how} on BERT-base, {data} ({ours:.2f} against {theirs:.2f}, maps that sum to one)"


def headline(document: Json) -> str:
    """The first thing to say: CP-LRP against AttnLRP, or how many explainers were measured."""
    for comparison in _correlations_compared(document):
        if comparison["explainer"] == "cplrp":
            return claim(comparison)
    measured = [explainer for explainer in document["explainers"] if not explainer["refused"]]
    return f"{len(measured)} explainers against Leave-One-Out"


def findings(document: Json) -> list[str]:
    """Each explainer against AttnLRP in a sentence, CP-LRP first; LOO is no competitor of its own."""
    compared = [one for one in _correlations_compared(document) if one["explainer"] != "loo"]
    return [finding(document, one) for one in sorted(compared, key=lambda one: one["explainer"] != "cplrp")]


def _correlations_compared(document: Json) -> list[Json]:
    return [one for one in document["comparisons"] if one["figure"] == "pearson_no_special"]


def counted(document: Json) -> list[str]:
    """What was measured, and what was left out or cut, in sentences."""
    counts, items, features = document["counts"], document["data"]["items"], document["model"]["features"]
    feature = _singular(features)
    return [
        f"{counts['measured']} of {counts['examples']} {items} are measured.",
        f"Left out, without any {feature} that is not special: {counts['empty']}; of one {feature} that leaves nothing "
        f"behind: {counts['alone']}.",
        f"Cut to {document['settings']['max_length']} {features}: {counts['truncated']}."
        if counts["truncated"]
        else "None is cut.",
        f"With a single {feature} that is not special, so that no correlation without special ones is defined: "
        f"{counts['one_feature']}.",
    ]


def _singular(features: str) -> str:
    return {"tokens": "token", "patches": "patch"}[features]


# --- tables ----------------------------------------------------------------------------------------------------------


def tables(document: Json) -> list[Json]:
    """The tables of a page, {"title", "note", "columns", "rows"}, every cell a string."""
    measured = [explainer for explainer in document["explainers"] if not explainer["refused"]]
    return [
        _table_2(document, measured),
        *([_paper_table(data)] if (data := paper_data(document)) else []),
        _comparisons(document),
        *(_correlations(document, scope, measured) for scope in SCOPES),
        _curves(document, measured),
        *_undefined(measured),
    ]


def _table_2(document: Json, measured: list[Json]) -> Json:
    settings, rows = document["settings"], []
    for explainer in measured:
        figures = explainer["figures"]
        r, delta = figures["pearson_no_special"], figures["delta"]
        rows.append(
            [label(explainer["name"]), number(r["mean"]), interval(r)]
            + [number(figures[key]["mean"]) for key in ("pearson_sum_to_one_no_special", "lerf", "morf")]
            + [number(delta["mean"]), interval(delta), str(r["n"])]
        )
    items, features = document["data"]["items"], document["model"]["features"]
    removed = f"one {_singular(features)}" if settings["chunk"] == 1 else f"{settings['chunk']} neighbouring {features}"
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
        "note": "The paper's figures, not measured here (arXiv 2510.18810): another model, maps that "
        "sum to one, and rollout without a residual term, where ours mixes in ½I.",
        "columns": ["explainer", "r", "LeRF", "MoRF", "Δ"],
        "rows": [
            ["IG" if name == "ig" else label(name), *(number(figure, 2) for figure in figures)]
            for name, figures in PAPER[data].items()
        ],
    }


def _comparisons(document: Json) -> Json:
    compared = [one for one in document["comparisons"] if one["explainer"] != "loo"]
    order = list(FIGURES)
    rows = [
        [
            FIGURES[one["figure"]],
            label(one["explainer"]),
            number(one["difference"]),
            interval(one),
            f"{one['p']:.0e}" if one["p"] is not None and one["p"] < 1e-3 else number(one["p"]),
            str(one["n"]),
        ]
        for one in sorted(compared, key=lambda one: (order.index(one["figure"]), one["explainer"] != "cplrp"))
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
        [label(explainer["name"])]
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
        [label(explainer["name"])] + [cell for key in keys for cell in _with_interval(explainer["figures"][key])]
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


def _undefined(measured: list[Json]) -> Iterator[Json]:
    rows = [
        [label(explainer["name"]), SCOPES[scope], reason, str(count)]
        for explainer in measured
        for scope, reasons in explainer["undefined"].items()
        for reason, count in reasons.items()
    ]
    if rows:
        note = "Such an example has no correlation: it is in no mean, interval or pair."
        columns = ["explainer", "correlation", "why", "examples"]
        yield {"title": "Undefined correlations", "note": note, "columns": columns, "rows": rows}


def facts(document: Json) -> list[tuple[str, str]]:
    """How it was measured: labels and text."""
    settings, model, data = document["settings"], document["model"], document["data"]
    layers = f", {model['layers']} layers" if model["layers"] else ""
    return [
        ("model", f"{model['name']}: {model['class']}{layers}, {model['parameters']:,} parameters"),
        ("weights", model["fingerprint"]),
        ("data", f"{data['name']}: {document['counts']['examples']} {data['items']}"),
        ("content", data["fingerprint"]),
        ("explained", model["explained"]),
        ("removed", f"{model['features']}, one at a time for LOO: {settings['removal']}"),
        ("curves", f"{model['features']}, {settings['chunk_reason']}"),
        ("batches", f"at most {settings['max_tokens']} {model['features']} in a forward pass, padding included"),
        ("arithmetic", f"{settings['dtype']} on {settings['device']}, {settings['threads']} threads"),
        ("seed", str(settings["seed"])),
        *((label(explainer["name"]), explainer["how"]) for explainer in document["explainers"]),
        *((key, str(value)) for key, value in document["environment"].items() if value is not None),
    ]


# --- views -----------------------------------------------------------------------------------------------------------


def to_markdown(document: Json) -> str:
    """The document as Markdown."""
    return report.page("alignment.md.j2", _view(document))


def to_html(document: Json) -> str:
    """The document as one self-contained HTML page."""
    return report.page("alignment.html.j2", _view(document))


def _view(document: Json) -> Json:
    return {
        "document": document,
        "headline": headline(document),
        "findings": findings(document),
        "counted": counted(document),
        "tables": [{**table, "words": _word_columns(table)} for table in tables(document)],
        "refused": _labelled(document, "refused"),
        "warned": _labelled(document, "warned"),
        "facts": facts(document),
    }


def _word_columns(table: Json) -> list[int]:
    """The columns that hold words, which are aligned on the left."""
    columns = list(zip(*table["rows"], strict=True))
    return [i for i, cells in enumerate(columns) if any(re.search(r"[^\W\d]{2}", cell) for cell in cells)]


def _labelled(document: Json, key: str) -> list[tuple[str, str]]:
    return [(label(explainer["name"]), explainer[key]) for explainer in document["explainers"] if explainer[key]]


def to_terminal(document: Json, width: int = 80, color: bool = False) -> str:
    """The tables that answer the question, and the findings in words; the pages have the rest."""
    return terminal.printed(_parts(document), width, color)


def _parts(document: Json) -> Iterator[RenderableType]:
    view = _view(document)
    for content in view["tables"]:
        if content["title"].startswith(("Alignment", "The paper's", "Undefined")):
            yield from _table(content)
    for name, reason in view["refused"]:
        yield Text.assemble((f"\n{name} was not measured: ", "bold"), reason)
    if view["warned"]:
        yield Text("\nwarned", style="bold")
    for name, warning in view["warned"]:
        yield Text(f"{name} {warning}")
    for sentence in view["findings"]:
        yield Text(f"\n{sentence}")
    yield Text()
    for sentence in view["counted"]:
        yield Text(sentence)
    settings = document["settings"]
    yield Text(f"removed: {settings['removal']}; curves: {settings['chunk_reason']}; seed {settings['seed']}")
    yield Text(f"\n{view['headline']}", style="bold")


def _table(content: Json) -> Iterator[RenderableType]:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    # Of two intervals a terminal has room for one; the pages have both.
    shown = [i for i, column in enumerate(content["columns"]) if column not in content["columns"][:i]]
    for i in shown:
        table.add_column(content["columns"][i], no_wrap=i == 0, justify="left" if i in content["words"] else "right")
    for row in content["rows"]:
        table.add_row(*(Text(row[i]) for i in shown))
    yield Text(f"\n{content['title']}", style="bold")
    yield table
    yield Text(content["note"], style="dim")
