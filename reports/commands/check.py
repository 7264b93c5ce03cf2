"""``faithcheck check``: the suite on one explainer, without pytest."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from faithcheck.models.unknown_name import unknown_name
from faithcheck.reports import outcomes, results
from faithcheck.reports.commands import output
from faithcheck.reports.options import OptionError
from faithcheck.reports.options.expectations import choose_expectations, refuse_stale
from faithcheck.reports.options.explainer_timeout import choose_timeout
from faithcheck.reports.options.loading import import_from_current_folder
from faithcheck.reports.pages import report, terminal
from faithcheck.reports.results import Json

if TYPE_CHECKING:
    from faithcheck.axioms.engine.check import Check, Settings
    from faithcheck.axioms.engine.expectations import SuppliedExpectation


def main(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code: 0, 1 if a check is red, 130 if the user stopped the run.

    Files are checked first, then names: torch takes seconds to import, and the pairs take more.

    Raises:
        OptionError, DataError, OSError: the run cannot start as asked.
    """
    files = output.files(arguments, {"md": report.to_markdown, "html": report.to_html})
    expectations = choose_expectations(arguments.expectations)
    import_from_current_folder()
    settings = _settings(arguments)
    checks, about = _checks(arguments, settings, expectations)
    records, complete = _run(checks, settings)
    stopped = [check.not_run(settings, "the user stopped the run before it") for check in checks[len(records) :]]
    records += [results.plain(record.to_json()) for record in stopped]
    from faithcheck.axioms.engine.registry import SUMMARIES  # loaded by now

    document = outcomes.of_records(records, len(checks), about, SUMMARIES)
    files.write(document)
    output.print_for_terminal(terminal.render, document)
    files.print_paths()
    return int(results.is_red(document)) if complete else output.interrupted("the report holds the checks that ran")


def _settings(arguments: argparse.Namespace) -> Settings:
    """The settings of the checks.

    Raises:
        OptionError: an unknown axiom or explainer, or a device or a time limit that cannot be used.
    """
    from faithcheck.axioms.engine.check import Settings
    from faithcheck.axioms.engine.registry import AXIOMS
    from faithcheck.reports.options.device import choose_device
    from faithcheck.reports.options.explainers import refuse_unknown
    from faithcheck.reports.options.isolate import choose_isolation

    for axiom in arguments.axiom:
        if axiom not in AXIOMS:
            raise OptionError(f"--axiom={axiom}: {unknown_name('axiom', axiom, AXIOMS)}")
    refuse_unknown([arguments.explainer])
    return Settings(
        seed=arguments.seed,
        device=choose_device(arguments.device),
        timeout=choose_timeout(arguments.explainer_timeout),
        reuse=True,
        isolation=choose_isolation(arguments.isolate, [arguments.explainer]),
    )


def _checks(
    arguments: argparse.Namespace, settings: Settings, expectations: Sequence[SuppliedExpectation]
) -> tuple[list[Check], Json]:
    """The checks to run, and the settings for the results document.

    Raises:
        OptionError: no such pair, an explainer that cannot be loaded, an expectation that matches no check, or no check
            at all.
    """
    from transformers.utils import logging as hugging_face

    from faithcheck.axioms.engine.check_explainer import default_axioms
    from faithcheck.axioms.engine.expectations import claims_of
    from faithcheck.axioms.engine.plan import not_applicable, plan
    from faithcheck.reports.options.explainers import choose_explainers
    from faithcheck.reports.options.like import hold_like
    from faithcheck.reports.options.pairs import choose_pairs
    from faithcheck.reports.run_settings import run_settings

    hugging_face.disable_progress_bar()  # type: ignore[no-untyped-call]
    specs = [arguments.explainer]
    explainers = hold_like(arguments.like, specs, choose_explainers(specs))
    pairs = choose_pairs(arguments.pairs)
    refuse_stale(explainers, pairs, expectations)
    (explainer,) = explainers
    axioms = list(dict.fromkeys(arguments.axiom)) or default_axioms(explainer, pairs)
    checks = [check for axiom in axioms for check in plan(axiom, explainers, pairs, expectations)]
    missing = not_applicable(axioms, explainers)
    if not checks:
        reasons = "".join(f"; {row['axiom']} does not apply to {row['explainer']}: {row['reason']}" for row in missing)
        raise OptionError(f"nothing to check: {', '.join(axioms)} on the {len(pairs)} pairs of this run{reasons}")
    about = run_settings(settings, specs, explainers, pairs, expectations, ["faithcheck", *arguments.argv])
    claims = {"claims": sorted(claims_of(explainer)), "part": bool(arguments.axiom or arguments.pairs)}
    return checks, {**about, **claims, "not_applicable": missing}


def _run(checks: Sequence[Check], settings: Settings) -> tuple[list[Json], bool]:
    """The records of the checks, with a progress bar, and whether all checks ran before the user stopped the run."""
    records: list[Json] = []
    with output.progress_bar() as progress:
        task = progress.add_task("", total=len(checks))
        try:
            for check in checks:
                progress.update(task, description=f"{check.axiom} {check.subject}")
                records.append(results.plain(check.run(settings).to_json()))
                progress.advance(task)
        except KeyboardInterrupt:
            return records, False
    return records, True
