"""``faithcheck explain``: explainers' maps of one text beside that of LOO, as coloured words."""

import argparse
import json
import sys
from pathlib import Path

from faithcheck.alignment.defaults import TABLE_2
from faithcheck.cli import output
from faithcheck.cli.arguments import (
    add_allow_code,
    add_device,
    add_file,
    add_folder,
    add_max_memory,
    add_repeatable,
    add_target,
    characters,
)
from faithcheck.models.pretrained.segments import LEVELS
from faithcheck.options import OptionError, names
from faithcheck.options.computing import choose_device, refuse_unknown_device
from faithcheck.options.user_modules import import_from_current_folder

DEFAULT, STDIN = "attnlrp", "-"

HELP = "show explainers' maps of one text beside that of Leave-One-Out"
DESCRIPTION = """Show the maps of one text by one explainer or several, beside that of Leave-One-Out: each word in
colour, red for the explained output and blue against it, with r, the correlation with LOO, the probabilities of the
outputs, and the numbers. The model is loaded as by faithcheck align: a classifier of text, or a decoder, of which the
next token or the log-likelihood of an answer is explained. The row of an explainer that refuses or fails says why. The
exit code is 2 if the text cannot be explained as asked or no explainer is left, and 1 if an explainer left something
behind on the model or in the process."""
EXAMPLE = """examples:
  faithcheck explain 'a gripping, funny film' --explainer attnlrp --explainer ig_mask --html map.html
  faithcheck explain 'The capital of France is' --model FOLDER --target ' Paris' --contrast ' London'
  echo 'a gripping, funny film' | faithcheck explain - --json map.json
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "text", metavar="TEXT", type=characters, help="the text to explain; - reads it from standard input"
    )
    parser.add_argument(
        "--text-pair", metavar="TEXT", type=characters, help="the second text, for a model of pairs of texts"
    )
    meaning = "a folder, a .gguf file or a hub name; default: the project's own 12-layer BERT for sentiment"
    add_folder(parser, "--model", metavar="PATH", help=meaning)
    add_repeatable(parser, "--explainer", "SPEC", "beside LOO, as for align (default: attnlrp)")
    add_target(parser, "the largest output; of a decoder, the answer that it generates")
    meaning = (
        "write TEXT by the chat template of the tokenizer, as the user's message, or as messages if it is a JSON list "
        'such as [{"role": "system", "content": "…"}, …]'
    )
    parser.add_argument("--chat", action="store_true", help=meaning)
    meaning = (
        "sum the maps over the tokens of each part of the text; LOO removes each part as a whole, beside it stands how "
        "far that is from its tokens' sum (default: %(default)s)"
    )
    parser.add_argument("--by", choices=("token", *LEVELS, "role"), default="token", help=meaning)
    add_device(parser)
    add_max_memory(parser)
    add_allow_code(parser)
    add_file(parser, "--json", type=Path, metavar="PATH", help="write the maps, the outputs and the tokens as JSON")
    add_file(parser, "--html", type=Path, metavar="PATH", help="also write an HTML page")


def main(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code, see `DESCRIPTION`; 130 after Ctrl-C."""
    from faithcheck.models.pretrained import SENTIMENT
    from faithcheck.models.pretrained.folder import refuse_wrong_folder
    from faithcheck.reports.pages import explanation

    files = output.files(arguments, {"html": explanation.to_html})
    if arguments.chat and arguments.text_pair is not None:
        raise OptionError("--text-pair is for a model of pairs of texts, and a --chat is one text: give one of the two")
    text = _standard_input() if arguments.text == STDIN else arguments.text
    if not text.strip():
        raise OptionError("the text is empty: give one with at least one word")
    import_from_current_folder()
    names.refuse_unknown_explainers(spec for spec in arguments.explainer if spec not in TABLE_2)
    refuse_unknown_device(arguments.device)
    if arguments.model is not None:
        refuse_wrong_folder(arguments.model)
    outputs = {"--target": arguments.target, "--contrast": arguments.contrast}
    names.refuse_unknown_outputs(arguments.model or SENTIMENT, outputs)
    choose_device(arguments.device)
    return _run(arguments, text, files)


def _standard_input() -> str:
    """The text on standard input."""
    try:
        return sys.stdin.buffer.read().decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise OptionError(
            "the text on standard input is not UTF-8: if it is Latin-1, pipe it through iconv -f latin1 -t utf-8"
        ) from error


def _messages(text: str) -> list[dict[str, str]]:
    """The messages of a chat: those of a JSON list, or the text as that of the user."""
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if isinstance(given, list) and given and all(isinstance(message, dict) for message in given):
        return given
    return [{"role": "user", "content": text}]


def _run(arguments: argparse.Namespace, text: str, files: output.Files) -> int:
    """Explain the text, write the files and print the maps. An expected error is one line on stderr."""
    from transformers.utils import logging as hugging_face  # not at the top: it takes seconds to import

    from faithcheck.alignment.settings import AlignmentSettings, specs_of, table_2
    from faithcheck.explainers.loo.removal import AttentionMask
    from faithcheck.explanation import ExplainError, explain
    from faithcheck.models.pretrained import SENTIMENT
    from faithcheck.models.pretrained.folder import ModelError
    from faithcheck.models.pretrained.loading import load
    from faithcheck.models.pretrained.text_model import TextModel
    from faithcheck.options.explainers import choose_explainers
    from faithcheck.reports.pages import explanation

    try:
        hugging_face.disable_progress_bar()  # type: ignore[no-untyped-call]
        model = load(arguments.model or SENTIMENT, arguments.device, allow_code=arguments.allow_code)
        if not isinstance(model, TextModel):
            raise ExplainError(f"{arguments.model} takes images: faithcheck explain takes a model of text")
        chosen = choose_explainers(
            specs_of(arguments.explainer or [DEFAULT]), table_2(AlignmentSettings(AttentionMask()))
        )
        asked = arguments.target, arguments.contrast, arguments.max_memory
        about = arguments.model or "the project's own", arguments.by, output.doing
        second = arguments.text_pair
        given = _messages(text) if arguments.chat else text if second is None else (text, second)
        document = explain(model, given, chosen, *asked, *about)
        files.write(document)
    except (ExplainError, ModelError, OptionError, OSError) as error:
        return output.refuse(error)
    except KeyboardInterrupt:
        return output.interrupted("nothing was written")
    output.print_for_terminal(explanation.to_terminal, document)
    files.print_paths()
    return int(document.is_failed)
