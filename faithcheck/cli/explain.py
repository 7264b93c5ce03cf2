"""``faithcheck explain``: explainers' maps of one text beside that of LOO, as coloured words."""

from __future__ import annotations

import argparse
import sys

from faithcheck.alignment.defaults import TABLE_2
from faithcheck.cli import output
from faithcheck.models.pretrained import SENTIMENT
from faithcheck.models.pretrained.folder import refuse_wrong_folder
from faithcheck.options import OptionError, names
from faithcheck.options.loading import import_from_current_folder
from faithcheck.reports.pages import explanation

DEFAULT, STDIN = "attnlrp", "-"


def main(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code.

    It is 0; 1 if an explainer left something behind; 2 if the text cannot be explained as asked; 130 after Ctrl-C.

    Raises:
        OptionError: the text cannot be read, a file cannot be written, there is no such device, or no explainer has
            this name.
    """
    files = output.files(arguments, {"html": explanation.to_html})
    text = _standard_input() if arguments.text == STDIN else arguments.text
    import_from_current_folder()
    names.refuse_unknown_explainers(spec for spec in arguments.explainer if spec not in TABLE_2)
    names.refuse_unknown_device(arguments.device)
    if arguments.model is not None:
        refuse_wrong_folder(arguments.model)
    from faithcheck.options.device import choose_device  # not at the top: torch takes seconds to import

    choose_device(arguments.device)
    return _run(arguments, text, files)


def _standard_input() -> str:
    """The text on standard input.

    Raises:
        OptionError: it is not UTF-8.
    """
    try:
        return sys.stdin.buffer.read().decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise OptionError(
            "the text on standard input is not UTF-8: if it is Latin-1, pipe it through iconv -f latin1 -t utf-8"
        ) from error


def _run(arguments: argparse.Namespace, text: str, files: output.Files) -> int:
    """Explain the text, write the files and print the maps. An expected error is one line on stderr."""
    from transformers.utils import logging as hugging_face  # not at the top: it takes seconds to import

    from faithcheck.explanation import ExplainError, choose_explainers, explain
    from faithcheck.models.pretrained.folder import ModelError
    from faithcheck.models.pretrained.loading import load
    from faithcheck.models.pretrained.text_model import TextModel

    try:
        hugging_face.disable_progress_bar()  # type: ignore[no-untyped-call]
        model = load(arguments.model or SENTIMENT, arguments.device, allow_code=arguments.allow_code)
        if not isinstance(model, TextModel):
            raise ExplainError(f"{arguments.model} takes images: faithcheck explain takes a model of text")
        chosen = choose_explainers(arguments.explainer or [DEFAULT])
        document = explain(model, text, chosen, arguments.target, arguments.contrast, arguments.max_memory)
        document["model"] = arguments.model or "the project's own"
        files.write(document)
    except (ExplainError, ModelError, OptionError, OSError) as error:
        return output.refuse(error)
    except KeyboardInterrupt:
        return output.interrupted("nothing was written")
    output.print_for_terminal(explanation.to_terminal, document)
    files.print_paths()
    return int(any(row["left_behind"] for row in document["maps"]))
