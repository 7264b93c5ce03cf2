"""``faithcheck check``: the suite on one explainer or several, without pytest."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from faithcheck.cli import output
from faithcheck.cli.arguments import (
    add_cluster,
    add_device,
    add_file,
    add_pages,
    add_repeatable,
    add_seed,
    add_timeout,
    refuse_wrong_cluster,
)
from faithcheck.options import OptionError, names
from faithcheck.options.computing import DTYPES, MEANING, choose_device, refuse_unknown_device
from faithcheck.options.expectations import choose_expectations
from faithcheck.options.user_modules import import_from_current_folder

if TYPE_CHECKING:
    from faithcheck.axioms.measure.expectations import SuppliedExpectation
    from faithcheck.axioms.measure.record import Record
    from faithcheck.check import Check
    from faithcheck.executors.local_checks import LocalChecks
    from faithcheck.executors.ray.cluster import Workers
    from faithcheck.reports.documents.document import Run
    from faithcheck.request import Request, Settings

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
    """Run the command. Returns its exit code: that of the verdict, or 130 if the user stopped the run.

    Names are checked first, then files: torch takes seconds to import, and the pairs take more.

    Raises:
        OptionError, DataError, OSError: the run cannot start as asked.
    """
    specs = _refuse_wrong_names(arguments)
    refuse_wrong_cluster(arguments)
    from faithcheck.executors.ray.cluster import with_threads, workers_of
    from faithcheck.reports.pages import report, screen

    files = output.files(arguments, {"md": report.to_markdown, "html": report.to_html})
    wanted = workers_of(arguments)
    expectations = choose_expectations(arguments.expectations)
    with output.doing("importing torch and transformers"):
        import torch

        from faithcheck.executors.local_checks import LocalChecks
        from faithcheck.options.explainers import isolate
        from faithcheck.options.request import choose_settings

        device = torch.device("cuda") if arguments.gpus_per_worker else choose_device(arguments.device)
        settings = choose_settings(arguments, device)
    with with_threads(wanted), LocalChecks() as executor:
        with output.doing("planning the checks"):
            if arguments.isolate:
                isolate(executor, specs)
            request, checks = _planned(arguments, specs, settings, expectations)
        records, run = _shared(request, checks, arguments.ray, wanted) if wanted else _here(request, checks, executor)
    ran = {record.id for record in records}
    stopped = [check for check in checks if check.record_id not in ran]
    records += [check.not_run(settings, "the user stopped the run before it") for check in stopped]

    from faithcheck.check_report import document_of
    from faithcheck.claims import unmeasured_claims
    from faithcheck.reports.documents.results import exit_code

    records += unmeasured_claims(request, checks, records)
    document = document_of(request, checks, records, ["faithcheck", *arguments.argv], run)
    files.write(document)
    output.print_for_terminal(screen.render, document)
    files.print_paths()
    if files.json is not None:
        print(f"every check: faithcheck report {files.json}")
    elif not files.pages:
        print("every check: add --html PATH, or --json PATH for faithcheck report")
    return exit_code(document) if not stopped else output.interrupted("the report holds the checks that ran")


def _refuse_wrong_names(arguments: argparse.Namespace) -> list[str]:
    """Refuse names that there are not, before torch is imported. Returns the explainers that are named, each once.

    Raises:
        OptionError: a name is wrong, or no explainer is named.
    """
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


def _planned(
    arguments: argparse.Namespace, specs: Sequence[str], settings: Settings, expectations: Sequence[SuppliedExpectation]
) -> tuple[Request, list[Check]]:
    """The request, and its checks.

    Raises:
        OptionError: no such pair, an explainer that cannot be loaded, an expectation that matches no check, or no check
            at all.
    """
    from transformers.utils import logging as hugging_face

    from faithcheck.options.request import choose_request
    from faithcheck.plan import axioms_of, checks_of_request, pairs_with_maps

    hugging_face.disable_progress_bar()  # type: ignore[no-untyped-call]
    request = choose_request(arguments, specs, (), expectations, settings)
    pairs = request.pairs if arguments.pairs else pairs_with_maps(request.explainers, request.pairs)
    try:
        axioms = axioms_of(arguments.axiom, request.explainers, pairs)
        request = replace(request, axioms=axioms, pairs=pairs)
        return request, checks_of_request(request)
    except ValueError as error:
        raise OptionError(str(error)) from error


def _here(request: Request, checks: Sequence[Check], executor: LocalChecks) -> tuple[list[Record], None]:
    """Measure the checks one after the other. Returns the records of those that ran; the work was not shared."""
    from faithcheck.check_job import CheckJob  # not at the top: it imports torch
    from faithcheck.progress import measured  # the same

    jobs = [CheckJob.of(check, request) for check in checks]
    records: list[Record] = []
    with suppress(KeyboardInterrupt):
        for record in measured(jobs, executor, lines=True):
            records.append(record)
    return records, None


def _shared(
    request: Request, checks: Sequence[Check], address: str, wanted: Workers
) -> tuple[list[Record], Run | None]:
    """Measure the checks on a cluster. Returns also how the work was shared, if the run came to its end."""
    from faithcheck.check_job import CheckJob  # not at the top: it imports torch
    from faithcheck.executors.ray.checks import ChecksOnRay
    from faithcheck.progress import ProgressByExplainer

    jobs = [CheckJob.of(check, request) for check in checks]
    totals = Counter(job.explainer for job in jobs)
    records: dict[str, Record] = {}
    with (
        suppress(KeyboardInterrupt),
        ProgressByExplainer("checks") as progress,
        ChecksOnRay(address, wanted, request.specs, progress.watch) as executor,
    ):
        for job, record in executor.run(jobs):
            records[record.id] = record
            progress.advance(job.explainer, 1, totals[job.explainer])
    ordered = [records[check.record_id] for check in checks if check.record_id in records]
    return ordered, executor.record
