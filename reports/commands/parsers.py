"""The parsers of the commands: arguments and help. Nothing here imports torch, so that help is printed at once."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import shtab

from faithcheck.reports import comparison, results
from faithcheck.reports.commands import align_options
from faithcheck.reports.commands.arguments import (
    FITS,
    MAX_MEMORY,
    PAGE,
    add_file,
    add_pages,
    add_repeatable,
    positive_number,
    seed,
)

SHELLS = ("bash", "zsh", "fish")

DESCRIPTION = "Verify feature-attribution explainers."
EXAMPLE = """examples:
  faithcheck check my_explainers:Mine --pairs 'linear_attention.*'
  faithcheck COMMAND --help          the help of a command, with an example
  faithcheck --print-completion bash > ~/.local/share/bash-completion/completions/faithcheck
  faithcheck --print-completion zsh > ~/.zfunc/_faithcheck         (a folder of your fpath)
  faithcheck --print-completion fish > ~/.config/fish/completions/faithcheck.fish

exit codes:
  0    done; nothing is red, and there is no regression
  1    check, report --exit-code: something is red; compare: a regression; align: an explainer failed or left
       something behind; explain: it left something behind
  2    the request cannot be carried out: an argument, a file or a model is wrong; one line says which
  3    report --exit-code: a planned check did not run
  70   unexpected error, a defect: the traceback is on stderr
  130  interrupted (Ctrl-C)
  141  the reader of the output ended before it
"""


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    top = argparse.ArgumentParser(
        prog="faithcheck",
        description=DESCRIPTION,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"faithcheck {results.version()}")
    top.add_argument("--print-completion", action=_PrintCompletion, choices=SHELLS, help="print a completion script")
    commands = top.add_subparsers(metavar="COMMAND", dest="command", required=True)
    _add_check(commands)
    _add_explain(commands)
    _add_align(commands)
    _add_report(commands)
    _add_compare(commands)
    for name, example in {
        "pairs": "faithcheck pairs 'linear_attention.*'",
        "explainers": "faithcheck explainers | cut -f1",
        "axioms": "faithcheck axioms",
    }.items():
        listing = _command(
            commands,
            name,
            "listing",
            f"list the {name}, one a line",
            f"List the {name}: a table on a terminal; in a pipe a line each, columns separated by tabs, names first.",
            f"example:\n  {example}",
        )
        listing.add_argument("glob", nargs="?", help="only the names that match, such as 'batch*'")
    return top


class _PrintCompletion(argparse.Action):
    """Print a completion script and end."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: object, value: object, option: object = None
    ) -> None:
        print(shtab.complete(parser, shell=str(value)))
        parser.exit()


def _command(
    commands: Any,
    name: str,
    module: str,
    help_: str,
    description: str,
    epilog: str,
) -> argparse.ArgumentParser:
    """Add a command that ``main`` of this module of `faithcheck.reports.commands` runs."""
    added: argparse.ArgumentParser = commands.add_parser(
        name, help=help_, description=description, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    added.set_defaults(module=module)
    return added


def _add_align(commands: Any) -> None:
    meaning = "measure how well explainers agree with Leave-One-Out on a model of text or images"
    align_options.add_options(
        _command(commands, "align", "align", meaning, align_options.DESCRIPTION, align_options.EXAMPLE)
    )


def _add_report(commands: Any) -> None:
    add = _command(
        commands,
        "report",
        "report",
        "make pages from a results document",
        "Make pages from the results document of a run; without --md and --html, print its tables.",
        "example:\n  pytest -m invariance --axioms-json=results.json\n  faithcheck report results.json --md --html\n",
    )
    meaning = "the JSON of pytest --axioms-json=PATH, faithcheck check --json, faithcheck align --json or make bench"
    add_file(add, "results", type=Path, help=meaning)
    add_pages(add)
    meaning = "exit with 1 if the document is red, with 3 if a planned check did not run (default: 0)"
    add.add_argument("--exit-code", action="store_true", help=meaning)


COMPARE = """List the changes from one results document to another: other verdicts, changed gaps and correlations,
new or missing records and failed tests, reasons for which more is skipped. The differences between the two runs
(seed, dtype, device, data, explainers, versions) come first, as they may explain the changes.

The exit code is 1 on a regression, which is one of these changes and no other:
  - a record that was green and is red;
  - a record that is red, and was skipped or missing;
  - a record that was not skipped, and is skipped or missing now, whatever its verdict was;
  - a failed test that left no red record, and did not fail before.
It is 2 for a file that cannot be read or compared, and 0 otherwise. A changed magnitude is listed, and of two
benchmarks every ratio that is slower or faster beyond both intervals; neither is a regression."""


def _add_compare(commands: Any) -> None:
    add = _command(
        commands,
        "compare",
        "compare",
        "list what changed between two results documents; exit code 1 on a regression",
        COMPARE,
        "example:\n  faithcheck compare main.json branch.json --md comment.md && echo no regression\n",
    )
    add_file(add, "old", type=Path, help="the JSON to compare with, of the suite, faithcheck align or make bench")
    add_file(add, "new", type=Path, help="the JSON to judge")
    add_file(add, "--md", help="also write Markdown for a pull-request comment (default: NEW.compare.md)", **PAGE)
    meaning = "the largest change of a gap (relative to the larger one) or a correlation that is not listed (default: "
    add.add_argument(
        "--threshold", type=positive_number, default=comparison.THRESHOLD, metavar="X", help=meaning + "%(default)s)"
    )


CHECK = """Run the suite on one explainer, without pytest, and print its report. By default every axiom is measured that
the explainer claims or of which something is expected, and the first ones: invariance, generated, completeness, loo,
trace. An axiom that the explainer does not claim is measured and recorded. The exit code is 1 if a check is red (a
claim that does not hold, a predicted violation that vanished, an explainer that raised), or if a claim was measured
nowhere and neither --axiom nor --pairs asked for a part; it is 2 if the run cannot start as asked."""


def _add_check(commands: Any) -> None:
    add = _command(
        commands,
        "check",
        "check",
        "run the suite on an explainer",
        CHECK,
        "examples:\n  faithcheck check my_explainers:Mine\n"
        "  faithcheck check attnlrp --axiom invariance --pairs 'linear_attention.*' --json attnlrp.json --html\n",
    )
    add.add_argument("explainer", metavar="SPEC", help="a name of faithcheck explainers, or module:Object")
    add_repeatable(add, "--axiom", "NAME", "only this one (faithcheck axioms); default: those above")
    meaning = "it implements this built-in explainer anew, and is held to that one's claims and closed forms"
    add.add_argument("--like", action="append", default=[], metavar="NAME", help=meaning)
    add_repeatable(
        add, "--pairs", "SPEC", "only these: a name, a glob, an entry point, or a module that registers pairs"
    )
    add_file(add, "--json", type=Path, metavar="PATH", help="write the results document")
    add_pages(add)
    add.add_argument("--seed", type=seed, default=0, help="seed of models and cases (default: %(default)s)")
    add.add_argument("--device", default="cpu", help="torch device (default: %(default)s)")
    meaning = "a check that takes longer is red (default: no limit)"
    add.add_argument("--explainer-timeout", type=positive_number, metavar="SECONDS", help=meaning)
    meaning = "run the checks in a process of their own: a crash or os._exit there is one red check"
    add.add_argument("--isolate", action="store_true", help=meaning)
    meaning = "known failures, each with its reason: a TOML file, see docs/verify.md"
    add_file(add, "--expectations", metavar="FILE", help=meaning)


EXPLAIN = """Show an explainer's map of one text: each token in colour, red for the explained output and blue against
it, with the numbers. The model is loaded as by faithcheck align: a classifier of text, or a decoder, whose next token
is explained. The exit code is 2 if the text cannot be explained as asked, and 1 if the explainer left something behind
on the model or in the process."""


def _add_explain(commands: Any) -> None:
    add = _command(
        commands,
        "explain",
        "explain",
        "show an explainer's map of one text",
        EXPLAIN,
        "example:\n  faithcheck explain 'a gripping, funny film' --explainer attnlrp --html map.html\n",
    )
    add.add_argument("text", metavar="TEXT", help="the text to explain")
    meaning = "a folder or a hub name; default: the project's own 12-layer BERT for sentiment"
    add.add_argument("--model", metavar="PATH", help=meaning).complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    add.add_argument("--explainer", default="attnlrp", metavar="SPEC", help="as for check (default: %(default)s)")
    meaning = "the output to explain: its number, or its name in the model (default: the most likely)"
    add.add_argument("--target", metavar="N", help=meaning)
    add.add_argument("--max-memory", help=FITS, **MAX_MEMORY)
    add_file(add, "--html", type=Path, metavar="PATH", help="also write an HTML page")
