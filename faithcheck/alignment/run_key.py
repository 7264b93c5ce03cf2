"""The key that names the store of a run: all that determines its numbers, so that others are never taken for them."""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from faithcheck.models.case import digest


class StoreError(RuntimeError):
    """Measurements cannot be stored: no key can be made, or the store cannot be opened or written."""


def plain_json(value: Any) -> str:
    """The canonical JSON text of a value, keys sorted and no spaces; `ValueError` for NaN and infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def state_of(value: object, containers: tuple[int, ...] = ()) -> Any:
    """Everything that determines the numbers of an explainer or a removal, in plain values.

    It holds what pickle would store, and runs none of it. Tensors and bytes are hashed; functions are named, with their
    defaults and closures and, from other packages, a hash of their code (`sources` hashes faithcheck's own).
    `StoreError`: an object cannot be written down, such as an open file, or contains itself.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if id(value) in containers:
        raise StoreError(f"a {type(value).__name__} that contains itself cannot be written down: no store is named")
    containers = (*containers, id(value))
    if isinstance(value, Tensor):
        return {"tensor": digest(value)}
    if isinstance(value, bytes):
        return {"bytes": hashlib.sha256(value).hexdigest()}
    if isinstance(value, Mapping):
        return {str(key): state_of(item, containers) for key, item in value.items()}
    if isinstance(value, frozenset | set):
        return sorted(plain_json(state_of(item, containers)) for item in value)
    if isinstance(value, list | tuple):
        return [state_of(item, containers) for item in value]
    if isinstance(value, FunctionType):
        closed_over = [cell.cell_contents for cell in value.__closure__ or ()]
        return [_name_of(value), state_of([closed_over, value.__defaults__, value.__kwdefaults__], containers)]
    if isinstance(value, type | BuiltinFunctionType):
        return _name_of(value)
    try:
        reduced = value.__reduce_ex__(2)
    except TypeError as error:
        raise StoreError(f"{value!r:.80} cannot be written down, to name its store: {error}") from error
    return reduced if isinstance(reduced, str) else state_of(reduced, containers)


def _name_of(value: Any) -> str:
    """The name of a function or class; for one of another package also a hash of that package's code."""
    module = value.__module__ or ""
    known = module.partition(".")[0] in {"faithcheck", "torch", *sys.stdlib_module_names} and module != "__main__"
    return f"{module}.{value.__qualname__}{'' if known else _code_of_package(module)}"


def _code_of_package(module: str) -> str:
    """SHA-256 of a package's loaded code; of code that is not installed, and may be edited, also what it imports."""
    top = sys.modules.get(module.partition(".")[0])
    file = getattr(top, "__file__", None)
    if file is None:
        return ""
    folder = Path(file).resolve().parent
    files = (getattr(loaded, "__file__", None) for loaded in list(sys.modules.values()))
    # torch.classes has a relative path of no file, which in the current folder would be the user's.
    loaded_files = {Path(name).resolve() for name in files if name and Path(name).is_absolute()}
    # A package of a single file in site-packages: the files beside it belong to other packages.
    single = folder.name == "site-packages"
    of_package = {Path(file).resolve()} if single else {path for path in loaded_files if folder in path.parents}
    hashed = hashlib.sha256()
    for path in sorted(of_package if "site-packages" in folder.parts else _with_imports(of_package, folder)):
        hashed.update(path.read_bytes())
    return f" {hashed.hexdigest()}"


def _with_imports(files: set[Path], folder: Path) -> set[Path]:
    """These files, and those of the folder that they import, also where a function does, which may not have run yet."""
    found, pending = set[Path](), list(files)
    while pending:
        file = pending.pop()
        if file in found or not file.is_file():
            continue
        found.add(file)
        for name in _imported_names(file) if file.suffix == ".py" else ():
            # The package's own name, if the folder is a package's; then the module, or a package and its module.
            parts = name.removeprefix(f"{folder.name}.").split(".")
            for base in (folder, file.parent):
                paths = [base.joinpath(*parts[:count]) for count in range(1, len(parts) + 1)]
                pending += [file for path in paths for file in (path.with_suffix(".py"), path / "__init__.py")]
    return found


def _imported_names(file: Path) -> Iterator[str]:
    """The modules that a file imports, anywhere in its code, and the names that it imports from them."""
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (SyntaxError, ValueError):
        return
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" if node.module else alias.name for alias in node.names)


def digest_of(state: Any) -> str:
    """SHA-256 of plain values."""
    return hashlib.sha256(plain_json(state).encode()).hexdigest()


def arithmetic(of: Any) -> dict[str, object]:
    """What computes: the type and the kind of device of a tensor or a model, the threads, and the versions."""
    versions = {name: importlib.metadata.version(name) for name in ("faithcheck", "torch", "transformers")}
    threads = torch.get_num_threads()
    return {"dtype": str(of.dtype), "device": of.device.type, "threads": threads, "versions": versions}


def states_of(explainers: Mapping[str, object]) -> dict[str, str | None]:
    """A digest of the code and the settings of each explainer, by name; None of one that cannot be written down."""
    states: dict[str, str | None] = {}
    for name, explainer in explainers.items():
        try:
            states[name] = digest_of(state_of(explainer))
        except (StoreError, ValueError):
            states[name] = None
    return states


def fingerprint(model: nn.Module) -> str:
    """SHA-256 of a model: its structure, the configurations of its modules, and its weights."""
    hashed = _hash_of_structure(model)
    for name, weight in model.state_dict().items():
        hashed.update(f"{name} {digest(weight)}".encode())
    return hashed.hexdigest()


def structure(model: nn.Module) -> str:
    """SHA-256 of what a `fingerprint` has besides the values of the weights."""
    hashed = _hash_of_structure(model)
    hashed.update(repr(list(model.state_dict())).encode())
    return hashed.hexdigest()


def _hash_of_structure(model: nn.Module) -> hashlib._Hash:
    hashed = hashlib.sha256(repr(model).encode())
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if hasattr(config, "to_dict"):
            # The path that it was loaded from does not change the model.
            settings = {key: value for key, value in config.to_dict().items() if key != "_name_or_path"}
            hashed.update(json.dumps(settings, sort_keys=True, default=str).encode())
    for file in sorted(_files_of_own_code(model)):
        hashed.update(file.read_bytes())
    return hashed


def _files_of_own_code(model: nn.Module) -> set[Path]:
    """The files of code that a model came with, see `--allow-code`: the version of transformers does not name it."""
    modules = {type(module).__module__ for module in model.modules()}
    own = (sys.modules[name] for name in modules if name.startswith("transformers_modules."))
    return {Path(module.__file__) for module in own if module.__file__}


def sources(*used: Any) -> str:
    """SHA-256 of the code of modules, of packages with all below them, and of the modules of classes and functions."""
    hashed = hashlib.sha256()
    for thing in used:
        module = thing if isinstance(thing, ModuleType) else sys.modules[thing.__module__]
        file = Path(str(module.__file__))
        is_package = file.name == "__init__.py"
        for source in sorted(file.parent.rglob("*.py")) if is_package else [file]:
            hashed.update(source.relative_to(file.parent).as_posix().encode() + source.read_bytes())
    return hashed.hexdigest()
