"""The answers that a decoder generates to the texts of a data set, stored as they are made: a stopped run resumes."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from faithcheck.alignment.batches import batches
from faithcheck.alignment.run_key import fingerprint, sources
from faithcheck.alignment.store import Store
from faithcheck.json_object import Json
from faithcheck.models.data.stored import stored_array
from faithcheck.models.pretrained.answer_model import LONGEST_ANSWER, AnswerModel, answered
from faithcheck.models.pretrained.example import Example, Examples
from faithcheck.models.pretrained.text_model import NextTokenModel, TextModel
from faithcheck.models.targets import NO_ANSWER

NAME = "answers"
"""Of the store, and in place of an explainer's name in the progress."""


def with_answers(
    model: AnswerModel,
    prompts: Examples,
    max_tokens: int,
    folder: Path,
    advance: Callable[[str, int], None] = lambda name, done: None,
) -> Examples:
    """Generate the answer to each prompt that can be measured. Those that are stored already are not generated again.

    Args:
        model: whose examples have answers of their own.
        prompts: from its method ``encode``.
        max_tokens: see `batches`: the prompts of a batch are answered together.
        folder: of the store.
        advance: called with `NAME` and the number of prompts done since the last call.

    Returns:
        The prompts with their answers, see `answered`.

    Raises:
        AlignmentError, StoreError, OSError: see `faithcheck.alignment.evaluate.align`.
    """
    plan = batches(prompts, max_tokens)
    answers = stored_array((len(prompts), LONGEST_ANSWER), np.int64)
    answers[:] = NO_ANSWER
    known = stored_array(len(prompts), np.bool_)
    with Store(folder, NAME, _key(model, prompts, max_tokens)) as store:
        for number, batch in enumerate(plan):
            if number not in store:
                store.append(number, model.answers([prompts[i] for i in batch]))
            for i, answer in zip(batch, store[number], strict=True):
                answers[i, : len(answer)], known[i] = answer, True
            advance(NAME, len(batch))

    def example_of(i: int) -> Example:
        ids = tuple(token for token in answers[i].tolist() if token != NO_ANSWER)
        return answered(model, prompts[i], ids) if known[i] else prompts[i]

    return Examples(range(len(prompts)), example_of)


def _key(model: AnswerModel, prompts: Examples, max_tokens: int) -> Json:
    """Everything that determines the answers."""
    return {
        "model": fingerprint(model),
        "prompts": prompts.digest,
        "max_tokens": max_tokens,
        "dtype": str(model.model.dtype),
        "device": model.model.device.type,
        "threads": torch.get_num_threads(),
        "versions": {name: importlib.metadata.version(name) for name in ("faithcheck", "torch", "transformers")},
        "sources": sources(batches, AnswerModel, NextTokenModel, TextModel, Example),
    }
