"""``faithcheck align``: Table 2 of the paper on any model of text or images.

`prepare` makes what is measured from what was asked for; the paper's tests start there too.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers.utils import logging as hugging_face

from faithcheck.axioms.alignment import evaluate
from faithcheck.axioms.alignment.run_key import StoreError, fingerprint
from faithcheck.axioms.alignment.summary import summary
from faithcheck.explainers.loo.removal import REMOVALS, Removal, content
from faithcheck.explainers.protocol import Explainer, Unsupported
from faithcheck.models.cache_folder import cache_folder
from faithcheck.models.data.handwritten_digits import DataError
from faithcheck.models.data.images import Images, load_images
from faithcheck.models.data.texts import Texts, load_texts
from faithcheck.models.pretrained import SENTIMENT
from faithcheck.models.pretrained.errors import ModelError
from faithcheck.models.pretrained.example import Example
from faithcheck.models.pretrained.image_classifier import ImageClassifier
from faithcheck.models.pretrained.loading import load
from faithcheck.models.pretrained.next_token_model import NextTokenModel
from faithcheck.models.pretrained.text_model import TextModel
from faithcheck.reports import results, selection
from faithcheck.reports.commands.arguments import seed
from faithcheck.reports.pages import alignment as pages
from faithcheck.reports.results import Json

DTYPES = {name: getattr(torch, name) for name in ("float32", "float64", "bfloat16", "float16")}
RANDOM = ("resample", "noise")  # the removals that are drawn
POOL = 4096  # features that resampling draws from, at most
EXPECTED = (ModelError, DataError, selection.SelectionError, evaluate.AlignmentError, StoreError, Unsupported, OSError)
DESCRIPTION = """Measure how well explainers agree with Leave-One-Out on a model (Table 2 of arXiv 2510.18810):
correlation with LOO, MoRF, LeRF and Δ, with 95 % intervals and paired comparisons.
What is measured is kept as it is made: the same command goes on where a run was stopped."""
EXAMPLE = """examples:
  faithcheck align --html evaluate.html
  faithcheck align --model textattack/bert-base-uncased-SST-2 --data sst2 --limit 200 --json sst2.json --html
"""


@dataclass(frozen=True)
class Request:
    """What is to be measured: the options of ``faithcheck align``, whose help says what each means."""

    model: str | None = None
    data: str | None = None
    limit: int | None = None
    explainer: Sequence[str] = ()
    removal: str | None = None
    draws: int | None = None
    chunk: int | None = None
    max_length: int | None = None
    max_tokens: int = evaluate.MAX_TOKENS
    dtype: str = "float32"
    device: str = "cpu"
    seed: int = 0
    cache: Path | None = None
    allow_pickle: bool = False


@dataclass(frozen=True)
class Prepared:
    """What `prepare` made of a request.

    Attributes:
        model: loaded.
        data: texts or images.
        examples: the data as the model reads it.
        setup: how alignment is measured.
        chunk_reason: in words, how the curves go and why.
        folder: where measurements are kept.
    """

    model: TextModel | ImageClassifier
    data: Texts | Images
    examples: list[Example]
    setup: evaluate.AlignmentSettings
    chunk_reason: str
    folder: Path


def prepare(request: Request) -> Prepared:
    """Load the model and the data, and choose what the request leaves open.

    Raises:
        ModelError, DataError, SelectionError: something is not there or does not fit.
    """
    device = selection.choose_device(request.device)
    model = load(request.model or SENTIMENT, device, DTYPES[request.dtype], request.max_length, request.allow_pickle)
    data: Texts | Images
    if isinstance(model, ImageClassifier):
        data = load_images(request.data or "digits", request.limit)
        examples = model.encode(data.images)
    else:
        data = load_texts(request.data or "own", request.limit)
        examples = model.encode(data.texts)
    chunk, reason = choose_chunk(request, [len(example) for example in examples])
    setup = evaluate.AlignmentSettings(
        choose_removal(request, model, examples), chunk, request.max_tokens, request.seed
    )
    return Prepared(model, data, examples, setup, reason, request.cache or cache_folder() / "alignment")


def choose_chunk(request: Request, lengths: Sequence[int]) -> tuple[int, str]:
    """How many neighbouring features the curves remove at once, and in words why."""
    if request.chunk is not None:
        return request.chunk, f"{request.chunk} at a step, as asked for"
    middle = median(lengths)
    if middle > evaluate.LONG:
        return (
            evaluate.CHUNK,
            f"{evaluate.CHUNK} neighbouring ones at a step, as half of the examples have {middle:g}",
        )
    return 1, f"one at a step, as half of the examples have no more than {middle:g}"


def choose_removal(request: Request, model: TextModel | ImageClassifier, examples: Sequence[Example]) -> Removal:
    """The removal named, with draws and seed where it is random, and a pool where it resamples.

    Raises:
        SelectionError: draws of a removal that is not random.
    """
    name = request.removal or ("zero" if isinstance(model, ImageClassifier) else "attention_mask")
    if name not in RANDOM:
        if request.draws is not None:
            raise selection.SelectionError(f"--draws: removal by {name} is not random; {' and '.join(RANDOM)} are")
        return REMOVALS[name]()
    random: dict[str, Any] = {"seed": request.seed, **({"draws": request.draws} if request.draws else {})}
    pool = pool_of(model, examples, request.seed) if name == "resample" else {}
    return REMOVALS[name](**pool, **random)


def pool_of(model: TextModel | ImageClassifier, examples: Sequence[Example], seed: int) -> Json:
    """What resampling draws from: at most `POOL` features that are not special, drawn from all examples, and whose.

    Returns:
        ``pool`` and ``owners`` of `Resampling`.

    Raises:
        SelectionError: there are no features, or of one example alone.
    """
    places = [
        (i, j) for i, example in enumerate(examples) for j in torch.nonzero(~example.special_tokens_mask)[:, 0].tolist()
    ]
    if len({i for i, _ in places}) < 2:
        raise selection.SelectionError("--removal resample draws from other examples: give at least two with features")
    order = torch.randperm(len(places), generator=torch.Generator().manual_seed(seed))[:POOL]
    wanted: dict[int, list[int]] = {}
    for i, j in sorted(places[k] for k in order.tolist()):
        wanted.setdefault(i, []).append(j)
    inputs = {i: model.case([examples[i]]).inputs[0] for i in wanted}
    pool = torch.cat([inputs[i][chosen] for i, chosen in wanted.items()])
    return {"pool": pool, "owners": tuple(content(inputs[i]) for i, chosen in wanted.items() for _ in chosen)}


def choose_explainers(names: Sequence[str], setup: evaluate.AlignmentSettings) -> list[Explainer]:
    """LOO and the explainers named, or those of Table 2 where none is named.

    Raises:
        SelectionError: an unknown name, or two of one name.
    """
    known = {explainer.name: explainer for explainer in evaluate.table_2(setup)}
    if not names:
        return list(known.values())
    others = [name for name in dict.fromkeys(names) if name not in known]
    chosen = [known["loo"], *(known[name] for name in dict.fromkeys(names) if name in known and name != "loo")]
    chosen += selection.choose_explainers(others) if others else []
    called = [explainer.name for explainer in chosen]
    if len(set(called)) < len(called):
        raise selection.SelectionError(f"two explainers have one name among {', '.join(called)}: give each its own")
    return chosen


def heading(request: Request, prepared: Prepared) -> Json:
    """What a document says of the model, the data and the settings: nothing that changes from run to run."""
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
            "removal": evaluate.describe_removal(setup.removal),
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


def measure(request: Request, advance: Advance = lambda explainer, done, of: None) -> Json:
    """Measure what was asked for, and write it up as an alignment document.

    Args:
        request: what to measure.
        advance: called with an explainer's name, the examples done since the last call, and all that are to be done.

    Raises:
        ModelError, DataError, SelectionError, AlignmentError, StoreError: something is not there or does not fit.
    """
    prepared = prepare(request)
    examples, setup = prepared.examples, prepared.setup
    explainers = choose_explainers(request.explainer, setup)
    total = len(explainers) * len(evaluate.measurable(examples))
    outcomes = evaluate.align(
        prepared.model, examples, explainers, setup, prepared.folder, lambda name, done: advance(name, done, total)
    )
    if all(outcome.refused for outcome in outcomes):
        raise evaluate.AlignmentError(f"nothing can be measured: {outcomes[0].refused}")
    document: Json = results.plain(
        {
            "schema_version": pages.SCHEMA_VERSION,
            "kind": pages.KIND,
            **heading(request, prepared),
            **summary(examples, outcomes, setup.seed, prepared.model.model.dtype),
        }
    )
    return document


# --- the command -----------------------------------------------------------------------------------------------------

_BESIDE = Path()
_PAGE: dict[str, Any] = {"nargs": "?", "type": Path, "const": _BESIDE, "metavar": "PATH"}


def main(argv: Sequence[str]) -> int:
    """Run the command; returns its exit code: 0, 2 for what cannot be measured as asked, 130 where interrupted."""
    parser = argparse.ArgumentParser(
        prog="faithcheck align",
        description=DESCRIPTION,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_options(parser)
    parser.add_argument(
        "--explainer",
        action="append",
        default=[],
        metavar="NAME",
        help=f"only LOO and this one, repeatable: {', '.join(evaluate.TABLE_2)} (default: these), another built-in "
        "one, or module:Object",
    )
    return _run(parser.parse_args(argv))


def _add_options(parser: argparse.ArgumentParser) -> None:
    for flag, given, meaning in (
        (
            "--model",
            {},
            "a folder or a hub name of a model saved as …ForSequenceClassification, …ForCausalLM (next token) or "
            "…ForImageClassification; default: the project's own 12-layer BERT",
        ),
        (
            "--data",
            {},
            "texts: own (default: sentences written for this project); sst2 or imdb, through the datasets library; a "
            "file .tsv, .jsonl or .jsonl.gz; a folder with such a file named dev. Images: digits (default), a file "
            ".npz, or a folder",
        ),
        ("--limit", {"type": _positive, "metavar": "N"}, "only the first N examples"),
        (
            "--removal",
            {"choices": sorted(REMOVALS.keys() - {"baseline"})},
            "what a removed feature is, for LOO and the curves (default: attention_mask, the paper's; zero for images)",
        ),
        ("--draws", {"type": _positive, "metavar": "K"}, "draws of each removal by resample or noise (default: 8)"),
        (
            "--chunk",
            {"type": _positive, "metavar": "N"},
            f"features that the curves remove at each step (default: 1, or {evaluate.CHUNK} where half of the "
            f"examples have more than {evaluate.LONG})",
        ),
        ("--max-length", {"type": _positive, "metavar": "N"}, "cut texts to N tokens (default: what the model takes)"),
        (
            "--max-tokens",
            {"type": _positive, "metavar": "N", "default": evaluate.MAX_TOKENS},
            "the most tokens in one forward pass, padding included: bounds memory (default: %(default)s)",
        ),
        (
            "--dtype",
            {"choices": list(DTYPES), "default": "float32"},
            "of the arithmetic, however the weights are stored (default: %(default)s)",
        ),
        ("--device", {"default": "cpu"}, "torch device that must be there (default: %(default)s)"),
        ("--seed", {"type": seed, "default": 0}, "of random removals and of intervals (default: %(default)s)"),
        ("--json", {"type": Path, "metavar": "PATH"}, "write the results; faithcheck report PATH makes pages of them"),
        ("--md", _PAGE, "write a Markdown page to PATH (default: beside the JSON)"),
        ("--html", _PAGE, "write an HTML page to PATH (default: beside the JSON)"),
        (
            "--cache",
            {"type": Path, "metavar": "DIR"},
            "where measurements are kept as they are made (default: alignment in $XDG_CACHE_HOME/faithcheck or "
            "~/.cache/faithcheck)",
        ),
        ("--allow-pickle", {"action": "store_true"}, "also load weights stored as pickle, pytorch_model.bin"),
    ):
        options: dict[str, Any] = given
        parser.add_argument(flag, help=meaning, **options)


def _run(arguments: argparse.Namespace) -> int:
    """Measure, write the document and its pages, and print it; what cannot be done is one line on stderr."""
    try:
        targets = _targets(arguments)
        selection.import_from_here()
        hugging_face.disable_progress_bar()  # type: ignore[no-untyped-call]
        wanted = {field.name for field in fields(Request)} & vars(arguments).keys()
        document = _with_progress(Request(**{name: getattr(arguments, name) for name in wanted}))
        if arguments.json is not None:
            results.save(document, arguments.json)
        for path, view in targets.items():
            path.write_text(view(document), encoding="utf-8")
    except EXPECTED as error:
        print(f"faithcheck: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("faithcheck: interrupted; the same command goes on from what was measured", file=sys.stderr)
        return 130
    print(pages.to_terminal(document, shutil.get_terminal_size().columns, sys.stdout.isatty()), end="")
    for path in (arguments.json, *targets):
        if path is not None:
            print(f"written: {path}")
    return 0


def _targets(arguments: argparse.Namespace) -> dict[Path, Callable[[Json], str]]:
    """Where the pages go, checked before the run, and what makes each.

    Raises:
        SelectionError: a path cannot be written, there is no JSON to write beside, or two are one file.
    """
    targets: dict[Path, Callable[[Json], str]] = {}
    for suffix, view in (("md", pages.to_markdown), ("html", pages.to_html)):
        path = getattr(arguments, suffix)
        if path == _BESIDE:
            if arguments.json is None:
                raise selection.SelectionError(f"--{suffix} needs a path where there is no --json to write it beside")
            path = arguments.json.with_suffix(f".{suffix}")
        if path is not None:
            selection.check_writable(path, f"--{suffix}")
            if path.resolve() in {p.resolve() for p in (arguments.json, *targets) if p is not None}:
                raise selection.SelectionError(f"--{suffix}={path} would overwrite another file of this run")
            targets[path] = view
    if arguments.json is not None:
        selection.check_writable(arguments.json, "--json")
    return targets


def _with_progress(request: Request) -> Json:
    """Measure with a progress bar on stderr where that is a terminal: examples, of all explainers together."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description:<18}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("loading", total=None)

        def advance(explainer: str, done: int, of: int) -> None:
            progress.update(task, description=explainer, advance=done, total=of)

        return measure(request, advance)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number
