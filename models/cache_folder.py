"""The folder in which this project keeps results that are slow to compute."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/faithcheck``, or ``~/.cache/faithcheck`` if the variable is not set. It may not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "faithcheck"
