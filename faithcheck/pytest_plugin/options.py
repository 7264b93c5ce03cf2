"""The options of the plugin, and the run that they ask for."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from faithcheck.axioms.measure.registry import AXIOMS
from faithcheck.executors.own_processes import LocalChecks
from faithcheck.explainers.protocol import Explainer
from faithcheck.models.data import handwritten_digits
from faithcheck.options import OptionError, names
from faithcheck.options.computing import DTYPES, MEANING, refuse_unknown_device
from faithcheck.options.expectations import choose_expectations, refuse_stale
from faithcheck.options.explainers import isolate
from faithcheck.options.output_path import check_writable
from faithcheck.options.pairs import choose_checkpoint
from faithcheck.options.request import choose_request, choose_settings
from faithcheck.options.user_modules import import_from_current_folder
from faithcheck.outcomes import run_settings
from faithcheck.reports.documents.results import RunSettings
from faithcheck.request import Request

REPEATABLE = {
    "--explainer": (
        "SPEC",
        "check only this explainer: a built-in name, the name of an entry point, or module:Object",
    ),
    "--like": (
        "[SPEC=]NAME",
        "hold your own explainer (of several: the one of this SPEC) to the claims and closed forms of a built-in one, "
        "such as --like attnlrp",
    ),
    "--claim": ("NAME", f"{names.meaning_of_claim()}; of each --explainer; repeatable"),
    "--pairs": (
        "SPEC",
        "check only on these pairs: a name, a glob, an entry point, a module that registers pairs, or module:pair",
    ),
    "--checkpoint": (
        "PATH",
        "also check on the pairs that the transforms make of this model, a folder or hub name",
    ),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of a run, and those of the tests that reproduce the paper."""
    add = parser.getgroup("faithcheck", "faithcheck: axioms of feature attribution").addoption
    add("--axioms-json", metavar="PATH", help="write the results document here")
    for option, (metavar, meaning) in REPEATABLE.items():
        add(option, action="append", default=[], metavar=metavar, help=meaning)
    meaning = "your own expectations, such as known failures: a TOML file, see docs/how_to/known_failures.md"
    add("--expectations", metavar="FILE", help=meaning)
    add("--max-skips", type=int, metavar="N", help="fail a run in which more than N tests were skipped")
    meaning = "stop a check of an explainer that takes longer (default: never)"
    add("--explainer-timeout", type=float, metavar="SECONDS", help=meaning)
    meaning = "run each explainer's checks in a process of their own: a crash or os._exit there is one red check"
    add("--isolate", action="store_true", help=meaning)
    add("--data-dir", metavar="PATH", help="a folder with real MNIST; default: the digits bundled with scikit-learn")
    meaning = "the Transformer of the paper tests: a folder or hub name; default: the project's own"
    add("--paper-model", metavar="PATH", help=meaning)
    add("--paper-texts", metavar="SOURCE", help="the texts of the paper tests, as for faithcheck align --data")
    add("--paper-limit", type=int, metavar="N", help="only the first N of these texts")
    add("--paper-max-length", type=int, metavar="N", help="cut these texts to N tokens")
    add("--seed", type=int, default=0, help="seed of models, cases and drawn inputs (default: 0)")
    add("--device", default="cpu", help="torch device (default: cpu)")
    add("--dtype", choices=DTYPES, default="float64", help=MEANING)


@dataclass(frozen=True)
class Run:
    """What a run of pytest is asked for."""

    request: Request  # every axiom on the explainers and pairs of the run; the tests that pytest selects measure some
    named: Sequence[Explainer]
    checkpoint: list[str]  # the names of the pairs of ``--checkpoint``
    path: Path | None  # the file of the results document; None if none is written
    about: RunSettings  # the settings of the run, for the results document
    executor: LocalChecks


RUN = pytest.StashKey[Run]()
"""Where the configuration of pytest holds the run."""


def chosen_run(config: pytest.Config) -> Run:
    """The run that the options ask for. The fixture `prepared` checks ``--paper-…``."""
    option = config.option
    path = _path(option.axioms_json)
    if not 0 <= option.seed < 2**63:
        raise OptionError(f"--seed={option.seed} is out of range: a seed lies in 0 … 2^63 − 1")
    if option.max_skips is not None and option.max_skips < 0:
        raise OptionError(f"--max-skips={option.max_skips}: a number of skips is 0 or more")
    expectations = choose_expectations(option.expectations)
    handwritten_digits.use_folder(option.data_dir)
    if option.explainer or option.pairs:
        import_from_current_folder()
    # Names are checked before models are loaded, which takes seconds.
    names.refuse_unknown_explainers(option.explainer)
    names.refuse_unknown_likes(option.like)
    if not option.checkpoint:  # which registers pairs
        names.refuse_unknown_pairs(option.pairs, option.explainer)
    refuse_unknown_device(option.device)
    settings = choose_settings(option)
    executor = LocalChecks()
    if option.isolate:
        isolate(executor, option.explainer)
    checkpoint = choose_checkpoint(option.checkpoint)
    request = choose_request(option, option.explainer, tuple(AXIOMS), expectations, settings, option.checkpoint)
    if checkpoint and not any(pair.name in checkpoint for pair in request.pairs):
        raise OptionError("--pairs leaves out all pairs of the checkpoint: add --pairs='*_checkpoint'")
    refuse_stale(request.explainers, request.pairs, expectations)
    named = request.explainers if option.explainer else []
    about = run_settings(request, config.invocation_params.args, max_skips=option.max_skips)
    return Run(request, named, checkpoint, path, about, executor)


def _path(text: str | None) -> Path | None:
    """The file of ``--axioms-json``, which can be written."""
    if text == "":
        raise OptionError("--axioms-json= names no file: give a path, such as --axioms-json=results.json")
    path = Path(text).absolute() if text else None
    if path:
        check_writable(path, "--axioms-json")
    return path
