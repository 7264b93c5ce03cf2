"""Maps of one text, beside that of LOO: measured by `explain`, as a document that `pages.explanation` shows."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, cast

import numpy as np
import torch

from faithcheck.axioms.alignment.evaluate import AlignmentSettings, table_2
from faithcheck.axioms.alignment.figures import ROUND_OFF
from faithcheck.axioms.engine.error_text import message_text, safe_text, traceback_text
from faithcheck.axioms.engine.interruption import interruptible
from faithcheck.axioms.engine.left_behind import RANDOM, restored
from faithcheck.axioms.engine.memory_limit import is_out_of_memory, memory_limit, with_half_the_rows
from faithcheck.axioms.engine.memory_units import in_words
from faithcheck.axioms.engine.predicted_memory import PeakPredictor
from faithcheck.axioms.loo_correlation import correlations
from faithcheck.explainers.loo.removal import AttentionMask
from faithcheck.explainers.protocol import Explainer, InvalidAttribution, Unsupported, attribution_of, describe_settings
from faithcheck.models.case import Case, output_difference
from faithcheck.models.pretrained.example import Example
from faithcheck.models.pretrained.next_token_model import NextTokenModel
from faithcheck.models.pretrained.text_model import TextModel
from faithcheck.models.unknown_name import unknown_name
from faithcheck.reports import results
from faithcheck.reports.options import OptionError
from faithcheck.reports.options.explainers import load_explainers
from faithcheck.reports.pages.explanation import SCHEMA_VERSION
from faithcheck.reports.results import Json

ROUGH_LENGTH, ROUGHLY = 61, 4
"""A short run of so many tokens costs little. Explainers that treat short texts in another way take at most so many
times what it predicts: only if that does not fit, a longer run predicts the peak to a few percent."""
SMALLER = "{name} ran with fewer rows in a forward pass, to fit the memory."
CLASSES = 5  # outputs that are listed, the most likely ones


class ExplainError(ValueError):
    """The text cannot be explained as asked. The message says why and what to change."""


def choose_explainers(specs: Sequence[str]) -> list[Explainer]:
    """LOO by the attention mask, then explainers of ``faithcheck align`` by name, or those of ``--explainer``.

    Call it when the model is loaded, see `load_explainers`.

    Raises:
        OptionError: an unknown name, a module that cannot be imported, or two explainers of one name.
    """
    known = {explainer.name: explainer for explainer in table_2(AlignmentSettings(AttentionMask()))}
    chosen = [known.get(spec) or load_explainers([spec])[0] for spec in dict.fromkeys(["loo", *specs])]
    names = [explainer.name for explainer in chosen]
    if len(set(names)) < len(names):
        raise OptionError(f"two explainers have one name among {', '.join(names)}: give each its own")
    return chosen


def explain(
    model: TextModel,
    text: str,
    explainers: Sequence[Explainer],
    target: str | None = None,
    max_memory: int | None = None,
) -> Json:
    """The maps of one text by several explainers, beside that of LOO.

    Args:
        model: a classifier, or a decoder, whose next token is explained.
        text: cut if it is longer than the model takes; a note says so.
        explainers: the explainers; LOO first, see `choose_explainers`, if the others are to be compared with it.
        target: the number or the name of the output to explain; the most likely output by default.
        max_memory: the bytes that an attribution may take over what is in use; by default what is available.

    Returns:
        The explanation document: ``features``, each with ``text``, ``glued`` (no space before it) and ``special``;
        ``maps``, each with ``explainer``, ``how``, ``origin``, ``values``, their ``sum``, ``r`` with LOO over the
        features that are not special (None if it is undefined), ``left_behind``, what the explainer left behind, which
        was undone, and ``notes``, sentences such as warnings; ``classes``, the explained and the most likely outputs,
        each with ``number``, ``name``, ``logit``, ``probability`` (None without one) and whether ``explained``;
        ``outputs``, their number in all; ``change``, f(x) − f(baseline); and ``notes``.

    Raises:
        ExplainError: no such output; no token that is not special; an explainer refused, failed or returned no map.
        ModelError: the tokenizer is another model's.
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    example = _encoded(model, text)
    case = model.case([example])
    with torch.no_grad():
        logits = case.run(model)[0]
    output = int(case.target[0]) if target is None else _target(model, target, len(logits))
    case = replace(case, target=torch.full_like(case.target, output))
    maps = [_explained(explainer, model, case, max_memory) for explainer in explainers]
    special = example.special_tokens_mask.tolist()
    loo = next((one["values"] for one in maps if one["explainer"] == "loo"), None)
    noise = ROUND_OFF * torch.finfo(logits.dtype).eps * abs(float(logits[output]))
    for one in maps:
        one |= {"sum": math.fsum(one["values"]), "r": _r(one["values"], loo, special, noise)}
    document: Json = results.plain(
        {
            "schema_version": SCHEMA_VERSION,
            "kind": results.EXPLANATION,
            "faithcheck": results.version(),
            "architecture": type(model.model).__name__,
            "device": str(case.inputs.device),
            "text": text,
            "explained": _name(model, output),
            "decoder": isinstance(model, NextTokenModel),
            "classes": _classes(model, logits, output),
            "outputs": len(logits),
            "features": [
                {**piece, "special": is_special}
                for piece, is_special in zip(model.pieces(example), special, strict=True)
            ],
            "maps": maps,
            "change": float(output_difference(model, case)),
            "notes": list(_notes(model, example)),
        }
    )
    return document


def _r(values: Sequence[float], loo: Sequence[float] | None, special: Sequence[bool], noise: float) -> float | None:
    """Pearson's correlation of a map with LOO's, special features left out; None if it is undefined."""
    if loo is None:
        return None
    keep = ~np.asarray(special)
    defined = correlations(np.asarray(values)[keep], np.asarray(loo)[keep], noise)
    return defined["pearson"] if defined else None


def _encoded(model: TextModel, text: str) -> Example:
    """The text as the model reads it.

    Raises:
        ExplainError: it is empty, or all of its tokens are special.
    """
    if not text.strip():
        raise ExplainError("the text is empty: give one with at least one word")
    (example,) = model.encode([text])
    if bool(example.special_tokens_mask.all()):
        hint = (
            ": a decoder is read at its last token, so give at least two" if isinstance(model, NextTokenModel) else ""
        )
        raise ExplainError(f"no token of {text!r} can be explained: all of them are special{hint}")
    return example


def _notes(model: TextModel, example: Example) -> Iterator[str]:
    """Sentences on tokens that the tokenizer does not know and on a text that was cut."""
    if unknown := int((example.features == model.tokenizer.unk_token_id).sum()):
        yield f"{unknown} of {len(example)} tokens are unknown to the tokenizer."
    if example.truncated:
        yield f"The text was cut to {len(example)} tokens, the most that the model takes: the rest is not read."


def _explained(explainer: Explainer, model: TextModel, case: Case, max_memory: int | None) -> Json:
    """The map, what the explainer says of itself, and what it left behind. All of its code runs here.

    Raises:
        ExplainError: the explainer refused, failed or returned no map.
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    name = "the explainer"
    with interruptible():
        try:
            name = safe_text(explainer.name)
            explainer, smaller = _fitting(explainer, model, case, memory_limit(case.inputs.device, max_memory))
            with restored(model) as traces, warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                attribution, ran_out = _attribution(explainer, model, case)
            left_behind = "; ".join(line for line in traces if not line.startswith(RANDOM))
            undone = [f"{name} left something behind, which was undone: {left_behind}"] if left_behind else []
            return {
                "explainer": name,
                "how": safe_text(describe_settings(explainer)),
                "origin": safe_text(str(getattr(explainer, "origin", ""))),
                "values": attribution[0].tolist(),
                "left_behind": left_behind,
                "notes": [
                    *undone,
                    *smaller,
                    *ran_out,
                    *(f"{name} warned: {message_text(cast(Warning, warning.message))}" for warning in caught),
                ],
            }
        except ExplainError:
            raise
        except (Unsupported, InvalidAttribution) as error:
            raise ExplainError(f"{name} cannot explain this model: {message_text(error)}") from error
        except BaseException as error:  # of the user's explainer, SystemExit too: shown with its traceback
            raise ExplainError(f"{name} raised:\n{traceback_text(error)}") from error


def _fitting(explainer: Explainer, model: TextModel, case: Case, limit: int) -> tuple[Explainer, list[str]]:
    """The explainer with as many rows in a forward pass as fit the limit, and a note if it has fewer than before.

    Raises:
        ExplainError: one row does not fit.
    """
    n = case.shape[1]
    predictor, fewer = PeakPredictor(model, case), explainer
    with interruptible():
        try:
            if ROUGHLY * predictor.peak(explainer, 1, n, longest=ROUGH_LENGTH) <= limit:
                return explainer, []
            while (peak := predictor.peak(fewer, 1, n)) > limit:
                smaller = with_half_the_rows(fewer, n)
                if smaller is None:
                    break
                fewer = smaller
        except BaseException:  # the attribution itself will raise, too, and is reported then
            return explainer, []
    if peak > limit:
        raise ExplainError(
            f"{safe_text(explainer.name)} would take {in_words(peak)} of memory for the {n} tokens of the text "
            f"(predicted), more than the limit of {in_words(limit)}: give a shorter text, or raise --max-memory if "
            "there is more"
        )
    return fewer, [SMALLER.format(name=safe_text(explainer.name))] if fewer is not explainer else []


def _attribution(explainer: Explainer, model: TextModel, case: Case) -> tuple[torch.Tensor, list[str]]:
    """The attribution, with half as many rows in a forward pass whenever memory runs out, and then a note.

    Raises:
        ExplainError: memory ran out for one row.
        Exception: from the explainer.
    """
    name, notes = safe_text(explainer.name), list[str]()
    while True:
        try:
            return attribution_of(explainer, model, case), notes
        except BaseException as error:
            if not is_out_of_memory(error):
                raise
        smaller = with_half_the_rows(explainer, case.shape[1])
        if smaller is None:
            raise ExplainError(
                f"memory ran out when {name} explained the {case.shape[1]} tokens of the text: give a shorter text"
            )
        explainer, notes = smaller, [SMALLER.format(name=name)]


def _target(model: TextModel, target: str, outputs: int) -> int:
    """The index of the output with this number or name."""
    if target.isascii() and target.isdigit():
        if int(target) < outputs:
            return int(target)
        raise ExplainError(f"--target={target}: the model has {outputs} outputs, 0 to {outputs - 1}")
    decoder = isinstance(model, NextTokenModel)
    listed: Any = model.tokenizer.get_vocab() if decoder else model.model.config.label2id or {}
    names = {str(name): int(number) for name, number in listed.items()}
    index = names.get(target, {name.lower(): number for name, number in names.items()}.get(target.lower()))
    if index is None or not 0 <= index < outputs:
        # A whole vocabulary would fill the screen: name only the nearest tokens.
        near = get_close_matches(target, names, n=3)
        hint = unknown_name("output", target, near if decoder else names) if near or not decoder else "unknown token"
        raise ExplainError(f"--target={target}: {hint}; or give its number")
    return index


def _name(model: TextModel, output: int) -> str:
    """The name that the model gives to an output."""
    if isinstance(model, NextTokenModel):
        return repr(model.tokenizer.decode([output]))
    named: Any = model.model.config.id2label or {}
    return str(named.get(output, output))


def _classes(model: TextModel, logits: torch.Tensor, explained: int) -> list[Json]:
    """The most likely outputs, the first one first, and the explained one."""
    listed = logits.topk(min(CLASSES, len(logits))).indices.tolist()
    listed += [explained] if explained not in listed else []
    probabilities = _probabilities(model, logits)
    return [
        {
            "number": i,
            "name": _name(model, i),
            "logit": float(logits[i]),
            "probability": None if probabilities is None else float(probabilities[i]),
            "explained": i == explained,
        }
        for i in listed
    ]


def _probabilities(model: TextModel, logits: torch.Tensor) -> torch.Tensor | None:
    """Of each output; None for a model with one output, which is a score. Several classes may hold at once."""
    if getattr(model.model.config, "problem_type", None) == "multi_label_classification":
        return logits.double().sigmoid()
    return logits.double().softmax(0) if len(logits) > 1 else None
