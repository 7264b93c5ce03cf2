"""What a run without pytest reports: its results document, and in Python also its records with what is made of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from faithcheck import outcomes
from faithcheck.axioms.measure.record import Record
from faithcheck.axioms.measure.registry import AXIOMS
from faithcheck.axioms.measure.statuses import Group
from faithcheck.check import Check
from faithcheck.check_job import CheckJob, ChecksReadiness
from faithcheck.claims import stated, unmeasured_claims
from faithcheck.executors.own_processes import LocalChecks
from faithcheck.executors.ray.on_ray import OnRay
from faithcheck.outcomes import run_settings
from faithcheck.plan import not_applicable
from faithcheck.progress import ProgressByExplainer, measured
from faithcheck.reports.documents.document import Run, save
from faithcheck.reports.documents.results import Results, verdict
from faithcheck.reports.pages import report, wording
from faithcheck.request import Request

if TYPE_CHECKING:
    from pandas import DataFrame


class CheckReport(list[Record]):
    """The records of a run, in the order in which they were measured, and the ``document`` that pages are made from."""

    def __init__(self, records: Iterable[Record], document: Results) -> None:
        super().__init__(records)
        self.document = document

    @property
    def headline(self) -> str:
        """The outcome of the run in one line."""
        return wording.headline(self.document)

    @property
    def passed(self) -> bool:
        """Whether the run is green: something is claimed, and what was planned or claimed was measured and holds."""
        return verdict(self.document) is Group.PASS

    @property
    def red(self) -> list[Record]:
        """The records that are not as expected."""
        return [record for record in self if record.group is Group.RED]

    def to_frame(self) -> DataFrame:
        """The records as a data frame of pandas: one row a record, one column for each attribute of `Record`."""
        try:
            from pandas import DataFrame
        except ImportError as error:
            raise ImportError("to_frame makes a data frame of pandas, which is missing: pip install pandas") from error
        return DataFrame([structs.asdict(record) for record in self])

    def save(
        self, *, json: str | Path | None = None, html: str | Path | None = None, md: str | Path | None = None
    ) -> None:
        """Write the results document, or its pages, over files that exist.

        Raises:
            ValueError: no file is named.
            OSError: a file cannot be written.
        """
        if json is None and html is None and md is None:
            raise ValueError("save writes the files that it is given: save(html='report.html'), json= or md=")
        views = ((html, report.to_html), (md, report.to_markdown))
        if json is not None:
            save(self.document, Path(json))
        for path, view in views:
            if path is not None:
                Path(path).write_text(view(self.document), encoding="utf-8")

    def __repr__(self) -> str:
        """The number of records and the headline: all records would fill the screen."""
        records = "1 record" if len(self) == 1 else f"{len(self)} records"
        return f"<{type(self).__name__} of {records}: {self.headline}>"

    def _repr_html_(self) -> str:
        return report.to_notebook(self.document)


def report_of(
    request: Request,
    checks: Sequence[Check],
    records: Iterable[Record],
    arguments: Sequence[object],
    run: Run | None = None,
) -> CheckReport:
    """The report of a run without pytest: a record for each check, and those of claims that none of them measured."""
    records = [*records]
    records += unmeasured_claims(request, checks, records)
    about = run_settings(
        request,
        arguments,
        not_applicable=not_applicable(request.axioms, request.explainers),
        claimed={explainer.name: stated(explainer, checks) for explainer in request.explainers},
    )
    return CheckReport(records, outcomes.of_records(records, len(checks), about, AXIOMS, run))


def run_checks(
    request: Request, checks: Sequence[Check], executor: LocalChecks, arguments: Sequence[object]
) -> tuple[CheckReport, bool]:
    """Measure checks where the request says, with progress on stderr, until all have run or the user stops the run.

    Returns the report, and whether the user stopped the run: then it says so of each check that did not run.
    """
    jobs = [CheckJob.of(check, request) for check in checks]
    records: dict[str, Record] = {}
    run = None
    with suppress(KeyboardInterrupt):
        if request.place.cluster is None:
            for record in measured(jobs, executor, lines=True):
                records[record.id] = record
        else:
            totals, readiness = Counter(job.explainer for job in jobs), ChecksReadiness.of(jobs, request.specs)
            with (
                ProgressByExplainer("checks") as progress,
                OnRay(request.place, readiness, progress.watch) as shared,
            ):
                for job, record in shared.run(jobs):
                    records[record.id] = record
                    progress.advance(job.explainer, 1, totals[job.explainer])
            run = shared.record
    stopped = len(records) < len(checks)
    missing = "the user stopped the run before it"
    complete = (records.get(one.record_id) or one.not_run(request.settings, missing) for one in checks)
    return report_of(request, checks, complete, arguments, run), stopped
