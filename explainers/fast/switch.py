"""The switch that runs everything without its fast parts."""

import os


def is_fast() -> bool:
    """Whether the fast parts may be used: not if the environment variable ``FAITHCHECK_PLAIN`` is 1.

    Read on each call, so that a test or a worker process can set it.

    Raises:
        ValueError: ``FAITHCHECK_PLAIN`` is something else than 0, 1 or empty.
    """
    value = os.environ.get("FAITHCHECK_PLAIN", "")
    if value not in ("", "0", "1"):
        raise ValueError(f"FAITHCHECK_PLAIN={value!r}: set it to 1 to run without the fast parts, or unset it")
    return value != "1"
