"""Checking one explainer from Python, in a script or a notebook: the records, and the report that is made of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from faithcheck import outcomes
from faithcheck.axioms.measure.record import Record
from faithcheck.axioms.measure.registry import AXIOMS
from faithcheck.axioms.measure.statuses import Group
from faithcheck.chosen_checks import choose, isolated
from faithcheck.claims import stated
from faithcheck.cli.output import Files
from faithcheck.models.pair import Pair
from faithcheck.plan import not_applicable
from faithcheck.progress import measured
from faithcheck.reports import results
from faithcheck.reports.pages import notebook, report, wording
from faithcheck.reports.results import Json, group_of
from faithcheck.request import Settings
from faithcheck.run_settings import run_settings

if TYPE_CHECKING:
    from pandas import DataFrame


class CheckReport(list[Record]):
    """The records of a run, in the order in which they were measured, and what is made of them.

    Attributes:
        document: the results document, from which every page is made.
    """

    def __init__(self, records: Iterable[Record], document: Json) -> None:
        super().__init__(records)
        self.document = document

    @property
    def headline(self) -> str:
        """The outcome of the run in one line."""
        return wording.headline(self.document)

    @property
    def passed(self) -> bool:
        """Whether the run is green: something is claimed, and what was planned or claimed was measured and holds."""
        return results.verdict(self.document) is Group.PASS

    @property
    def red(self) -> list[Record]:
        """The records that are not as expected."""
        return [record for record in self if group_of(record.status) is Group.RED]

    def to_frame(self) -> DataFrame:
        """The records as a data frame of pandas: one row a record, one column for each attribute of `Record`.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            from pandas import DataFrame
        except ImportError as error:
            raise ImportError("to_frame makes a data frame of pandas, which is missing: pip install pandas") from error
        return DataFrame([record.to_json() for record in self])

    def save(
        self, *, json: str | Path | None = None, html: str | Path | None = None, md: str | Path | None = None
    ) -> None:
        """Write the results document or its pages, over files that exist.

        Args:
            json: the path of the results document, which ``faithcheck report`` and ``faithcheck compare`` read.
            html: the path of the HTML page.
            md: the path of the Markdown page.

        Raises:
            ValueError: no file is named.
            OSError: a file cannot be written.
        """
        if json is None and html is None and md is None:
            raise ValueError("save writes the files that it is given: save(html='report.html'), json= or md=")
        views = ((html, report.to_html), (md, report.to_markdown))
        pages = {Path(path): view for path, view in views if path is not None}
        Files(None if json is None else Path(json), pages).write(self.document)

    def __repr__(self) -> str:
        """The number of records and the headline: all records would fill the screen."""
        records = "1 record" if len(self) == 1 else f"{len(self)} records"
        return f"<{type(self).__name__} of {records}: {self.headline}>"

    def _repr_html_(self) -> str:
        return notebook.to_html(self.document)


def check_explainer(
    explainer: Any,
    axioms: str | Iterable[str] | None = None,
    pairs: str | Pair | Iterable[str | Pair] | None = None,
    settings: Settings | None = None,
    *,
    like: str | None = None,
    claims: str | Iterable[str] = (),
    isolate: bool = False,
    progress: bool = True,
) -> CheckReport:
    """Check one explainer without pytest.

    Args:
        explainer: an object with ``name`` and ``attribute(model, case)``; anything that
            `faithcheck.explainers.as_explainer` accepts, such as a function of ``(model, inputs, target)``; or the name
            of an explainer, such as ``"attnlrp"`` or ``"module:Object"``.
        axioms: the name of an axiom, or several, as ``faithcheck axioms`` lists them. By default what the explainer
            claims, what is expected of it, and what authors ask about first.
        pairs: pairs, their names, or globs such as ``"product.*"``, one or several; by default all registered pairs.
        settings: by default seed 0, float64, on the CPU.
        like: the built-in explainer that this one implements anew, such as ``"attnlrp"``: it is held to that one's
            claims and expectations, closed forms included.
        claims: what is claimed of it besides its own claims: axioms, or a kind of explainers in
            `faithcheck.explainers.names.kinds`, such as ``"gradient"``, for all that one of its kind should satisfy.
        isolate: run the checks in a process of their own, which loads the explainer by its name: give a class or a
            function at the top of a module that can be imported, or its name ``"module:Object"``. What ends that
            process is an error of one check.
        progress: show a progress bar, if this runs in a terminal or in a notebook.

    Returns:
        The report: a list of one record a check, red ones included, with its headline, its pages and a data frame. A
        claim that no check measured has a red record, and so has a pair that is not faithcheck's own and is none.

    Raises:
        ValueError: no explainer, or one that is named like a built-in one; no built-in explainer of the name ``like``;
            an unknown axiom, claim or pair; an expectation that matches no check; an explainer that a process of its
            own cannot load by a name; or nothing to check.
        WorkerEnded: loading the explainer in a process of its own ended that process.
        TaskFailed: it cannot be loaded there.
    """
    with isolated(explainer, settings or Settings(reuse=True), isolate) as (loadable, settings):
        chosen = choose(loadable, axioms, pairs, like, claims)
        checks = chosen.checks()
        missing = not_applicable(chosen.axioms, [chosen.explainer])
        if not checks:
            raise ValueError(wording.nothing_to_check(chosen.axioms, len(chosen.pairs), missing))
        records = list(measured(checks, settings, bar=progress))
        records += chosen.unmeasured_claims(checks, records, settings)
    about = {
        **run_settings(settings, [_spec(explainer)], [chosen.explainer], chosen.pairs, (), ["check_explainer"]),
        "claimed": {chosen.explainer.name: stated(chosen.explainer, checks)},
        "not_applicable": missing,
    }
    plain = [results.plain(record.to_json()) for record in records]
    return CheckReport(records, outcomes.of_records(plain, len(checks), about, AXIOMS))


def _spec(explainer: Any) -> str:
    """What the report calls the explainer's origin: the name that was given, or that of the function or class."""
    if isinstance(explainer, str):
        return explainer
    named = explainer if hasattr(explainer, "__qualname__") else type(explainer)
    return f"{named.__module__}:{named.__qualname__}"
