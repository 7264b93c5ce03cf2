"""The measurement of ``faithcheck align``: from its options to the alignment document.

`prepare` loads the model and the data; the tests that reproduce the paper's tables start there too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from faithcheck.axioms.alignment import evaluate
from faithcheck.axioms.alignment.defaults import CHUNK, LONG, MAX_TOKENS, TABLE_2
from faithcheck.axioms.alignment.run_key import StoreError, fingerprint
from faithcheck.axioms.alignment.summary import summary
from faithcheck.explainers.loo.removal import REMOVALS, Removal, content
from faithcheck.explainers.loo.removal_names import RANDOM
from faithcheck.explainers.protocol import Explainer, Unsupported
from faithcheck.models.cache_folder import cache_folder
from faithcheck.models.data.errors import DataError
from faithcheck.models.data.images import Images, load_images
from faithcheck.models.data.texts import Texts, load_texts
from faithcheck.models.pretrained import SENTIMENT
from faithcheck.models.pretrained.errors import ModelError
from faithcheck.models.pretrained.example import Example
from faithcheck.models.pretrained.image_classifier import ImageClassifier
from faithcheck.models.pretrained.loading import load
from faithcheck.models.pretrained.next_token_model import NextTokenModel
from faithcheck.models.pretrained.text_model import TextModel
from faithcheck.reports import results
from faithcheck.reports.options import OptionError, explainers
from faithcheck.reports.options.device import choose_device
from faithcheck.reports.options.explainer_timeout import choose_timeout
from faithcheck.reports.options.isolate import refuse_what_ends_a_process
from faithcheck.reports.pages import alignment
from faithcheck.reports.results import Json

EXPECTED = (ModelError, DataError, OptionError, evaluate.AlignmentError, StoreError, Unsupported, OSError)
"""The errors of `prepare` and `measure` whose message is all that the user needs."""
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
    allow_pickle: bool = False
    isolate: bool = False
    explainer_timeout: float | None = None


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
    examples: list[Example]
    setup: evaluate.AlignmentSettings
    chunk_reason: str
    folder: Path


def prepare(request: AlignRequest) -> Prepared:
    """Load the model and the data, and choose the options that the request leaves open.

    Raises:
        ModelError, DataError, OptionError: a file or a name is missing, or an option does not fit the model.
    """
    device = choose_device(request.device)
    dtype = getattr(torch, request.dtype)
    model = load(request.model or SENTIMENT, device, dtype, request.max_length, request.allow_pickle)
    data: Texts | Images
    if isinstance(model, ImageClassifier):
        data = load_images(request.data or "digits", request.limit)
        examples = model.encode(data.images)
    else:
        data = load_texts(request.data or "own", request.limit)
        examples = model.encode(data.texts)
    chunk, reason = choose_chunk(request, [len(example) for example in examples])
    setup = evaluate.AlignmentSettings(
        choose_removal(request, model, examples),
        chunk,
        request.max_tokens,
        request.seed,
        choose_timeout(request.explainer_timeout),
        request.max_memory,
    )
    return Prepared(model, data, examples, setup, reason, request.cache or cache_folder() / "alignment")


def choose_chunk(request: AlignRequest, lengths: Sequence[int]) -> tuple[int, str]:
    """How many neighbouring features the curves remove at a step, and the reason in words."""
    if request.chunk is not None:
        return request.chunk, f"{request.chunk} at a step, as asked for"
    middle = median(lengths)
    if middle > LONG:
        return (
            CHUNK,
            f"{CHUNK} neighbouring ones at a step, as half of the examples have {middle:g}",
        )
    return 1, f"one at a step, as half of the examples have no more than {middle:g}"


def choose_removal(request: AlignRequest, model: TextModel | ImageClassifier, examples: Sequence[Example]) -> Removal:
    """The removal of the request: a random one gets the draws and the seed, resampling also a pool.

    Raises:
        OptionError: --draws with a removal that is not random.
    """
    name = request.removal or ("zero" if isinstance(model, ImageClassifier) else "attention_mask")
    if name not in RANDOM:
        if request.draws is not None:
            raise OptionError(f"--draws: removal by {name} is not random; {' and '.join(RANDOM)} are")
        return REMOVALS[name]()
    random: dict[str, Any] = {"seed": request.seed, **({"draws": request.draws} if request.draws else {})}
    pool = pool_of(model, examples, request.seed) if name == "resample" else {}
    return REMOVALS[name](**pool, **random)


def pool_of(model: TextModel | ImageClassifier, examples: Sequence[Example], seed: int) -> Json:
    """The pool of resampling: at most `POOL` features that are not special, drawn from all examples, and their owners.

    Returns:
        ``pool`` and ``owners`` of `Resampling`.

    Raises:
        OptionError: fewer than two examples have features.
    """
    places = [
        (i, j) for i, example in enumerate(examples) for j in torch.nonzero(~example.special_tokens_mask)[:, 0].tolist()
    ]
    if len({i for i, _ in places}) < 2:
        raise OptionError("--removal resample draws from other examples: give at least two with features")
    order = torch.randperm(len(places), generator=torch.Generator().manual_seed(seed))[:POOL]
    wanted: dict[int, list[int]] = {}
    for i, j in sorted(places[k] for k in order.tolist()):
        wanted.setdefault(i, []).append(j)
    inputs = {i: model.case([examples[i]]).inputs[0] for i in wanted}
    pool = torch.cat([inputs[i][chosen] for i, chosen in wanted.items()])
    return {"pool": pool, "owners": tuple(content(inputs[i]) for i, chosen in wanted.items() for _ in chosen)}


def choose_explainers(names: Sequence[str], setup: evaluate.AlignmentSettings) -> list[Explainer]:
    """LOO and the explainers of these names; without names the explainers of Table 2.

    Raises:
        OptionError: an unknown name, or two explainers of one name.
    """
    known = {explainer.name: explainer for explainer in evaluate.table_2(setup)}
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


def heading(request: AlignRequest, prepared: Prepared) -> Json:
    """The model, the data and the settings of the document; no date, so that equal runs give equal documents."""
    model, data, setup = prepared.model, prepared.data, prepared.setup
    images = isinstance(model, ImageClassifier)
    read_at = (
        "pixels, a patch a feature"
        if images
        else "word embeddings, so that what reaches position and type embeddings is not in it"
    )
    explained = "most likely next token" if isinstance(model, NextTokenModel) else "predicted class"
    return {
        "faithcheck": results.version(),
        "environment": results.environment(),
        "model": {
            "name": request.model or "the project's own",
            "class": type(model.model).__name__,
            "layers": getattr(model.model.config, "num_hidden_layers", None),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "fingerprint": fingerprint(model),
            "features": "patches" if images else "tokens",
            "explained": f"the logit of the {explained}; relevance is read at the {read_at}",
        },
        "data": {
            "name": data.name,
            "items": "images" if images else "texts",
            "fingerprint": data.fingerprint,
        },
        "settings": {
            "removal": setup.removal.description,
            "chunk": setup.chunk,
            "chunk_reason": prepared.chunk_reason,
            "max_length": getattr(model, "max_length", None),
            "max_tokens": setup.max_tokens,
            "dtype": request.dtype,
            "device": request.device,
            "threads": torch.get_num_threads(),
            "seed": setup.seed,
        },
    }


Advance = Callable[[str, int, int], None]


def measure(request: AlignRequest, advance: Advance = lambda explainer, done, of: None) -> Json:
    """Measure the alignment of the explainers and return the alignment document.

    Args:
        request: the options.
        advance: called with an explainer's name, the examples done since the last call, and the number of all examples.

    Raises:
        ModelError, DataError, OptionError, AlignmentError, StoreError: a file or a name is missing, an option does not
            fit the model, or nothing can be measured.
    """
    prepared = prepare(request)
    examples, setup = prepared.examples, prepared.setup
    refuse_what_ends_a_process(request.isolate, [name for name in request.explainer if name not in TABLE_2])
    chosen = choose_explainers(request.explainer, setup)
    total = len(chosen) * len(evaluate.measurable(examples))
    with _passes(request, chosen) as measure_batch:
        outcomes = evaluate.align(
            prepared.model,
            examples,
            chosen,
            setup,
            prepared.folder,
            lambda name, done: advance(name, done, total),
            measure_batch,
        )
    if all(outcome.refused for outcome in outcomes):
        raise evaluate.AlignmentError(f"nothing can be measured: {outcomes[0].refused}")
    document: Json = results.plain(
        {
            "schema_version": alignment.SCHEMA_VERSION,
            "kind": results.ALIGNMENT,
            **heading(request, prepared),
            **summary(examples, outcomes, setup.seed, prepared.model.model.dtype),
        }
    )
    labels = _labels(outcomes)
    for row in document["explainers"]:
        row["label"] = labels[row["name"]]
    return document


@contextmanager
def _passes(request: AlignRequest, chosen: Sequence[Explainer]) -> Iterator[evaluate.MeasureBatch]:
    """What measures a batch: this process, or with --isolate a process of its own for each explainer."""
    if not request.isolate:
        yield evaluate.measure
        return
    from faithcheck.reports.isolated_alignment import IsolatedPasses  # not at the top: it loads requests itself

    passes = IsolatedPasses(request, specs_of(request.explainer, chosen))
    try:
        yield passes.measure
    finally:
        passes.close()


def _labels(outcomes: Sequence[evaluate.ExplainerResult]) -> dict[str, str]:
    """The label of each explainer by its name; variants of one explainer, which share its label, also show the name."""
    labels = {outcome.name: outcome.label for outcome in outcomes}
    counts = Counter(labels.values())
    return {name: label if counts[label] == 1 else f"{label} ({name})" for name, label in labels.items()}
