"""``faithcheck compare``: reads two documents, compares them, prints the comparison and writes it as pages."""

from __future__ import annotations

import argparse
from pathlib import Path

from faithcheck.cli import output
from faithcheck.reports import benchmark, comparison, results
from faithcheck.reports.pages import alignment, explanation, figures
from faithcheck.reports.pages import comparison as page
from faithcheck.reports.results import Json, ResultsError

PAGES = {"md": page.to_markdown, "html": page.to_html}


def main(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code: 0, or 1 on a regression.

    Raises:
        ResultsError, OptionError, OSError: a document cannot be read or compared, or the page cannot be written.
    """
    old, new = load(arguments.old), load(arguments.new)
    files = output.Files(
        None, output.pages(arguments, PAGES, arguments.new, [arguments.old, arguments.new], ".compare")
    )
    compared = comparison.compare(old, new, arguments.threshold, arguments.across_catalogues)
    output.print_for_terminal(page.to_terminal, compared)
    files.write(compared)
    files.print_paths()
    return int(comparison.is_regression(compared))


def load(path: Path) -> Json:
    """Read a document of any kind.

    Raises:
        ResultsError: no such document, or one that this version cannot read. The message names what is wrong in it.
    """
    document = results.read(path)
    if document.get("kind") == results.ALIGNMENT:
        return alignment.check(document, path)
    if document.get("kind") == results.BENCHMARK:
        return benchmark.check(document, path)
    if document.get("kind") == results.EXPLANATION:
        return explanation.check(document, path)
    for figure in results.check(document, path)["figures"]:
        try:
            figures.check(figure)
        except ValueError as error:
            raise ResultsError(f"{path}: damaged results document: {error}") from error
    return document
