"""The results document as a Markdown or an HTML page: pure functions of the JSON."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from faithcheck.reports.pages import figures, wording
from faithcheck.reports.results import Json, is_red, not_run, red_records

CORRELATIONS = ("pearson", "pearson_sum_to_one", "spearman", "kendall")


def to_markdown(results: Json) -> str:
    """The report as Markdown (tables and ``<details>`` as GitHub renders them)."""
    return page("report.md.j2", _view(results))


def to_html(results: Json) -> str:
    """The report as one self-contained HTML page: no scripts, no network."""
    return page("report.html.j2", _view(results))


def page(template: str, view: Json) -> str:
    """A template filled in; what it is called says whether it makes HTML or Markdown."""
    html = template.endswith(".html.j2")
    text = _environment(html).get_template(template).render(view)
    return text if html else re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _environment(html: bool) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=html,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        number=lambda value: wording.number(value, 4),
        md=_markdown,
        svg=lambda figure: Markup(figures.to_svg(figure)),
        numbers=figures.to_tables,
    )
    return environment


def _markdown(value: object) -> str:
    """Text that is safe in a Markdown table cell: no markup of its own, one line."""
    text = " ".join(str(value).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\|*_`\[\]])", r"\\\1", text)


def _view(results: Json) -> Json:
    """What the templates show, in their order."""
    records = results["records"]
    named = [*results["axioms"], *sorted({record["axiom"] for record in records} - results["axioms"].keys())]
    by_axiom = {name: [record for record in records if record["axiom"] == name] for name in named}
    tally = wording.tally_of(records)
    return {
        "results": results,
        "red": is_red(results),
        "headline": wording.headline(results),
        "not_run": not_run(results),
        "left_behind": wording.left_behind(results),
        "origins": wording.origins(results),
        "settings": {key: value for key, value in results["settings"].items() if not isinstance(value, dict)},
        "tiles": [{"count": tally[status], **_status(status)} for status in tally],
        "reds": [_red(record) for record in red_records(results)],
        "axioms": [_matrix(name, results["axioms"].get(name, ""), found) for name, found in by_axiom.items() if found],
        "correlations": _correlations(by_axiom.get("loo", [])),
        "tables": [*wording.symbolic_gaps(records), *results["tables"]],
        "figures": results["figures"],
        "reasons": [reason for found in by_axiom.values() for reason in _reasons(found)],
    }


def _status(status: str) -> Json:
    return {
        "status": status,
        "symbol": wording.SYMBOLS.get(status, "✗"),
        "meaning": wording.MEANINGS.get(status, status),
        "kind": wording.kind(status),
    }


def _red(record: Json) -> Json:
    return {
        **_status(record["status"]),
        "sentence": wording.sentence(record),
        "details": wording.details(record),
        "traceback": record["traceback"],
    }


def _matrix(axiom: str, meaning: str, records: list[Json]) -> Json:
    """Subjects as rows, explainers as columns; a cell is None where nothing was measured."""
    cells = {(record["subject"], record["explainer"] or ""): record for record in records}
    subjects = sorted({subject for subject, _ in cells}, key=_natural)
    columns = sorted({explainer for _, explainer in cells})
    rows = [
        {"subject": subject, "cells": [_cell(cells.get((subject, column))) for column in columns]}
        for subject in subjects
    ]
    tally = wording.tally_of(records)
    return {
        "name": axiom,
        "meaning": meaning,
        "columns": [column or "models alone" for column in columns],
        "rows": rows,
        "tally": [{"count": tally[status], **_status(status)} for status in tally],
    }


def _cell(record: Json | None) -> Json | None:
    if record is None:
        return None
    title = f"{record['status']}, expected {record['expected']}: {record['why']}"
    return {"text": wording.cell(record), "kind": wording.kind(record["status"]), "title": title}


def _correlations(records: list[Json]) -> Json | None:
    """One row for each measured explainer and subject; correlations without special positions where there are any."""
    measured = [record for record in records if "pearson" in record["detail"]]
    special = [f"{key}_no_special" for key in CORRELATIONS if any(f"{key}_no_special" in r["detail"] for r in measured)]
    keys = [*CORRELATIONS, *special]
    rows = [
        [record["subject"], record["explainer"] or ""]
        + [wording.correlation(record["detail"].get(key)) for key in keys]
        + [wording.number(record["detail"].get(key)) for key in ("examples", "undefined")]
        for record in sorted(measured, key=lambda record: (_natural(record["subject"]), record["explainer"] or ""))
    ]
    columns = ["subject", "explainer", *(key.replace("_", " ") for key in keys), "examples", "undefined"]
    return {"columns": columns, "rows": rows} if rows else None


def _reasons(records: list[Json]) -> list[Json]:
    """Each expectation with its reason once, and the subjects that it covers."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for record in records:
        key = (record["axiom"], record["explainer"] or "", record["expected"], record["why"], record["cite"])
        groups.setdefault(key, []).append(record["subject"])
    names = ("axiom", "explainer", "expected", "why", "cite")
    rows: list[dict[str, Any]] = [
        {**dict(zip(names, key, strict=True)), "subjects": sorted(subjects, key=_natural)}
        for key, subjects in groups.items()
    ]
    return sorted(rows, key=lambda row: tuple(row[name] for name in names))


def _natural(name: str) -> list[tuple[int, int | str]]:
    """Sort key in which ``x2`` comes before ``x10``."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", name) if part]
