"""``faithcheck badge``: a results document as a small SVG."""

from __future__ import annotations

import argparse

from faithcheck import catalogue
from faithcheck.cli import output
from faithcheck.reports import results
from faithcheck.reports.badge import badge
from faithcheck.reports.pages.badge import to_svg
from faithcheck.reports.results import ResultsError


def main(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code, 0.

    Raises:
        ResultsError, OptionError, OSError: the document cannot be read, or the file cannot be written.
    """
    document = results.read(arguments.results)
    if kind := document.get("kind"):
        raise ResultsError(
            f"{arguments.results}: a badge is of a run of faithcheck check or pytest, not of {results.KINDS[kind]}"
        )
    document = results.check(document, arguments.results)
    path = output.page_path("SVG", arguments.svg, None, [arguments.results])
    assert path is not None
    content = badge(document, catalogue.saved(), results.environment()["user_commit"])
    path.write_text(to_svg(content), encoding="utf-8")
    print(f"{content['label']} | {content['message']}")
    print(f"written: {path}")
    return 0
