"""``faithcheck align``: Table 2 of the paper on any model of text or images."""

import argparse
from pathlib import Path

from faithcheck.alignment.defaults import CHUNK, LONG, MAX_TOKENS, TABLE_2
from faithcheck.catalogue import saved
from faithcheck.cli import output
from faithcheck.cli.alignment_run import refuse_wrong_options, run
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
from faithcheck.options.computing import FLOATING, refuse_wrong_cluster

HELP = "measure how well explainers agree with Leave-One-Out on a model of text or images"
DESCRIPTION = """Measure how well explainers agree with Leave-One-Out on a model (Table 2 of arXiv 2510.18810):
correlation with LOO, MoRF, LeRF and Δ, with 95 % intervals and paired comparisons.
Every measurement is saved at once: after an interruption, the same command continues. The exit code is 1 if an
explainer failed or left something behind on the model or in the process, and 2 if nothing can be measured as asked."""
EXAMPLE = """examples:
  faithcheck align --html evaluate.html
  faithcheck align --model textattack/bert-base-uncased-SST-2 --data sst2 --limit 200 --json sst2.json --html
"""


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
