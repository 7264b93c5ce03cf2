"""``faithcheck align``: Table 2 of the paper on any model of text or images."""

from __future__ import annotations

import argparse
import importlib.util
from dataclasses import fields
from typing import TYPE_CHECKING

from faithcheck.alignment.defaults import TABLE_2
from faithcheck.axioms.measure.error_text import error_text
from faithcheck.cli import output
from faithcheck.executors.ray.cluster import workers_of
from faithcheck.models.data import texts
from faithcheck.models.pretrained.folder import refuse_wrong_folder
from faithcheck.options import OptionError, names
from faithcheck.options.loading import import_from_current_folder
from faithcheck.options.output_path import check_folder
from faithcheck.reports import results
from faithcheck.reports.pages import alignment

if TYPE_CHECKING:
    from faithcheck.alignment.alignment_request import AlignRequest

FAILED = 1
"""The exit code of a run in which an explainer failed or left something behind; the others are measured."""


def main(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code.

    It is 0; 1 if an explainer failed or left something behind; 2 if the request cannot be measured; 130 after Ctrl-C.

    Raises:
        OptionError, DataError, OSError: a file or a name is wrong, as far as that shows before the model is loaded.
    """
    files = output.files(arguments, {"md": alignment.to_markdown, "html": alignment.to_html})
    _refuse_files_of_a_plan(arguments)
    if arguments.contrast is not None and arguments.target is None:
        raise OptionError("--contrast: add --target: an example whose predicted output it is has nothing to explain")
    if arguments.next_token and arguments.target is not None:
        raise OptionError("--next-token: leave it out with --target, which says what is explained")
    workers_of(arguments)
    if arguments.cache is not None:
        check_folder(arguments.cache, "--cache")
    if arguments.parquet is not None:
        check_folder(arguments.parquet, "--parquet")
        if importlib.util.find_spec("pyarrow") is None:
            raise OptionError('--parquet needs pyarrow: pip install "faithcheck[datasets]"')
    import_from_current_folder()
    names.refuse_unknown_explainers(name for name in arguments.explainer if name not in TABLE_2)
    names.refuse_unknown_device(arguments.device)
    if arguments.data is not None:
        texts.refuse_wrong_source(arguments.data, arguments.limit, of_texts=arguments.model is None)
    if arguments.model is not None:
        refuse_wrong_folder(arguments.model)
    from faithcheck.options.device import choose_device  # not at the top: torch takes seconds to import

    choose_device(arguments.device)
    return _run(arguments, files)


def _refuse_files_of_a_plan(arguments: argparse.Namespace) -> None:
    """Refuse files that nothing is written to.

    Raises:
        OptionError: names the option, and what to leave out.
    """
    of_files = {f"--{name}": getattr(arguments, name) for name in ("json", "md", "html", "parquet")}
    if arguments.plan:
        for option in (name for name, value in of_files.items() if value is not None):
            raise OptionError(f"{option}: --plan prints an estimate and writes no file: leave one of the two out")


def _run(arguments: argparse.Namespace, files: output.Files) -> int:
    """Measure, write the document and its pages, and print the tables. An expected error is one line on stderr."""
    from transformers.utils import logging as hugging_face  # not at the top: it takes seconds to import

    from faithcheck.alignment.alignment_request import EXPECTED, AlignRequest, measure
    from faithcheck.progress_by_explainer import ProgressByExplainer

    try:
        hugging_face.disable_progress_bar()  # type: ignore[no-untyped-call]
        options = {field.name for field in fields(AlignRequest)} & vars(arguments).keys()
        request = AlignRequest(**{name: getattr(arguments, name) for name in options})
        if arguments.plan:
            return _plan(request)
        with ProgressByExplainer("examples") as progress:
            document = measure(request, progress.advance, progress.watch)
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


def _plan(request: AlignRequest) -> int:
    """Print what the alignment will take."""
    from faithcheck.alignment.alignment_plan import plan
    from faithcheck.reports.pages import alignment_plan

    output.print_for_terminal(alignment_plan.to_terminal, plan(request))
    return 0
