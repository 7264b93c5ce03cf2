"""What a block of code leaves behind on models and in the process: it is found, reported and undone.

`process_snapshot` and `model_snapshot` say what is compared. Every change is undone, so that it reaches no later check.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn

from faithcheck.axioms.traces.model_snapshot import ModelSnapshot
from faithcheck.axioms.traces.namespaces import Changes
from faithcheck.axioms.traces.process_snapshot import RANDOM as RANDOM
from faithcheck.axioms.traces.process_snapshot import ProcessSnapshot


@contextmanager
def restored(*models: nn.Module | ModelSnapshot) -> Iterator[list[str]]:
    """Run a block, then find what it left behind on the models and in the process, and undo it, also on an exception.

    Args:
        models: models, or snapshots of models, which save a copy of the weights for each of many blocks.

    Yields:
        The traces, a line for each kind, such as ``train mode (encoder.0 and 4 more)``; filled at the end of the block.
    """
    of_models = [model if isinstance(model, ModelSnapshot) else ModelSnapshot(model) for model in models]
    snapshots: list[ProcessSnapshot | ModelSnapshot] = [ProcessSnapshot(), *of_models]
    lines: list[str] = []
    try:
        yield lines
    finally:
        changes: Changes = {}
        for snapshot in snapshots:
            snapshot.restore(changes)
        lines.extend(_line(kind, places) for kind, places in changes.items())


def _line(kind: str, places: Sequence[str]) -> str:
    first, more = places[0], len(places) - 1
    return kind + (f" ({first}{f' and {more} more' if more else ''})" if first else "")
