"""``faithcheck report``: the pages of a document of any kind, or its tables on the terminal."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from faithcheck.cli import output
from faithcheck.cli.compare import load
from faithcheck.options.output_path import check_folder
from faithcheck.reports import results
from faithcheck.reports.pages import alignment, benchmark, explanation, export, report, terminal
from faithcheck.reports.pages.exported import exported
from faithcheck.reports.results import Json

PAGES: dict[str | None, tuple[output.View, output.View, Callable[[Json, int, bool], str]]] = {
    None: (report.to_markdown, report.to_html, terminal.render),
    results.ALIGNMENT: (alignment.to_markdown, alignment.to_html, alignment.to_terminal),
    results.BENCHMARK: (benchmark.to_markdown, benchmark.to_html, benchmark.to_terminal),
    results.EXPLANATION: (explanation.to_markdown, explanation.to_html, explanation.to_terminal),
}
"""The Markdown page, the HTML page and the text for a terminal of each kind of document."""


def main(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code: 0; with --exit-code that of the function `exit_code`.

    Raises:
        ResultsError, OptionError, OSError: the document cannot be read, or a page cannot be written.
    """
    document = load(arguments.results)
    to_markdown, to_html, to_terminal = PAGES[document.get("kind")]
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


def exit_code(document: Json) -> int:
    """What a job is to end with: 0 if everything is as expected, 1 if something is red, 3 without a verdict."""
    if document.get("kind") == results.BENCHMARK:
        return 0
    if document.get("kind") == results.ALIGNMENT:
        return int(any(map(results.is_failed, document["explainers"])))
    if document.get("kind") == results.EXPLANATION:
        return int(any(row["left_behind"] for row in document["maps"]))
    return results.NO_VERDICT if results.not_run(document) else results.exit_code(document)
