"""``faithcheck check``: the suite on one explainer or several, without pytest."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from faithcheck import outcomes
from faithcheck.cli import output
from faithcheck.executors.ray.cluster import Workers, with_threads, workers_of
from faithcheck.models.unknown_name import unknown_name
from faithcheck.options import OptionError, names
from faithcheck.options.expectations import choose_expectations, refuse_stale
from faithcheck.options.explainer_timeout import choose_timeout
from faithcheck.options.loading import import_from_current_folder
from faithcheck.reports import results
from faithcheck.reports.pages import report, screen, wording
from faithcheck.reports.results import Json

if TYPE_CHECKING:
    from faithcheck.axioms.measure.expectations import SuppliedExpectation
    from faithcheck.check import Check
    from faithcheck.explainers.protocol import Explainer
    from faithcheck.request import Settings


def main(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code: that of the verdict, or 130 if the user stopped the run.

    Files are checked first, then names: torch takes seconds to import, and the pairs take more.

    Raises:
        OptionError, DataError, OSError: the run cannot start as asked.
    """
    files = output.files(arguments, {"md": report.to_markdown, "html": report.to_html})
    import_from_current_folder()
    specs = explainers_of(arguments)
    names.refuse_unknown_explainers(specs)
    names.refuse_unknown_likes(arguments.like)
    names.refuse_unknown_axioms(arguments.axiom)
    names.refuse_unknown_claims(arguments.claim)
    names.refuse_unknown_pairs(arguments.pairs, specs)
    names.refuse_unknown_device(arguments.device)
    wanted = workers_of(arguments)
    expectations = choose_expectations(arguments.expectations)
    with output.doing("importing torch and transformers"):
        settings = _settings(arguments, specs)
    with with_threads(wanted):
        with output.doing("planning the checks"):
            plan = _planned(arguments, specs, settings, expectations)
        outcome = _run(plan, settings) if wanted is None else _shared(plan, settings, arguments.ray, wanted)
    records = outcome.records
    ran = {record["id"] for record in records}
    stopped = [check for check in plan.checks if f"{check.axiom}/{check.id}" not in ran]
    reason = "the user stopped the run before it"
    records += [results.plain(check.not_run(settings, reason).to_json()) for check in stopped]
    from faithcheck.axioms.measure.registry import AXIOMS
    from faithcheck.claims import unmeasured_claims  # loaded by now

    unmeasured = unmeasured_claims(plan.explainers, plan.axioms, plan.checks, records, settings.seed)
    records += [results.plain(record.to_json()) for record in unmeasured]
    document = outcomes.of_records(records, len(plan.checks), plan.about, AXIOMS) | outcome.run
    files.write(document)
    output.print_for_terminal(screen.render, document)
    files.print_paths()
    if files.json is not None:
        print(f"every check: faithcheck report {files.json}")
    elif not files.pages:
        print("every check: add --html PATH, or --json PATH for faithcheck report")
    return results.exit_code(document) if not stopped else output.interrupted("the report holds the checks that ran")


def explainers_of(arguments: argparse.Namespace) -> list[str]:
    """The explainers that the command line names, each once.

    Raises:
        OptionError: it names none.
    """
    specs = list(dict.fromkeys([*arguments.explainers, *arguments.explainer]))
    if not specs:
        raise OptionError("name an explainer: faithcheck check my_explainers:Mine (faithcheck explainers lists some)")
    return specs


def _settings(arguments: argparse.Namespace, specs: Sequence[str]) -> Settings:
    """The settings of the checks.

    Raises:
        OptionError: an unknown axiom or explainer, or a device or a time limit that cannot be used.
    """
    import torch

    from faithcheck.axioms.measure.registry import AXIOMS
    from faithcheck.options.device import choose_device
    from faithcheck.options.isolate import choose_isolation
    from faithcheck.request import Settings

    for axiom in arguments.axiom:
        if axiom not in AXIOMS:
            raise OptionError(f"--axiom={axiom}: {unknown_name('axiom', axiom, AXIOMS)}")
    return Settings(
        seed=arguments.seed,
        dtype=getattr(torch, arguments.dtype),
        device=torch.device("cuda") if arguments.gpus_per_worker else choose_device(arguments.device),
        timeout=choose_timeout(arguments.explainer_timeout),
        reuse=True,
        isolation=choose_isolation(arguments.isolate, specs),
    )


@dataclass(frozen=True)
class Planned:
    """What a run is to measure.

    Attributes:
        explainers: the explainers that it checks.
        axioms: the axioms that it measures.
        checks: the checks, in their order.
        about: the settings for the results document.
    """

    explainers: Sequence[Explainer]
    axioms: Sequence[str]
    checks: Sequence[Check]
    about: Json


def _planned(
    arguments: argparse.Namespace,
    specs: Sequence[str],
    settings: Settings,
    expectations: Sequence[SuppliedExpectation],
) -> Planned:
    """What to run.

    Raises:
        OptionError: no such pair, an explainer that cannot be loaded, an expectation that matches no check, or no check
            at all.
    """
    from transformers.utils import logging as hugging_face

    from faithcheck.chosen_checks import default_axioms
    from faithcheck.claims import stated
    from faithcheck.options.claims import choose_claims
    from faithcheck.options.explainers import choose_explainers
    from faithcheck.options.like import hold_like
    from faithcheck.options.pairs import choose_pairs
    from faithcheck.plan import not_applicable, pairs_with_maps, plan_run
    from faithcheck.run_settings import run_settings

    hugging_face.disable_progress_bar()  # type: ignore[no-untyped-call]
    explainers = choose_claims(arguments.claim, hold_like(arguments.like, specs, choose_explainers(specs)))
    pairs = choose_pairs(arguments.pairs) if arguments.pairs else pairs_with_maps(explainers, choose_pairs([]))
    refuse_stale(explainers, pairs, expectations)
    defaults = (axiom for explainer in explainers for axiom in default_axioms(explainer, pairs))
    axioms = list(dict.fromkeys(arguments.axiom or defaults))
    checks = plan_run(axioms, explainers, pairs, expectations)
    missing = not_applicable(axioms, explainers)
    if not checks:
        raise OptionError(wording.nothing_to_check(axioms, len(pairs), missing))
    about = run_settings(settings, specs, explainers, pairs, expectations, ["faithcheck", *arguments.argv])
    claimed = {explainer.name: stated(explainer, checks) for explainer in explainers}
    return Planned(explainers, axioms, checks, {**about, "claimed": claimed, "not_applicable": missing})


@dataclass(frozen=True)
class Outcome:
    """What a run has measured.

    Attributes:
        records: in the order of the plan; not of all checks, if the user stopped the run.
        run: of a cluster that came to its end, ``run`` with the record of the run; else nothing.
    """

    records: list[Json]
    run: Json


def _run(plan: Planned, settings: Settings) -> Outcome:
    """Measure the checks one after the other."""
    from faithcheck.progress import measured  # not at the top: it imports torch

    records: list[Json] = []
    with suppress(KeyboardInterrupt):
        for record in measured(plan.checks, settings, lines=True):
            records.append(results.plain(record.to_json()))
    return Outcome(records, {})


def _shared(plan: Planned, settings: Settings, address: str, wanted: Workers) -> Outcome:
    """Measure the checks on a cluster."""
    from faithcheck.executors.ray.checks import RayChecks  # not at the top: it imports torch
    from faithcheck.progress_by_explainer import ProgressByExplainer

    shared = RayChecks(plan.checks, settings, plan.about["specs"], address, wanted)
    with suppress(KeyboardInterrupt), ProgressByExplainer("checks") as progress:
        shared.measure(progress.advance, progress.watch)
    return Outcome(shared.records, {"run": shared.record} if shared.record else {})
