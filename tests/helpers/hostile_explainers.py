"""Explainers that end, stop or flood whatever runs them, as data: each raises in its own way on every call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Never

import pytest

from faithcheck.explainers.adapters import from_function

LONG = 50_000_000
"""The characters of a message that no terminal, page or pipe is made for."""


class Unprintable(Exception):
    """An error whose message cannot be read: reading it leaves the process."""

    def __str__(self) -> str:
        sys.exit(0)


class NoException(BaseException):
    """What ``except Exception`` does not catch."""


def raising(error: BaseException) -> Callable[..., Never]:
    """A function of any arguments that raises this."""

    def explain(model: object, inputs: object, target: object) -> Never:
        raise error

    return explain


WAYS: dict[str, Callable[..., object]] = {
    "leaves_with_0": raising(SystemExit(0)),
    "closes_a_generator": raising(GeneratorExit()),
    "is_no_exception": raising(NoException("base")),
    "interrupts": raising(KeyboardInterrupt()),
    "cannot_be_printed": raising(Unprintable()),
    "lone_surrogate": raising(ValueError("\ud800 in the message")),
    "long_message": raising(ValueError("long " + "x" * LONG)),
    "skips_a_test": lambda model, inputs, target: pytest.skip("not today"),
    "fails_a_test": lambda model, inputs, target: pytest.fail("as a test does"),
    "leaves_pytest": lambda model, inputs, target: pytest.exit("as if all were well", returncode=0),
    "recurses": lambda model, inputs, target: WAYS["recurses"](model, inputs, target),
    "exhausts_memory": raising(MemoryError()),
}
"""What an explainer does on every call, by the name of the explainer that does it. None of them ends the process."""

HOSTILE = {name: from_function(way, name=name) for name, way in WAYS.items()}
"""The explainers, by name."""
