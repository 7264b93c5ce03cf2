"""The ``faithcheck`` command: parses the arguments, runs the module of the command and returns its exit code.

A command that needs torch or transformers, which take seconds to import, is imported when it runs.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from faithcheck.cli import output
from faithcheck.cli.parsers import COMMANDS, LISTS, parser
from faithcheck.models.data import DataError
from faithcheck.models.pretrained.folder import ModelError
from faithcheck.options import OptionError
from faithcheck.reports.results import ResultsError

EXPECTED = (ResultsError, OptionError, DataError, ModelError, OSError)
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
        raise OptionError(f"a command is missing: give one of {', '.join((*COMMANDS, *LISTS))}")
    try:
        command = importlib.import_module(f"faithcheck.cli.{arguments.module}")
        code: int = command.main(arguments)
    except SystemExit as error:  # of a module that the command imported: its code would pass for the command's
        raise RuntimeError(f"code that the command ran called sys.exit({error.code!r})") from error
    return code
