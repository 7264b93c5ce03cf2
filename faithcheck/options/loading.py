"""Loading the modules that options name, so that an error in the user's module shows the user's traceback."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import faithcheck.explainers
from faithcheck.options import OptionError

T = TypeVar("T")


def import_from_current_folder() -> None:
    """Make the current folder importable, as ``python -m pytest`` does: plain ``pytest`` in importlib mode does not."""
    folder = os.getcwd()
    if not any(os.path.abspath(entry) == folder for entry in sys.path):
        sys.path.insert(0, folder)


def loaded(option: str, load: Callable[[], T]) -> T:
    """Call ``load``, which imports a module that the user named.

    Raises:
        OptionError: it failed. An error inside the user's module is shown with the user's frames of the traceback, any
            other error as its message.
    """
    try:
        return load()
    except (Exception, SystemExit) as error:
        frames = _frames_of_the_user(error)
        if not frames and isinstance(error, SyntaxError):
            message = "".join(traceback.format_exception_only(error)).rstrip()
            raise OptionError(f"{option}: it cannot be parsed:\n{message}") from error
        if not frames:
            raise OptionError(f"{option}: {error}") from error
        lines = [*traceback.format_list(frames[-3:]), *traceback.format_exception_only(_root(error))]
        raise OptionError(f"{option}: it failed while it was loaded:\n{''.join(lines).rstrip()}") from error


def _root(error: BaseException) -> BaseException:
    return _root(error.__cause__) if error.__cause__ is not None else error


def _frames_of_the_user(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames outside faithcheck and the import machinery."""
    ours = (Path(__file__).resolve().parents[1], *(Path(folder).resolve() for folder in faithcheck.explainers.__path__))
    frames = traceback.extract_tb(_root(error).__traceback__)
    return [frame for frame in frames if "importlib" not in frame.filename and not _is_in(frame.filename, ours)]


def _is_in(file: str, folders: tuple[Path, ...]) -> bool:
    """Whether a file lies in one of the folders; a link is followed, since a traceback has the path of the import."""
    return any(Path(file).resolve().is_relative_to(folder) for folder in folders)
