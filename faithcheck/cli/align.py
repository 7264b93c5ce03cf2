"""``faithcheck align``: Table 2 of the paper on any model of text or images."""

import argparse
import importlib.util
from collections.abc import Callable
from pathlib import Path

from faithcheck.alignment.defaults import CHUNK, LONG, MAX_TOKENS, TABLE_2
from faithcheck.catalogue import saved
from faithcheck.cli import output
from faithcheck.cli.arguments import (
    add_allow_code,
    add_cluster,
    add_device,
    add_file,
    add_folder,
    add_max_memory,
    add_pages,
    add_seed,
    add_target,
    add_timeout,
    positive_integer,
)
from faithcheck.options import OptionError, names
from faithcheck.options.computing import FLOATING, refuse_unknown_device, refuse_wrong_cluster
from faithcheck.options.output_path import check_folder
from faithcheck.options.user_modules import import_from_current_folder
from faithcheck.reports.documents.alignment import Alignment

HELP = "measure how well explainers agree with Leave-One-Out on a model of text or images"
DESCRIPTION = """Measure how well explainers agree with Leave-One-Out on a model (Table 2 of arXiv 2510.18810):
correlation with LOO, MoRF, LeRF and Δ, with 95 % intervals and paired comparisons.
Every measurement is saved at once: after an interruption, the same command continues. The exit code is 1 if an
explainer failed or left something behind on the model or in the process, and 2 if nothing can be measured as asked."""
EXAMPLE = """examples:
  faithcheck align --html evaluate.html
  faithcheck align --model textattack/bert-base-uncased-SST-2 --data sst2 --limit 200 --json sst2.json --html
"""
FAILED = 1  # the exit code if an explainer failed or left something behind; the others are measured


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    meaning = (
        "a folder, a .gguf file or a hub name of a model saved as …ForSequenceClassification, …ForCausalLM (an answer) "
        "or …ForImageClassification; default: the project's own 12-layer BERT"
    )
    add("--model", help=meaning)
    meaning = (
        "texts: own (default: sentences written for this project); sst2 or imdb, through the datasets library; a file "
        ".tsv or .csv (GLUE's header: sentence, label), .jsonl, .jsonl.gz or .parquet; a folder with such a file named "
        "dev, or of Parquet files. Images: digits (default), a file .npz, or a folder"
    )
    add("--data", help=meaning)
    add_target(parser, "the largest output of each example; of a decoder, the answer that it generates")
    meaning = "of a decoder: explain the logit of the most likely next token, and no answer that it generates"
    add("--next-token", action="store_true", help=meaning)
    _add_examples(parser)
    add_max_memory(parser)
    meaning = "the dtype of the arithmetic; the weights are converted to it (default: %(default)s)"
    add("--dtype", choices=FLOATING, default="float32", help=meaning)
    add_device(parser)
    add_seed(parser, "random removals and of intervals")
    meaning = "write the results; faithcheck report PATH makes pages from them"
    add_file(parser, "--json", type=Path, metavar="PATH", help=meaning)
    add_pages(parser)
    meaning = "write the map, the curves and the figures of every example into this folder, as Parquet files of 10,000"
    add_folder(parser, "--parquet", type=Path, metavar="DIR", help=meaning)
    meaning = (
        "the folder that keeps measurements as they are made (default: alignment in $XDG_CACHE_HOME/faithcheck or "
        "~/.cache/faithcheck)"
    )
    add_folder(parser, "--cache", type=Path, metavar="DIR", help=meaning)
    meaning = "run each explainer in a process of its own: a crash or os._exit there ends that explainer alone"
    add("--isolate", action="store_true", help=meaning)
    add_timeout(parser, "stop an explainer that takes longer for a batch: its row is an error")
    add("--allow-pickle", action="store_true", help="also load weights stored as pickle, pytorch_model.bin")
    add_allow_code(parser)
    meaning = (
        f"only LOO and this one, repeatable: {', '.join(TABLE_2)} (default: these), another built-in one, or "
        "module:Object"
    )
    add("--explainer", action="append", default=[], metavar="NAME", help=meaning)
    meaning = "measure batches for a minute, print what the alignment will take, and end; what was measured is kept"
    add("--plan", action="store_true", help=meaning)
    add_cluster(parser)


def _add_examples(parser: argparse.ArgumentParser) -> None:
    """Add the options of how examples are read and features removed."""
    removals = [name for name in saved()["removals"] if name != "baseline"]
    meaning = "how LOO and the curves remove a feature (default: attention_mask, as in the paper; zero for images)"
    parser.add_argument("--removal", choices=removals, help=meaning)
    chunk = f"default: 1, or {CHUNK} if half of the examples have more than {LONG}"
    tokens = f"the most tokens in one forward pass, padding included: bounds memory (default: {MAX_TOKENS})"
    for flag, metavar, meaning in (
        ("--limit", "N", "only the first N examples"),
        ("--draws", "K", "draws of each removal by resample or noise (default: 8)"),
        ("--chunk", "N", f"features that the curves remove at each step ({chunk})"),
        ("--max-length", "N", "cut texts to N tokens (default: the most that the model takes)"),
        ("--max-tokens", "N", tokens),
    ):
        parser.add_argument(flag, type=positive_integer, metavar=metavar, help=meaning)


def main(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code, see `DESCRIPTION`; 130 after Ctrl-C."""
    refuse_wrong_options(arguments)
    refuse_wrong_cluster(arguments)
    from faithcheck.reports.pages import alignment

    files = output.files(arguments, {"md": alignment.to_markdown, "html": alignment.to_html})
    return run(arguments, files, alignment.to_terminal)


def refuse_wrong_options(options: argparse.Namespace) -> None:
    """Refuse options that do not fit together, and names and folders that cannot be used."""
    if options.contrast is not None and options.target is None:
        raise OptionError("--contrast: add --target: an example whose predicted output it is has nothing to explain")
    if options.next_token and options.target is not None:
        raise OptionError("--next-token: leave it out with --target, which says what is explained")
    for name in ("json", "md", "html", "parquet") if options.plan else ():
        if getattr(options, name) is not None:
            raise OptionError(f"--{name}: --plan prints an estimate and writes no file: leave one of the two out")
    _refuse_wrong_names(options)
    for name in ("cache", "parquet"):
        if (folder := getattr(options, name)) is not None:
            check_folder(folder, f"--{name}")
    if options.parquet is not None and importlib.util.find_spec("pyarrow") is None:
        raise OptionError('--parquet needs pyarrow: pip install "faithcheck[datasets]"')


def _refuse_wrong_names(options: argparse.Namespace) -> None:
    from faithcheck.models.data import texts  # not at the top: help needs neither
    from faithcheck.models.pretrained import SENTIMENT
    from faithcheck.models.pretrained.folder import refuse_wrong_folder

    import_from_current_folder()
    names.refuse_unknown_explainers(name for name in options.explainer if name not in TABLE_2)
    refuse_unknown_device(options.device)
    if options.data is not None:
        texts.refuse_wrong_source(options.data, options.limit, of_texts=options.model is None)
    if options.model is not None:
        refuse_wrong_folder(options.model)
    outputs = {"--target": options.target, "--contrast": options.contrast}
    names.refuse_unknown_outputs(options.model or SENTIMENT, outputs)


def run(arguments: argparse.Namespace, files: output.Files, view: Callable[[Alignment, int, bool], str]) -> int:
    """Measure, write the document and its pages, and print a view of it; or print what that will take."""
    from transformers.utils import logging as hugging_face  # not at the top: it takes seconds to import

    from faithcheck.alignment.alignment_plan import plan
    from faithcheck.alignment.measurement import measure
    from faithcheck.alignment.preparation import EXPECTED
    from faithcheck.axioms.measure.error_text import error_text
    from faithcheck.options.request import choose_align_request
    from faithcheck.progress import ProgressByExplainer
    from faithcheck.reports.pages import alignment

    try:
        hugging_face.disable_progress_bar()  # type: ignore[no-untyped-call]
        request = choose_align_request(arguments)
        if arguments.plan:
            output.print_for_terminal(alignment.plan_to_terminal, plan(request))
            return 0
        with ProgressByExplainer("examples") as progress:
            document = measure(request, progress.advance, progress.watch)
        files.write(document)
    except EXPECTED as error:
        return output.refuse(error)
    except KeyboardInterrupt:
        return output.interrupted("the same command continues from the saved measurements")
    except SystemExit as error:  # of a user's module, where nothing is measured: never the exit code of this run
        return output.refuse(OptionError(f"an explainer ended the run: it raised {error_text(error)}"))
    output.print_for_terminal(view, document)
    files.print_paths()
    return FAILED if document.is_failed else 0
