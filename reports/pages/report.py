"""The results document as a Markdown or an HTML page: pure functions of the JSON."""

from __future__ import annotations

from faithcheck.reports.pages import cause_cards, columns, matrices, rules, wording
from faithcheck.reports.pages.reasons import reasons
from faithcheck.reports.pages.rendering import to_page
from faithcheck.reports.results import Json, not_run, verdict


def to_markdown(results: Json) -> str:
    """The report as Markdown (tables and ``<details>`` as GitHub renders them)."""
    records = results["records"]
    parts = {
        "axioms": [
            {"name": axiom, "meaning": results["axioms"].get(axiom, ""), **matrices.matrix(numbered)}
            for axiom, numbered in _by_axiom(results).items()
        ],
        "expectations": columns.expectations(records) if records else None,
    }
    return to_page("report.md.j2", {**_view(results), **parts})


def to_html(results: Json) -> str:
    """The report as one self-contained HTML page: complete without its script, and nothing is loaded."""
    by_axiom = _by_axiom(results)
    parts = {
        "overview": matrices.overview(results["records"], [*by_axiom]),
        "axioms": [
            matrices.of_axiom(axiom, results["axioms"].get(axiom, ""), numbered) for axiom, numbered in by_axiom.items()
        ],
        "reasons": reasons(results),
    }
    return to_page("report.html.j2", {**_view(results), **parts})


def exported(results: Json) -> tuple[list[Json], list[Json]]:
    """The tables of the page, a matrix for each axiom among them, and its figures."""
    view, records = _view(results), results["records"]
    of_axioms = [_matrix_table(axiom, matrices.matrix(numbered)) for axiom, numbered in _by_axiom(results).items()]
    of_records = [view["summary"], *of_axioms, columns.expectations(records)] if records else []
    return [*of_records, *view["tables"]], view["figures"]


def _matrix_table(axiom: str, matrix: Json) -> Json:
    cells = [[row["subject"], *(cell["text"] if cell else "" for cell in row["cells"])] for row in matrix["rows"]]
    return columns.plain_table(f"{axiom}: pairs by explainers", "", ["pair", *matrix["columns"]], cells)


def _view(results: Json) -> Json:
    """What both pages show."""
    records = results["records"]
    measured = (columns.plain_table(**table) for table in results["tables"])
    return {
        "results": {key: value for key, value in results.items() if key != "records"},
        "verdict": verdict(results),
        "headline": wording.headline(results),
        "not_run": not_run(results),
        "not_run_by_reason": wording.not_run_by_reason(results),
        "left_behind": wording.left_behind(results),
        "not_applicable": wording.not_applicable(results),
        "origins": wording.origins(results),
        "settings": _settings(results),
        "tiles": matrices.tally(records),
        "causes": cause_cards.cards(results),
        "summary": columns.summary(records) if records else None,
        "tables": [
            *columns.correlations([record for record in records if record["axiom"] == "loo"]),
            *columns.symbolic_gaps(records),
            *columns.digits(results),
            *rules.tables(results),
            *columns.slowest(results),
            *measured,
        ],
        "figures": results["figures"],
    }


def _by_axiom(results: Json) -> dict[str, list[tuple[int, Json]]]:
    """The records of each axiom that has some, each with its place in the document."""
    of = matrices.grouped(enumerate(results["records"]), lambda row: str(row[1]["axiom"]))
    return {name: of[name] for name in matrices.in_order([*results["axioms"], *sorted(of)]) if name in of}


def _settings(results: Json) -> Json:
    """The settings that fit a line each; origins and what is not applicable are shown in tables and sentences."""
    settings = {key: value for key, value in results["settings"].items() if not isinstance(value, dict)}
    if "run" in results:
        settings["run"] = wording.sharing(results["run"])
    return {
        key: " ".join(map(str, value)) if isinstance(value, list) else value
        for key, value in {"catalogue": wording.catalogue(results), **settings}.items()
        if key != "not_applicable" and (key, value) != ("catalogue", None)
    }
