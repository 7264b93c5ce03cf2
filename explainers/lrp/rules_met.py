"""Which rules a method applied: the operations of its table that a check has met.

A rule that no check meets can be wrong unseen, so the suite counts them.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_met: ContextVar[set[str] | None] = ContextVar("rules_met", default=None)


@contextmanager
def recording_rules() -> Iterator[set[str]]:
    """Record the operations that LRP computes by their rule inside the block, in the set that it yields."""
    met: set[str] = set()
    token = _met.set(met)
    try:
        yield met
    finally:
        _met.reset(token)


def record_rules(operations: Iterable[str]) -> None:
    """Add operations to the innermost `recording_rules`; nothing happens outside of one."""
    met = _met.get()
    if met is not None:
        met.update(operations)
