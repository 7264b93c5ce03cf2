"""What the present run depends on: the versions of packages, and the commits of the user's code and of faithcheck."""

import importlib.metadata
import platform
import subprocess
from pathlib import Path

from faithcheck.reports.documents.document import Environment

_PACKAGES = ("torch", "transformers", "numpy", "scipy", "sympy", "scikit-learn", "pytest", "hypothesis")


def environment() -> Environment:
    """The versions that can change a measured number, and two commits, each None if there is no git clone.

    ``user_commit`` is that of the clone that holds the working folder: the user's code. ``faithcheck_commit`` is that
    of the clone that faithcheck runs from. ``-dirty`` follows a commit if files in it have changed since.
    """
    versions = {name: _version(name) for name in _PACKAGES}
    commits = {"user_commit": _commit(Path(), "--untracked-files=no"), "faithcheck_commit": _own_commit()}
    return {"python": platform.python_version(), "platform": platform.platform(), **versions, **commits}


def version() -> str:
    """The version of the installed faithcheck."""
    return _version("faithcheck") or "unknown"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _own_commit() -> str | None:
    """The commit of the clone that holds this file; None for an installed wheel, even inside another clone."""
    this_file = Path(__file__).resolve()
    tracked = _git(this_file.parent, "ls-files", "--error-unmatch", this_file.name) is not None
    return _commit(this_file.parent) if tracked else None


def _commit(folder: Path, *options: str) -> str | None:
    """The commit of the clone that holds a folder, with ``-dirty`` if ``git status`` with the options lists a file."""
    commit = _git(folder, "rev-parse", "HEAD")
    return commit and commit + ("-dirty" if _git(folder, "status", "--porcelain", *options) else "")


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
