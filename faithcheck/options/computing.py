"""``--dtype``, ``--device``, ``--explainer-timeout`` and ``--ray``. Nothing at the top imports torch."""

from __future__ import annotations

import importlib.util
import math
import socket
from typing import TYPE_CHECKING, Any

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
ANSWERS_WITHIN = 5.0  # seconds


def refuse_unknown_device(name: str) -> None:
    """Refuse a name of no kind of device. Whether this machine has one, only torch can say."""
    kind, colon, number = name.partition(":")
    if kind == "gpu":
        raise OptionError(f"--device={name}: torch names a GPU by its maker: did you mean cuda{colon}{number}?")
    if kind not in DEVICES:
        raise OptionError(f"--device={name}: {unknown_name('device', kind, DEVICES)}")
    if colon and not number.isdecimal():
        raise OptionError(f"--device={name}: the number of a device is a whole number from 0: {kind}:0")


def choose_device(name: str) -> torch.device:
    """The device of that name, on which a float64 tensor was created and read."""
    import torch

    try:
        torch.ones(1, dtype=torch.float64, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError, TypeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise OptionError(f"--device={name} cannot be used: {reason}; the default is --device=cpu") from error
    return torch.device(name)


def choose_timeout(seconds: float | None) -> float | None:
    """The seconds, checked; None is no limit."""
    from faithcheck.sandbox import time_limit

    try:
        if seconds is not None and not 0 < seconds < math.inf:
            raise ValueError(f"the seconds are above 0 and finite, got {seconds:g}")
        with time_limit(None if seconds is None else 3600.0):  # fails where no limit can be set
            return seconds
    except ValueError as error:
        raise OptionError(f"--explainer-timeout: {error}") from error


def refuse_wrong_cluster(options: Any) -> None:
    """Refuse options of a Ray cluster that do not fit together, and a cluster that cannot be reached."""
    workers, cpus, gpus = options.workers, options.cpus_per_worker, options.gpus_per_worker
    if options.ray is None:
        given = {"--workers": workers, "--cpus-per-worker": cpus > 1, "--gpus-per-worker": gpus}
        for option in (name for name, value in given.items() if value):
            raise OptionError(f"{option}: it is of --ray, which is not given: add --ray, or leave it out")
        return
    if options.isolate:
        raise OptionError("--isolate: leave it out with --ray, whose workers are processes of their own")
    if gpus > 1 and not gpus.is_integer():
        raise OptionError(f"--gpus-per-worker={gpus:g}: give a share of one GPU, or a whole number of GPUs")
    if gpus > 1 and importlib.util.find_spec("accelerate") is None:
        raise OptionError(
            f"--gpus-per-worker={gpus:g}: a model on several GPUs needs accelerate: pip install accelerate"
        )
    _refuse_unreachable(options.ray)


def _refuse_unreachable(address: str) -> None:
    """Look whether Ray is installed and anything answers: Ray itself would try for half a minute."""
    if importlib.util.find_spec("ray") is None:
        raise OptionError('--ray needs Ray: pip install "faithcheck[ray]"')
    machine, colon, port = address.removeprefix("ray://").rpartition(":")
    if address in ("local", "auto"):
        return
    if not colon or not port.isdigit():
        raise OptionError(f"--ray={address}: expected MACHINE:PORT, auto, or nothing for one of this machine")
    try:
        socket.create_connection((machine.strip("[]"), int(port)), ANSWERS_WITHIN).close()
    except OSError as error:
        raise OptionError(f"--ray={address}: nothing answers there ({error}): is the cluster up?") from error
