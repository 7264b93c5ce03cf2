"""The fixtures of the plugin: the settings of the run, and what adds records, tables and figures to its report."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from faithcheck.axioms.measure.record import Record
from faithcheck.axioms.measure.statuses import Group
from faithcheck.check import Check
from faithcheck.outcomes import FIGURE, RECORD, TABLE
from faithcheck.pytest_plugin.options import RUN
from faithcheck.reports import results
from faithcheck.reports.pages import figures, wording
from faithcheck.reports.results import Json, group_of
from faithcheck.request import Settings

if TYPE_CHECKING:
    from faithcheck.alignment.alignment_request import Prepared


@pytest.fixture(scope="session")
def settings(pytestconfig: pytest.Config) -> Settings:
    """Seed, dtype and device of this run."""
    return pytestconfig.stash[RUN].request.settings


@pytest.fixture(scope="session")
def prepared(pytestconfig: pytest.Config) -> Prepared:
    """The Transformer, the texts and the settings of the paper's tables, from the --paper-… options."""
    # Not at the top: it imports transformers.
    from faithcheck.alignment.alignment_request import EXPECTED, AlignRequest, prepare

    option = pytestconfig.option
    try:
        return prepare(
            AlignRequest(
                model=option.paper_model,
                data=option.paper_texts,
                limit=option.paper_limit,
                max_length=option.paper_max_length,
                device=option.device,
                seed=option.seed,
            )
        )
    except (*EXPECTED, ValueError) as error:
        pytest.fail(f"--paper-…: {error}", pytrace=False)


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[[Record], None]:
    """``report(record)``: add the record to the report; skip the test if it is unsupported, fail it if it is red."""

    def add(record: Record) -> None:
        content = results.plain(record.to_json())
        request.node.user_properties.append((RECORD, content))
        match group_of(content["status"]):
            case Group.SKIP:
                which = content["explainer"] or content["subject"]
                pytest.skip(f"{which}: {content['detail'].get('reason', 'unsupported')}")
            case Group.RED | Group.UNMEASURED:
                pytest.fail(wording.message(content), pytrace=False)

    return add


@pytest.fixture
def report_check(report: Callable[[Record], None], settings: Settings) -> Callable[[Check], None]:
    """``report_check(check)``: run the check and `report` its record."""
    return lambda check: report(check.run(settings))


@pytest.fixture
def table(request: pytest.FixtureRequest) -> Callable[[Json], None]:
    """``table({"title", "note", "columns", "rows"})``: add a table to the report; cells are strings or numbers."""

    def add(content: Json) -> None:
        content = results.plain(content)
        if set(content) != {"title", "note", "columns", "rows"}:
            raise ValueError(f"a table has title, note, columns and rows, got {', '.join(content)}")
        if any(len(row) != len(content["columns"]) for row in content["rows"]):
            raise ValueError(f"table {content['title']!r}: every row needs {len(content['columns'])} cells")
        request.node.user_properties.append((TABLE, content))

    return add


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[Json], None]:
    """``figure({"title", "note", "panels"})``: add a figure to the report, see `faithcheck.reports.pages.figures`."""

    def add(content: Json) -> None:
        content = results.plain(content)
        figures.check(content)
        request.node.user_properties.append((FIGURE, content))

    return add
