"""``faithcheck align``: Table 2 of the paper on any model of text or images."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import TYPE_CHECKING

from faithcheck.axioms.alignment.defaults import TABLE_2
from faithcheck.axioms.engine.error_text import error_text
from faithcheck.models.data import texts
from faithcheck.reports import results
from faithcheck.reports.commands import output
from faithcheck.reports.options import OptionError
from faithcheck.reports.options.loading import import_from_current_folder
from faithcheck.reports.pages import alignment
from faithcheck.reports.results import Json

if TYPE_CHECKING:
    from faithcheck.reports.alignment_request import AlignRequest

FAILED = 1
"""The exit code of a run in which an explainer failed or left something behind; the others are measured."""


def main(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code.

    It is 0; 1 if an explainer failed or left something behind; 2 if the request cannot be measured; 130 after Ctrl-C.

    Raises:
        OptionError, DataError, OSError: a file or a name is wrong, as far as that shows before the model is loaded.
    """
    files = output.files(arguments, {"md": alignment.to_markdown, "html": alignment.to_html})
    if arguments.model is None and arguments.data is not None:  # the project's own model takes texts
        texts.file_of(arguments.data)
    import_from_current_folder()
    from faithcheck.reports.options.device import choose_device  # not at the top: torch takes seconds to import
    from faithcheck.reports.options.explainers import refuse_unknown

    refuse_unknown([name for name in arguments.explainer if name not in TABLE_2])
    choose_device(arguments.device)
    return _run(arguments, files)


def _run(arguments: argparse.Namespace, files: output.Files) -> int:
    """Measure, write the document and its pages, and print the tables. An expected error is one line on stderr."""
    from transformers.utils import logging as hugging_face  # not at the top: it takes seconds to import

    from faithcheck.reports.alignment_request import EXPECTED, AlignRequest

    try:
        hugging_face.disable_progress_bar()  # type: ignore[no-untyped-call]
        names = {field.name for field in fields(AlignRequest)} & vars(arguments).keys()
        document = _with_progress(AlignRequest(**{name: getattr(arguments, name) for name in names}))
        files.write(document)
    except EXPECTED as error:
        return output.refuse(error)
    except KeyboardInterrupt:
        return output.interrupted("the same command continues from the saved measurements")
    except SystemExit as error:  # of a user's module, where nothing is measured: never the exit code of this run
        return output.refuse(OptionError(f"an explainer ended the run: it raised {error_text(error)}"))
    output.print_for_terminal(alignment.to_terminal, document)
    files.print_paths()
    return FAILED if any(map(results.is_failed, document["explainers"])) else 0


def _with_progress(request: AlignRequest) -> Json:
    """Measure with a progress bar that counts the examples of all explainers together."""
    from faithcheck.reports.alignment_request import measure

    with output.progress_bar() as progress:
        task = progress.add_task("loading", total=None)

        def advance(explainer: str, done: int, total: int) -> None:
            progress.update(task, description=explainer, advance=done, total=total)

        return measure(request, advance)
