"""The modules of the user that options name: their source before they are imported, and their import.

Imports are slow, so a mistake that the source shows is refused at once. A failed import shows the user's frames alone.
"""

import ast
import os
import re
import sys
import traceback
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from importlib.metadata import requires
from pathlib import Path
from typing import TypeVar

import faithcheck.explainers
from faithcheck.models.unknown_name import unknown_name
from faithcheck.options import OptionError

T = TypeVar("T")
LISTED = 6
"""The most names of a file that a message lists."""


def import_from_current_folder() -> None:
    """Make the current folder importable, as ``python -m pytest`` does: plain ``pytest`` in importlib mode does not."""
    folder = os.getcwd()
    if not any(os.path.abspath(entry) == folder for entry in sys.path):
        sys.path.insert(0, folder)


def loaded(option: str, load: Callable[[], T]) -> T:
    """Call ``load``, which imports a module that the user named; an error in it has the user's frames alone."""
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


# --- the source ------------------------------------------------------------------------------------------------------


def find_module(module: str) -> ModuleSpec | None:
    """Where a module is, found without an import of the packages around it; None if there is none."""
    found, places, name = None, None, ""
    for part in module.split("."):
        if not part.isidentifier():
            return None
        name = f"{name}.{part}" if name else part
        specs = (finder.find_spec(name, places) for finder in sys.meta_path if hasattr(finder, "find_spec"))
        found = next((spec for spec in specs if spec is not None), None)
        if found is None:
            return None
        places = list(found.submodule_search_locations or ())
    return found


def module_of_file(file: Path) -> str:
    """The name under which a file of the current folder is imported: ``my_pairs`` of ``./my_pairs.py``."""
    return ".".join(file.with_suffix("").parts)


def refuse_wrong_object(option: str, module: str, path: str) -> None:
    """Refuse an object that the source of a module does not define."""
    tree = checked_source(option, module)
    names = defined(tree) if tree is not None else None
    if names is not None and path.split(".")[0] not in names:
        public = [name for name in names if not name.startswith("_")]
        raise OptionError(f"{option}: {unknown_name(f'object in {module}', path, public)}")


def checked_source(option: str, module: str) -> ast.Module | None:
    """The parsed source of a module, whose imports are installed; None if it is not in Python."""
    spec = find_module(module)
    if spec is None:
        library = module.split(".")[0]
        where = (
            f"in {library}"
            if find_module(library) is not None
            else f"in {Path.cwd()}, nor is it installed{_by(library)}"
        )
        raise OptionError(f"{option}: there is no module {module} {where}")
    if not spec.has_location or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    try:
        tree = ast.parse(Path(spec.origin).read_bytes())
    except (SyntaxError, ValueError) as error:
        at = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        what = error.msg if isinstance(error, SyntaxError) else error
        raise OptionError(f"{option}: mend {spec.origin}{at}: it cannot be parsed: {what}") from error
    for line, library in _imported(tree):
        if find_module(library) is None:
            raise OptionError(
                f"{option}: {spec.origin}, line {line} imports {library}, which is not installed{_by(library)}"
            )
    return tree


def defined(tree: ast.Module) -> list[str] | None:
    """The names at the top of a module, classes and functions first; None if a statement there may define others."""
    objects, others = [], []
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                objects.append(name)
            case ast.Import(names=names) | ast.ImportFrom(names=names) if all(one.name != "*" for one in names):
                others += [one.asname or one.name.split(".")[0] for one in names]
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                others.append(name)
            case ast.Assign(targets=[ast.Attribute()]) | ast.Expr(value=ast.Constant()):
                pass  # mended.claims = {…}; a docstring
            case _:
                return None
    return [*objects, *others]


def objects_in(file: Path) -> str:
    """The public classes and functions at the top of a file, in words for a message; empty if there are none."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ""
    kinds = (ast.ClassDef, ast.FunctionDef)
    names = [node.name for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")]
    return ", ".join(names[:LISTED]) + (" …" if len(names) > LISTED else "")


def extra_of(library: str) -> str | None:
    """The extra of faithcheck that installs a library; None if none does."""
    extras = [
        re.search(rf'^{re.escape(library)}\b.*extra == "(\w+)"', requirement, re.IGNORECASE)
        for requirement in requires("faithcheck") or ()
    ]
    return next((found[1] for found in extras if found is not None), None)


def install(library: str) -> str:
    """The command that installs a library."""
    extra = extra_of(library)
    return f'pip install "faithcheck[{extra}]"' if extra else f"pip install {library}"


def _by(library: str) -> str:
    return f": {install(library)}" if extra_of(library) else ""


def _imported(tree: ast.Module) -> list[tuple[int, str]]:
    """The packages that a module imports whatever happens, each with its line."""
    return [
        (node.lineno, name.split(".")[0])
        for node in tree.body
        for name in (
            [one.name for one in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom) and not node.level
            else []
        )
    ]
