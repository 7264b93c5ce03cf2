"""``faithcheck compare``: what changed between two documents, printed and as pages."""

import argparse
from pathlib import Path

from faithcheck.cli import output
from faithcheck.cli.arguments import PAGE, add_file, positive_number
from faithcheck.reports import comparison
from faithcheck.reports.documents.document import Document

HELP = "list what changed between two results documents; exit code 1 on a regression"
DESCRIPTION = """List the changes from one results document to another: other verdicts, changed gaps and correlations,
new or missing records and failed tests, reasons for which more is skipped. The differences between the two runs
(seed, dtype, device, data, explainers, versions) come first, as they may explain the changes.

The exit code is 1 on a regression, which is one of these changes and no other:
  - a record that was green and is red;
  - a record that is red, and was skipped or missing;
  - a record that was not skipped, and is skipped or missing now, whatever its verdict was;
  - a failed test that left no red record, and did not fail before.
It is 2 for a file that cannot be read or compared, and 0 otherwise. Two documents of different catalogues are not
compared unless you ask for it: see --across-catalogues. A changed magnitude is listed and is no regression."""
EXAMPLE = """example:
  faithcheck compare main.json branch.json --md comment.md && echo no regression
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_file(parser, "old", type=Path, help="the JSON to compare with, of the suite or of faithcheck align")
    add_file(parser, "new", type=Path, help="the JSON to judge")
    comment = "also write Markdown that fits a pull-request comment (default: NEW.compare.md)"
    add_file(parser, "--md", help=comment, **PAGE)
    add_file(parser, "--html", help="also write an HTML page with every change (default: NEW.compare.html)", **PAGE)
    default = comparison.THRESHOLD
    meaning = "the largest change of a gap (relative to the larger one) or correlation that is not listed"
    meaning = f"{meaning} (default: {default})"
    parser.add_argument("--threshold", type=positive_number, default=default, metavar="X", help=meaning)
    meaning = "documents of two catalogues: compare what is the same in both, see docs/reference/catalogue.md"
    parser.add_argument("--across-catalogues", action="store_true", help=meaning)


def main(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code: 0, or 1 on a regression."""
    from faithcheck.reports.pages import comparison as page

    old, new = load(arguments.old), load(arguments.new)
    views = {"md": page.to_markdown, "html": page.to_html}
    pages = output.pages(arguments, views, arguments.new, [arguments.old, arguments.new], ".compare")
    compared = comparison.compare(old, new, arguments.threshold, arguments.across_catalogues)
    output.print_for_terminal(page.to_terminal, compared)
    output.write_pages(pages, compared)
    return int(bool(compared.regressions))


def load(path: Path) -> Document:
    """Read a document of any kind; `DocumentError` says what is wrong in it."""
    from faithcheck.reports.documents import document
    from faithcheck.reports.documents.alignment import Alignment
    from faithcheck.reports.documents.explanation import Explanation
    from faithcheck.reports.documents.results import Results

    return document.load(path, Results, Alignment, Explanation)
