"""``faithcheck report``: the pages of a document of any kind, or its tables on the terminal."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from faithcheck.cli import output
from faithcheck.cli.arguments import add_file, add_folder, add_pages
from faithcheck.cli.compare import load
from faithcheck.options.output_path import check_folder
from faithcheck.reports import results
from faithcheck.reports.results import Json

HELP = "make pages from a results document"
DESCRIPTION = "Make pages from the results document of a run; without --md, --html and --figures, print its tables."
EXAMPLE = """example:
  pytest -m invariance --axioms-json=results.json
  faithcheck report results.json --md --html --figures figures
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    meaning = "the JSON of pytest --axioms-json=PATH, of faithcheck check, align or explain --json, or of make bench"
    add_file(parser, "results", type=Path, help=meaning)
    add_pages(parser)
    meaning = "write every table as CSV and LaTeX (booktabs), and every figure as SVG and PDF, into this folder"
    add_folder(parser, "--figures", type=Path, metavar="DIR", help=meaning)
    meaning = "exit with 1 if the document is red, with 3 if a planned check did not run (default: 0)"
    parser.add_argument("--exit-code", action="store_true", help=meaning)


def main(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code: 0; with --exit-code that of the function `exit_code`.

    Raises:
        ResultsError, OptionError, OSError: the document cannot be read, or a page cannot be written.
    """
    from faithcheck.reports.pages import export
    from faithcheck.reports.pages.exported import exported

    document = load(arguments.results)
    to_markdown, to_html, to_terminal = _views(document.get("kind"))
    views = {"md": to_markdown, "html": to_html}
    files = output.Files(None, output.pages(arguments, views, arguments.results, [arguments.results]))
    if arguments.figures is not None:
        check_folder(arguments.figures, "--figures")
    files.write(document)
    files.print_paths()
    if arguments.figures is not None:
        for path in export.write(arguments.figures, *exported(document)):
            print(f"written: {path}")
    elif not files.pages:
        output.print_for_terminal(to_terminal, document)
    return exit_code(document) if arguments.exit_code else 0


def _views(kind: str | None) -> tuple[output.View, output.View, Callable[[Json, int, bool], str]]:
    """What makes the Markdown page, the HTML page and the text for a terminal of this kind of document."""
    from faithcheck.reports.pages import alignment, benchmark, explanation, report, terminal

    if kind is None:
        return report.to_markdown, report.to_html, terminal.render
    page = {results.ALIGNMENT: alignment, results.BENCHMARK: benchmark, results.EXPLANATION: explanation}[kind]
    return page.to_markdown, page.to_html, page.to_terminal


def exit_code(document: Json) -> int:
    """What a job is to end with: 0 if everything is as expected, 1 if something is red, 3 without a verdict."""
    if document.get("kind") == results.BENCHMARK:
        return 0
    if document.get("kind") == results.ALIGNMENT:
        return int(any(map(results.is_failed, document["explainers"])))
    if document.get("kind") == results.EXPLANATION:
        return int(any(row["left_behind"] for row in document["maps"]))
    return results.NO_VERDICT if results.not_run(document) else results.exit_code(document)
