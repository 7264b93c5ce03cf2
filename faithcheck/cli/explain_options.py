"""The arguments of ``faithcheck explain``. Nothing here imports torch, so that help is printed at once."""

from __future__ import annotations

import argparse
from pathlib import Path

import shtab

from faithcheck.cli.arguments import (
    ALLOW_CODE,
    CONTRAST,
    FITS,
    MAX_MEMORY,
    add_file,
    add_repeatable,
    characters,
    output_name,
)

HELP = "show explainers' maps of one text beside that of Leave-One-Out"
DESCRIPTION = """Show the maps of one text by one explainer or several, beside that of Leave-One-Out: each word in
colour, red for the explained output and blue against it, with r, the correlation with LOO, the probabilities of the
outputs, and the numbers. The model is loaded as by faithcheck align: a classifier of text, or a decoder, of which the
next token or the log-likelihood of an answer is explained. The exit code is 2 if the text cannot be explained as asked,
and 1 if an explainer left something behind on the model or in the process."""
EXAMPLE = """examples:
  faithcheck explain 'a gripping, funny film' --explainer attnlrp --explainer ig_mask --html map.html
  faithcheck explain 'The capital of France is' --model FOLDER --target ' Paris' --contrast ' London'
  echo 'a gripping, funny film' | faithcheck explain - --json map.json
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "text", metavar="TEXT", type=characters, help="the text to explain; - reads it from standard input"
    )
    meaning = "a folder or a hub name; default: the project's own 12-layer BERT for sentiment"
    parser.add_argument("--model", metavar="PATH", help=meaning).complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    add_repeatable(parser, "--explainer", "SPEC", "beside LOO, as for align (default: attnlrp)")
    meaning = (
        "the output to explain: its number, or its name in the model; of a decoder also a token, or an answer of "
        "several (default: the most likely output; of a decoder, the answer that it generates)"
    )
    parser.add_argument("--target", type=output_name, metavar="NAME", help=meaning)
    parser.add_argument("--contrast", type=output_name, metavar="NAME", help=CONTRAST)
    parser.add_argument("--device", default="cpu", help="torch device (default: %(default)s)")
    parser.add_argument("--max-memory", help=FITS, **MAX_MEMORY)
    parser.add_argument("--allow-code", action="store_true", help=ALLOW_CODE)
    add_file(parser, "--json", type=Path, metavar="PATH", help="write the maps, the outputs and the tokens as JSON")
    add_file(parser, "--html", type=Path, metavar="PATH", help="also write an HTML page")
