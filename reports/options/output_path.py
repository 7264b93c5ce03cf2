"""``--axioms-json``, ``--json``, ``--md``, ``--html``: paths that are written at the end of a run."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from faithcheck.reports.options import OptionError


def check_writable(path: Path, option: str) -> None:
    """Refuse a path that could not be written at the end of the run.

    Raises:
        OptionError: the folder is missing or cannot be written, or the path is a folder itself.
    """
    if path.is_dir():
        raise OptionError(f"{option}={path} is a folder: name a file in it, {path / 'results.json'}")
    if not path.parent.is_dir():
        raise OptionError(
            f"{option}={path}: the folder {path.parent} does not exist: make it first (mkdir -p {path.parent})"
        )
    try:
        # Try to write: permission bits tell root nothing, nor do they tell of read-only or full file systems.
        with tempfile.TemporaryFile(dir=path.parent) as file:
            file.write(b"faithcheck")
    except OSError as error:
        raise OptionError(f"{option}={path} cannot be written: {error.strerror}") from error
    if path.exists() and not os.access(path, os.W_OK):
        raise OptionError(f"{option}={path} cannot be written: permission denied")
