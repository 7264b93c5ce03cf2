"""The explanation document as pages and as coloured text for a terminal: pure functions of the document."""

import math
from collections.abc import Collection, Iterator, Sequence

from rich.color import Color
from rich.console import RenderableType
from rich.style import Style
from rich.table import Table as Grid
from rich.text import Text

from faithcheck.reports.documents.explanation import Explanation, Output
from faithcheck.reports.documents.figure import Figure
from faithcheck.reports.documents.words import Word, alone, label, relevance_of, words
from faithcheck.reports.pages import alignment_wording, relevance, rendering, wording
from faithcheck.reports.pages.tables import Column, Table, plain_table, table

ROWS = 40  # of the table on a terminal; the page has all rows
_OF_LOGITS = {
    "softmax": "softmax of all logits: one output is right",
    "sigmoid": "sigmoid of each logit: several outputs may be right, and their probabilities do not add up to 1",
}


def headline(document: Explanation) -> str:
    """The explained output with its probability, and the explainers."""
    (explained,) = (output for output in document.classes if output.explained)
    share = "" if explained.probability is None else f" ({_percent(explained.probability)})"
    return f"{document.explained}{share}: {', '.join(one.explainer for one in document.maps)}"


def facts(document: Explanation) -> list[tuple[str, str]]:
    """How the maps were measured, and their sums: labels and text."""
    kind = "next token" if document.decoder else "class"
    unit, by = _unit(document), []
    if document.by != "token":
        by = [("by", f"{unit}: of a map the sum over its tokens; LOO removes each {unit} as a whole")]
    if document.interaction is not None:
        of = f"how far the change of the output by removing a {unit} is from the sum over its tokens removed one by one"
        by += [("interaction", f"{of}, as a share of all those changes: 0 if the tokens of a {unit} act independently")]
    what = document.what or f"the logit of the {kind} {document.explained}"  # empty in older documents
    return [
        ("model", f"{document.model}: {document.architecture}, on {document.device}"),
        *((one.explainer, f"{one.origin}: {one.how}" if one.origin else one.how) for one in document.maps),
        *([("probability", _OF_LOGITS[document.probability])] if document.probability in _OF_LOGITS else []),
        ("explained", f"{what}; relevance is read at the word embeddings"),
        ("f(x) − f(baseline)", f"{wording.number(document.change, 4)}, the baseline being word embeddings of 0"),
        *((f"sum of {one.explainer}", _sum(one.sum, document.change)) for one in document.maps),
        ("r", f"Pearson's correlation of the {document.by}s' values with those of LOO, special tokens left out"),
        *by,
        (f"{unit}s", "the sum of the relevance of their tokens" if _is_joined(document) else "a token each"),
        ("colours", f"{relevance.COLOURS} A special token may exceed it."),
    ]


def _sum(total: float, change: float | None) -> str:
    less = None if change is None else total - change
    return f"{wording.number(total, 4)}, with special tokens; minus f(x) − f(baseline): {wording.number(less, 4)}"


def rows(document: Explanation) -> list[relevance.MapRow]:
    """Each map with its coloured words, and each explainer without a map."""
    found = words(document.features)
    interaction = "" if document.interaction is None else wording.number(document.interaction, 2)
    shown = [
        relevance.map_row(
            one.explainer,
            alignment_wording.number(one.r),
            found,
            relevance_of(found, one.values),
            interaction=interaction if one.explainer == "loo" else "",
        )
        for one in document.maps
    ]
    return shown + [
        relevance.MapRow(one.explainer, "–", False, [], why=f"no map: {one.why}") for one in document.refused
    ]


def tables(document: Explanation) -> list[Table]:
    """The outputs, the relevance of each word, and that of each token where words have several."""
    tokens = [_relevance_table(document, "token", alone(document.features))] if _is_joined(document) else []
    by_word = _relevance_table(document, _unit(document), words(document.features))
    return [_outputs(document), *_of_roles(document), by_word, *tokens]


def notes(document: Explanation) -> list[str]:
    """The sentences on the text, and those on each explainer."""
    return [*document.notes, *(note for one in document.maps for note in one.notes)]


def exported(document: Explanation) -> tuple[list[Table], list[Figure]]:
    """The tables of the page; it has no figures."""
    return tables(document), []


def _view(document: Explanation) -> dict[str, object]:
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


def _parts(document: Explanation) -> Iterator[RenderableType]:
    for row in rows(document):
        beside = f"  r {row.r}" if row.label != "loo" else f"  interaction {row.interaction}" if row.interaction else ""
        yield Text.assemble((row.label, "bold"), beside)
        yield Text(row.why, style="yellow") if row.why else coloured(row.words, row.signed)
        yield Text()
    for note in notes(document):
        yield Text(f"{note}\n", style="yellow")
    outputs = _outputs(document)
    yield rendering.terminal_table(outputs)
    if outputs.note:
        yield Text(f"{outputs.note}\n", style="dim")
    yield from map(rendering.terminal_table, _of_roles(document))
    found = words(document.features)
    yield rendering.terminal_table(_relevance_table(document, _unit(document), found, _largest(document, found)))
    if len(found) > ROWS:
        yield Text(f"the {ROWS} largest of {len(found)} {_unit(document)}s; --html has all\n", style="dim")
    grid = Grid.grid(padding=(0, 2))
    for title, text in facts(document):
        grid.add_row(Text(title, style="dim"), Text(text))
    yield grid


to_markdown, to_html, to_terminal = rendering.views_of("explanation", _view, _parts, "auto")


def coloured(found: Sequence[relevance.ColouredWord], signed: bool) -> Text:
    """The text, each word on its colour; special tokens are underlined, the strongest words bold."""
    line = Text()
    for word in found:
        if line and not word.glued:
            line.append(" ")
        line.append(word.text, _style(word, signed))
    return line


def _style(word: relevance.ColouredWord, signed: bool) -> Style:
    colours = relevance.on_terminal(word.strength, signed)
    if colours is None:
        return Style(underline=word.special)
    back, ink = (Color.from_rgb(*colour) for colour in colours)
    return Style(color=ink, bgcolor=back, bold=word.bold, underline=word.special)


def _outputs(document: Explanation) -> Table:
    listed, of = len(document.classes), document.outputs
    note = f"The {listed} largest of {of} outputs, or those and the explained one." if of > listed else ""
    scores = all(output.probability is None for output in document.classes)
    what = "log-likelihood" if document.answer else "output of the model" if scores else "logit"
    columns: list[Column[Output]] = [
        Column("output", lambda row: f"{row.number} {row.name}{' ← explained' if row.explained else ''}"),
        Column(what, lambda row: wording.number(row.logit, 4)),
    ]
    if not scores:
        columns.append(Column("probability", lambda row: "–" if row.probability is None else _percent(row.probability)))
    return table("What the model says", note, columns, document.classes)


def _relevance_table(
    document: Explanation, unit: str, found: Sequence[Word], shown: Collection[int] | None = None
) -> Table:
    """The relevance of words or tokens, or of the ``shown`` ones alone."""
    values = [relevance_of(found, one.values) for one in document.maps]
    cells = [
        [str(i), label(word.text), *(of[i] for of in values), "special" if word.special else ""]
        for i, word in enumerate(found)
        if shown is None or i in shown
    ]
    titles = ["#", unit, *(one.explainer for one in document.maps), "kind"]
    return plain_table(f"The relevance of each {unit}", "", titles, cells)


def _of_roles(document: Explanation) -> list[Table]:
    """Of a chat the sum of each map over the messages of each role, and over the template and the answer."""
    roles = [one.role for one in document.features]

    def total(values: Sequence[float], role: str) -> float:
        return math.fsum(value for value, of in zip(values, roles, strict=True) if of == role)

    found = dict.fromkeys(filter(None, roles))
    cells = [[role, *(total(one.values, role) for one in document.maps)] for role in found]
    note = "The template is what the tokenizer's chat template writes around the messages: special tokens."
    titles = ["role", *(one.explainer for one in document.maps)]
    return [plain_table("Sums by role", note, titles, cells)] if found else []


def _largest(document: Explanation, found: Sequence[Word]) -> set[int]:
    """The words whose relevance is largest in a map, as a share of the largest there."""
    special = [word.special for word in found]
    shares = [relevance.strengths(relevance_of(found, one.values), special) for one in document.maps]
    order = sorted(range(len(found)), key=lambda i: -max((abs(of[i]) for of in shares), default=0.0))
    return set(order[:ROWS])


def _unit(document: Explanation) -> str:
    """What a row of the table is: a word unless the user chose larger parts."""
    return "word" if document.by == "token" else document.by


def _is_joined(document: Explanation) -> bool:
    return len(words(document.features)) < len(document.features)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
