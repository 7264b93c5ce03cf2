"""The explanation document as pages and as coloured text for a terminal: pure functions of the document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.color import Color
from rich.console import RenderableType
from rich.style import Style
from rich.table import Table
from rich.text import Text

from faithcheck.reports.joined_words import relevance_of, words
from faithcheck.reports.pages import alignment_wording, columns, relevance, rendering, wording
from faithcheck.reports.results import Json, ResultsError
from faithcheck.reports.shape import NUMBER, Shape, mismatch

SCHEMA_VERSION = 1
_SHAPE: Shape = {
    **dict.fromkeys(("faithcheck", "model", "architecture", "device", "text", "explained"), str),
    "decoder": bool,
    **{"what?": str, "target?": (str, None), "contrast?": (str, None), "answer?": [str]},
    "outputs": int,
    "change": NUMBER,
    "notes": [str],
    "features": [{"text": str, "glued": bool, "special": bool}],
    "maps": [
        {
            **dict.fromkeys(("explainer", "how", "origin", "left_behind"), str),
            "values": [(int, float)],
            "sum": (int, float),
            "r": NUMBER,
            "notes": [str],
        }
    ],
    "classes": [{"number": int, "name": str, "logit": NUMBER, "probability": NUMBER, "explained": bool}],
}
ROWS = 40  # of the table on a terminal; the page has all rows
COLOURS = (
    "Each map is coloured by its own largest value that is not special: red for the explained output, blue against it; "
    "violet in a map without a negative value. A special token may exceed it."
)


def check(document: Json, path: Path) -> Json:
    """Return the document if this version can read it.

    Raises:
        ResultsError: the schema version is another one, or something is missing, of another type or of another length.
    """
    if document["schema_version"] != SCHEMA_VERSION:
        raise ResultsError(
            f"{path}: explanation schema version {document['schema_version']!r}, this faithcheck reads "
            f"{SCHEMA_VERSION}: run faithcheck explain again"
        )
    if (damage := mismatch(document, _SHAPE) or _in_lengths(document)) is not None:
        raise ResultsError(f"{path}: damaged explanation document: {damage}")
    return document


def _in_lengths(document: Json) -> str | None:
    """What is wrong in the numbers of things, which a shape cannot say."""
    for i, row in enumerate(document["maps"]):
        if len(row["values"]) != len(document["features"]):
            return f"maps[{i}].values has {len(row['values'])} numbers for {len(document['features'])} features"
    explained = sum(row["explained"] for row in document["classes"])
    return None if explained == 1 else f"classes has {explained} explained outputs, not 1"


def headline(document: Json) -> str:
    """The explained output with its probability, and the explainers."""
    (explained,) = (row for row in document["classes"] if row["explained"])
    share = "" if explained["probability"] is None else f" ({_percent(explained['probability'])})"
    return f"{document['explained']}{share}: {', '.join(row['explainer'] for row in document['maps'])}"


def facts(document: Json) -> list[tuple[str, str]]:
    """How the maps were measured, and their sums: labels and text."""
    kind = "next token" if document["decoder"] else "class"
    what = document.get("what", f"the logit of the {kind} {document['explained']}")  # absent from older documents
    change = document["change"]
    return [
        ("model", f"{document['model']}: {document['architecture']}, on {document['device']}"),
        *((row["explainer"], _described(row)) for row in document["maps"]),
        ("explained", f"{what}; relevance is read at the word embeddings"),
        ("f(x) − f(baseline)", f"{wording.number(change, 4)}, the baseline being word embeddings of 0"),
        *((f"sum of {row['explainer']}", _sum(row["sum"], change)) for row in document["maps"]),
        ("r", "Pearson's correlation of the tokens' values with those of LOO, special tokens left out"),
        ("words", "the sum of the relevance of their tokens" if _is_joined(document) else "a token each"),
        ("colours", COLOURS),
    ]


def _described(row: Json) -> str:
    return f"{row['origin']}: {row['how']}" if row["origin"] else str(row["how"])


def _sum(total: float, change: float) -> str:
    return f"{wording.number(total, 4)}, special tokens included; less the change: {wording.number(total - change, 4)}"


def rows(document: Json) -> list[Json]:
    """Each map as its explainer's ``label``, its ``r`` and its coloured ``words``."""
    found = words(document["features"])
    return [
        {
            "label": row["explainer"],
            "r": alignment_wording.number(row["r"]),
            "signed": relevance.is_signed(values),
            "words": relevance.coloured(found, values),
        }
        for row in document["maps"]
        for values in [relevance_of(found, row["values"])]
    ]


def tables(document: Json) -> list[Json]:
    """The outputs, the relevance of each word, and that of each token where words have several."""
    found = words(document["features"])
    alone = [{**feature, "features": [i]} for i, feature in enumerate(document["features"])]
    further = [_relevance_table(document, "token", alone)] if _is_joined(document) else []
    return [_outputs(document), _relevance_table(document, "word", found), *further]


def notes(document: Json) -> list[str]:
    """The sentences on the text, and those on each explainer."""
    return [*document["notes"], *(note for row in document["maps"] for note in row["notes"])]


def to_markdown(document: Json) -> str:
    """The numbers of the maps as Markdown, which has no colours."""
    return rendering.to_page("explanation.md.j2", _view(document))


def to_html(document: Json) -> str:
    """The maps as one self-contained HTML page."""
    return rendering.to_page("explanation.html.j2", _view(document))


def exported(document: Json) -> tuple[list[Json], list[Json]]:
    """The tables of the page; it has no figures."""
    return tables(document), []


def _view(document: Json) -> Json:
    outputs, *numbers = tables(document)
    return {
        "document": document,
        "headline": headline(document),
        "notes": notes(document),
        "rows": rows(document),
        "outputs": outputs,
        "numbers": numbers,
        "facts": facts(document),
    }


def to_terminal(document: Json, width: int = 80, color: bool = False) -> str:
    """The maps: the words in colour, the outputs, the numbers and the settings."""
    return rendering.to_terminal(_parts, document, width, color, "auto")


def _parts(document: Json) -> Iterator[RenderableType]:
    for row in rows(document):
        yield Text.assemble((row["label"], "bold"), f"  r {row['r']}" if row["label"] != "loo" else "")
        yield coloured(row["words"], row["signed"])
        yield Text()
    for note in notes(document):
        yield Text(f"{note}\n", style="yellow")
    outputs, by_word, *_ = tables(document)
    yield rendering.terminal_table(outputs)
    if outputs["note"]:
        yield Text(f"{outputs['note']}\n", style="dim")
    yield rendering.terminal_table({**by_word, "rows": _largest(document, by_word["rows"])})
    if len(by_word["rows"]) > ROWS:
        yield Text(f"the {ROWS} largest of {len(by_word['rows'])} words; --html has all\n", style="dim")
    grid = Table.grid(padding=(0, 2))
    for label, text in facts(document):
        grid.add_row(Text(label, style="dim"), Text(text))
    yield grid


def coloured(found: Sequence[Json], signed: bool) -> Text:
    """The text, each word on its colour; special tokens are underlined, the strongest words bold."""
    line = Text()
    for word in found:
        if line and not word["glued"]:
            line.append(" ")
        line.append(word["text"], _style(word, signed))
    return line


def _style(word: Json, signed: bool) -> Style:
    colours = relevance.on_terminal(word["strength"], signed)
    if colours is None:
        return Style(underline=word["special"])
    back, ink = (Color.from_rgb(*colour) for colour in colours)
    return Style(color=ink, bgcolor=back, bold=word["bold"], underline=word["special"])


def _outputs(document: Json) -> Json:
    listed, of = len(document["classes"]), document["outputs"]
    note = f"The {listed} most likely of {of} outputs, or those and the explained one." if of > listed else ""
    cells = [
        [
            f"{row['number']} {row['name']}{' ← explained' if row['explained'] else ''}",
            wording.number(row["logit"], 4),
            "–" if row["probability"] is None else _percent(row["probability"]),
        ]
        for row in document["classes"]
    ]
    value = "log-likelihood" if document.get("answer") else "logit"
    return columns.plain_table("What the model says", note, ["output", value, "probability"], cells)


def _relevance_table(document: Json, unit: str, found: Sequence[Json]) -> Json:
    values = [relevance_of(found, row["values"]) for row in document["maps"]]
    cells = [
        [str(i), word["text"], *(of[i] for of in values), "special" if word["special"] else ""]
        for i, word in enumerate(found)
    ]
    titles = ["#", unit, *(row["explainer"] for row in document["maps"]), "kind"]
    return columns.plain_table(f"The relevance of each {unit}", "", titles, cells)


def _largest(document: Json, cells: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """The rows of the words whose relevance is largest in a map, as a share of the largest there."""
    found = words(document["features"])
    special = [word["special"] for word in found]
    shares = [relevance.strengths(relevance_of(found, row["values"]), special)[0] for row in document["maps"]]
    order = sorted(range(len(found)), key=lambda i: -max(abs(of[i]) for of in shares))
    return [cells[i] for i in sorted(order[:ROWS])]


def _is_joined(document: Json) -> bool:
    return len(words(document["features"])) < len(document["features"])


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
