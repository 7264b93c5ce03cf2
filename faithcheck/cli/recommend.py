"""``faithcheck recommend``: which explainer to take on a model and its texts."""

import argparse
from pathlib import Path

from faithcheck.alignment.defaults import MAX_TOKENS
from faithcheck.cli import output
from faithcheck.cli.alignment_run import refuse_wrong_options, run
from faithcheck.cli.arguments import (
    add_allow_code,
    add_device,
    add_file,
    add_folder,
    add_max_memory,
    add_repeatable,
    add_seed,
    add_target,
    positive_integer,
)

RANKED = (
    *("gradient_x_input", "integrated_gradients", "attention_rollout", "attnlrp", "cplrp"),
    *("mask_gate", "finite_mask_gate", "readout_gate", "grouped_mask_gate", "budgeted_loo"),
)
"""The explainers that are compared unless the user names others."""
LIMIT = 40

HELP = "say which explainer follows Leave-One-Out best on a model"
DESCRIPTION = """Rank explainers on your model and texts by their agreement with Leave-One-Out (LOO), with 95 %
intervals and the cost of each, and say which to use. It is faithcheck align without the perturbation curves, on a few
texts. Every measurement is saved at once: after an interruption, the same command continues. The exit code is 1 if an
explainer failed or left something behind, and 2 if nothing can be measured as asked."""
EXAMPLE = """examples:
  faithcheck recommend FOLDER --data dev.tsv
  faithcheck recommend FILE.gguf --data prompts.jsonl --next-token --limit 12
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("model", metavar="MODEL", help="a folder, a .gguf file or a hub name, as for faithcheck align")
    parser.add_argument("--data", help="the texts or images, as for faithcheck align (default: texts of this project)")
    add_target(parser, "the largest output of each example; of a decoder, the answer that it generates")
    meaning = "of a decoder: explain the logit of the most likely next token, and no answer that it generates"
    parser.add_argument("--next-token", action="store_true", help=meaning)
    meaning = "only the first N examples (default: %(default)s)"
    parser.add_argument("--limit", type=positive_integer, metavar="N", default=LIMIT, help=meaning)
    add_repeatable(parser, "--explainer", "SPEC", "rank these beside LOO: built-in ones, or module:Object")
    add_max_memory(parser)
    add_device(parser)
    add_seed(parser, "intervals")
    add_file(parser, "--json", type=Path, metavar="PATH", help="write the alignment document, for faithcheck report")
    add_folder(parser, "--cache", type=Path, metavar="DIR", help="the folder that keeps measurements as they are made")
    add_allow_code(parser)
    parser.set_defaults(
        # One step removes all features: the curves, which a ranking does not use, cost two rows.
        **{"chunk": MAX_TOKENS, "dtype": "float32", "isolate": False, "explainer_timeout": None},
        **{"plan": False, "parquet": None, "md": None, "html": None},
    )


def main(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code, see `DESCRIPTION`; 130 after Ctrl-C."""
    arguments.explainer = arguments.explainer or [*RANKED]
    refuse_wrong_options(arguments)
    from faithcheck.reports.pages import recommendation

    return run(arguments, output.files(arguments, {}), recommendation.to_terminal)
