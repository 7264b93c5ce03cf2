"""The one command that measures a record again, from what its document says of the run."""

import shlex
from collections.abc import Sequence
from itertools import pairwise

from faithcheck.axioms.measure.record import Record
from faithcheck.axioms.measure.statuses import Status
from faithcheck.reports.documents.results import Results

_ONLY_PYTEST = ("--checkpoint", "--data-dir")
"""Options of the suite that ``faithcheck check`` does not have; pairs depend on them."""
_KEPT = ("--claim", "--expectations", "--explainer-timeout", *_ONLY_PYTEST)
"""Options with a value that decide how a check settles: the command has those that the run had."""
_PYTEST = ("python", "-m", "pytest", "-p", "faithcheck.plugin", "--pyargs", "faithcheck.tests.test_axioms")


def command(results: Results, record: Record) -> str:
    """The command that measures a record again, quoted for a shell.

    A pair that is not built in is named with the module that registers it. A claim that was not measured
    names no pair: the command has the pairs of the run.
    """
    settings, name = results.settings, record.explainer or ""
    ran = settings.arguments
    spec = settings.specs.get(name, name) or next(iter(settings.explainers), "loo")
    pair = record.pair
    module = settings.pair_origins.get(pair, "").split(",")[0]
    of_no_pair = record.status == Status.NOT_MEASURED.label
    pairs = _values(ran, "--pairs") if of_no_pair else [f"{module}:{pair}" if module else pair]
    by_pytest = any(_values(ran, option) for option in _ONLY_PYTEST)
    words = [*_PYTEST, "-m", record.axiom, f"--explainer={spec}"] if by_pytest else ["faithcheck", "check", spec]
    words += [] if by_pytest else ["--axiom", record.axiom]
    words += [word for one in pairs for word in ("--pairs", one)]
    words += ["--seed", str(record.seed), "--device", settings.device]
    words += ["--dtype", settings.dtype] if settings.dtype != "float64" else []
    likes = [like.rpartition("=") for like in _values(ran, "--like")]
    words += [word for of, _, like in likes if of in ("", spec) for word in ("--like", like)]
    words += [word for option in _KEPT for value in _values(ran, option) for word in (option, value)]
    words += ["--isolate"] if "--isolate" in ran else []
    return shlex.join(words)


def command_of_test(test: str) -> str:
    """The command that runs a test again that failed and left no record, quoted for a shell."""
    return shlex.join(["python", "-m", "pytest", "-p", "faithcheck.plugin", test])


def _values(arguments: Sequence[str], option: str) -> list[str]:
    """The values of an option on a command line, ``--option VALUE`` or ``--option=VALUE``."""
    after = [value for word, value in pairwise(arguments) if word == option]
    return after + [word.partition("=")[2] for word in arguments if word.startswith(f"{option}=")]
