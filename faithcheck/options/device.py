"""``--device``: the torch device that a run computes on."""

from __future__ import annotations

import torch

from faithcheck.options import OptionError


def choose_device(name: str) -> torch.device:
    """The device of that name, on which a float64 tensor was created and read.

    Raises:
        OptionError: the device is missing, or cannot hold float64.
    """
    try:
        torch.ones(1, dtype=torch.float64, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError, TypeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise OptionError(f"--device={name} cannot be used: {reason}; the default is --device=cpu") from error
    return torch.device(name)
