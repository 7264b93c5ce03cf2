"""``faithcheck trend``: the documents of a folder over time, as tables or as pages."""

import argparse
from pathlib import Path

from faithcheck.cli import output
from faithcheck.cli.arguments import add_folder, add_pages

HELP = "show the results documents of a folder over time"
DESCRIPTION = """Read every JSON document of a folder, and of the folders in it, and show verdicts, gaps, agreement with
Leave-One-Out and cost run by run, by commit, the oldest first. Files that cannot be read are named and left out. Runs
of different catalogues are shown as such. The exit code is 0, whatever the documents say."""
EXAMPLE = """example:
  faithcheck check my_explainers:Mine --json "results/$(git rev-parse --short HEAD).json"
  faithcheck trend results --html trend.html
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_folder(parser, "folder", type=Path, metavar="FOLDER", help="with the JSON of check, pytest and align")
    add_pages(parser, "FOLDER/trend")


def main(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code, 0."""
    from faithcheck.cli.compare import load
    from faithcheck.reports.pages import trend as page
    from faithcheck.reports.trend import read_folder, trend

    views = {"md": page.to_markdown, "html": page.to_html}
    documents, left_out = read_folder(arguments.folder, load)
    read = [arguments.folder / name for name in documents]
    pages = output.pages(arguments, views, arguments.folder / "trend", read)
    content = trend(documents, left_out)
    output.print_for_terminal(page.to_terminal, content)
    output.write_pages(pages, content)
    return 0
