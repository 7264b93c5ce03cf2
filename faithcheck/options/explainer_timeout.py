"""``--explainer-timeout``: the seconds that one check of an explainer may take."""

from __future__ import annotations

import math

from faithcheck.options import OptionError
from faithcheck.sandbox import time_limit


def choose_timeout(seconds: float | None) -> float | None:
    """The seconds, checked; None is no limit.

    Raises:
        OptionError: the number is not above 0 and finite, or this platform cannot set a time limit.
    """
    try:
        if seconds is not None and not 0 < seconds < math.inf:
            raise ValueError(f"the seconds are above 0 and finite, got {seconds:g}")
        with time_limit(None if seconds is None else 3600.0):  # fails where no limit can be set
            return seconds
    except ValueError as error:
        raise OptionError(f"--explainer-timeout: {error}") from error
