"""The ``faithcheck`` command."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from faithcheck.reports import render, terminal
from faithcheck.reports.results import ResultsError, load

EXAMPLE = """example:
  pytest -m invariance --axioms-json=results.json
  faithcheck report results.json --md --html
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 0, or 2 for a bad argument or file."""
    arguments = _parser().parse_args(argv)
    try:
        return _report(arguments)
    except (ResultsError, OSError) as error:
        print(f"faithcheck: {error}", file=sys.stderr)
        return 2


def _report(arguments: argparse.Namespace) -> int:
    results = load(arguments.results)
    pages = [(arguments.md, ".md", render.to_markdown), (arguments.html, ".html", render.to_html)]
    for path, suffix, page in pages:
        if path is not None:
            target = arguments.results.with_suffix(suffix) if path == _BESIDE else path
            if target.resolve() == arguments.results.resolve():
                raise ResultsError(f"{target}: this page would overwrite the results document")
            target.write_text(page(results), encoding="utf-8")
            print(f"written: {target}")
    if arguments.md is None and arguments.html is None:
        print(terminal.render(results, shutil.get_terminal_size().columns, sys.stdout.isatty()), end="")
    return 0


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
    report.add_argument("results", type=Path, help="the JSON that pytest --axioms-json=PATH wrote")
    for flag, page in (("--md", "Markdown"), ("--html", "HTML")):
        what = f"write a {page} page to PATH (default: beside the JSON)"
        report.add_argument(flag, nargs="?", type=Path, const=_BESIDE, metavar="PATH", help=what)
    return parser
