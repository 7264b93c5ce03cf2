"""The output of commands: files, the terminal, a progress bar, errors and exit codes. Nothing here imports torch."""

import argparse
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from faithcheck.axioms.measure.error_text import error_text, traceback_text
from faithcheck.cli.arguments import BESIDE
from faithcheck.options import OptionError
from faithcheck.options.output_path import check_writable
from faithcheck.reports.documents.document import Document, save
from faithcheck.reports.pages.visible import visible

REFUSED, CRASHED, INTERRUPTED, UNREAD = 2, 70, 130, 141
"""The exit codes if a request cannot be carried out, after an error that no command expects (EX_SOFTWARE in
``sysexits.h``), after Ctrl-C, and if the reader of the output has ended (128 + SIGPIPE, as in a shell)."""
REPORT_IT = "this is a defect of faithcheck or of a library; report it to faithcheck's maintainers with the lines above"

LONG = 5.0
"""What takes more seconds is said where there is no terminal, too."""

Content = TypeVar("Content")
View = Callable[[Any], str]


@dataclass(frozen=True)
class Files:
    """The files that a command writes: the results document and its pages."""

    json: Path | None  # the path of the document, or None
    pages: Mapping[Path, View]  # for each path the function that makes the page from the document

    def write(self, document: Document) -> None:
        """Write the document and its pages."""
        if self.json is not None:
            save(document, self.json)
        for path, view in self.pages.items():
            path.write_text(view(document), encoding="utf-8")

    def print_paths(self) -> None:
        """Print the path of each written file."""
        for path in (self.json, *self.pages):
            if path is not None:
                print(f"written: {path}")


def write_pages(pages: Mapping[Path, View], content: object) -> None:
    """Write pages made from the content, and print their paths."""
    for path, view in pages.items():
        path.write_text(view(content), encoding="utf-8")
        print(f"written: {path}")


def files(arguments: argparse.Namespace, views: Mapping[str, View]) -> Files:
    """The files of ``--json``, ``--md`` and ``--html``, checked before the run; ``views`` makes the pages."""
    if arguments.json is not None:
        check_writable(arguments.json, "--json")
    return Files(arguments.json, pages(arguments, views, arguments.json, [*filter(None, [arguments.json])]))


def pages(
    arguments: argparse.Namespace,
    views: Mapping[str, View],
    beside: Path | None,
    taken: Iterable[Path],
    suffix: str = "",
) -> dict[Path, View]:
    """The pages of ``--md`` and ``--html``: for each path the function that makes the page.

    A page without a path is written ``beside`` a file, with the suffix before the ending, such as ``.compare``.
    """
    found: dict[Path, View] = {}
    for name, view in views.items():
        default = beside and beside.with_suffix(f"{suffix}.{name}")
        path = page_path(f"--{name}", getattr(arguments, name), default, [*taken, *found])
        if path is not None:
            found[path] = view
    return found


def page_path(option: str, path: Path | None, beside: Path | None, taken: Iterable[Path]) -> Path | None:
    """The path of a page, which can be written and is not in ``taken``; None without the option.

    ``beside`` is its path if the option names none; None if the option must name one.
    """
    if path is None:
        return None
    if path == BESIDE:
        if beside is None:
            raise OptionError(f"{option} needs a path where there is no --json to write it beside")
        path = beside
    check_writable(path, option)
    if path.resolve() in {other.resolve() for other in taken}:
        raise OptionError(f"{option}={path} would overwrite another file of this command")
    return path


def print_for_terminal(view: Callable[[Content, int, bool], str], content: Content) -> None:
    """Print text as wide as the terminal, in colour if stdout is one."""
    print(view(content, shutil.get_terminal_size().columns, sys.stdout.isatty()), end="")


@contextmanager
def doing(what: str, seconds: float = 0.0) -> Iterator[None]:
    """Show on a terminal what is being done while the block runs, and for how long; elsewhere say what takes long."""
    from rich.console import Console  # not at the top: help is printed without Rich
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal and seconds > LONG:
        print(visible(f"faithcheck: {what}"), file=sys.stderr, flush=True)
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        shown.add_task(f"{what} …")
        yield


def refuse(error: Exception) -> int:
    """Print on stderr why a request cannot be carried out. Returns the exit code."""
    print(visible(f"faithcheck: {error}"), file=sys.stderr)
    return REFUSED


def crashed(error: BaseException) -> int:
    """Print on stderr the traceback of an unexpected error, and what to do. Returns the exit code."""
    print(visible(traceback_text(error)), file=sys.stderr)
    print(visible(f"faithcheck: unexpected {' '.join(error_text(error).split())}: {REPORT_IT}"), file=sys.stderr)
    return CRASHED


def interrupted(hint: str) -> int:
    """Print on stderr that the user stopped the command, with a hint. Returns the exit code."""
    print(f"faithcheck: interrupted; {hint}", file=sys.stderr)
    return INTERRUPTED
