"""The fixtures of the plugin: the settings of the run, and what adds records, tables and figures to its report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from faithcheck.axioms.measure.error_text import encodable
from faithcheck.axioms.measure.record import Record
from faithcheck.axioms.measure.statuses import Group
from faithcheck.check import Check
from faithcheck.check_job import CheckJob
from faithcheck.outcomes import FIGURE, RECORD, TABLE
from faithcheck.pytest_plugin.options import RUN
from faithcheck.reports.documents.document import from_json, to_json
from faithcheck.reports.documents.figure import Figure
from faithcheck.reports.documents.results import MeasuredTable
from faithcheck.reports.pages import wording
from faithcheck.request import Settings

if TYPE_CHECKING:
    from faithcheck.alignment.preparation import Prepared


@pytest.fixture(scope="session")
def settings(pytestconfig: pytest.Config) -> Settings:
    """Seed, dtype and device of this run."""
    return pytestconfig.stash[RUN].request.settings


@pytest.fixture(scope="session")
def prepared(pytestconfig: pytest.Config) -> Prepared:
    """The Transformer, the texts and the settings of the paper's tables, from the --paper-… options."""
    # Not at the top: it imports transformers.
    from faithcheck.alignment.preparation import EXPECTED, prepare
    from faithcheck.alignment.settings import AlignRequest

    option = pytestconfig.option
    try:
        return prepare(
            AlignRequest(
                model=option.paper_model,
                data=option.paper_texts,
                limit=option.paper_limit,
                max_length=option.paper_max_length,
                settings=Settings(option.seed, torch.float32, torch.device(option.device)),
            )
        )
    except (*EXPECTED, ValueError) as error:
        pytest.fail(f"--paper-…: {error}", pytrace=False)


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[[Record], None]:
    """``report(record)``: add the record to the report; skip the test if it is unsupported, fail it if it is red."""

    def add(record: Record) -> None:
        request.node.user_properties.append((RECORD, to_json(record)))
        match record.group:
            case Group.SKIP:
                reason = record.detail.get("reason", "unsupported")
                pytest.skip(encodable(f"{record.explainer or record.subject}: {reason}"))
            case Group.RED | Group.UNMEASURED:
                pytest.fail(wording.message(record), pytrace=False)

    return add


@pytest.fixture
def report_check(
    report: Callable[[Record], None], settings: Settings, pytestconfig: pytest.Config
) -> Callable[[Check], None]:
    """``report_check(check)``: run the check where the run asks for it, and `report` its record."""
    run = pytestconfig.stash[RUN]
    request = replace(run.request, settings=settings)

    def check_and_report(check: Check) -> None:
        ((_, record),) = run.executor.run([CheckJob.of(check, request)])
        report(record)

    return check_and_report


@pytest.fixture
def table(request: pytest.FixtureRequest) -> Callable[[Mapping[str, object]], None]:
    """``table({"title", "note", "columns", "rows"})``: add a table to the report; cells are strings or numbers.

    Raises:
        ValueError: something is missing, unknown or of another type, or a row has another length.
    """

    def add(content: Mapping[str, object]) -> None:
        request.node.user_properties.append((TABLE, to_json(from_json(to_json(content), MeasuredTable))))

    return add


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[Mapping[str, object]], None]:
    """``figure({"title", "note", "panels"})``: add a figure to the report, see `faithcheck.reports.documents.figure`.

    Raises:
        ValueError: something is missing, unknown or of another type, or the figure cannot be drawn.
    """

    def add(content: Mapping[str, object]) -> None:
        request.node.user_properties.append((FIGURE, to_json(from_json(to_json(content), Figure))))

    return add
