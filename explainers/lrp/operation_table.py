"""The table of operations, and every set of operations that a method, the ledger or another explainer needs.

A set is derived from the traits of the operations by `operations_with`; no list of names stands twice.
"""

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache

from faithcheck.explainers.lrp import rules
from faithcheck.explainers.lrp.operation_call import Rule
from faithcheck.explainers.lrp.operations import Operation, Trait, declared_operations


@cache
def operations() -> Mapping[str, Operation]:
    """The table, by name; imports every module of `faithcheck.explainers.lrp.rules` first."""
    for module in pkgutil.iter_modules(rules.__path__, rules.__name__ + "."):
        importlib.import_module(module.name)
    return dict(declared_operations)


@cache
def operations_with(*traits: Trait, without: tuple[Trait, ...] = ()) -> frozenset[str]:
    """The names of the operations that have all these traits, and none of those in ``without``."""
    rows = operations().values()
    return frozenset(row.name for row in rows if row.traits.issuperset(traits) and row.traits.isdisjoint(without))


def default_rules() -> dict[str, Rule]:
    """The rule of every operation that has one for all methods."""
    return {row.name: row.rule for row in operations().values() if row.rule is not None}
