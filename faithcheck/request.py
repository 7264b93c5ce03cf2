"""A request: what a run measures, on what, and how. Each front door builds one; nothing below knows the doors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from faithcheck.axioms.measure.expectations import SuppliedExpectation
    from faithcheck.explainers.protocol import Explainer
    from faithcheck.models.pair import Pair


@dataclass(frozen=True)
class Settings:
    """How a check is measured.

    Attributes:
        seed: of the models, the cases and the inputs that are drawn, in 0 … 2⁶³ − 1.
        dtype: the type of the arithmetic; ``torch.int8`` for weights of 8 bits.
        device: the device that computes.
        timeout: the seconds after which a check of an explainer is stopped; None: never.
        reuse: whether what was measured on a model that several pairs share is used again, see `measured_once`; right
            where nothing but checks runs between two checks.
    """

    seed: int = 0
    dtype: torch.dtype = torch.float64
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    timeout: float | None = None
    reuse: bool = False


@dataclass(frozen=True)
class Place:
    """Where a run computes: in this process, in a process for each explainer, or on a Ray cluster."""

    isolate: bool = False  # whether each explainer gets a process of its own
    # The address of a Ray cluster, ``local`` for one that is started on this machine; None: no cluster
    cluster: str | None = None
    workers: int | None = None  # the number of workers of the cluster; None: as many as there is room for
    cpus_per_worker: int = 1  # the processors of a worker, which are also its threads
    gpus_per_worker: float = 0.0  # the GPUs of a worker; also a fraction of one


@dataclass(frozen=True)
class Request:
    """The checks that a run is asked for."""

    # The explainers as they are checked: with what the user claims of them, and what they are held to
    explainers: Sequence[Explainer]
    axioms: Sequence[str]  # names in `AXIOMS`
    pairs: Sequence[Pair]
    # By the name of an explainer, the text by which another process loads it, see `load_explainer`; empty for the
    # built-in explainers, which are loaded by their names
    specs: Mapping[str, str] = field(default_factory=dict)
    # The user's own, which take precedence over those of pairs, explainers and axioms
    expectations: Sequence[SuppliedExpectation] = ()
    settings: Settings = field(default_factory=Settings)  # how each check is measured
    # The folder or hub name of the user's own model, whose pairs another process must register
    checkpoint: Sequence[str] = ()
    place: Place = field(default_factory=Place)  # where the checks run
