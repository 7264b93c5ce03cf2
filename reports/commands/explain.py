"""``faithcheck explain``: one explainer's map of one text, as coloured tokens."""

from __future__ import annotations

import argparse

from rich.console import Console

from faithcheck.axioms.alignment.defaults import TABLE_2
from faithcheck.models.pretrained import SENTIMENT
from faithcheck.reports.commands import output
from faithcheck.reports.options.loading import import_from_current_folder
from faithcheck.reports.options.output_path import check_writable
from faithcheck.reports.pages import explanation


def main(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code.

    It is 0; 1 if the explainer left something behind; 2 if the text cannot be explained as asked; 130 after Ctrl-C.

    Raises:
        OptionError: the page cannot be written, or no explainer has this name.
    """
    if arguments.html is not None:
        check_writable(arguments.html, "--html")
    import_from_current_folder()
    if arguments.explainer not in TABLE_2:
        # Not at the top: it imports torch, which takes seconds.
        from faithcheck.reports.options.explainers import refuse_unknown

        refuse_unknown([arguments.explainer])
    return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    """Explain the text, write the page and print the map. An expected error is one line on stderr."""
    from transformers.utils import logging as hugging_face  # not at the top: it takes seconds to import

    from faithcheck.models.pretrained.errors import ModelError
    from faithcheck.models.pretrained.loading import load
    from faithcheck.models.pretrained.text_model import TextModel
    from faithcheck.reports.explanation import ExplainError, choose_explainer, explain
    from faithcheck.reports.options import OptionError

    try:
        hugging_face.disable_progress_bar()  # type: ignore[no-untyped-call]
        model = load(arguments.model or SENTIMENT)
        if not isinstance(model, TextModel):
            raise ExplainError(f"{arguments.model} takes images: faithcheck explain takes a model of text")
        view = explain(
            model, arguments.text, choose_explainer(arguments.explainer), arguments.target, arguments.max_memory
        )
        view["model"] = arguments.model or "the project's own"
        if arguments.html is not None:
            arguments.html.write_text(explanation.to_html(view), encoding="utf-8")
    except (ExplainError, ModelError, OptionError, OSError) as error:
        return output.refuse(error)
    except KeyboardInterrupt:
        return output.interrupted("nothing was written")
    explanation.print_to(Console(highlight=False, emoji=False), view)
    if arguments.html is not None:
        print(f"written: {arguments.html}")
    return 1 if view["left_behind"] else 0
