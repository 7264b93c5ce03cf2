"""The document of ``faithcheck align`` as pages and as text for a terminal: pure functions of the document."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from faithcheck.reports.pages import alignment_maps, columns, rendering, wording
from faithcheck.reports.pages.alignment_figures import figures
from faithcheck.reports.pages.alignment_tables import tables
from faithcheck.reports.pages.alignment_wording import (
    CURVES,
    FIGURES,
    SCOPES,
    SHARES,
    counted,
    findings,
    headline,
    label,
)
from faithcheck.reports.results import ENVIRONMENT, RUN, Json, ResultsError
from faithcheck.reports.shape import NUMBER, Shape, mismatch

SCHEMA_VERSION = 1
PEAKS = ("predicted", "measured")
_FIGURE: Shape = {"mean": NUMBER, "low": NUMBER, "high": NUMBER, "n": int}
_SHAPE: Shape = {
    "faithcheck": str,
    "environment": ENVIRONMENT,
    "model": {
        **dict.fromkeys(("name", "class", "fingerprint", "explained"), str),
        "features": frozenset({"tokens", "patches"}),
        "layers": (int, None),
        "parameters": int,
    },
    "data": dict.fromkeys(("name", "items", "fingerprint"), str),
    "settings": {
        **dict.fromkeys(("removal", "chunk_reason", "dtype", "device"), str),
        **dict.fromkeys(("chunk", "max_tokens", "threads", "seed"), int),
        "max_length": (int, None),
    },
    "examples?": {"index?": [int], "digests?": [str], "answers?": [str]},
    "counts": {
        **dict.fromkeys(("examples", "measured", "empty", "alone", "truncated", "one_feature"), int),
        "unanswered?": int,
        "too_long?": int,
    },
    "explainers": [
        {
            **dict.fromkeys(("name", "how", "refused", "warned"), str),
            "label?": str,
            "failed?": bool,
            "left_behind?": str,
            "smaller?": str,
            "left_out?": str,
            "no_positions?": str,
            "memory?": dict.fromkeys(PEAKS, int),
            "cost?": NUMBER,
            "mean_curves?": {key: [NUMBER] for key in ("removed", "lerf", "morf")},
            "examples?": {...: [NUMBER]},
            "figures": {
                **dict.fromkeys((*FIGURES, *CURVES), _FIGURE),
                **{f"{share}?": _FIGURE for share in SHARES},  # documents of older versions do not have them
            },
            "undefined": {scope: {...: int} for scope in SCOPES},
        }
    ],
    "parquet?": {"folder": str, "files": {...: [str]}},
    "shown?": [
        {
            **{"index": int, "agreement": frozenset({"least", "median", "most"}), "mean": NUMBER},
            "features": [{"text": str, "glued": bool, "special": bool}],
            "maps": [{"explainer": str, "r": NUMBER, "values": [NUMBER]}],
        }
    ],
    "run?": RUN,
    "comparisons": [
        {
            **dict.fromkeys(("explainer", "against"), str),
            "figure": frozenset(FIGURES),
            **dict.fromkeys(("mean", "mean_against", "difference", "low", "high", "p"), NUMBER),
            "n": int,
        }
    ],
}


def check(document: Json, path: Path) -> Json:
    """Return the document if this version can read it.

    Raises:
        ResultsError: the schema version is another one, or something is missing or of another type.
    """
    if document["schema_version"] != SCHEMA_VERSION:
        raise ResultsError(
            f"{path}: alignment schema version {document['schema_version']!r}, this faithcheck reads "
            f"{SCHEMA_VERSION}: run faithcheck align again"
        )
    if (damage := mismatch(document, _SHAPE)) is not None:
        raise ResultsError(f"{path}: damaged alignment document: {damage}")
    return document


def facts(document: Json) -> list[tuple[str, str]]:
    """The settings of the measurement as labels and text."""
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
        *_memory(document),
        *_run(document),
        *((label(document, explainer["name"]), explainer["how"]) for explainer in document["explainers"]),
        *((key, str(value)) for key, value in document["environment"].items() if value is not None),
    ]


def _memory(document: Json) -> Iterator[tuple[str, str]]:
    """The peak memory of each explainer, in a line."""
    peaks = [
        " ".join([label(document, row["name"]), *(f"{row['memory'][key] / 2**20:.3g}" for key in PEAKS)])
        for row in document["explainers"]
        if row.get("memory")  # documents of older versions do not say
    ]
    if peaks:
        yield "peak memory", f"of one batch, over the model, in MiB, {' and '.join(PEAKS)}: {'; '.join(peaks)}"


def _run(document: Json) -> Iterator[tuple[str, str]]:
    """How the work was shared, in a line."""
    if (run := document.get("run")) is not None:
        yield "run", f"{wording.sharing(run)}{_estimated(run)}"


def _estimated(run: Json) -> str:
    """What --plan had said, beside what it took without the start of the workers."""
    if run.get("estimated") is None:
        return ""
    return f"; {run['estimated']:.1f} s were planned, {run['seconds'] - run.get('started', 0.0):.1f} s were taken"


def to_markdown(document: Json) -> str:
    """The document as Markdown."""
    return rendering.to_page("alignment.md.j2", _view(document))


def to_html(document: Json) -> str:
    """The document as one self-contained HTML page."""
    return rendering.to_page("alignment.html.j2", _view(document))


def exported(document: Json) -> tuple[list[Json], list[Json]]:
    """The tables and the figures of the page."""
    view = _view(document)
    return [*view["tables"], *(one["table"] for one in view["shown"])], view["figures"]


def _view(document: Json) -> Json:
    shown = alignment_maps.shown(document)
    return {
        "document": document,
        "headline": headline(document),
        "findings": findings(document),
        "counted": counted(document),
        "tables": [columns.plain_table(**table) for table in tables(document)],
        "figures": figures(document),
        "shown": shown,
        "shown_note": alignment_maps.note(document) if shown else "",
        "refused": _labelled(document, "refused"),
        "warned": _labelled(document, "warned"),
        "left_behind": _labelled(document, "left_behind"),
        "smaller": _labelled(document, "smaller"),
        "left_out": _labelled(document, "left_out"),
        "facts": facts(document),
    }


def _labelled(document: Json, key: str) -> list[tuple[str, str]]:
    return [
        (label(document, explainer["name"]), explainer[key])
        for explainer in document["explainers"]
        if explainer.get(key)  # documents of older versions do not say what was left behind
    ]


def to_terminal(document: Json, width: int = 80, color: bool = False) -> str:
    """The main tables and the findings in sentences; the pages have all tables."""
    return rendering.to_terminal(_parts, document, width, color)


def _parts(document: Json) -> Iterator[RenderableType]:
    view = _view(document)
    for content in view["tables"]:
        if content["title"].startswith(("Alignment", "The paper's", "Undefined")):
            yield from _table(content)
    for name, reason in view["refused"]:
        yield Text.assemble((f"\n{name} was not measured: ", "bold"), reason)
    for name, traces in view["left_behind"]:
        yield Text.assemble((f"\n{name} left something behind, which was undone: ", "bold"), traces)
    for name, batches in view["smaller"]:
        yield Text.assemble((f"\n{name} was measured in smaller batches, to fit the memory: ", "bold"), batches)
    for name, batches in view["left_out"]:
        yield Text.assemble((f"\n{name} has no figures of what ended its workers: ", "bold"), batches)
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
    """A table without its second interval and the cost: a terminal has no room for them; the pages have both."""
    titles = content["columns"]
    shown = [i for i, title in enumerate(titles) if title not in (*titles[:i], "cost")]
    rows = [[row[i] for i in shown] for row in content["rows"]]
    yield Text(f"\n{content['title']}", style="bold")
    yield rendering.terminal_table(columns.plain_table(content["title"], "", [titles[i] for i in shown], rows))
    yield Text(content["note"], style="dim")
