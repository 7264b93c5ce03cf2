"""What an alignment is asked for, how it is measured, and the explainers of Table 2 of arXiv 2510.18810."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from faithcheck.alignment.defaults import MAX_TOKENS, TABLE_2
from faithcheck.explainers.attention_rollout import AttentionRollout
from faithcheck.explainers.gradients import GradientTimesInput, IntegratedGradients
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.explainers.loo.removal import Removal
from faithcheck.explainers.lrp.attnlrp import AttnLRP
from faithcheck.explainers.lrp.cplrp import CPLRP
from faithcheck.explainers.protocol import Explainer
from faithcheck.request import Place, Settings


@dataclass(frozen=True)
class AlignRequest:
    """What ``faithcheck align`` is asked for. The help of the command describes each option."""

    model: str | None = None
    data: str | None = None
    limit: int | None = None
    explainer: Sequence[str] = ()
    removal: str | None = None
    draws: int | None = None
    chunk: int | None = None
    max_length: int | None = None
    max_tokens: int = MAX_TOKENS
    max_memory: int | None = None
    cache: Path | None = None
    parquet: Path | None = None
    allow_pickle: bool = False
    allow_code: bool = False
    target: str | None = None
    contrast: str | None = None
    next_token: bool = False
    settings: Settings = field(default_factory=lambda: Settings(dtype=torch.float32))
    place: Place = field(default_factory=Place)


IG_STEPS = 20  # as in the figures that the project compares with; the error of completeness is reported


@dataclass(frozen=True)
class AlignmentSettings:
    """How alignment is measured."""

    removal: Removal  # the way a feature is removed, for LOO and for the curves
    chunk: int = 1  # how many neighbouring features the curves remove at once; LOO removes single ones
    max_tokens: int = MAX_TOKENS  # the most features in one forward pass, padding included
    seed: int = 0  # of the bootstrap
    timeout: float | None = None  # the seconds that an explainer may take for a batch; None: no limit
    max_memory: int | None = None  # the bytes that an attribution may take over what is in use; None: what is available


def specs_of(asked: Sequence[str]) -> list[str]:
    """What names each explainer of an alignment: LOO and those that are asked for, or those of Table 2."""
    return [*dict.fromkeys(["loo", *asked])] if asked else [*TABLE_2]


def table_2(settings: AlignmentSettings) -> list[Explainer]:
    """The explainers of Table 2, with IG from three baselines, and gradient × input.

    LRP is taken in the limit ε → 0. With the paper's ε = 1e-6 a float32 map depends on the other texts of its batch, by
    up to 4e-4 of its largest value on MiniLM: z + ε·sign z jumps if round-off changes the sign of z.
    """
    return [
        LeaveOneOut(settings.removal, max_tokens=settings.max_tokens),
        *(
            IntegratedGradients(IG_STEPS, baseline, f"ig_{baseline}", max_tokens=settings.max_tokens)
            for baseline in ("zero", "pad", "mask")
        ),
        AttentionRollout(),
        GradientTimesInput(),
        AttnLRP(),
        CPLRP(),
    ]
