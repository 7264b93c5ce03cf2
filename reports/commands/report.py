"""``faithcheck report``: the pages of a document of any kind, or its tables on the terminal."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from faithcheck.reports import results
from faithcheck.reports.commands import output
from faithcheck.reports.commands.compare import load
from faithcheck.reports.pages import alignment, benchmark, report, terminal
from faithcheck.reports.results import Json

PAGES: dict[str | None, tuple[output.View, output.View, Callable[[Json, int, bool], str]]] = {
    None: (report.to_markdown, report.to_html, terminal.render),
    results.ALIGNMENT: (alignment.to_markdown, alignment.to_html, alignment.to_terminal),
    results.BENCHMARK: (benchmark.to_markdown, benchmark.to_html, benchmark.to_terminal),
}
"""The Markdown page, the HTML page and the text for a terminal of each kind of document."""
NOT_RUN = 3
"""The exit code where a planned check did not run: neither green nor red."""


def main(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code: 0; with --exit-code 1 if the document is red, 3 if a check did not run.

    Raises:
        ResultsError, OptionError, OSError: the document cannot be read, or a page cannot be written.
    """
    document = load(arguments.results)
    to_markdown, to_html, to_terminal = PAGES[document.get("kind")]
    written = [arguments.results]
    for name, view in (("md", to_markdown), ("html", to_html)):
        beside = arguments.results.with_suffix(f".{name}")
        path = output.page_path(f"--{name}", getattr(arguments, name), beside, written)
        if path is not None:
            path.write_text(view(document), encoding="utf-8")
            print(f"written: {path}")
            written.append(path)
    if len(written) == 1:
        output.print_for_terminal(to_terminal, document)
    return exit_code(document) if arguments.exit_code else 0


def exit_code(document: Json) -> int:
    """What a job is to end with: 0 if everything is as expected, 1 if something is red, 3 if a check did not run."""
    if document.get("kind") == results.BENCHMARK:
        return 0
    if document.get("kind") == results.ALIGNMENT:
        return int(any(map(results.is_failed, document["explainers"])))
    return NOT_RUN if results.not_run(document) else int(results.is_red(document))
