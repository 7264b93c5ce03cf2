"""The options of ``faithcheck align``. Nothing here imports torch, so that help is printed at once."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from faithcheck.alignment import defaults
from faithcheck.cli.arguments import (
    ALLOW_CODE,
    CONTRAST,
    FITS,
    MAX_MEMORY,
    PAGE,
    add_cluster,
    output_name,
    positive_integer,
    positive_number,
    seed,
)
from faithcheck.explainers.loo import removal_names
from faithcheck.options.dtype import FLOATING

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
    for flag, settings, meaning in (
        (
            "--model",
            {},
            "a folder or a hub name of a model saved as …ForSequenceClassification, …ForCausalLM (an answer) or "
            "…ForImageClassification; default: the project's own 12-layer BERT",
        ),
        (
            "--data",
            {},
            "texts: own (default: sentences written for this project); sst2 or imdb, through the datasets library; a "
            "file .tsv or .csv (GLUE's header: sentence, label), .jsonl, .jsonl.gz or .parquet; a folder with such a "
            "file named dev, or of Parquet files. Images: digits (default), a file .npz, or a folder",
        ),
        (
            "--target",
            {"type": output_name, "metavar": "NAME"},
            "the output to explain in every example: its number, or its name in the model; of a decoder also a token, "
            "or an answer of several (default: the most likely output of each, of a decoder the answer that it "
            "generates)",
        ),
        ("--contrast", {"type": output_name, "metavar": "NAME"}, CONTRAST),
        (
            "--next-token",
            {"action": "store_true"},
            "of a decoder: explain the logit of the most likely next token, and no answer that it generates",
        ),
        ("--limit", {"type": positive_integer, "metavar": "N"}, "only the first N examples"),
        (
            "--removal",
            {"choices": [name for name in removal_names.NAMES if name != "baseline"]},
            "how LOO and the curves remove a feature (default: attention_mask, as in the paper; zero for images)",
        ),
        (
            "--draws",
            {"type": positive_integer, "metavar": "K"},
            "draws of each removal by resample or noise (default: 8)",
        ),
        (
            "--chunk",
            {"type": positive_integer, "metavar": "N"},
            f"features that the curves remove at each step (default: 1, or {defaults.CHUNK} if half of the examples "
            f"have more than {defaults.LONG})",
        ),
        (
            "--max-length",
            {"type": positive_integer, "metavar": "N"},
            "cut texts to N tokens (default: the most that the model takes)",
        ),
        (
            "--max-tokens",
            {"type": positive_integer, "metavar": "N", "default": defaults.MAX_TOKENS},
            "the most tokens in one forward pass, padding included: bounds memory (default: %(default)s)",
        ),
        ("--max-memory", MAX_MEMORY, FITS),
        (
            "--dtype",
            {"choices": FLOATING, "default": "float32"},
            "the dtype of the arithmetic, in whichever dtype the weights are stored (default: %(default)s)",
        ),
        ("--device", {"default": "cpu"}, "torch device (default: %(default)s)"),
        ("--seed", {"type": seed, "default": 0}, "seed of random removals and of intervals (default: %(default)s)"),
        (
            "--json",
            {"type": Path, "metavar": "PATH"},
            "write the results; faithcheck report PATH makes pages from them",
        ),
        ("--md", PAGE, "write a Markdown page to PATH (default: beside the JSON)"),
        ("--html", PAGE, "write an HTML page to PATH (default: beside the JSON)"),
        (
            "--parquet",
            {"type": Path, "metavar": "DIR"},
            "write the map, the curves and the figures of every example into this folder, as Parquet files of 10,000",
        ),
        (
            "--cache",
            {"type": Path, "metavar": "DIR"},
            "the folder that keeps measurements as they are made (default: alignment in $XDG_CACHE_HOME/faithcheck or "
            "~/.cache/faithcheck)",
        ),
        (
            "--isolate",
            {"action": "store_true"},
            "run each explainer in a process of its own: a crash or os._exit there ends that explainer alone",
        ),
        (
            "--explainer-timeout",
            {"type": positive_number, "metavar": "SECONDS"},
            "stop an explainer that takes longer for a batch: its row is an error",
        ),
        ("--allow-pickle", {"action": "store_true"}, "also load weights stored as pickle, pytorch_model.bin"),
        ("--allow-code", {"action": "store_true"}, ALLOW_CODE),
        (
            "--explainer",
            {"action": "append", "default": [], "metavar": "NAME"},
            f"only LOO and this one, repeatable: {', '.join(defaults.TABLE_2)} (default: these), another built-in "
            "one, or module:Object",
        ),
    ):
        options: dict[str, Any] = settings
        parser.add_argument(flag, help=meaning, **options)
    meaning = "measure batches for a minute, print what the alignment will take, and end; what was measured is kept"
    parser.add_argument("--plan", action="store_true", help=meaning)
    add_cluster(parser)
