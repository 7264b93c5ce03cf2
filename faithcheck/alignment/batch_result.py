"""What is measured of a batch of an alignment, as a store keeps it and as it comes back from another process."""

from collections.abc import Iterable, Sequence
from operator import attrgetter

from msgspec import Struct

from faithcheck.reports.documents.alignment import Peaks


class MeasuredExample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is measured of one example."""

    target: int  # the explained output
    map: list[float]  # of each feature
    morf: list[float]  # the outputs along the curve
    lerf: list[float]
    positions: float | None = None  # what position embeddings keep of the relevance; None if it is not known


class BatchResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is measured of a batch, or why nothing is: then it is refused, or left out."""

    examples: list[MeasuredExample] = []
    warnings: list[str] = []
    left_behind: list[str] = []
    attribution: int = 0  # operations of the matrix products of the attribution; 0 where they are not counted
    forward: int = 0  # the same of one forward pass
    no_positions: str = ""  # why no relevance of position embeddings is known
    memory: Peaks | None = None  # of the attribution; None if it cannot be predicted
    smaller: str = ""  # why it was measured in smaller parts
    refused: str | None = None  # why the explainer could not be measured
    failed: bool = False  # whether that is an error of the explainer, and not its refusal of this model
    out_of_memory: bool = False  # whether that is because memory ran out
    left_out: str | None = None  # why this batch alone was not measured


def joined(parts: Sequence[BatchResult], why: str) -> BatchResult:
    """What was measured in parts as one batch; if a part was refused, that part's refusal."""
    for part in parts:
        if part.refused is not None:
            return part
    return BatchResult(
        examples=[example for part in parts for example in part.examples],
        warnings=[warning for part in parts for warning in part.warnings],
        left_behind=left_behind(parts),
        attribution=sum(part.attribution for part in parts),
        forward=sum(part.forward for part in parts),
        no_positions=next((part.no_positions for part in parts if part.no_positions), ""),
        memory=max((part.memory for part in parts if part.memory), key=attrgetter("predicted"), default=None),
        smaller=why,
    )


def left_behind(results: Iterable[BatchResult]) -> list[str]:
    """What was left behind in any of these batches, each line once."""
    return list(dict.fromkeys(line for result in results for line in result.left_behind))
