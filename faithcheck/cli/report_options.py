"""The arguments of ``faithcheck report``. Nothing here imports torch, so that help is printed at once."""

from __future__ import annotations

import argparse
from pathlib import Path

import shtab

from faithcheck.cli.arguments import add_file, add_pages

HELP = "make pages from a results document"
DESCRIPTION = "Make pages from the results document of a run; without --md, --html and --figures, print its tables."
EXAMPLE = """example:
  pytest -m invariance --axioms-json=results.json
  faithcheck report results.json --md --html --figures figures
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    meaning = "the JSON of pytest --axioms-json=PATH, of faithcheck check, align or explain --json, or of make bench"
    add_file(parser, "results", type=Path, help=meaning)
    add_pages(parser)
    meaning = "write every table as CSV and LaTeX (booktabs), and every figure as SVG and PDF, into this folder"
    parser.add_argument("--figures", type=Path, metavar="DIR", help=meaning).complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    meaning = "exit with 1 if the document is red, with 3 if a planned check did not run (default: 0)"
    parser.add_argument("--exit-code", action="store_true", help=meaning)
