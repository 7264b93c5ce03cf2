"""The measurement of ``faithcheck align``: from its options to the alignment document.

`prepare` loads the model and the data; the tests that reproduce the paper's tables start there too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from faithcheck.alignment import evaluate
from faithcheck.alignment.answers import with_answers
from faithcheck.alignment.batch import BatchJob
from faithcheck.alignment.batches import AlignmentError, longest, measurable
from faithcheck.alignment.defaults import CHUNK, LONG, MAX_TOKENS, TABLE_2
from faithcheck.alignment.document import document_of
from faithcheck.alignment.run_key import StoreError
from faithcheck.alignment.settings import AlignmentSettings, table_2
from faithcheck.executors.executor import Executor, InThisProcess
from faithcheck.executors.own_processes import OwnProcesses
from faithcheck.executors.ray.cluster import Workers, with_threads, workers_of
from faithcheck.executors.ray.on_ray import Watch
from faithcheck.executors.supervisor import Limits
from faithcheck.explainers.loo.removal import REMOVALS, Removal, content, make_removal
from faithcheck.explainers.protocol import Explainer, Unsupported
from faithcheck.job import Remote
from faithcheck.json_object import Json
from faithcheck.models.data import DataError
from faithcheck.models.data.images import Images, load_images
from faithcheck.models.data.texts import Texts, load_texts
from faithcheck.models.files import cache_folder
from faithcheck.models.pretrained import SENTIMENT
from faithcheck.models.pretrained.answer_model import AnswerModel
from faithcheck.models.pretrained.example import Examples
from faithcheck.models.pretrained.folder import ModelError
from faithcheck.models.pretrained.image_classifier import ImageClassifier
from faithcheck.models.pretrained.loading import ALL_GPUS, load
from faithcheck.models.pretrained.target_choice import with_chosen_output, with_generated_answers
from faithcheck.models.pretrained.text_model import NextTokenModel, TextModel
from faithcheck.options import OptionError, explainers
from faithcheck.options.computing import choose_device, choose_timeout
from faithcheck.options.explainers import refuse_what_ends_a_process
from faithcheck.reports.documents.alignment import Alignment
from faithcheck.reports.documents.document import Run, from_json

EXPECTED = (ModelError, DataError, OptionError, AlignmentError, StoreError, Unsupported, OSError)
"""The errors of `prepare` and `measure` whose message is all that the user needs."""
Advance = Callable[[str, int, int], None]
"""Called with an explainer's name, what is done of it since the last call, and the number of all."""
POOL = 4096  # features that resampling draws from, at most


@dataclass(frozen=True)
class AlignRequest:
    """The options of ``faithcheck align``. The help of the command describes each."""

    model: str | None = None
    data: str | None = None
    limit: int | None = None
    explainer: Sequence[str] = ()
    removal: str | None = None
    draws: int | None = None
    chunk: int | None = None
    max_length: int | None = None
    max_tokens: int = MAX_TOKENS
    max_memory: int | None = None
    dtype: str = "float32"
    device: str = "cpu"
    seed: int = 0
    cache: Path | None = None
    parquet: Path | None = None
    allow_pickle: bool = False
    allow_code: bool = False
    target: str | None = None
    contrast: str | None = None
    next_token: bool = False
    isolate: bool = False
    explainer_timeout: float | None = None
    ray: str | None = None
    workers: int | None = None
    cpus_per_worker: int = 1
    gpus_per_worker: float = 0.0


@dataclass(frozen=True)
class Prepared:
    """The model, the data and the settings of a request, ready to be measured.

    Attributes:
        model: loaded.
        data: texts or images.
        examples: the data as the model reads it.
        setup: how alignment is measured.
        chunk_reason: how many features the curves remove at a step and why, in words.
        folder: the folder that keeps the measurements.
    """

    model: TextModel | ImageClassifier
    data: Texts | Images
    examples: Examples
    setup: AlignmentSettings
    chunk_reason: str
    folder: Path

    def answer_of(self, i: int) -> str | None:
        """The answer that is explained in an example, as text; None if none is."""
        if not isinstance(self.model, AnswerModel):
            return None
        return str(self.model.tokenizer.decode(list(self.examples[i].answer or ())))


def prepare(request: AlignRequest, advance: Advance = lambda name, done, of: None) -> Prepared:
    """Load the model and the data, generate the answers, and choose the options that the request leaves open.

    Args:
        request: the options.
        advance: as of `measure`, for the answers.

    Raises:
        ModelError, DataError, OptionError: a file or a name is missing, or an option does not fit the model.
    """
    model = load_model(request)
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
        request.seed,
        choose_timeout(request.explainer_timeout),
        request.max_memory,
    )
    return Prepared(model, data, examples, setup, reason, folder)


def load_model(request: AlignRequest) -> TextModel | ImageClassifier:
    """The model of the request with its explained output, on its device; `ALL_GPUS` is one, too.

    Raises:
        ModelError, OptionError: it cannot be loaded, there is no such device, or no such output; --next-token of a
            model that is no decoder.
    """
    device = request.device if request.device == ALL_GPUS else choose_device(request.device)
    dtype = getattr(torch, request.dtype)
    allowed = {"allow_pickle": request.allow_pickle, "allow_code": request.allow_code}
    model = load(request.model or SENTIMENT, device, dtype, request.max_length, **allowed)
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
    """The removal of the request: a random one gets the draws and the seed, resampling also a pool.

    Raises:
        OptionError: --draws with a removal that is not random.
    """
    name = request.removal or ("zero" if isinstance(model, ImageClassifier) else "attention_mask")
    kind = REMOVALS[name]
    if not kind.is_random:
        if request.draws is not None:
            random = " and ".join(name for name, kind in REMOVALS.items() if kind.is_random)
            raise OptionError(f"--draws: removal by {name} is not random; {random} are")
        return make_removal(name)
    options: dict[str, Any] = {"seed": request.seed, **({"draws": request.draws} if request.draws else {})}
    pool = pool_of(model, examples, request.seed) if kind.draws_from_pool else {}
    return make_removal(name, **pool, **options)


def pool_of(model: TextModel | ImageClassifier, examples: Examples, seed: int) -> Json:
    """The pool of resampling: at most `POOL` features that are not special, drawn from all examples, and their owners.

    Returns:
        ``pool`` and ``owners`` of `Resampling`.

    Raises:
        OptionError: fewer than two examples have features.
    """
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
    return {"pool": torch.cat(pool), "owners": tuple(contents)}


def choose_explainers(names: Sequence[str], setup: AlignmentSettings) -> list[Explainer]:
    """LOO and the explainers of these names; without names the explainers of Table 2.

    Raises:
        OptionError: an unknown name, or two explainers of one name.
    """
    known = {explainer.name: explainer for explainer in table_2(setup)}
    if not names:
        return list(known.values())
    further = [name for name in dict.fromkeys(names) if name not in known]
    chosen = [known["loo"], *(known[name] for name in dict.fromkeys(names) if name in known and name != "loo")]
    chosen += explainers.load_explainers(further) if further else []
    listed = [explainer.name for explainer in chosen]
    if len(set(listed)) < len(listed):
        raise OptionError(f"two explainers have one name among {', '.join(listed)}: give each its own")
    return chosen


def specs_of(names: Sequence[str], chosen: Sequence[Explainer]) -> dict[str, str]:
    """The name of ``--explainer`` of each explainer that `choose_explainers` chose for these names."""
    further = iter(dict.fromkeys(name for name in names if name not in TABLE_2))
    return {one.name: one.name if one.name in TABLE_2 else next(further) for one in chosen}


def measure(
    request: AlignRequest,
    advance: Advance = lambda explainer, done, of: None,
    watch: Watch = lambda state: None,
) -> Alignment:
    """Measure the alignment of the explainers and return the alignment document.

    Args:
        request: the options.
        advance: called with an explainer's name, the examples done since the last call, and the number of all examples
            of one explainer.
        watch: with a cluster, see `faithcheck.executors.ray.on_ray.OnRay`.

    Raises:
        ModelError, DataError, OptionError, AlignmentError, StoreError: a file or a name is missing, an option does not
            fit the model, or nothing can be measured.
    """
    wanted = workers_of(request)
    with with_threads(wanted):
        return _measure(request, wanted, advance, watch)


def _measure(request: AlignRequest, wanted: Workers | None, advance: Advance, watch: Watch) -> Alignment:
    # Where the workers have GPUs, this process may have none.
    prepared = prepare(replace(request, device="cpu") if request.gpus_per_worker else request, advance)
    examples, setup = prepared.examples, prepared.setup
    if request.isolate:
        refuse_what_ends_a_process([name for name in request.explainer if name not in TABLE_2])
    chosen = choose_explainers(request.explainer, setup)
    total = len(measurable(examples))
    executor, elsewhere = _executor(request, wanted, prepared, chosen, watch)
    device = None if wanted is None else "cuda" if wanted.gpus else torch.device(request.device).type
    with executor:
        outcomes = evaluate.align(
            prepared.model,
            examples,
            chosen,
            setup,
            prepared.folder,
            lambda name, done: advance(name, done, total),
            executor,
            elsewhere,
            device,
        )
    return document_of(request, prepared, outcomes, from_json(executor.record, Run), shared=wanted is not None)


def _executor(
    request: AlignRequest, wanted: Workers | None, prepared: Prepared, chosen: Sequence[Explainer], watch: Watch
) -> tuple[Executor, Callable[[BatchJob], Remote] | None]:
    """What runs the batches, and what makes the job for another process of each."""
    from faithcheck.alignment.remote_batch import RemoteBatch, RemoteModel  # not at the top: it loads requests itself

    specs, setup, last = specs_of(request.explainer, chosen), prepared.setup, longest(prepared.examples)
    if wanted is not None:
        from faithcheck.executors.ray.alignment import alignment_on_ray  # the same

        gpus = request.gpus_per_worker
        device = ALL_GPUS if gpus > 1 else "cuda" if gpus else request.device
        model = RemoteModel(replace(request, device=device), setup, last)
        executor: Executor = alignment_on_ray(model, prepared.model, chosen, specs, str(request.ray), wanted, watch)
    elif request.isolate:
        limits = Limits()
        model = RemoteModel(request, setup, last, limits.memory)
        executor = OwnProcesses(limits, most=1)
    else:
        return InThisProcess(), None
    return executor, lambda job: RemoteBatch(model, specs[job.explainer], job.number, job.examples)
