"""What ``faithcheck align`` and ``faithcheck recommend`` share: options that are refused early, and the run."""

import argparse
import importlib.util
from collections.abc import Callable

from faithcheck.alignment.defaults import TABLE_2
from faithcheck.cli import output
from faithcheck.options import OptionError, names
from faithcheck.options.computing import refuse_unknown_device
from faithcheck.options.output_path import check_folder
from faithcheck.options.user_modules import import_from_current_folder
from faithcheck.reports.documents.alignment import Alignment

FAILED = 1
"""The exit code if an explainer failed or left something behind; the others are measured."""


def refuse_wrong_options(options: argparse.Namespace) -> None:
    """Refuse options that do not fit together, and names and folders that cannot be used."""
    if options.contrast is not None and options.target is None:
        raise OptionError("--contrast: add --target: an example whose predicted output it is has nothing to explain")
    if options.next_token and options.target is not None:
        raise OptionError("--next-token: leave it out with --target, which says what is explained")
    for name in ("json", "md", "html", "parquet") if options.plan else ():
        if getattr(options, name) is not None:
            raise OptionError(f"--{name}: --plan prints an estimate and writes no file: leave one of the two out")
    _refuse_wrong_names(options)
    for name in ("cache", "parquet"):
        if (folder := getattr(options, name)) is not None:
            check_folder(folder, f"--{name}")
    if options.parquet is not None and importlib.util.find_spec("pyarrow") is None:
        raise OptionError('--parquet needs pyarrow: pip install "faithcheck[datasets]"')


def _refuse_wrong_names(options: argparse.Namespace) -> None:
    from faithcheck.models.data import texts  # not at the top: help needs neither
    from faithcheck.models.pretrained import SENTIMENT
    from faithcheck.models.pretrained.folder import refuse_wrong_folder

    import_from_current_folder()
    names.refuse_unknown_explainers(name for name in options.explainer if name not in TABLE_2)
    refuse_unknown_device(options.device)
    if options.data is not None:
        texts.refuse_wrong_source(options.data, options.limit, of_texts=options.model is None)
    if options.model is not None:
        refuse_wrong_folder(options.model)
    outputs = {"--target": options.target, "--contrast": options.contrast}
    names.refuse_unknown_outputs(options.model or SENTIMENT, outputs)


def run(arguments: argparse.Namespace, files: output.Files, view: Callable[[Alignment, int, bool], str]) -> int:
    """Measure, write the document and its pages, and print a view of it; or print what that will take."""
    from transformers.utils import logging as hugging_face  # not at the top: it takes seconds to import

    from faithcheck.alignment.alignment_plan import plan
    from faithcheck.alignment.measurement import measure
    from faithcheck.alignment.preparation import EXPECTED
    from faithcheck.axioms.measure.error_text import error_text
    from faithcheck.options.request import choose_align_request
    from faithcheck.progress import ProgressByExplainer
    from faithcheck.reports.pages import alignment

    try:
        hugging_face.disable_progress_bar()  # type: ignore[no-untyped-call]
        request = choose_align_request(arguments)
        if arguments.plan:
            output.print_for_terminal(alignment.plan_to_terminal, plan(request))
            return 0
        with ProgressByExplainer("examples") as progress:
            document = measure(request, progress.advance, progress.watch)
        files.write(document)
    except EXPECTED as error:
        return output.refuse(error)
    except KeyboardInterrupt:
        return output.interrupted("the same command continues from the saved measurements")
    except SystemExit as error:  # of a user's module, where nothing is measured: never the exit code of this run
        return output.refuse(OptionError(f"an explainer ended the run: it raised {error_text(error)}"))
    output.print_for_terminal(view, document)
    files.print_paths()
    return FAILED if document.is_failed else 0
