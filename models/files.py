"""The files that this project writes: where its cache is, and how a file is written completely or not at all."""

import os
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/faithcheck``, or ``~/.cache/faithcheck`` if the variable is not set. It may not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "faithcheck"


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write to a temporary file in the same folder and rename it: readers never see half a file.

    If writing fails (`OSError`), the file stays as it was. Text is written as UTF-8, with the permissions of new files.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with open(handle, "wb") as file:
            file.write(data)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _umask() -> int:
    """The process's file mode creation mask, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
