"""``faithcheck badge``: a results document as a small SVG."""

import argparse
from pathlib import Path

from faithcheck.cli import output
from faithcheck.cli.arguments import add_file

HELP = "write a badge of a results document, for a README"
DESCRIPTION = """Write a small SVG with the outcome of a results document: "faithcheck 2026.12 | 0 red of 2,932". It is
green only if something was claimed or expected, all of it was measured and nothing is red, and the document is of the
catalogue of this faithcheck and of the commit of the working folder; otherwise it is grey and says why, or red."""
EXAMPLE = """example:
  faithcheck check my_explainers:Mine --json results.json
  faithcheck badge results.json badge.svg
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    meaning = "the JSON of faithcheck check --json or pytest --axioms-json=PATH"
    add_file(parser, "results", type=Path, help=meaning)
    add_file(parser, "svg", type=Path, metavar="SVG", help="the file to write")


def main(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code, 0."""
    from faithcheck import catalogue
    from faithcheck.reports.documents import results
    from faithcheck.reports.documents.environment import environment
    from faithcheck.reports.pages.badge import badge, to_svg

    document = results.load(arguments.results)
    path = output.page_path("SVG", arguments.svg, None, [arguments.results])
    assert path is not None
    now = catalogue.saved()
    content = badge(document, now["version"], now["hash"], environment().get("user_commit"))
    path.write_text(to_svg(content), encoding="utf-8")
    print(f"{content.label} | {content.message}")
    print(f"written: {path}")
    return 0
