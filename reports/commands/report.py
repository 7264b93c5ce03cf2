"""``faithcheck report``: the pages of a results document or an alignment document, or its tables on the terminal."""

from __future__ import annotations

import argparse

from faithcheck.reports import results
from faithcheck.reports.commands import output
from faithcheck.reports.commands.compare import load
from faithcheck.reports.pages import alignment, report, terminal


def main(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code, 0.

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
    return 0
