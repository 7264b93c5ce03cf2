"""``faithcheck check``: the suite on one explainer or several, without pytest."""

import argparse
from pathlib import Path

from faithcheck.cli import output
from faithcheck.cli.arguments import (
    add_cluster,
    add_device,
    add_file,
    add_pages,
    add_repeatable,
    add_seed,
    add_timeout,
)
from faithcheck.options import OptionError, names
from faithcheck.options.computing import DTYPES, MEANING, refuse_unknown_device, refuse_wrong_cluster
from faithcheck.options.expectations import choose_expectations
from faithcheck.options.user_modules import import_from_current_folder

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
    add_repeatable(parser, "--explainer", "SPEC", "the same, in the way of the other commands and of pytest")
    add_repeatable(parser, "--axiom", "NAME", "only this one (faithcheck axioms); default: those above")
    add_repeatable(parser, "--claim", "NAME", names.meaning_of_claim())
    meaning = "it is your implementation of this built-in explainer, and is held to that one's claims and closed forms"
    parser.add_argument("--like", action="append", default=[], metavar="[SPEC=]NAME", help=meaning)
    add_repeatable(
        parser, "--pairs", "SPEC", "only these: a name, a glob, an entry point, a module with pairs, or module:pair"
    )
    add_file(parser, "--json", type=Path, metavar="PATH", help="write the results document")
    add_pages(parser)
    add_seed(parser, "models and cases")
    add_device(parser)
    parser.add_argument("--dtype", choices=DTYPES, default="float64", help=MEANING)
    add_timeout(parser, "a check that takes longer is red (default: no limit)")
    meaning = "run the checks in a process of their own: a crash or os._exit there is one red check"
    parser.add_argument("--isolate", action="store_true", help=meaning)
    meaning = "known failures, each with its reason: a TOML file, see docs/how_to/known_failures.md"
    add_file(parser, "--expectations", metavar="FILE", help=meaning)
    add_cluster(parser)


def main(arguments: argparse.Namespace) -> int:
    """Run the command and return the verdict's exit code, 130 after Ctrl-C. Names are checked before torch loads."""
    specs = _refuse_wrong_names(arguments)
    refuse_wrong_cluster(arguments)
    from faithcheck.reports.pages import report, terminal

    files = output.files(arguments, {"md": report.to_markdown, "html": report.to_html})
    expectations = choose_expectations(arguments.expectations)
    with output.doing("importing torch and transformers"):
        from transformers.utils import logging as hugging_face

        from faithcheck.check_report import run_checks
        from faithcheck.executors.own_processes import LocalChecks
        from faithcheck.executors.ray.cluster import with_threads
        from faithcheck.options.explainers import isolate
        from faithcheck.options.request import choose_checks, choose_place, choose_settings
        from faithcheck.reports.documents.results import exit_code

        hugging_face.disable_progress_bar()  # type: ignore[no-untyped-call]
        settings = choose_settings(arguments)
    with with_threads(choose_place(arguments)), LocalChecks() as executor:
        with output.doing("planning the checks"):
            if arguments.isolate:
                isolate(executor, specs)
            request, checks = choose_checks(arguments, specs, expectations, settings)
        found, stopped = run_checks(request, checks, executor, ["faithcheck", *arguments.argv])
    files.write(found.document)
    output.print_for_terminal(terminal.render_screen, found.document)
    files.print_paths()
    if files.json is not None:
        print(f"every check: faithcheck report {files.json}")
    elif not files.pages:
        print("every check: add --html PATH, or --json PATH for faithcheck report")
    return output.interrupted("the report holds the checks that ran") if stopped else exit_code(found.document)


def _refuse_wrong_names(arguments: argparse.Namespace) -> list[str]:
    """Refuse names that there are not, before torch is imported. Returns the explainers that are named, each once."""
    import_from_current_folder()
    specs = list(dict.fromkeys([*arguments.explainers, *arguments.explainer]))
    if not specs:
        raise OptionError("name an explainer: faithcheck check my_explainers:Mine (faithcheck explainers lists some)")
    names.refuse_unknown_explainers(specs)
    names.refuse_unknown_likes(arguments.like)
    names.refuse_unknown_axioms(arguments.axiom)
    names.refuse_unknown_claims(arguments.claim)
    names.refuse_unknown_pairs(arguments.pairs, specs)
    refuse_unknown_device(arguments.device)
    return specs
