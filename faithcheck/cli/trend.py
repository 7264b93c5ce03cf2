"""``faithcheck trend``: reads the documents of a folder, and shows them over time, as tables or as pages."""

from __future__ import annotations

import argparse

from faithcheck.cli import output
from faithcheck.cli.compare import load
from faithcheck.reports.pages import trend as page
from faithcheck.reports.trend import read_folder, trend

PAGES = {"md": page.to_markdown, "html": page.to_html}


def main(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code, 0.

    Raises:
        ResultsError, OptionError, OSError: there is no document, or a page cannot be written.
    """
    documents, left_out = read_folder(arguments.folder, load)
    files = output.Files(
        None,
        output.pages(arguments, PAGES, arguments.folder / "trend", [arguments.folder / name for name in documents]),
    )
    content = trend(documents, left_out)
    output.print_for_terminal(page.to_terminal, content)
    files.write(content)
    files.print_paths()
    return 0
