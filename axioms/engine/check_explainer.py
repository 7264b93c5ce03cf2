"""Checking one explainer from Python, without pytest."""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from typing import Any

from faithcheck.axioms.engine.check import Settings
from faithcheck.axioms.engine.expectations import held_like, refuse_malformed, stated_axioms
from faithcheck.axioms.engine.isolation.isolated_checks import Isolation
from faithcheck.axioms.engine.plan import plan
from faithcheck.axioms.engine.record import Record
from faithcheck.explainers.adapters import as_explainer
from faithcheck.explainers.protocol import Explainer
from faithcheck.explainers.registry import load_explainer, unknown_name
from faithcheck.models.pair import Pair, registered_pairs

FIRST_AXIOMS = ("invariance", "generated", "completeness", "loo", "trace")
"""Measured by default, whatever an explainer claims: what authors ask about first."""


def default_axioms(explainer: Explainer, pairs: Iterable[Pair]) -> list[str]:
    """The first axioms, and every other of which something is claimed, or expected on one of the pairs."""
    return list(dict.fromkeys((*FIRST_AXIOMS, *stated_axioms(explainer, list(pairs)))))


def check_explainer(
    explainer: Any,
    axioms: Iterable[str] | None = None,
    subjects: Iterable[str | Pair] | None = None,
    settings: Settings | None = None,
    *,
    like: str | None = None,
    isolate: bool = False,
) -> list[Record]:
    """Check one explainer without pytest.

    Args:
        explainer: an object with ``name`` and ``attribute(model, case)``, or anything that `as_explainer` accepts.
        axioms: names in `AXIOMS`; those of `default_axioms` by default.
        subjects: pairs, their names, or globs; all registered pairs by default.
        settings: seed 0, float64 on the CPU by default.
        like: the built-in explainer that this one implements anew, such as ``"attnlrp"``: it is held to that one's
            claims and expectations, closed forms included.
        isolate: run the checks in a process of their own, which loads the explainer by its name: give a class or a
            function at the top of a module that can be imported, or its name ``"module:Object"``. What ends that
            process is an error of one check.

    Returns:
        One record per check, red ones included: see ``record.passed``. An axiom that does not apply to the explainer
        has none: see `faithcheck.axioms.engine.plan.not_applicable`.

    Raises:
        ValueError: no explainer, or one that is named like a built-in one; no built-in explainer of the name ``like``;
            an unknown axiom or subject; an expectation that matches no check; or an explainer that a process of its own
            cannot load by a name.
        WorkerEnded: loading the explainer in a process of its own ended that process.
        TaskFailed: it cannot be loaded there.
    """
    settings = settings or Settings()
    if isolate:
        isolation, spec = Isolation(), explainer if isinstance(explainer, str) else name_in_module(explainer)
        isolation.add(spec)
        settings = replace(settings, isolation=isolation)
        try:
            return check_explainer(load_explainer(spec), axioms, subjects, settings, like=like)
        finally:
            isolation.close()
    checked, registered = as_explainer(explainer), registered_pairs()
    if like is not None:
        checked = held_like(checked, like)
    chosen: dict[str, Pair] = {}
    for subject in registered if subjects is None else subjects:
        names = [] if isinstance(subject, Pair) else fnmatch.filter(registered, subject)
        matches = [subject] if isinstance(subject, Pair) else [registered[name] for name in names]
        if not matches:
            raise ValueError(unknown_name("subject", str(subject), registered))
        chosen |= {pair.name: pair for pair in matches}
    refuse_malformed(checked)
    measured = default_axioms(checked, chosen.values()) if axioms is None else axioms
    checks = [check for axiom in measured for check in plan(axiom, [checked], chosen.values())]
    return [check.run(settings) for check in checks]


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
