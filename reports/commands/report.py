"""``faithcheck report``: the pages of a results document or an alignment document, or its tables on the terminal."""

from __future__ import annotations

import argparse

from faithcheck.reports import results
from faithcheck.reports.commands import output
from faithcheck.reports.commands.compare import load
from faithcheck.reports.pages import alignment, report, terminal
from faithcheck.reports.results import Json

NOT_RUN = 3
"""The exit code where a planned check did not run: neither green nor red."""


def main(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code: 0; with --exit-code 1 if the document is red, 3 if a check did not run.

    Raises:
        ResultsError, OptionError, OSError: the document cannot be read, or a page cannot be written.
    """
    document = load(arguments.results)
    is_alignment = document.get("kind") == results.ALIGNMENT
    pages = alignment if is_alignment else report
    written = [arguments.results]
    for name, view in (("md", pages.to_markdown), ("html", pages.to_html)):
        beside = arguments.results.with_suffix(f".{name}")
        path = output.page_path(f"--{name}", getattr(arguments, name), beside, written)
        if path is not None:
            path.write_text(view(document), encoding="utf-8")
            print(f"written: {path}")
            written.append(path)
    if len(written) == 1:
        output.print_for_terminal(alignment.to_terminal if is_alignment else terminal.render, document)
    return exit_code(document) if arguments.exit_code else 0


def exit_code(document: Json) -> int:
    """What a job is to end with: 0 if everything is as expected, 1 if something is red, 3 if a check did not run."""
    if document.get("kind") == results.ALIGNMENT:
        return int(any(map(results.is_failed, document["explainers"])))
    return NOT_RUN if results.not_run(document) else int(results.is_red(document))
