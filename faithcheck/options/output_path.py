"""``--json``, ``--html`` and the like: files and folders that are written at the end of a run."""

import os
import tempfile
from pathlib import Path

from faithcheck.options import OptionError


def check_writable(path: Path, option: str) -> None:
    """Refuse a path that could not be written at the end of the run."""
    if path.is_dir():
        raise OptionError(f"{option}={path} is a folder: name a file in it")
    if not path.parent.is_dir():
        raise OptionError(
            f"{option}={path}: the folder {path.parent} does not exist: make it first (mkdir -p {path.parent})"
        )
    _try_to_write(path.parent, f"{option}={path}")
    if path.exists() and not os.access(path, os.W_OK):
        raise OptionError(f"{option}={path} cannot be written: permission denied")


def check_folder(path: Path, option: str) -> None:
    """Refuse a folder that could not be made, with the folders around it, or written."""
    nearest = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not nearest.is_dir():
        raise OptionError(f"{option}={path}: {nearest} is a file: name another folder")
    _try_to_write(nearest, f"{option}={path}")


def _try_to_write(folder: Path, what: str) -> None:
    """Permission bits tell root nothing, nor do they tell of read-only or full file systems: so write."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"faithcheck")
    except OSError as error:
        raise OptionError(f"{what} cannot be written: {error.strerror}: name a place that can") from error
