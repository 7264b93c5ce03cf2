"""Arguments that several commands take, and how a number in them is checked. Nothing here imports torch."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import shtab

from faithcheck.models.data import has_half_a_character
from faithcheck.reports import memory_units

Number = TypeVar("Number", int, float)

BESIDE = Path()
"""The value of ``--md`` and ``--html`` without a path: the page goes beside the JSON."""
PAGE: dict[str, Any] = {"nargs": "?", "type": Path, "const": BESIDE, "metavar": "PATH"}


def seed(text: str) -> int:
    """A seed as torch takes it."""
    number = _number(int, text)
    if number is None or not 0 <= number < 2**63:
        raise argparse.ArgumentTypeError(f"must be a whole number in 0 … 2^63 − 1, got {text!r}")
    return number


def output_name(text: str) -> str:
    """The number or name of an output; of a decoder a text, whose spaces count."""
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty: give the number or the name of an output, or leave it out")
    return characters(text)


def characters(text: str) -> str:
    """A text for a tokenizer."""
    if has_half_a_character(text):
        raise argparse.ArgumentTypeError("is not in UTF-8: write it in the encoding of this terminal's locale")
    return text


def positive_integer(text: str) -> int:
    """A whole number of at least 1."""
    number = _number(int, text)
    if number is None or number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return number


def positive_number(text: str) -> float:
    """A finite number above 0."""
    number = _number(float, text)
    if number is None or not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a finite number above 0, got {text!r}")
    return number


def _number(kind: Callable[[str], Number], text: str) -> Number | None:
    """The number that a text says; None if it says none."""
    try:
        return kind(text)
    except ValueError:
        return None


def size_of_memory(text: str) -> int:
    """A number of bytes, such as ``2GiB``."""
    try:
        return memory_units.in_bytes(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be bytes, such as 2GiB or 512MiB, got {text!r}") from None


def add_file(parser: argparse.ArgumentParser, *flags: str, **options: Any) -> None:
    """Add an argument that is a file; shells complete it as one."""
    parser.add_argument(*flags, **options).complete = shtab.FILE  # type: ignore[attr-defined]


def add_folder(parser: argparse.ArgumentParser, *flags: str, **options: Any) -> None:
    """Add an argument that is a folder; shells complete it as one."""
    parser.add_argument(*flags, **options).complete = shtab.DIRECTORY  # type: ignore[attr-defined]


def add_pages(parser: argparse.ArgumentParser, default: str = "beside the JSON") -> None:
    """Add ``--md`` and ``--html``; ``default`` says where a page without a path goes."""
    for flag, page in (("--md", "Markdown"), ("--html", "HTML")):
        add_file(parser, flag, help=f"write a {page} page to PATH (default: {default})", **PAGE)


def add_repeatable(parser: argparse.ArgumentParser, flag: str, metavar: str, meaning: str) -> None:
    """Add an option that can be given several times."""
    parser.add_argument(flag, action="append", default=[], metavar=metavar, help=f"{meaning}; repeatable")


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add ``--device``."""
    parser.add_argument("--device", default="cpu", help="torch device (default: %(default)s)")


def add_seed(parser: argparse.ArgumentParser, what: str) -> None:
    """Add ``--seed``; ``what`` says of what it is the seed."""
    parser.add_argument("--seed", type=seed, default=0, help=f"seed of {what} (default: %(default)s)")


def add_timeout(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Add ``--explainer-timeout``."""
    parser.add_argument("--explainer-timeout", type=positive_number, metavar="SECONDS", help=meaning)


def add_target(parser: argparse.ArgumentParser, default: str) -> None:
    """Add ``--target`` and ``--contrast``."""
    meaning = (
        "the output to explain: its number, counted from 0, or its name in the model; of a decoder also a token, or an "
        "answer of several. What means two outputs, such as 3 where output 2 is called 3, is refused; number=3 and "
        f"name=3 mean one (default: {default})"
    )
    parser.add_argument("--target", type=output_name, metavar="NAME", help=meaning)
    meaning = "the output to subtract: why the target, and not this?"
    parser.add_argument("--contrast", type=output_name, metavar="NAME", help=meaning)


def add_max_memory(parser: argparse.ArgumentParser) -> None:
    """Add ``--max-memory``."""
    meaning = (
        "the most memory that an attribution may take over what is in use, such as 2GiB: what is predicted to take "
        "more is computed in smaller parts (default: four fifths of what is available)"
    )
    parser.add_argument("--max-memory", type=size_of_memory, metavar="SIZE", help=meaning)


def add_allow_code(parser: argparse.ArgumentParser) -> None:
    """Add ``--allow-code``."""
    meaning = "also load a model that is not a part of transformers: its own code runs here, with your rights"
    parser.add_argument("--allow-code", action="store_true", help=meaning)


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Add the options of a Ray cluster."""
    meaning = "share the work on a Ray cluster: docs/how_to/ray.md; without an address, on one of this machine alone"
    parser.add_argument("--ray", nargs="?", const="local", metavar="ADDRESS", help=meaning)
    meaning = "with --ray, the number of workers (default: as many as there is room for)"
    parser.add_argument("--workers", type=positive_integer, metavar="N", help=meaning)
    meaning = "with --ray, the processors of a worker, and its threads (default: %(default)s)"
    parser.add_argument("--cpus-per-worker", type=positive_integer, default=1, metavar="N", help=meaning)
    meaning = "with --ray, the GPUs of a worker, such as 1, or 0.5 for two workers on each (default: 0)"
    parser.add_argument("--gpus-per-worker", type=positive_number, default=0.0, metavar="X", help=meaning)
