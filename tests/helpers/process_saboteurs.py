"""Saboteurs of the process: explainers that raise, or end, stop or flood what runs them, as data."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Never

import pytest
from torch import Tensor

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

RAISING = {name: from_function(way, name=name) for name, way in WAYS.items()}
"""The explainers, by name."""


# --- for processes of their own ---------------------------------------------------------------------------------------


def _segmentation_fault(model: object, inputs: object, target: object) -> None:
    ctypes.string_at(0)


def _leave_an_orphan(model: object, inputs: object, target: object) -> None:
    orphan = subprocess.Popen(["sleep", "3600"], start_new_session=True)
    Path(os.environ["SABOTEUR_FOLDER"], "orphan").write_text(str(orphan.pid))
    os._exit(3)


def _hang_in_c(model: object, inputs: object, target: object) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    ctypes.CDLL(None).sleep(3600)


def _write_to_every_file(model: object, inputs: Tensor, target: object) -> Tensor:
    for descriptor in range(3, 64):
        with suppress(OSError):
            os.write(descriptor, b"\xff" * 64)
    return inputs


def _print_much(model: object, inputs: Tensor, target: object) -> Tensor:
    print("x" * LONG)
    return inputs


def _exit_on_three_features(model: object, inputs: Tensor, target: object) -> Tensor:
    if inputs.shape[1] == 3:
        os._exit(0)
    return inputs


def _interrupt_the_parent(model: object, inputs: object, target: object) -> None:
    os.kill(int(os.environ["SABOTEUR_PARENT"]), signal.SIGINT)
    signal.pause()


def _fill_the_memory(model: object, inputs: object, target: object) -> None:
    kept = []
    while True:
        kept.append(b"x" * 2**24)


def _fork_without_end(model: object, inputs: object, target: object) -> None:
    while True:
        os.fork()


ENDING = SimpleNamespace(
    **{
        name: from_function(way, name=name, claims={"invariance"})
        for name, way in {
            "exits_with_0": lambda model, inputs, target: os._exit(0),
            "aborts": lambda model, inputs, target: os.abort(),
            "segmentation_fault": _segmentation_fault,
            "kills_its_session": lambda model, inputs, target: os.killpg(0, signal.SIGKILL),
            "kills_its_parent": lambda model, inputs, target: (os.kill(os.getppid(), signal.SIGKILL), signal.pause()),
            "leaves_an_orphan": _leave_an_orphan,
            "hangs_in_c": _hang_in_c,
            "writes_to_every_file": _write_to_every_file,
            "prints_much": _print_much,
            "exits_on_three_features": _exit_on_three_features,
            "interrupts_the_parent": _interrupt_the_parent,
            "fills_the_memory": _fill_the_memory,
            "forks_without_end": _fork_without_end,
        }.items()
    }
)
"""Explainers that end, flood or hang the process that they run in, as attributes, so that another process can load
``faithcheck.tests.helpers.process_saboteurs:ENDING.aborts``. Never call one in the process of the tests."""
