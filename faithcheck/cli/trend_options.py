"""The arguments of ``faithcheck trend``. Nothing here imports torch, so that help is printed at once."""

from __future__ import annotations

import argparse
from pathlib import Path

import shtab

from faithcheck.cli.arguments import add_pages

HELP = "show the results documents of a folder over time"
DESCRIPTION = """Read every JSON document of a folder, and of the folders in it, and show verdicts, gaps, agreement with
Leave-One-Out and cost run by run, by commit, the oldest first. Files that cannot be read are named and left out. Runs
of different catalogues are shown as such. The exit code is 0, whatever the documents say."""
EXAMPLE = """example:
  faithcheck check my_explainers:Mine --json "results/$(git rev-parse --short HEAD).json"
  faithcheck trend results --html trend.html
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    folder = parser.add_argument("folder", type=Path, metavar="FOLDER", help="with the JSON of check, pytest and align")
    folder.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    add_pages(parser, "FOLDER/trend")
