"""``faithcheck explain``: what an explainer makes of one text, as coloured tokens.

`explain` measures and gives plain values; the views are pure functions of them.
"""

from __future__ import annotations

import argparse
import math
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

import torch
from rich import box
from rich.color import Color
from rich.console import Console, RenderableType
from rich.style import Style
from rich.table import Table
from rich.text import Text
from transformers.utils import logging as hugging_face

from faithcheck.axioms.alignment.evaluate import AlignmentSettings, table_2
from faithcheck.explainers.loo.removal import AttentionMask
from faithcheck.explainers.protocol import Explainer, InvalidAttribution, Unsupported, attribution_of, describe_settings
from faithcheck.explainers.registry import unknown_name
from faithcheck.models.case import Case, output_difference
from faithcheck.models.pretrained import SENTIMENT
from faithcheck.models.pretrained.errors import ModelError
from faithcheck.models.pretrained.loading import load
from faithcheck.models.pretrained.next_token_model import NextTokenModel
from faithcheck.models.pretrained.text_model import TextModel
from faithcheck.reports import results, selection
from faithcheck.reports.pages import report, wording
from faithcheck.reports.results import Json

CLASSES = 5  # shown of a vocabulary
ROWS = 40  # of the table in the terminal; the page has all
POSITIVE, NEGATIVE = (200, 30, 45), (30, 90, 200)
SPACES = ("Ġ", "▁")  # how byte-level and sentencepiece tokenizers write the space before a word


class ExplainError(ValueError):
    """The text cannot be explained as asked. The message says why and what to change."""


def main(arguments: argparse.Namespace) -> int:
    """Run the command; returns its exit code: 0, or 2 for what cannot be explained as asked."""
    try:
        if arguments.html is not None:
            selection.check_writable(arguments.html, "--html")
        selection.import_from_here()
        hugging_face.disable_progress_bar()  # type: ignore[no-untyped-call]
        explainer = choose_explainer(arguments.explainer)
        model = load(arguments.model or SENTIMENT)
        if not isinstance(model, TextModel):
            raise ExplainError(f"{arguments.model} takes images: faithcheck explain takes a model of text")
        view = explain(model, arguments.text, explainer, arguments.target)
        view["model"] = arguments.model or "the project's own"
        if arguments.html is not None:
            arguments.html.write_text(to_html(view), encoding="utf-8")
    except (ExplainError, ModelError, selection.SelectionError, OSError) as error:
        print(f"faithcheck: {error}", file=sys.stderr)
        return 2
    print_to(Console(highlight=False, emoji=False), view)
    if arguments.html is not None:
        print(f"written: {arguments.html}")
    return 0


def choose_explainer(spec: str) -> Explainer:
    """The explainer of a name of ``faithcheck align`` (LOO by the attention mask), or as `selection.choose_explainers`.

    Raises:
        SelectionError: an unknown name, or a module that cannot be imported.
    """
    of_texts = {explainer.name: explainer for explainer in table_2(AlignmentSettings(AttentionMask()))}
    return of_texts.get(spec) or selection.choose_explainers([spec])[0]


def explain(model: TextModel, text: str, explainer: Explainer, target: str | None = None) -> Json:
    """An explainer's map of one text.

    Args:
        model: a classifier, or a decoder, whose next token is explained.
        text: cut where it is longer than the model takes, which is said.
        explainer: who explains.
        target: the number or the name of the explained output; the most likely one by default.

    Returns:
        Plain values: ``tokens``, each with ``text``, ``glued`` (no space before it), ``special``, ``value`` and
        ``strength`` in −1 … 1, its value as a share of ``largest``; ``classes`` with ``number``, ``name``,
        ``logit`` and whether ``select_target``; ``sum`` of the map and ``change``, f(x) − f(baseline); ``notes``,
        sentences that say what else is to be known.

    Raises:
        ExplainError: no such output; no token but special ones; the explainer refused, failed or gave no map.
        ModelError: the tokenizer is another model's.
    """
    if not text.strip():
        raise ExplainError("the text is empty: give one with at least one word")
    (example,) = model.encode([text])
    if bool(example.special_tokens_mask.all()):
        read = (
            ": a decoder is read at its last token, so give at least two" if isinstance(model, NextTokenModel) else ""
        )
        raise ExplainError(f"no token of {text!r} can be explained: all of them are special{read}")
    case = model.case([example])
    with torch.no_grad():
        logits = case.run(model)[0]
    explained = int(case.target[0]) if target is None else _target(model, target, len(logits))
    case = replace(case, target=torch.full_like(case.target, explained))
    values, notes = _attribution(explainer, model, case)
    if example.truncated:
        notes.insert(
            0, f"The text was cut to {len(example)} tokens, the most that the model takes: the rest is not read."
        )
    if strange := int((example.features == model.tokenizer.unk_token_id).sum()):
        notes.insert(0, f"{strange} of {len(example)} tokens stand for what the tokenizer does not know.")
    ordinary = [
        abs(value) for value, special in zip(values, example.special_tokens_mask.tolist(), strict=True) if not special
    ]
    largest = max(ordinary)
    tokens = [
        {
            **piece,
            "special": special,
            "value": value,
            "strength": max(-1.0, min(1.0, value / largest)) if largest else 0.0,
        }
        for piece, special, value in zip(
            _pieces(model, example.names), example.special_tokens_mask.tolist(), values, strict=True
        )
    ]
    view: Json = results.plain(
        {
            "faithcheck": results.version(),
            "architecture": type(model.model).__name__,
            "text": text,
            "explainer": explainer.name,
            "how": describe_settings(explainer),
            "origin": getattr(explainer, "origin", ""),
            "explained": _name(model, explained),
            "decoder": isinstance(model, NextTokenModel),
            "classes": _classes(model, logits, explained),
            "tokens": tokens,
            "largest": largest,
            "sum": math.fsum(values),
            "change": float(output_difference(model, case)),
            "notes": notes,
        }
    )
    return view


def _attribution(explainer: Explainer, model: TextModel, case: Case) -> tuple[list[float], list[str]]:
    """The map, and what the explainer warned of.

    Raises:
        ExplainError: the explainer refused, failed or gave no map.
    """
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            values = attribution_of(explainer, model, case)[0].tolist()
    except (Unsupported, InvalidAttribution) as error:
        raise ExplainError(f"{explainer.name} cannot explain this model: {error}") from error
    except Exception as error:  # of a stranger's explainer: its words are kept
        raise ExplainError(f"{explainer.name} raised:\n{traceback.format_exc().rstrip()}") from error
    return values, [f"{explainer.name} warned: {warning.message}" for warning in caught]


def _target(model: TextModel, target: str, outputs: int) -> int:
    """The output that is meant, by its number or its name."""
    if target.isascii() and target.isdigit():
        if int(target) < outputs:
            return int(target)
        raise ExplainError(f"--target={target}: the model has {outputs} outputs, 0 to {outputs - 1}")
    decoder = isinstance(model, NextTokenModel)
    listed: Any = model.tokenizer.get_vocab() if decoder else model.model.config.label2id or {}
    names = {str(name): int(number) for name, number in listed.items()}
    found = names.get(target, {name.lower(): number for name, number in names.items()}.get(target.lower()))
    if found is None or not 0 <= found < outputs:
        # Of a vocabulary only what is near: all of it would fill the screen.
        near = get_close_matches(target, names, n=3)
        hint = unknown_name("output", target, near if decoder else names) if near or not decoder else "unknown token"
        raise ExplainError(f"--target={target}: {hint}; or give its number")
    return found


def _name(model: TextModel, output: int) -> str:
    """What the model calls an output."""
    if isinstance(model, NextTokenModel):
        return repr(model.tokenizer.decode([output]))
    named: Any = model.model.config.id2label or {}
    return str(named.get(output, output))


def _classes(model: TextModel, logits: torch.Tensor, explained: int) -> list[Json]:
    """All classes in their order; of a vocabulary the most likely ones, and the explained one."""
    shown = list(range(len(logits)))
    if isinstance(model, NextTokenModel):
        shown = logits.topk(min(CLASSES, len(logits))).indices.tolist()
        shown += [explained] if explained not in shown else []
    return [
        {
            "number": i,
            "name": _name(model, i),
            "logit": float(logits[i]),
            "explained": i == explained,
        }
        for i in shown
    ]


def _pieces(model: TextModel, names: Sequence[str]) -> Iterator[Json]:
    """Each token as it is to be read, and whether it goes on the word before it."""
    spaced = any(name.startswith(SPACES) for name in names)
    special = set(model.tokenizer.all_special_tokens)
    for i, name in enumerate(names):
        if name in special:
            yield {"text": name, "glued": False}
        elif spaced:
            # Byte-level tokens are not written in the letters that they stand for.
            text = str(model.tokenizer.convert_tokens_to_string([name])) if name.isprintable() else name
            yield {"text": text.strip() or name, "glued": i > 0 and not name.startswith(SPACES)}
        else:
            yield {"text": name.removeprefix("##"), "glued": name.startswith("##")}


# --- views -----------------------------------------------------------------------------------------------------------


def facts(view: Json) -> list[tuple[str, str]]:
    """How the map was made and what it sums to: labels and text."""
    gap = view["sum"] - view["change"]
    origin = f", {view['origin']}" if view["origin"] else ""
    what = "next token" if view["decoder"] else "class"
    return [
        ("model", f"{view['model']}: {view['architecture']}"),
        ("explainer", f"{view['explainer']}{origin}: {view['how']}"),
        ("explained", f"the logit of the {what} {view['explained']}; relevance is read at the word embeddings"),
        ("sum of the map", f"{wording.number(view['sum'], 4)}, special tokens included"),
        ("f(x) − f(baseline)", f"{wording.number(view['change'], 4)}, the baseline being word embeddings of 0"),
        ("difference", wording.number(gap, 4)),
        ("colours", colours(view)),
    ]


def colours(view: Json) -> str:
    """What the colours mean."""
    if not view["largest"]:
        return "none: every token that is not special has relevance 0"
    return (
        f"red for, blue against; full at ±{wording.number(view['largest'], 3)}, the largest of the tokens that are not "
        "special; a special one may be beyond it"
    )


def to_html(view: Json) -> str:
    """The map as one self-contained HTML page: no scripts, no network."""
    return report.page(
        "explain.html.j2", {"view": view, "facts": facts(view), "positive": POSITIVE, "negative": NEGATIVE}
    )


def print_to(console: Console, view: Json) -> None:
    """Print the map: the tokens in colour, the classes, the numbers and how it was made."""
    for part in _parts(view):
        console.print(part)


def _parts(view: Json) -> Iterator[RenderableType]:
    yield coloured(view["tokens"])
    for note in view["notes"]:
        yield Text(f"\n{note}", style="yellow")
    yield _classes_table(view["classes"])
    yield from _tokens_table(view["tokens"])
    grid = Table.grid(padding=(0, 2))
    for label, text in facts(view):
        grid.add_row(Text(label, style="dim"), Text(text))
    yield grid


def coloured(tokens: Sequence[Json]) -> Text:
    """The text, each token on its colour; special ones underlined."""
    line = Text()
    for token in tokens:
        if line and not token["glued"]:
            line.append(" ")
        line.append(token["text"], _style(token))
    return line


def _style(token: Json) -> Style:
    red, green, blue = (
        round(255 + abs(token["strength"]) * (full - 255)) for full in (POSITIVE if token["strength"] > 0 else NEGATIVE)
    )
    # Black or white, whichever can be read on it (relative luminance, roughly).
    ink = 0 if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else 255
    if not token["strength"]:
        return Style(underline=token["special"])
    back, front = Color.from_rgb(red, green, blue), Color.from_rgb(ink, ink, ink)
    return Style(color=front, bgcolor=back, underline=token["special"])


def _classes_table(classes: Sequence[Json]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("", "output", "logit"):
        table.add_column(column, justify="right" if column == "logit" else "left")
    for one in classes:
        cells = ("→" if one["explained"] else "", f"{one['number']} {one['name']}", wording.number(one["logit"], 4))
        table.add_row(*map(Text, cells), style="bold" if one["explained"] else "")
    return table


def _tokens_table(tokens: Sequence[Json]) -> Iterator[RenderableType]:
    order = sorted(range(len(tokens)), key=lambda i: -abs(tokens[i]["value"]))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column, right in (("#", True), ("token", False), ("relevance", True), ("", False)):
        table.add_column(column, justify="right" if right else "left")
    for i in sorted(order[:ROWS]):
        token = tokens[i]
        value = wording.number(token["value"], 3)
        cells = (Text(str(i)), Text(token["text"], _style(token)), Text(value))
        table.add_row(*cells, Text("special" if token["special"] else "", style="dim"))
    yield table
    if len(tokens) > ROWS:
        yield Text(f"the {ROWS} largest of {len(tokens)} tokens; --html has all\n", style="dim")
