"""``faithcheck check``: the suite on one explainer, without pytest."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers.utils import logging as hugging_face

from faithcheck.axioms.engine.check import Check, Settings
from faithcheck.axioms.engine.check_explainer import DEFAULT_AXIOMS
from faithcheck.axioms.engine.plan import plan
from faithcheck.axioms.engine.registry import AXIOMS, SUMMARIES
from faithcheck.explainers.registry import unknown_name
from faithcheck.models.data import handwritten_digits
from faithcheck.reports import outcomes, results, selection
from faithcheck.reports.pages import report, terminal
from faithcheck.reports.results import Json

EXPECTED = (selection.SelectionError, handwritten_digits.DataError, OSError)
DEFAULT: Sequence[str] = DEFAULT_AXIOMS
BESIDE = Path()


def main(arguments: argparse.Namespace) -> int:
    """Run the command; returns its exit code: 0, 1 where something is red, 2 for what is not there, 130 interrupted."""
    try:
        targets = _targets(arguments)
        selection.import_from_here()
        hugging_face.disable_progress_bar()  # type: ignore[no-untyped-call]
        settings = Settings(
            seed=arguments.seed,
            device=selection.choose_device(arguments.device),
            timeout=selection.choose_timeout(arguments.explainer_timeout),
        )
        checks, about = _checks(arguments, settings)
    except EXPECTED as error:
        print(f"faithcheck: {error}", file=sys.stderr)
        return 2
    records, interrupted = _with_progress(checks, settings)
    document = outcomes.of_records(records, len(checks), about, SUMMARIES)
    if arguments.json is not None:
        results.save(document, arguments.json)
    for path, view in targets.items():
        path.write_text(view(document), encoding="utf-8")
    print(terminal.render(document, shutil.get_terminal_size().columns, sys.stdout.isatty()), end="")
    for path in (arguments.json, *targets):
        if path is not None:
            print(f"written: {path}")
    if interrupted:
        print("faithcheck: interrupted; the report is of the checks that ran", file=sys.stderr)
        return 130
    return int(results.is_red(document))


def _checks(arguments: argparse.Namespace, settings: Settings) -> tuple[list[Check], Json]:
    """Every check that was asked for, and what the results document says of them.

    Raises:
        SelectionError: an unknown axiom, explainer or pair; an expectation that matches no check; or no check at all.
    """
    axioms = list(dict.fromkeys(arguments.axiom or DEFAULT))
    for axiom in axioms:
        if axiom not in AXIOMS:
            raise selection.SelectionError(f"--axiom={axiom}: {unknown_name('axiom', axiom, AXIOMS)}")
    specs = [arguments.explainer]
    explainers, pairs = selection.choose_explainers(specs), selection.choose_pairs(arguments.pairs)
    expectations = selection.choose_expectations(arguments.expectations)
    selection.refuse_stale(explainers, pairs, expectations)
    checks = [check for axiom in axioms for check in plan(axiom, explainers, pairs, expectations)]
    if not checks:
        raise selection.SelectionError(
            f"nothing to check: {', '.join(axioms)} are measured on none of the {len(pairs)} pairs that were asked for"
        )
    given = ["faithcheck", *arguments.given]
    return checks, selection.described(settings, specs, explainers, pairs, expectations, given)


def _with_progress(checks: Sequence[Check], settings: Settings) -> tuple[list[Json], bool]:
    """The records of the checks, and whether the run was interrupted; a progress bar where stderr is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    records: list[Json] = []
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("", total=len(checks))
        try:
            for check in checks:
                progress.update(task, description=f"{check.axiom} {check.subject}")
                records.append(results.plain(check.run(settings).to_json()))
                progress.advance(task)
        except KeyboardInterrupt:
            return records, True
    return records, False


def _targets(arguments: argparse.Namespace) -> dict[Path, Callable[[Json], str]]:
    """Where the pages go, checked before the run, and what makes each.

    Raises:
        SelectionError: a path cannot be written, there is no JSON to write beside, or two are one file.
    """
    if arguments.json is not None:
        selection.check_writable(arguments.json, "--json")
    taken = {arguments.json} - {None}
    targets: dict[Path, Callable[[Json], str]] = {}
    for name, view in (("md", report.to_markdown), ("html", report.to_html)):
        path = getattr(arguments, name)
        if path is None:
            continue
        if path == BESIDE:
            if arguments.json is None:
                raise selection.SelectionError(f"--{name} needs a path where there is no --json to write it beside")
            path = arguments.json.with_suffix(f".{name}")
        selection.check_writable(path, f"--{name}")
        if path.resolve() in {other.resolve() for other in taken}:
            raise selection.SelectionError(f"--{name}={path} would overwrite another file of this run")
        taken.add(path)
        targets[path] = view
    return targets
