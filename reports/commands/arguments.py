"""Arguments that several commands take, and how a number in them is checked. Nothing here imports torch."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import shtab

from faithcheck.axioms.engine import memory_units

BESIDE = Path()
"""The value of ``--md`` and ``--html`` without a path: the page goes beside the JSON."""
PAGE: dict[str, Any] = {"nargs": "?", "type": Path, "const": BESIDE, "metavar": "PATH"}


def seed(text: str) -> int:
    """A seed as torch takes it.

    Raises:
        ArgumentTypeError: out of range.
    """
    number = int(text)
    if not 0 <= number < 2**63:
        raise argparse.ArgumentTypeError(f"must lie in 0 … 2^63 − 1, got {number}")
    return number


def positive_integer(text: str) -> int:
    """An integer of at least 1.

    Raises:
        ArgumentTypeError: it is smaller.
    """
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def positive_number(text: str) -> float:
    """A finite number above 0.

    Raises:
        ArgumentTypeError: it is not.
    """
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be above 0 and finite, got {text}")
    return number


def size_of_memory(text: str) -> int:
    """A number of bytes, such as ``2GiB``.

    Raises:
        ArgumentTypeError: it is none.
    """
    try:
        return memory_units.in_bytes(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be bytes, such as 2GiB or 512MiB, got {text!r}") from None


def add_file(parser: argparse.ArgumentParser, *flags: str, **options: Any) -> None:
    """Add an argument that is a file; shells complete it as one."""
    parser.add_argument(*flags, **options).complete = shtab.FILE  # type: ignore[attr-defined]


def add_pages(parser: argparse.ArgumentParser) -> None:
    """Add ``--md`` and ``--html``."""
    for flag, page in (("--md", "Markdown"), ("--html", "HTML")):
        add_file(parser, flag, help=f"write a {page} page to PATH (default: beside the JSON)", **PAGE)


def add_repeatable(parser: argparse.ArgumentParser, flag: str, metavar: str, meaning: str) -> None:
    """Add an option that can be given several times."""
    parser.add_argument(flag, action="append", default=[], metavar=metavar, help=f"{meaning}; repeatable")


MAX_MEMORY: dict[str, Any] = {"type": size_of_memory, "metavar": "SIZE"}
"""The option ``--max-memory``."""
FITS = (
    "the most memory that an attribution may take over what is in use, such as 2GiB: what is predicted to take more is "
    "computed in smaller parts (default: four fifths of what is available)"
)
"""What it does."""
