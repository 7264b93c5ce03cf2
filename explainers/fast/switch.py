"""The switch that runs everything without its fast parts."""

import os


def is_fast() -> bool:
    """Whether the fast parts may be used: not if ``FAITHCHECK_PLAIN`` is 1; ValueError if it is not 0, 1 or empty.

    The environment is read on each call, so that a test or a worker process can set the variable.
    """
    value = os.environ.get("FAITHCHECK_PLAIN", "")
    if value not in ("", "0", "1"):
        raise ValueError(f"FAITHCHECK_PLAIN={value!r}: set it to 1 to run without the fast parts, or unset it")
    return value != "1"
