"""``faithcheck report``: the pages of a document of any kind, or its tables on the terminal."""

import argparse
from pathlib import Path

from faithcheck.cli import output
from faithcheck.cli.arguments import add_file, add_folder, add_pages
from faithcheck.cli.compare import load
from faithcheck.options import OptionError
from faithcheck.options.output_path import check_folder, check_writable
from faithcheck.reports.documents.document import Document

HELP = "make pages from a results document"
DESCRIPTION = "Make pages from the results document of a run; without --md, --html and --figures, print its tables."
EXAMPLE = """example:
  pytest -m invariance --axioms-json=results.json
  faithcheck report results.json --md --html --figures figures
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    meaning = "the JSON of pytest --axioms-json=PATH, or of faithcheck check, align or explain --json"
    add_file(parser, "results", type=Path, help=meaning)
    add_pages(parser)
    meaning = "write every table as CSV and LaTeX (booktabs), and every figure as SVG and PDF, into this folder"
    add_folder(parser, "--figures", type=Path, metavar="DIR", help=meaning)
    meaning = "write the red checks as expectations, with their sizes, for --expectations of a later run"
    add_file(parser, "--known-failures", type=Path, metavar="FILE", help=meaning)
    meaning = "exit with 1 if the document is red, with 3 if a planned check did not run (default: 0)"
    parser.add_argument("--exit-code", action="store_true", help=meaning)


def main(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code: 0; with --exit-code that of the function `exit_code`."""
    from faithcheck.reports.pages import export

    document = load(arguments.results)
    page = export.page_of(document)
    views = {"md": page.to_markdown, "html": page.to_html}
    pages = output.pages(arguments, views, arguments.results, [arguments.results])
    if arguments.figures is not None:
        check_folder(arguments.figures, "--figures")
    if arguments.known_failures is not None:
        pages[arguments.known_failures] = _known_failures(document, arguments.known_failures)
    output.write_pages(pages, document)
    if arguments.figures is not None:
        for path in export.write(arguments.figures, *export.exported(document)):
            print(f"written: {path}")
    elif not pages:
        output.print_for_terminal(page.to_terminal, document)
    return exit_code(document) if arguments.exit_code else 0


def _known_failures(document: Document, path: Path) -> output.View:
    """The view that ``--known-failures`` writes; a document of other checks than axioms has none."""
    from faithcheck.reports import known_failures
    from faithcheck.reports.documents.results import Results

    check_writable(path, "--known-failures")
    if not isinstance(document, Results):
        raise OptionError(f"--known-failures={path}: only the results of check or of pytest have known failures")
    return known_failures.to_toml


def exit_code(document: Document) -> int:
    """The exit code of a job: 0 if everything is as expected, 1 if something is red, 3 without a verdict."""
    from faithcheck.reports.documents import results
    from faithcheck.reports.documents.alignment import Alignment
    from faithcheck.reports.documents.explanation import Explanation

    match document:
        case results.Results():
            return results.NO_VERDICT if results.not_run(document) else results.exit_code(document)
        case Alignment() | Explanation():
            return int(document.is_failed)
    return 0
