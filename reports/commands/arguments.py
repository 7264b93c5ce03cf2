"""Arguments that several commands take."""

from __future__ import annotations

import argparse


def seed(text: str) -> int:
    """A seed as torch takes it, from a command line.

    Raises:
        ArgumentTypeError: out of range.
    """
    number = int(text)
    if not 0 <= number < 2**63:
        raise argparse.ArgumentTypeError(f"must lie in 0 … 2^63 − 1, got {number}")
    return number
