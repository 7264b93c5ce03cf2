"""Checking one explainer from Python, without pytest."""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from faithcheck.axioms.measure.expectations import held_like, refuse_malformed, stated_axioms
from faithcheck.axioms.measure.record import Record
from faithcheck.check import Check
from faithcheck.claims import claiming, unmeasured_claims
from faithcheck.executors.isolation.isolated_checks import Isolation
from faithcheck.explainers.adapters import as_explainer
from faithcheck.explainers.protocol import Explainer
from faithcheck.explainers.registry import load_explainer
from faithcheck.models.pair import Pair, registered_pairs
from faithcheck.models.unknown_name import families, unknown_name
from faithcheck.plan import pairs_with_maps, plan_run
from faithcheck.request import Settings

FIRST_AXIOMS = ("invariance", "generated", "completeness", "loo", "trace")
"""Measured by default, whatever an explainer claims: what authors ask about first."""


def default_axioms(explainer: Explainer, pairs: Iterable[Pair]) -> list[str]:
    """The first axioms, and every other of which something is claimed, or expected on one of the pairs."""
    return list(dict.fromkeys((*FIRST_AXIOMS, *stated_axioms(explainer, list(pairs)))))


@dataclass(frozen=True)
class Chosen:
    """One explainer, and the axioms and pairs that it is checked on.

    Attributes:
        explainer: the explainer.
        axioms: names in `AXIOMS`.
        pairs: the pairs.
    """

    explainer: Explainer
    axioms: Sequence[str]
    pairs: Sequence[Pair]

    def checks(self) -> list[Check]:
        """The checks, in the order of `plan_run`.

        Raises:
            ValueError: an unknown axiom, or an expectation that matches no check.
        """
        return plan_run(self.axioms, [self.explainer], self.pairs)

    def unmeasured_claims(self, checks: Sequence[Check], records: Sequence[Record], settings: Settings) -> list[Record]:
        """A record for each claim that the checks were to measure, and that none of their records measured."""
        plain = [record.to_json() for record in records]
        return unmeasured_claims([self.explainer], self.axioms, checks, plain, settings.seed)


def check_explainer(
    explainer: Any,
    axioms: str | Iterable[str] | None = None,
    pairs: str | Pair | Iterable[str | Pair] | None = None,
    settings: Settings | None = None,
    *,
    like: str | None = None,
    claims: str | Iterable[str] = (),
    isolate: bool = False,
) -> list[Record]:
    """The records of the checks of one explainer, without pytest, pages and progress.

    Args and errors are those of `faithcheck.check_explainer`, which makes a report of the records. There is no error if
    nothing is to be checked: the list is then empty.
    """
    with isolated(explainer, settings or Settings(), isolate) as (loadable, settings):
        chosen = choose(loadable, axioms, pairs, like, claims)
        checks = chosen.checks()
        records = [check.run(settings) for check in checks]
        return records + chosen.unmeasured_claims(checks, records, settings)


def choose(
    explainer: Any,
    axioms: str | Iterable[str] | None = None,
    pairs: str | Pair | Iterable[str | Pair] | None = None,
    like: str | None = None,
    claims: str | Iterable[str] = (),
) -> Chosen:
    """What the arguments of `check_explainer` mean.

    Raises:
        ValueError: see `faithcheck.check_explainer`.
    """
    checked = load_explainer(explainer) if isinstance(explainer, str) else as_explainer(explainer)
    if like is not None:
        checked = held_like(checked, like)
    checked = claiming(checked, [claims] if isinstance(claims, str) else claims)
    refuse_malformed(checked)
    chosen = pairs_with_maps([checked], _pairs(None)) if pairs is None else _pairs(pairs)
    if axioms is None:
        return Chosen(checked, default_axioms(checked, chosen), chosen)
    return Chosen(checked, list(dict.fromkeys([axioms] if isinstance(axioms, str) else axioms)), chosen)


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


@contextmanager
def isolated(explainer: Any, settings: Settings, isolate: bool = True) -> Iterator[tuple[Any, Settings]]:
    """The name of the explainer and the settings with which its checks run in a process of their own, until the end.

    Without ``isolate`` both are returned as they are.

    Raises:
        ValueError, WorkerEnded, TaskFailed: see `faithcheck.check_explainer`.
    """
    if not isolate:
        yield explainer, settings
        return
    isolation, name = Isolation(), explainer if isinstance(explainer, str) else name_in_module(explainer)
    try:
        isolation.add(name)
        yield name, replace(settings, isolation=isolation)
    finally:
        isolation.close()


def name_in_module(explainer: object) -> str:
    """The name ``module:Object`` under which another process finds a class or a function.

    Raises:
        ValueError: there is none.
    """
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
