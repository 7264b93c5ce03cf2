"""Checking one explainer from Python, in a script or a notebook, without pytest."""

import fnmatch
import sys
from collections.abc import Iterable
from contextlib import suppress
from operator import attrgetter
from typing import Any

from faithcheck.axioms.measure.expectations import held_like, refuse_malformed
from faithcheck.check_job import CheckJob
from faithcheck.check_report import CheckReport, report_of
from faithcheck.claims import claiming
from faithcheck.executors.own_processes import LocalChecks
from faithcheck.explainers.adapters import as_explainer
from faithcheck.explainers.registry import load_explainer
from faithcheck.models.pair import Pair, registered_pairs
from faithcheck.models.unknown_name import families, unknown_name
from faithcheck.plan import axioms_of, checks_of_request, pairs_with_maps
from faithcheck.progress import measured
from faithcheck.request import Request, Settings


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
        like: the built-in explainer that this one implements, such as ``"attnlrp"``: it is held to that one's claims
            and expectations, closed forms included.
        claims: what is claimed of it besides its own claims: axioms, or a kind of explainers in
            `faithcheck.explainers.builtin.kinds`, such as ``"gradient"``, for all that one of its kind should satisfy.
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
        ProcessEnded: loading the explainer in a process of its own ended that process.
        JobFailed: it cannot be loaded there.
    """
    with LocalChecks() as executor:
        if isolate:
            explainer = explainer if isinstance(explainer, str) else name_in_module(explainer)
            executor.isolate(explainer)
        request = request_for(explainer, axioms, pairs, settings or Settings(reuse=True), like, claims)
        checks = checks_of_request(request)
        jobs = [CheckJob.of(check, request) for check in checks]
        records = list(measured(jobs, executor, bar=progress))
    return report_of(request, checks, records, ["check_explainer"])


def request_for(
    explainer: Any,
    axioms: str | Iterable[str] | None = None,
    pairs: str | Pair | Iterable[str | Pair] | None = None,
    settings: Settings | None = None,
    like: str | None = None,
    claims: str | Iterable[str] = (),
) -> Request:
    """The request that the arguments of `check_explainer` make."""
    checked = load_explainer(explainer) if isinstance(explainer, str) else as_explainer(explainer)
    if like is not None:
        checked = held_like(checked, like)
    checked = claiming(checked, [claims] if isinstance(claims, str) else claims)
    refuse_malformed(checked)
    chosen = pairs_with_maps([checked], _pairs(None)) if pairs is None else _pairs(pairs)
    asked = axioms_of([axioms] if isinstance(axioms, str) else axioms or (), [checked], chosen)
    return Request([checked], asked, chosen, {checked.name: _spec(explainer)}, settings=settings or Settings())


def _pairs(asked: str | Pair | Iterable[str | Pair] | None) -> list[Pair]:
    """The pairs that are given, named, or matched by a glob, each once."""
    registered = registered_pairs()
    if asked is None:
        return list(registered.values())
    chosen: dict[str, Pair] = {}
    for one in [asked] if isinstance(asked, str | Pair) else asked:
        names = [] if isinstance(one, Pair) else fnmatch.filter(registered, one)
        matches = [one] if isinstance(one, Pair) else [registered[name] for name in names]
        if not matches:
            raise ValueError(unknown_name("pair", str(one), registered, families(registered)))
        chosen |= {pair.name: pair for pair in matches}
    return list(chosen.values())


def _spec(explainer: Any) -> str:
    """What the report calls the explainer's origin: the name that was given, or that of the function or class."""
    if isinstance(explainer, str):
        return explainer
    named = explainer if hasattr(explainer, "__qualname__") else type(explainer)
    return f"{named.__module__}:{named.__qualname__}"


def name_in_module(explainer: object) -> str:
    """The name ``module:Object`` under which another process finds a class or a function."""
    module, name = getattr(explainer, "__module__", ""), getattr(explainer, "__qualname__", "")
    found = None
    with suppress(AttributeError):
        found = attrgetter(name)(sys.modules.get(module))
    if not name or module == "__main__" or found is not explainer:
        raise ValueError(
            f"a process of its own loads the explainer by its name, and {explainer!r:.80} has none there: give a class "
            "or a function at the top of a module that can be imported, or its name, 'module:Object'"
        )
    return f"{module}:{name}"
