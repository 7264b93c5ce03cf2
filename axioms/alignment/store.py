"""Measurements on disk, batch by batch as they are made, so that a run that is killed goes on where it was."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType, TracebackType
from typing import IO, Any, Self

import torch
from torch import Tensor, nn

log = logging.getLogger(__name__)


class StoreError(RuntimeError):
    """The store cannot be used: another run has it, or what names it cannot be written down."""


class Store:
    """A file of JSON lines: what determines its numbers, then one line a batch, each with its checksum.

    Use it as a context manager; inside, no other process can have it. A line that was being written when the process
    was killed is dropped; one that is damaged otherwise is dropped with those after it, and a warning in the log.

    Args:
        folder: made where it is not there.
        name: the start of the file's name; the SHA-256 of ``key`` is the rest.
        key: everything that determines the numbers, in plain values.

    Raises:
        StoreError: another run has the file.
        OSError: it cannot be written.
    """

    def __init__(self, folder: Path, name: str, key: Mapping[str, Any]) -> None:
        self.key = plain_json(key)
        start = re.sub(r"[^\w.+-]+", "_", name)  # a name with a slash stays in the folder
        self.file = folder / f"{start}-{hashlib.sha256(self.key.encode()).hexdigest()[:32]}.jsonl"
        self.batches: dict[int, Any] = {}
        self._stream: IO[bytes] | None = None

    def __enter__(self) -> Self:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self._stream = self.file.open("a+b")
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._stream.close()
            raise StoreError(f"{self.file}: another run is measuring the same: wait for it to end") from error
        self._read(self._stream)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._stream is not None
        self._stream.close()

    def append(self, batch: int, content: Any) -> None:
        """Keep a batch; on return it is on the disk."""
        self._write({"batch": batch, "content": content})
        self.batches[batch] = content

    def _write(self, entry: Mapping[str, Any]) -> None:
        assert self._stream is not None
        text = plain_json(entry)
        self._stream.write(f'["{zlib.crc32(text.encode()):08x}",{text}]\n'.encode())
        self._stream.flush()
        os.fsync(self._stream.fileno())

    def _read(self, stream: IO[bytes]) -> None:
        """Read the intact lines, cut the file after the last of them, and begin it where there is none."""
        stream.seek(0)
        lines = stream.readlines()
        intact = 0
        for number, line in enumerate(lines):
            entry = _intact(line)
            if entry is None or (number == 0 and entry != {"key": self.key}):
                break
            if number:
                self.batches[entry["batch"]] = entry["content"]
            intact += 1
        lost = lines[intact:]
        if lost and (len(lost) > 1 or lost[0].endswith(b"\n")):
            log.warning("%s is damaged at line %d: %d lines are measured anew", self.file, intact + 1, len(lost))
        stream.truncate(sum(map(len, lines[:intact])))
        if not intact:
            self._write({"key": self.key})


def _intact(line: bytes) -> Any:
    """What a line says, or None where it is torn or damaged."""
    text = line[len('["00000000",') : -len("]\n")]
    return json.loads(text) if line == b'["%08x",%b]\n' % (zlib.crc32(text), text) else None


def plain_json(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces; refuses NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def settings_of(value: object, inside: tuple[int, ...] = ()) -> Any:
    """Everything that an explainer or a removal is set to, in plain values: what names its numbers in a store.

    It holds what pickle would, and runs none of it: functions and classes by name, with a hash of their code where they
    are not faithcheck's own (`sources` has those); what a function closes over; tensors and bytes by their hash.

    Raises:
        StoreError: it holds what cannot be written down, an open file say, or itself.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if id(value) in inside:
        raise StoreError(f"a {type(value).__name__} that holds itself cannot be written down, so that nothing names it")
    inside = (*inside, id(value))
    if isinstance(value, Tensor):
        return {"tensor": digest(value)}
    if isinstance(value, bytes):
        return {"bytes": hashlib.sha256(value).hexdigest()}
    if isinstance(value, Mapping):
        return {str(key): settings_of(item, inside) for key, item in value.items()}
    if isinstance(value, frozenset | set):
        return sorted(plain_json(settings_of(item, inside)) for item in value)
    if isinstance(value, list | tuple):
        return [settings_of(item, inside) for item in value]
    if isinstance(value, FunctionType):
        closed = [cell.cell_contents for cell in value.__closure__ or ()]
        return [_named(value), settings_of([closed, value.__defaults__, value.__kwdefaults__], inside)]
    if isinstance(value, type | BuiltinFunctionType):
        return _named(value)
    try:
        reduced = value.__reduce_ex__(2)
    except TypeError as error:
        raise StoreError(f"{value!r:.80} cannot be written down, so that nothing names it: {error}") from error
    return reduced if isinstance(reduced, str) else settings_of(reduced, inside)


def _named(value: Any) -> str:
    """A function's or class's name, and for a stranger's a hash of the file that has it."""
    module = value.__module__ or ""
    theirs = module.partition(".")[0] not in {"faithcheck", "torch", *sys.stdlib_module_names} or module == "__main__"
    return f"{module}.{value.__qualname__}{_code_beside(module) if theirs else ''}"


def _code_beside(module: str) -> str:
    """SHA-256 of a stranger's code: of every module loaded from the folder of its package, or of its own file."""
    top = sys.modules.get(module.partition(".")[0])
    file = getattr(top, "__file__", None)
    if file is None:
        return ""
    folder = Path(file).resolve().parent
    loaded = {Path(found).resolve() for m in list(sys.modules.values()) if (found := getattr(m, "__file__", None))}
    # A single file among the installed packages has strangers beside it.
    beside = [Path(file).resolve()] if folder.name == "site-packages" else [f for f in loaded if folder in f.parents]
    hashed = hashlib.sha256()
    for path in sorted(beside):
        hashed.update(path.read_bytes())
    return f" {hashed.hexdigest()}"


def digest(tensor: Tensor) -> str:
    """SHA-256 of a tensor's dtype, shape and values."""
    content = tensor.detach().cpu().contiguous()
    hashed = hashlib.sha256(f"{content.dtype}{tuple(content.shape)}".encode())
    hashed.update(content.flatten().view(torch.uint8).numpy().data)
    return hashed.hexdigest()


def fingerprint(model: nn.Module) -> str:
    """SHA-256 of a model: its structure, the configuration of every part that has one, and its weights."""
    hashed = hashlib.sha256(repr(model).encode())
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if hasattr(config, "to_dict"):
            # Where it was loaded from does not change it.
            settings = {key: value for key, value in config.to_dict().items() if key != "_name_or_path"}
            hashed.update(json.dumps(settings, sort_keys=True, default=str).encode())
    for name, weight in model.state_dict().items():
        hashed.update(f"{name} {digest(weight)}".encode())
    return hashed.hexdigest()


def sources(*used: Any) -> str:
    """SHA-256 of the code that makes the numbers, so that what other code made is never taken for them.

    Args:
        used: modules; packages, for all of their modules; or classes and functions, for the module that has them.
    """
    hashed = hashlib.sha256()
    for thing in used:
        module = thing if isinstance(thing, ModuleType) else sys.modules[thing.__module__]
        file = Path(str(module.__file__))
        for source in sorted(file.parent.glob("*.py")) if file.name == "__init__.py" else [file]:
            hashed.update(source.name.encode() + source.read_bytes())
    return hashed.hexdigest()
