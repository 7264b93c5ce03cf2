"""The arguments of ``faithcheck check``. Nothing here imports torch, so that help is printed at once."""

from __future__ import annotations

import argparse
from pathlib import Path

from faithcheck.cli.arguments import (
    add_cluster,
    add_file,
    add_pages,
    add_repeatable,
    positive_number,
    seed,
)
from faithcheck.options.claims import CLAIM
from faithcheck.options.dtype import DTYPES, MEANING

HELP = "run the suite on an explainer"
DESCRIPTION = """Run the suite on explainers, without pytest, and print its report. By default every axiom is
measured that the explainer claims or of which something is expected, and the first ones: invariance, generated,
completeness, loo, trace. An axiom that the explainer does not claim is measured and recorded. The equivalence of each
pair of your own is measured too. The exit code is 0 if every claim that was asked for was measured and holds. It is 1
if a check is red: a claim that does not hold or that no check measured, a predicted violation that vanished, an
explainer that raised. It is 2 if the run cannot start as asked, and 3 if there is no verdict, because nothing is
claimed of the explainer: claim something with --claim."""
EXAMPLE = """examples:
  faithcheck check my_explainers:Mine
  faithcheck check my_explainers:Mine --claim completeness --claim gradient
  faithcheck check attnlrp --axiom invariance --pairs 'linear_attention.*' --json attnlrp.json --html
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    meaning = "the explainer: a name of faithcheck explainers, or module:Object; several are checked in one run"
    parser.add_argument("explainers", metavar="SPEC", nargs="*", default=[], help=meaning)
    add_repeatable(parser, "--explainer", "SPEC", "the same, as the other commands and pytest write it")
    add_repeatable(parser, "--axiom", "NAME", "only this one (faithcheck axioms); default: those above")
    add_repeatable(parser, "--claim", "NAME", CLAIM)
    meaning = "it implements this built-in explainer anew, and is held to that one's claims and closed forms"
    parser.add_argument("--like", action="append", default=[], metavar="[SPEC=]NAME", help=meaning)
    add_repeatable(
        parser, "--pairs", "SPEC", "only these: a name, a glob, an entry point, a module with pairs, or module:pair"
    )
    add_file(parser, "--json", type=Path, metavar="PATH", help="write the results document")
    add_pages(parser)
    parser.add_argument("--seed", type=seed, default=0, help="seed of models and cases (default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="torch device (default: %(default)s)")
    parser.add_argument("--dtype", choices=DTYPES, default="float64", help=MEANING)
    meaning = "a check that takes longer is red (default: no limit)"
    parser.add_argument("--explainer-timeout", type=positive_number, metavar="SECONDS", help=meaning)
    meaning = "run the checks in a process of their own: a crash or os._exit there is one red check"
    parser.add_argument("--isolate", action="store_true", help=meaning)
    meaning = "known failures, each with its reason: a TOML file, see docs/how_to/known_failures.md"
    add_file(parser, "--expectations", metavar="FILE", help=meaning)
    add_cluster(parser)
