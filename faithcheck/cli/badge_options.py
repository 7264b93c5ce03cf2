"""The arguments of ``faithcheck badge``. Nothing here imports torch, so that help is printed at once."""

from __future__ import annotations

import argparse
from pathlib import Path

from faithcheck.cli.arguments import add_file

HELP = "write a badge of a results document, for a README"
DESCRIPTION = """Write a small SVG with the outcome of a results document: "faithcheck 2026.12 | 0 red of 2,932". It is
green only if something was claimed or expected, all of it was measured and nothing is red, and the document is of the
catalogue of this faithcheck and of the commit of the working folder; otherwise it is grey and says why, or red."""
EXAMPLE = """example:
  faithcheck check my_explainers:Mine --json results.json
  faithcheck badge results.json badge.svg
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    meaning = "the JSON of faithcheck check --json or pytest --axioms-json=PATH"
    add_file(parser, "results", type=Path, help=meaning)
    add_file(parser, "svg", type=Path, metavar="SVG", help="the file to write")
