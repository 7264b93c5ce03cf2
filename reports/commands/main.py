"""The ``faithcheck`` command: its parsers, and which module does what.

The modules that need torch or transformers are imported by the command that uses them: help comes at once.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import shtab

from faithcheck.reports import results
from faithcheck.reports.commands import compare
from faithcheck.reports.commands.arguments import seed
from faithcheck.reports.pages import alignment, report, terminal
from faithcheck.reports.results import ResultsError

SHELLS = ("bash", "zsh", "fish")
_BESIDE = Path()
_PAGE: dict[str, Any] = {"nargs": "?", "type": Path, "const": _BESIDE, "metavar": "PATH"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code, which the help of each command explains; 2 for a bad argument or file."""
    given = sys.argv[1:] if argv is None else list(argv)
    if given[:1] == ["align"]:
        from faithcheck.reports.commands import align  # when used: torch and transformers take seconds to import

        return align.main(given[1:])
    arguments = parser().parse_args(given, argparse.Namespace(given=given))
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Whoever read the output has had enough (faithcheck pairs | head): say nothing when Python flushes the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ResultsError, OSError) as error:
        return refused(error)


def refused(error: Exception | str) -> int:
    """Say on stderr why something cannot be done; returns the exit code, 2."""
    print(f"faithcheck: {error}", file=sys.stderr)
    return 2


# --- commands --------------------------------------------------------------------------------------------------------


def _report(arguments: argparse.Namespace) -> int:
    document = compare.load(arguments.results)
    views: Any = alignment if document.get("kind") == alignment.KIND else report
    pages = [(arguments.md, ".md", views.to_markdown), (arguments.html, ".html", views.to_html)]
    for path, suffix, page in pages:
        if path is not None:
            _write(page(document), path, arguments.results.with_suffix(suffix), [arguments.results])
    if arguments.md is None and arguments.html is None:
        print_out = alignment.to_terminal if views is alignment else terminal.render
        print(print_out(document, _width(), sys.stdout.isatty()), end="")
    return 0


def _compare(arguments: argparse.Namespace) -> int:
    old, new = compare.load(arguments.old), compare.load(arguments.new)
    comparison = compare.compare(old, new, arguments.threshold)
    print(compare.to_terminal(comparison, _width(), sys.stdout.isatty()), end="")
    if arguments.md is not None:
        beside = arguments.new.with_suffix(".compare.md")
        _write(compare.to_markdown(comparison), arguments.md, beside, [arguments.old, arguments.new])
    return int(compare.is_regression(comparison))


def _list(arguments: argparse.Namespace) -> int:
    from faithcheck.reports.commands import listing

    try:
        return listing.main(arguments.command, arguments.glob)
    except ValueError as error:
        return refused(error)


def _check(arguments: argparse.Namespace) -> int:
    from faithcheck.reports.commands import check

    return check.main(arguments)


def _explain(arguments: argparse.Namespace) -> int:
    from faithcheck.reports.commands import explain

    return explain.main(arguments)


def _write(text: str, path: Path, beside: Path, sources: Sequence[Path]) -> None:
    """Write a page to a path, or to ``beside`` where none was named, but over none of the documents it is made from."""
    target = beside if path == _BESIDE else path
    if target.resolve() in [source.resolve() for source in sources]:
        raise ResultsError(f"{target}: this page would overwrite the results document")
    target.write_text(text, encoding="utf-8")
    print(f"written: {target}")


def _width() -> int:
    return shutil.get_terminal_size().columns


# --- parsers ---------------------------------------------------------------------------------------------------------

DESCRIPTION = "Verify feature-attribution explainers."
EXAMPLE = """examples:
  faithcheck check my_explainers:Mine --pairs 'linear_attention.*'
  faithcheck COMMAND --help          what a command does, with an example
  faithcheck --print-completion bash > ~/.local/share/bash-completion/completions/faithcheck
  faithcheck --print-completion zsh > ~/.zfunc/_faithcheck         (a folder of your fpath)
  faithcheck --print-completion fish > ~/.config/fish/completions/faithcheck.fish
"""


def parser() -> argparse.ArgumentParser:
    """The parser of every command; that of ``align`` is made in `align`, which needs torch."""
    made = argparse.ArgumentParser(
        prog="faithcheck",
        description=DESCRIPTION,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--version", action="version", version=f"faithcheck {results.version()}")
    made.add_argument("--print-completion", action=_PrintCompletion, choices=SHELLS, help="print a completion script")
    commands = made.add_subparsers(metavar="COMMAND", dest="command", required=True)
    _add_check(commands)
    _add_explain(commands)
    # For the list of commands alone: `main` hands it over before anything is parsed.
    commands.add_parser(
        "align", help="measure how well explainers agree with Leave-One-Out on a model of text or images"
    )
    _add_report(commands)
    _add_compare(commands)
    for what, example in {
        "pairs": "faithcheck pairs 'linear_attention.*'",
        "explainers": "faithcheck explainers | cut -f1",
        "axioms": "faithcheck axioms",
    }.items():
        listing = _command(
            commands,
            what,
            _list,
            f"list the {what}, one a line",
            f"List the {what}: a table on a terminal; in a pipe a line each, columns separated by tabs, names first.",
            f"example:\n  {example}",
        )
        listing.add_argument("glob", nargs="?", help="only the names that match, such as 'batch*'")
    return made


class _PrintCompletion(argparse.Action):
    """Print a completion script and end; only then is the parser of ``align`` needed, and torch with it."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: object, value: object, option: object = None
    ) -> None:
        from faithcheck.reports.commands import align

        (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
        align._add_options(commands.choices["align"])
        commands.choices["align"].add_argument("--explainer", metavar="NAME", help="only LOO and this one, repeatable")
        print(shtab.complete(parser, shell=str(value)))
        parser.exit()


def _command(
    commands: Any,
    name: str,
    run: Callable[[argparse.Namespace], int],
    help_: str,
    description: str,
    epilog: str,
) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = commands.add_parser(
        name, help=help_, description=description, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.set_defaults(run=run)
    return made


def _file(add: argparse.ArgumentParser, *flags: str, **options: Any) -> None:
    """Add an argument that is a file, and complete it as one."""
    add.add_argument(*flags, **options).complete = shtab.FILE  # type: ignore[attr-defined]


def _add_report(commands: Any) -> None:
    add = _command(
        commands,
        "report",
        _report,
        "make pages from a results document",
        "Make pages from the results document of a run; without --md and --html, print its tables.",
        "example:\n  pytest -m invariance --axioms-json=results.json\n  faithcheck report results.json --md --html\n",
    )
    what = "the JSON of pytest --axioms-json=PATH, of faithcheck check --json or of faithcheck align --json"
    _file(add, "results", type=Path, help=what)
    _add_pages(add)


def _add_pages(add: argparse.ArgumentParser) -> None:
    for flag, page in (("--md", "Markdown"), ("--html", "HTML")):
        _file(add, flag, help=f"write a {page} page to PATH (default: beside the JSON)", **_PAGE)


COMPARE = """List what changed from one results document to another: other verdicts, gaps and correlations that moved,
records and failed tests that are new or gone, reasons for which more is skipped. First, in what the two runs differ
themselves (seed, dtype, device, data, explainers, versions), as a change may come from there.

The exit code is 1 on a regression, and only on one of these:
  - a record that was green and is red;
  - a record that is red, and was skipped or not there;
  - a record that was not skipped, and is skipped now or gone, whatever it said before;
  - a failed test that left no red record, and did not fail before.
It is 0 otherwise, and 2 for a file that cannot be read or compared. A magnitude that moved is listed, and is none."""


def _add_compare(commands: Any) -> None:
    add = _command(
        commands,
        "compare",
        _compare,
        "list what changed between two results documents; exit code 1 on a regression",
        COMPARE,
        "example:\n  faithcheck compare main.json branch.json --md comment.md && echo no regression\n",
    )
    _file(add, "old", type=Path, help="the JSON to compare with; of the suite or of faithcheck align")
    _file(add, "new", type=Path, help="the JSON that is judged")
    _file(add, "--md", help="also write Markdown for a pull-request comment (default: NEW.compare.md)", **_PAGE)
    what = "how far a gap (relative to the larger one) or a correlation may move without being listed (default: "
    add.add_argument("--threshold", type=_positive, default=compare.THRESHOLD, metavar="X", help=what + "%(default)s)")


CHECK = """Run the suite on one explainer, without pytest, and print its report. What is not claimed is measured and
recorded. The exit code is 1 where something is red: a claim that does not hold, a predicted violation that is not
there, an explainer that raised; and 2 where something that was asked for is not there."""


def _add_check(commands: Any) -> None:
    add = _command(
        commands,
        "check",
        _check,
        "run the suite on an explainer",
        CHECK,
        "examples:\n  faithcheck check my_explainers:Mine\n"
        "  faithcheck check attnlrp --axiom invariance --pairs 'linear_attention.*' --json attnlrp.json --html\n",
    )
    add.add_argument("explainer", metavar="SPEC", help="a name of faithcheck explainers, or module:Object")
    _repeatable(add, "--axiom", "NAME", "only this one (faithcheck axioms); default: those of check_explainer")
    _repeatable(add, "--pairs", "SPEC", "only these: a name, a glob, an entry point, or a module that registers pairs")
    _file(add, "--json", type=Path, metavar="PATH", help="write the results document")
    _add_pages(add)
    add.add_argument("--seed", type=seed, default=0, help="of models and cases (default: %(default)s)")
    add.add_argument("--device", default="cpu", help="torch device that must be there (default: %(default)s)")
    what = "a check that takes longer is red (default: it may take as long as it likes)"
    add.add_argument("--explainer-timeout", type=_positive, metavar="SECONDS", help=what)
    what = "known failures, each with its reason: a TOML file, see docs/verify.md"
    _file(add, "--expectations", metavar="FILE", help=what)


def _repeatable(add: argparse.ArgumentParser, flag: str, metavar: str, what: str) -> None:
    add.add_argument(flag, action="append", default=[], metavar=metavar, help=f"{what}; repeatable")


EXPLAIN = """Explain what a model makes of one text: the tokens in colour, red where they speak for the explained output
and blue where against it, with the numbers. The model is loaded as faithcheck align does: a classifier of text, or a
decoder, whose next token is explained. The exit code is 2 where something cannot be explained as asked."""


def _add_explain(commands: Any) -> None:
    add = _command(
        commands,
        "explain",
        _explain,
        "show an explainer's map of one text",
        EXPLAIN,
        "example:\n  faithcheck explain 'a gripping, funny film' --explainer attnlrp --html map.html\n",
    )
    add.add_argument("text", metavar="TEXT", help="what is explained")
    what = "a folder or a hub name; default: the project's own 12-layer BERT for sentiment"
    add.add_argument("--model", metavar="PATH", help=what).complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    add.add_argument("--explainer", default="attnlrp", metavar="SPEC", help="as of check (default: %(default)s)")
    what = "the output to explain: its number, or what the model calls it (default: the most likely)"
    add.add_argument("--target", metavar="N", help=what)
    _file(add, "--html", type=Path, metavar="PATH", help="also write an HTML page")


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be above 0 and finite, got {text}")
    return number
