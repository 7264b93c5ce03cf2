"""Before an alignment is measured: load the model and the data, generate answers, and choose what is left open."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from faithcheck.alignment.batches import AlignmentError, batches, measurable
from faithcheck.alignment.defaults import CHUNK, LONG
from faithcheck.alignment.run_key import StoreError, arithmetic, fingerprint, sources
from faithcheck.alignment.settings import AlignmentSettings, AlignRequest
from faithcheck.alignment.store import Store
from faithcheck.explainers.loo.removal import REMOVALS, Removal, content, make_removal
from faithcheck.explainers.protocol import Unsupported
from faithcheck.models.data import DataError
from faithcheck.models.data.images import Images, load_images
from faithcheck.models.data.stored import stored_array
from faithcheck.models.data.texts import Texts, load_texts
from faithcheck.models.files import cache_folder
from faithcheck.models.pretrained import SENTIMENT
from faithcheck.models.pretrained.answer_model import LONGEST_ANSWER, AnswerModel, answered
from faithcheck.models.pretrained.example import Example, Examples
from faithcheck.models.pretrained.folder import ModelError
from faithcheck.models.pretrained.image_classifier import ImageClassifier
from faithcheck.models.pretrained.loading import load
from faithcheck.models.pretrained.target_choice import with_chosen_output, with_generated_answers
from faithcheck.models.pretrained.text_model import NextTokenModel, TextModel
from faithcheck.models.targets import NO_ANSWER
from faithcheck.options import OptionError

EXPECTED = (ModelError, DataError, OptionError, AlignmentError, StoreError, Unsupported, OSError)
"""The errors of `prepare` and of the measurement whose message is all that the user needs."""
Advance = Callable[[str, int, int], None]
"""Called with an explainer's name, what is done of it since the last call, and the number of all."""
POOL = 4096  # features that resampling draws from, at most


@dataclass(frozen=True)
class Prepared:
    """The model, the data and the settings of a request, ready to be measured."""

    model: TextModel | ImageClassifier
    data: Texts | Images
    examples: Examples  # the data as the model reads it
    setup: AlignmentSettings  # how alignment is measured
    chunk_reason: str  # how many features the curves remove at a step and why, in words
    folder: Path  # the folder that keeps the measurements

    def answer_of(self, i: int) -> str | None:
        """The answer that is explained in an example, as text; None if none is."""
        if not isinstance(self.model, AnswerModel):
            return None
        return str(self.model.tokenizer.decode(list(self.examples[i].answer or ())))


def prepare(request: AlignRequest, advance: Advance = lambda name, done, of: None) -> Prepared:
    """Load the model and the data, generate the answers, and choose the options that the request leaves open."""
    # Where the workers of a cluster have GPUs, this process may have none.
    model = load_model(request, torch.device("cpu") if request.place.gpus_per_worker else request.settings.device)
    folder = request.cache or cache_folder() / "alignment"
    data: Texts | Images
    if isinstance(model, ImageClassifier):
        data = load_images(request.data or "digits", request.limit)
        examples = model.encode(data.images)
    else:
        data = load_texts(request.data or "own", request.limit)
        examples = model.encode(data.texts)
    if isinstance(model, AnswerModel) and model.answer is None:
        total = len(measurable(examples))
        examples = with_answers(
            model, examples, request.max_tokens, folder, lambda name, done: advance(name, done, total)
        )
    chunk, reason = choose_chunk(request, examples)
    setup = AlignmentSettings(
        choose_removal(request, model, examples),
        chunk,
        request.max_tokens,
        request.settings.seed,
        request.settings.timeout,
        request.max_memory,
    )
    return Prepared(model, data, examples, setup, reason, folder)


def load_model(request: AlignRequest, device: torch.device | str) -> TextModel | ImageClassifier:
    """The model of the request with its explained output, on a device or on `ALL_GPUS`."""
    allowed = {"allow_pickle": request.allow_pickle, "allow_code": request.allow_code}
    model = load(request.model or SENTIMENT, device, request.settings.dtype, request.max_length, **allowed)
    if not request.next_token:
        return with_generated_answers(model, request.target, request.contrast)
    if not isinstance(model, NextTokenModel):
        raise OptionError(f"--next-token: {request.model or SENTIMENT} is no decoder: leave it out")
    return with_chosen_output(model, None, None)


def choose_chunk(request: AlignRequest, examples: Examples) -> tuple[int, str]:
    """How many neighbouring features the curves remove at a step, and the reason in words."""
    if request.chunk is not None:
        return request.chunk, f"{request.chunk} at a step, as asked for"
    middle = float(np.median(examples.features))
    if middle > LONG:
        return (
            CHUNK,
            f"{CHUNK} neighbouring ones at a step, as half of the examples have {middle:g}",
        )
    return 1, f"one at a step, as half of the examples have no more than {middle:g}"


def choose_removal(request: AlignRequest, model: TextModel | ImageClassifier, examples: Examples) -> Removal:
    """The removal of the request: a random one gets the draws and the seed, resampling also a pool."""
    name = request.removal or ("zero" if isinstance(model, ImageClassifier) else "attention_mask")
    kind = REMOVALS[name]
    if not kind.is_random:
        if request.draws is not None:
            random = " and ".join(name for name, kind in REMOVALS.items() if kind.is_random)
            raise OptionError(f"--draws: removal by {name} is not random; {random} are")
        return make_removal(name)
    options: dict[str, Any] = {"seed": request.settings.seed, **({"draws": request.draws} if request.draws else {})}
    if kind.draws_from_pool:
        options["pool"], options["owners"] = pool_of(model, examples, request.settings.seed)
    return make_removal(name, **options)


def pool_of(
    model: TextModel | ImageClassifier, examples: Examples, seed: int
) -> tuple[torch.Tensor, tuple[object, ...]]:
    """``pool`` and ``owners`` of `Resampling`: at most `POOL` features that are not special, from all examples."""
    if (examples.non_special > 0).sum() < 2:
        raise OptionError("--removal resample draws from other examples: give at least two with features")
    ends = np.cumsum(examples.non_special, dtype=np.int64)  # features are counted through, from example to example
    drawn = torch.randperm(int(ends[-1]), generator=torch.Generator().manual_seed(seed))[:POOL].sort().values.numpy()
    owners = np.searchsorted(ends, drawn, side="right")
    pool, contents = [], []
    for i in np.unique(owners).tolist():
        example, chosen = examples[i], drawn[owners == i] - (ends[i] - examples.non_special[i])
        inputs = model.case([example]).inputs[0]
        pool.append(inputs[torch.nonzero(~example.special_tokens_mask)[chosen, 0]])
        contents += [content(inputs)] * len(chosen)
    return torch.cat(pool), tuple(contents)


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

    The prompts of a batch are answered together, see `batches`.
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


def _key(model: AnswerModel, prompts: Examples, max_tokens: int) -> dict[str, object]:
    """Everything that determines the answers."""
    return {
        "model": fingerprint(model),
        "prompts": prompts.digest,
        "max_tokens": max_tokens,
        **arithmetic(model.model),
        "sources": sources(batches, AnswerModel, NextTokenModel, TextModel, Example),
    }
