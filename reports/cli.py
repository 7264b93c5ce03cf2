"""The ``faithcheck`` command."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from faithcheck.reports import alignment, render, results, terminal
from faithcheck.reports.results import Json, ResultsError

EXAMPLE = """example:
  pytest -m invariance --axioms-json=results.json
  faithcheck report results.json --md --html
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 0, or 2 for a bad argument or file."""
    given = sys.argv[1:] if argv is None else list(argv)
    if given[:1] == ["align"]:
        from faithcheck.reports import align  # when used: torch and transformers take seconds to import

        return align.main(given[1:])
    arguments = _parser().parse_args(given)
    try:
        return _report(arguments)
    except (ResultsError, OSError) as error:
        print(f"faithcheck: {error}", file=sys.stderr)
        return 2


def _report(arguments: argparse.Namespace) -> int:
    document = _load(arguments.results)
    views: Any = alignment if document.get("kind") == alignment.KIND else render
    pages = [(arguments.md, ".md", views.to_markdown), (arguments.html, ".html", views.to_html)]
    for path, suffix, page in pages:
        if path is not None:
            target = arguments.results.with_suffix(suffix) if path == _BESIDE else path
            if target.resolve() == arguments.results.resolve():
                raise ResultsError(f"{target}: this page would overwrite the results document")
            target.write_text(page(document), encoding="utf-8")
            print(f"written: {target}")
    if arguments.md is None and arguments.html is None:
        print_out = alignment.to_terminal if views is alignment else terminal.render
        print(print_out(document, shutil.get_terminal_size().columns, sys.stdout.isatty()), end="")
    return 0


def _load(path: Path) -> Json:
    """The document of a run of the suite or of an alignment."""
    document = results.read(path)
    if document.get("kind") == alignment.KIND:
        return alignment.check(document, path)
    return results.check(document, path)


_BESIDE = Path()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="faithcheck", description="Verify feature-attribution explainers.")
    commands = parser.add_subparsers(metavar="command", required=True)
    report = commands.add_parser(
        "report",
        help="make pages from a results document",
        description="Make pages from the results document of a run; without --md and --html, print its tables.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    report.add_argument("results", type=Path, help="the JSON of pytest --axioms-json=PATH or faithcheck align --json")
    for flag, page in (("--md", "Markdown"), ("--html", "HTML")):
        what = f"write a {page} page to PATH (default: beside the JSON)"
        report.add_argument(flag, nargs="?", type=Path, const=_BESIDE, metavar="PATH", help=what)
    # For the list of commands alone: `main` hands it over before anything is parsed.
    commands.add_parser("align", help="measure how well explainers agree with Leave-One-Out on a model of text")
    return parser
