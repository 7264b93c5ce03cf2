"""``--dtype``, ``--device`` and ``--explainer-timeout``: in which type and where a run computes, and for how long.

Nothing at the top imports torch: help and refusals need none.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from faithcheck.models.unknown_name import unknown_name
from faithcheck.options import OptionError

if TYPE_CHECKING:
    import torch

FLOATING = ("float64", "float32", "bfloat16", "float16")
"""The names of the floating-point types, from the finest."""
DTYPES = (*FLOATING, "int8")
"""And weights of 8 bits."""
MEANING = "the type of the arithmetic, int8 for weights of 8 bits, see docs/explanation/types.md (default: float64)"
"""What ``--dtype`` does in a check."""
DEVICES = ("cpu", "cuda", "mps", "xpu")
"""The kinds of devices that have torch's arithmetic and memory."""


def refuse_unknown_device(name: str) -> None:
    """Refuse a name of no kind of device. Whether this machine has one, only torch can say.

    Raises:
        OptionError: names the nearest.
    """
    kind, colon, number = name.partition(":")
    if kind == "gpu":
        raise OptionError(f"--device={name}: torch names a GPU by its maker: did you mean cuda{colon}{number}?")
    if kind not in DEVICES:
        raise OptionError(f"--device={name}: {unknown_name('device', kind, DEVICES)}")
    if colon and not number.isdecimal():
        raise OptionError(f"--device={name}: the number of a device is a whole number from 0: {kind}:0")


def choose_device(name: str) -> torch.device:
    """The device of that name, on which a float64 tensor was created and read.

    Raises:
        OptionError: the device is missing, or cannot hold float64.
    """
    import torch

    try:
        torch.ones(1, dtype=torch.float64, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError, TypeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise OptionError(f"--device={name} cannot be used: {reason}; the default is --device=cpu") from error
    return torch.device(name)


def choose_timeout(seconds: float | None) -> float | None:
    """The seconds, checked; None is no limit.

    Raises:
        OptionError: the number is not above 0 and finite, or this platform cannot set a time limit.
    """
    from faithcheck.sandbox import time_limit

    try:
        if seconds is not None and not 0 < seconds < math.inf:
            raise ValueError(f"the seconds are above 0 and finite, got {seconds:g}")
        with time_limit(None if seconds is None else 3600.0):  # fails where no limit can be set
            return seconds
    except ValueError as error:
        raise OptionError(f"--explainer-timeout: {error}") from error
