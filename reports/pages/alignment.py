"""The document of ``faithcheck align`` as pages and as text for a terminal; and the plan of ``--plan``."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from faithcheck.reports.documents.alignment import Alignment, Explainer, Plan, PlannedExplainer
from faithcheck.reports.documents.document import Run
from faithcheck.reports.documents.figure import Figure
from faithcheck.reports.memory_units import in_words
from faithcheck.reports.pages import rendering, wording
from faithcheck.reports.pages.alignment_tables import figures, note_on_maps, side_by_side, tables, terminal_tables
from faithcheck.reports.pages.alignment_wording import counted, findings, headline
from faithcheck.reports.pages.tables import Column, Table, table


def facts(document: Alignment) -> list[tuple[str, str]]:
    """The settings of the measurement as labels and text."""
    settings, model, data = document.settings, document.model, document.data
    layers = f", {model.layers} layers" if model.layers else ""
    return [
        ("model", f"{model.name}: {model.class_}{layers}, {model.parameters:,} parameters"),
        ("weights", model.fingerprint),
        ("data", f"{data.name}: {document.counts.examples} {data.items}"),
        ("content", data.fingerprint),
        ("explained", model.explained),
        ("removed", f"{model.features}, one at a time for LOO: {settings.removal}"),
        ("curves", f"{model.features}, {settings.chunk_reason}"),
        ("batches", f"at most {settings.max_tokens} {model.features} in a forward pass, padding included"),
        ("arithmetic", f"{settings.dtype} on {settings.device}, {settings.threads} threads"),
        ("seed", str(settings.seed)),
        *_memory(document),
        *(_run(document.run) if document.run else []),
        *((explainer.title, explainer.how) for explainer in document.explainers),
        *((key, value) for key, value in document.environment.items() if value is not None),
    ]


def _memory(document: Alignment) -> Iterator[tuple[str, str]]:
    """The peak memory of each explainer, in a line; documents of older versions do not say it."""
    peaks = [
        f"{one.title} {one.memory.predicted / 2**20:.3g} {one.memory.measured / 2**20:.3g}"
        for one in document.explainers
        if one.memory
    ]
    if peaks:
        yield "peak memory", f"of one batch, over the model, in MiB, predicted and measured: {'; '.join(peaks)}"


def _run(run: Run) -> Iterator[tuple[str, str]]:
    """How the work was shared; and what --plan estimated, beside the time without the start of the workers."""
    planned = ""
    if run.estimated is not None:
        taken = (run.seconds or 0.0) - (run.started or 0.0)
        planned = f"; {run.estimated:.1f} s were planned, {taken:.1f} s were taken"
    yield "run", f"{wording.sharing(run)}{planned}"


# --- pages ------------------------------------------------------------------------------------------------------------


def exported(document: Alignment) -> tuple[list[Table], list[Figure]]:
    """The tables and the figures of the page."""
    return [*tables(document), *(one.table for one in side_by_side(document))], figures(document)


def _view(document: Alignment) -> dict[str, object]:
    return {
        "document": document,
        "headline": headline(document),
        "findings": findings(document),
        "counted": counted(document),
        "tables": tables(document),
        "figures": figures(document),
        "shown": side_by_side(document),
        "shown_note": note_on_maps(document) if document.shown else "",
        "notices": list(_notices(document.explainers)),
        "warned": _warned(document),
        "facts": facts(document),
    }


def _notices(explainers: Sequence[Explainer]) -> Iterator[tuple[str, str]]:
    """What is wrong with the figures of an explainer: a clause, and the reason."""
    yield from ((f"{one.title} was not measured", one.refused) for one in explainers if one.refused)
    undone = "left something behind, which was undone"
    yield from ((f"{one.title} {undone}", one.left_behind) for one in explainers if one.left_behind)
    smaller = "was measured in smaller batches, to fit the memory"
    yield from ((f"{one.title} {smaller}", one.smaller) for one in explainers if one.smaller)
    ended = "has no figures of the batches that ended its workers"
    yield from ((f"{one.title} {ended}", one.left_out) for one in explainers if one.left_out)


def _warned(document: Alignment) -> list[str]:
    return [f"{one.title} {one.warned}" for one in document.explainers if one.warned]


def _parts(document: Alignment) -> Iterator[RenderableType]:
    """The main tables and the findings in sentences, the headline first and last; the pages have all tables."""
    yield Text(headline(document), style="bold")
    for one in terminal_tables(document):
        yield Text(f"\n{one.title}", style="bold")
        yield rendering.terminal_table(one)
        yield Text(one.note, style="dim")
    for clause, reason in _notices(document.explainers):
        yield Text.assemble((f"\n{clause}: ", "bold"), reason)
    if warned := _warned(document):
        yield Text("\nwarned", style="bold")
        yield Text("\n".join(warned))
    for sentence in findings(document):
        yield Text(f"\n{sentence}")
    yield Text()
    for sentence in counted(document):
        yield Text(sentence)
    settings = document.settings
    yield Text(f"removed: {settings.removal}; curves: {settings.chunk_reason}; seed {settings.seed}")
    yield Text(f"\n{headline(document)}", style="bold")


to_markdown, to_html, to_terminal = rendering.views_of("alignment", _view, _parts)

# --- the plan ---------------------------------------------------------------------------------------------------------

PLAN: Sequence[Column[PlannedExplainer]] = (
    Column("explainer", lambda row: row.name),
    Column("batches", lambda row: f"{row.batches:,}"),
    Column("rows", lambda row: f"{row.rows:,}"),
    Column("tokens", lambda row: f"{row.tokens:,}"),
    Column("passes", lambda row: f"{row.passes:,}"),
    Column("peak memory", lambda row: "unknown" if row.peak is None else in_words(row.peak)),
    Column("probed", lambda row: str(row.probed)),
    Column("time", lambda row: in_time(row.seconds)),
)


def plan_to_terminal(plan: Plan, width: int = 80, color: bool = False) -> str:
    """The work of each explainer that is left, and the time on one worker and on all."""
    return rendering.to_terminal(_parts_of_plan, plan, width, color)


def _parts_of_plan(plan: Plan) -> Iterator[RenderableType]:
    yield rendering.terminal_table(table("plan", "", PLAN, plan.explainers))
    yield Text(
        "What is left after the probe, whose batches are stored: rows and tokens of forward passes, maps and curves; "
        "passes, if all are full; the peak memory over the model's own, predicted for the batch that takes most; the "
        "time of one worker.",
        style="dim",
    )
    alone = sum(row.seconds for row in plan.explainers)
    yield Text(
        f"\nabout {in_time(plan.seconds)} on {wording.counted(plan.workers, 'worker')}"
        f" ({in_time(alone)} of work), without the loading and the statistics; the probe took {in_time(plan.probe)}"
    )


def in_time(seconds: float) -> str:
    """A duration in words, such as "2.5 min"."""
    unit, name = next(((unit, name) for unit, name in ((3600, "h"), (60, "min")) if seconds >= unit), (1, "s"))
    return f"{seconds / unit:.3g} {name}"
