"""The ``faithcheck`` command. No command imports torch or transformers at its top: help is printed at once."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import shtab

from faithcheck.cli import align, badge, check, compare, explain, listing, output, recommend, report, trend
from faithcheck.models.data import DataError
from faithcheck.models.pretrained.folder import ModelError
from faithcheck.models.unknown_name import nearest, unknown_name
from faithcheck.options import OptionError
from faithcheck.reports.documents.document import DocumentError
from faithcheck.reports.documents.environment import version

SHELLS = ("bash", "zsh", "fish")

DESCRIPTION = "Verify feature-attribution explainers."
EXAMPLE = """examples:
  faithcheck check my_explainers:Mine --pairs 'linear_attention.*'
  faithcheck COMMAND --help          the help of a command, with an example
  faithcheck --print-completion bash > ~/.local/share/bash-completion/completions/faithcheck
  faithcheck --print-completion zsh > ~/.zfunc/_faithcheck         (a folder of your fpath)
  faithcheck --print-completion fish > ~/.config/fish/completions/faithcheck.fish

exit codes:
  0    done; nothing is red, no verdict is missing, and there is no regression
  1    check, report --exit-code: something is red; compare: a regression; align, recommend: an explainer failed or
       left something behind; explain: it left something behind
  2    the request cannot be carried out: an argument, a file or a model is wrong; one line says which
  3    no verdict: check, report --exit-code: nothing that is claimed of the explainer was measured;
       report --exit-code: a planned check did not run
  70   unexpected error, a defect: the traceback is on stderr
  130  interrupted (Ctrl-C)
  141  the reader of the output ended before it
"""

COMMANDS = {
    "check": check,
    "explain": explain,
    "recommend": recommend,
    "align": align,
    "report": report,
    "compare": compare,
    "trend": trend,
    "badge": badge,
}
"""The module of each command."""
EXPECTED = (DocumentError, OptionError, DataError, ModelError, OSError)
"""The errors of any command whose message is all that the user needs."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns its exit code, of `faithcheck --help`: 0, 1 and 2 never mean that it crashed."""
    argv = sys.argv[1:] if argv is None else list(argv)
    try:
        code = _run(argv)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of the pipe has ended (faithcheck pairs | head): let Python flush the rest into nothing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return output.UNREAD
    except EXPECTED as error:
        return output.refuse(error)
    except KeyboardInterrupt:
        return output.interrupted("nothing more was written")
    except Exception as error:
        return output.crashed(error)


def _run(argv: Sequence[str]) -> int:
    arguments = parser().parse_args(argv, argparse.Namespace(argv=list(argv)))
    if arguments.command is None:
        parser().print_help()
        return output.REFUSED
    try:
        code: int = arguments.main(arguments)
    except SystemExit as error:  # of a module that the command imported: its code would pass for the command's
        raise RuntimeError(f"code that the command ran called sys.exit({error.code!r})") from error
    return code


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    top = _Parser(prog="faithcheck", description=DESCRIPTION, epilog=EXAMPLE)
    top.add_argument("--version", action="version", version=f"faithcheck {version()}")
    top.add_argument("--print-completion", action=_PrintCompletion, choices=SHELLS, help="print a completion script")
    commands: Any = top.add_subparsers(metavar="COMMAND", dest="command")
    for name, of in COMMANDS.items():
        command = commands.add_parser(name, help=of.HELP, description=of.DESCRIPTION, epilog=of.EXAMPLE)
        command.set_defaults(main=of.main)
        of.add_options(command)
    for name, listed in listing.LISTS.items():
        description = (
            f"List the {name}: a table on a terminal; in a pipe a line each, columns separated by tabs, names first."
        )
        command = commands.add_parser(
            name, help=f"list the {name}, one a line", description=description, epilog=f"example:\n  {listed.example}"
        )
        command.set_defaults(main=listing.main)
        listing.add_options(command)
    return top


class _Parser(argparse.ArgumentParser):
    """A parser that prints help as it is written and takes no abbreviations: --explainer is not --explainer-timeout."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """The parsed arguments; an unknown one is refused by the command that it was given to, which knows its own."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            near = [] if unknown[0][:1] != "-" else nearest(unknown[0].split("=")[0], self._option_string_actions)
            self.error(f"unknown argument {unknown[0]!r}" + (f": did you mean {' or '.join(near)}?" if near else ""))
        return parsed, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a command that there is not, with the nearest; argparse itself lists all."""
        if action.dest == "command" and value not in (known := action.choices or ()):
            self.error(unknown_name("command", value, known))
        super()._check_value(action, value)

    def error(self, message: str) -> NoReturn:
        """Refuse the arguments in one line, which names the argument and the help."""
        raise OptionError(f"{message} (see {self.prog} --help)")


class _PrintCompletion(argparse.Action):
    """Print a completion script and end."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: object, value: object, option: object = None
    ) -> None:
        print(shtab.complete(parser, shell=str(value)))
        parser.exit()
