"""``faithcheck explain``: the maps of one text by several explainers, beside that of LOO, as a document."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from msgspec import structs

from faithcheck.alignment.figures import ROUND_OFF
from faithcheck.axioms.loo_correlation import correlations
from faithcheck.axioms.measure.error_text import error_text, message_text, safe_text, traceback_text
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.explainers.protocol import Explainer, InvalidAttribution, Unsupported, attribution_of, describe_settings
from faithcheck.memory.memory_limit import is_out_of_memory, memory_limit, with_half_the_rows
from faithcheck.memory.predicted_memory import PeakPredictor
from faithcheck.models.case import Case, output_difference
from faithcheck.models.pretrained.answer_model import LONGEST_ANSWER, AnswerModel, generated_or_refused, with_tokens
from faithcheck.models.pretrained.chat import Messages, bos_note, chat
from faithcheck.models.pretrained.example import Example
from faithcheck.models.pretrained.loading import class_in_words
from faithcheck.models.pretrained.segments import without_words
from faithcheck.models.pretrained.target_choice import (
    explained_in_words,
    gives_scores,
    name_of_output,
    two_answers,
    with_chosen_output,
)
from faithcheck.models.pretrained.text_model import BETWEEN, Given, NextTokenModel, TextModel, is_pair
from faithcheck.reports.documents.environment import version
from faithcheck.reports.documents.explanation import Explanation, Map, Output, Refused
from faithcheck.reports.documents.words import Feature, alone, relevance_of, words
from faithcheck.reports.memory_units import in_words
from faithcheck.sandbox import Raised, Traces, attempt, sandbox

SMALLER = "{name} ran with fewer rows in a forward pass, to fit the memory."
CLASSES = 5  # outputs that are listed, the most likely ones
Working = Callable[[str, float], AbstractContextManager[None]]
"""Made with what an explainer does, in words, and about how many seconds that takes; entered while it does it."""

log = logging.getLogger(__name__)


class ExplainError(ValueError):
    """The text cannot be explained as asked. The message says why and what to change."""


def explain(
    model: TextModel,
    text: Given,
    explainers: Sequence[Explainer],
    target: str | None = None,
    contrast: str | None = None,
    max_memory: int | None = None,
    name: str = "",
    by: str = "token",
    working: Working = lambda what, seconds: nullcontext(),
) -> Explanation:
    """The maps of a text, a pair or a chat by several explainers, beside that of LOO; or why an explainer has none.

    A classifier's text that is too long is cut, with a note. LOO must come first if the others are to be compared with
    it. ``target`` and ``contrast`` are numbers or names of outputs, or answers of a decoder, whose log-likelihoods are
    explained and subtracted; by default the most likely output, or the answer that a decoder generates, see
    `generated_or_refused`. ``max_memory`` is the bytes that an attribution may take over what is in use.

    ``by`` is "token" or one of `faithcheck.models.pretrained.segments.LEVELS`: then LOO removes each part of the text
    as a whole and shares the change equally among its tokens, r is that of the parts' sums, and ``interaction`` is Σ
    |change − sum of the changes by its single tokens| / Σ |change| over the parts.

    `ExplainError`: only special tokens, a decoder's text that is too long, or no map. `ModelError`: no such output, no
    generated answer, or another model's tokenizer.
    """
    answers = two_answers(model, target, contrast)
    model, how = (answers[0], list[str]()) if answers else _chosen(model, text, target, contrast)
    example = _encoded(model, text)
    if by not in ("token", *example.segments):
        raise ExplainError(f"--by={by}: only a chat has a {by}: give --chat")
    first, second = text if is_pair(text) else (_shown(model, text), None)
    shown, case = first if second is None else f"{first}{BETWEEN}{second}", model.case([example])
    begun = time.perf_counter()
    with torch.no_grad():
        explained, logits = case.run(model)[0], _logits(model, case)
    output = int(case.target[0])
    if output == model.against:
        raise ExplainError(f"--contrast={contrast} is the most likely output itself: give another --target")
    row = (time.perf_counter() - begun) / 2  # the seconds of a forward pass of one row
    less = _Less(answers[1], text) if answers else None

    def map_of(one: Explainer) -> Map:
        found = _map(one, model, case, max_memory)
        return found if less is None else less.map(found, _map(one, less.model, less.case, max_memory))

    maps, refusals, single = list[Map](), dict[str, ExplainError](), list[Map]()
    for explainer in explainers:
        of_parts = explainer if by == "token" else _by(explainer, by)
        try:
            with working(*_work(explainer, case, row)):
                single += [map_of(explainer)] if of_parts is not explainer else []
                maps.append(map_of(of_parts))
        except ExplainError as error:
            refusals[safe_text(explainer.name)] = error
    if not maps:
        raise next(iter(refusals.values()))
    if less is not None:
        example = with_tokens(less.model, example, less.answer)
    features = [Feature(**piece) for piece in example.pieces("word" if by == "token" else by)]
    parts = [part for part in (alone if by == "token" else words)(features) if not part.special]
    loo = next((relevance_of(parts, one.values) for one in maps if one.explainer == "loo"), None)
    size = abs(float(explained[output])) + (abs(less.output.logit or 0) if less else 0)
    noise = ROUND_OFF * torch.finfo(logits.dtype).eps * size
    return Explanation(
        schema_version=Explanation.VERSION,
        faithcheck=version(),
        model=name,
        architecture=class_in_words(model.model),
        device=str(case.inputs.device),
        text=first,
        text_pair=second,
        explained=_explained_name(model, output) + (f" and not {less.name}" if less else ""),
        what=explained_in_words(model, output) + (f" minus {explained_in_words(less.model)}" if less else ""),
        target=target,
        contrast=contrast,
        answer=[name_of_output(model, token) for token in getattr(model, "answer", ())],
        decoder=isinstance(model, NextTokenModel),
        classes=[*_outputs(model, logits, output), *([less.output] if less else [])],
        probability=_kind_of_probability(model),
        outputs=len(logits),
        by=by,
        interaction=_interaction(loo, relevance_of(parts, single[0].values)) if loo and single else None,
        features=features,
        maps=[structs.replace(one, r=_r(relevance_of(parts, one.values), loo, noise)) for one in maps],
        refused=[Refused(explainer=name, why=str(why)) for name, why in refusals.items()],
        change=float(output_difference(model, case)) - (float(output_difference(less.model, less.case)) if less else 0),
        notes=[*how, *_notes(model, shown, example)],
    )


class _Less:
    """The answer that another is contrasted with, explained by passes of its own, and subtracted.

    A token of the prompt has its value for one answer less that for the other, whose tokens come last, negated.
    """

    def __init__(self, model: AnswerModel, text: Given) -> None:
        example = _encoded(model, text)
        self.model, self.case, self.answer = model, model.case([example]), example.answer or ()
        self.prompt, self.name = len(example) - len(self.answer), _explained_name(model, 0)
        (other,) = _outputs(model, _logits(model, self.case), 0)
        self.output = structs.replace(other, number=1, explained=False)

    def map(self, first: Map, second: Map) -> Map:
        """One map less the other."""
        a, b, n = first.values, second.values, self.prompt
        values = [*(x - y for x, y in zip(a[:n], b[:n], strict=True)), *a[n:], *(-y for y in b[n:])]
        left_behind = "; ".join(dict.fromkeys(filter(None, [first.left_behind, second.left_behind])))
        notes = list(dict.fromkeys([*first.notes, *second.notes]))
        return structs.replace(first, values=values, sum=math.fsum(values), left_behind=left_behind, notes=notes)


def _work(explainer: Explainer, case: Case, row: float) -> tuple[str, float]:
    """What an explainer does, and about how many seconds it takes where that is known: of LOO, a row a token."""
    if not isinstance(explainer, LeaveOneOut):
        return safe_text(explainer.name), 0.0
    n = case.shape[1]
    return f"{explainer.name}: {n + 1} forward passes of {n} tokens, about {row * (n + 1):.0f} s", row * (n + 1)


def _r(values: Sequence[float], loo: Sequence[float] | None, noise: float) -> float | None:
    """Pearson's correlation of a map with LOO's, special features left out; None if it is undefined, or of two parts.

    Two points lie on a line: their r is 1 or −1, whatever the map.
    """
    defined = None if loo is None or len(loo) < 3 else correlations(np.asarray(values), np.asarray(loo), noise)
    return defined["pearson"] if defined else None


def _by(explainer: Explainer, by: str) -> Explainer:
    """Leave-One-Out by these parts; another explainer as it is."""
    return replace(explainer, by=by) if isinstance(explainer, LeaveOneOut) and explainer.by == "token" else explainer


def _interaction(changes: Sequence[float], sums: Sequence[float]) -> float | None:
    """How far the changes by whole parts are from the sums over single tokens; None if no part has an effect."""
    total = math.fsum(map(abs, changes))
    return math.fsum(abs(one - other) for one, other in zip(changes, sums, strict=True)) / total if total else None


def _shown(model: TextModel, text: Given) -> str:
    return text if isinstance(text, str) else chat(model.tokenizer, cast(Messages, text)).text


def _encoded(model: TextModel, text: Given) -> Example:
    """The text as the model reads it."""
    texts = (text,) if isinstance(text, str) else text if is_pair(text) else ()
    if not all(one.strip() for one in texts):
        raise ExplainError("the text is empty: give one with at least one word")
    (example,) = model.encode([text])
    if example.truncated and isinstance(model, NextTokenModel):
        answer = " before this answer" if isinstance(model, AnswerModel) else ""
        raise ExplainError(
            f"the text has more than the {model.max_length} tokens that the model takes{answer}, and what it says next "
            "depends on the last ones: give a shorter text"
        )
    if bool(example.special_tokens_mask.all()):
        hint = (
            ": a decoder is read at its last token, so give at least two" if isinstance(model, NextTokenModel) else ""
        )
        raise ExplainError(f"no token of {text!r} can be explained: all of them are special{hint}")
    return example


def _chosen(model: TextModel, text: Given, target: str | None, contrast: str | None) -> tuple[TextModel, list[str]]:
    """The model with its explained output, and a note on an answer that it generated."""
    chosen = with_chosen_output(model, target, contrast)
    assert isinstance(chosen, TextModel)
    if target is not None or contrast is not None or not isinstance(model, NextTokenModel):
        return chosen, []
    answer = generated_or_refused(model, _encoded(model, text))
    note = f"The answer was generated: the most likely token each time, {LONGEST_ANSWER} at most."
    return AnswerModel(model.model, model.tokenizer, answer, model.max_length, model.by_ids).eval(), [note]


@torch.no_grad()
def _logits(model: TextModel, case: Case) -> torch.Tensor:
    """The model's own outputs for the first example, without a contrast; of an answer its log-likelihood."""
    plain = copy(model)
    plain.against = None
    logits: torch.Tensor = case.run(plain)[0]
    return logits


def _explained_name(model: TextModel, output: int) -> str:
    """The explained output; of an answer its text."""
    if isinstance(model, AnswerModel) and model.answer:
        return repr(model.tokenizer.decode(list(model.answer)))
    less = "" if model.against is None else f" and not {name_of_output(model, model.against)}"
    return f"{name_of_output(model, output)}{less}"


def _notes(model: TextModel, text: str, example: Example) -> Iterator[str]:
    """Sentences on what the tokenizer does not know or adds, a text that was cut, and one that has no words."""
    if note := bos_note(model.tokenizer, text, example.features.tolist()):
        yield note
    unknown_token = model.tokenizer.unk_token_id  # None where every byte has a token, as in Llama 3 and Qwen
    if unknown := 0 if unknown_token is None else int((example.features == unknown_token).sum()):
        yield f"{unknown} of {len(example)} tokens are unknown to the tokenizer."
    if example.truncated:
        yield f"The text was cut to {len(example)} tokens, the most that the model takes: the rest is not read."
    if scripts := without_words(text):
        yield f"Words in {' and '.join(scripts)} are found by a dictionary alone: here a character is a word."


def _map(explainer: Explainer, model: TextModel, case: Case, max_memory: int | None) -> Map:
    """The map of an explainer, without its correlation with LOO. All code of the explainer runs here."""
    name, traces = safe_text(explainer.name), Traces()

    def work() -> tuple[list[float], list[str], str, str]:
        nonlocal traces
        fitting, smaller = _fitting(explainer, model, case, memory_limit(case.inputs.device, max_memory))
        with sandbox(model, seed=0) as traces:
            attribution, ran_out = _attribution(fitting, model, case)
        how = safe_text(describe_settings(explainer))
        origin = safe_text(str(getattr(explainer, "origin", "")))
        return attribution[0].tolist(), [*smaller, *ran_out], how, origin

    done = attempt(work)
    if isinstance(done, Raised):
        raise _refusal(name, done.error) from done.error
    values, smaller, how, origin = done
    left_behind = "; ".join(traces.left_behind)
    return Map(
        explainer=name,
        how=how,
        origin=origin,
        values=values,
        sum=math.fsum(values),
        r=None,
        left_behind=left_behind,
        notes=[
            *([f"{name} left something behind, which was undone: {left_behind}"] if left_behind else []),
            *smaller,
            *(f"{name} warned: {message_text(cast(Warning, warning.message))}" for warning in traces.warnings),
        ],
    )


def _refusal(name: str, error: BaseException) -> ExplainError:
    """What is said of an explainer without a map; the traceback of its own errors, SystemExit too, is logged."""
    if isinstance(error, ExplainError):
        return error
    if isinstance(error, Unsupported | InvalidAttribution):
        return ExplainError(f"{name} cannot explain this model: {message_text(error)}")
    log.error("%s raised:\n%s", name, traceback_text(error))
    return ExplainError(f"{name} raised {error_text(error)}")


def _fitting(explainer: Explainer, model: TextModel, case: Case, limit: int) -> tuple[Explainer, list[str]]:
    """The explainer with as many rows in a forward pass as fit the limit, and a note if it has fewer than before."""
    n, predictor = case.shape[1], PeakPredictor(model, case)

    def fitted() -> tuple[Explainer, int]:
        fewer = explainer
        while (peak := predictor.peak(fewer, 1, n)) > limit and (smaller := with_half_the_rows(fewer, n)) is not None:
            fewer = smaller
        return fewer, peak

    done = attempt(fitted)
    if isinstance(done, Raised):  # the attribution itself will raise, too, and is reported then
        return explainer, []
    fewer, peak = done
    if peak > limit:
        raise ExplainError(
            f"{safe_text(explainer.name)} would take {in_words(peak)} of memory for the {n} tokens of the text "
            f"(predicted), more than the limit of {in_words(limit)}: give a shorter text, or raise --max-memory if "
            "there is more"
        )
    return fewer, [SMALLER.format(name=safe_text(explainer.name))] if fewer is not explainer else []


def _attribution(explainer: Explainer, model: TextModel, case: Case) -> tuple[torch.Tensor, list[str]]:
    """The attribution, with half as many rows in a forward pass whenever memory runs out, and then a note."""
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


def _outputs(model: TextModel, logits: torch.Tensor, explained: int) -> list[Output]:
    """The most likely outputs, the explained and the contrasted one; of an answer only its log-likelihood."""
    if isinstance(model, AnswerModel):
        likelihood, name = float(logits[0]), _explained_name(model, 0)
        return [Output(number=0, name=name, logit=likelihood, probability=math.exp(likelihood), explained=True)]
    listed = logits.topk(min(CLASSES, len(logits))).indices.tolist()
    listed += [i for i in (explained, model.against) if i is not None and i not in listed]
    probabilities = _probabilities(model, logits)
    return [
        Output(
            number=i,
            name=name_of_output(model, i),
            logit=float(logits[i]),
            probability=None if probabilities is None else float(probabilities[i]),
            explained=i == explained,
        )
        for i in listed
    ]


def _probabilities(model: TextModel, logits: torch.Tensor) -> torch.Tensor | None:
    """The probability of each output by `_kind_of_probability`; None if the outputs are scores."""
    kind = _kind_of_probability(model)
    return (logits.double().softmax(0) if kind == "softmax" else logits.double().sigmoid()) if kind else None


def _kind_of_probability(model: TextModel) -> str:
    """The function of the logits that gives probabilities, as transformers trains the model; empty if none does.

    The classes of a multi-label classifier are independent of each other. An answer has a probability by itself.
    """
    if gives_scores(model) or isinstance(model, AnswerModel):
        return ""
    of_labels = (
        not isinstance(model, NextTokenModel) and model.model.config.problem_type == "multi_label_classification"
    )
    return "sigmoid" if of_labels else "softmax"
