"""The argument of ``faithcheck pairs``, ``explainers``, ``axioms`` and ``catalogue``. Nothing here imports torch."""

from __future__ import annotations

import argparse


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the argument of the command."""
    parser.add_argument("glob", nargs="?", help="only the names that match, such as 'batch*'")
