"""The request of ``faithcheck align``: what its options ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from faithcheck.alignment.defaults import MAX_TOKENS


@dataclass(frozen=True)
class AlignRequest:
    """The options of ``faithcheck align``. The help of the command describes each."""

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
    dtype: str = "float32"
    device: str = "cpu"
    seed: int = 0
    cache: Path | None = None
    parquet: Path | None = None
    allow_pickle: bool = False
    allow_code: bool = False
    target: str | None = None
    contrast: str | None = None
    next_token: bool = False
    isolate: bool = False
    explainer_timeout: float | None = None
    ray: str | None = None
    workers: int | None = None
    cpus_per_worker: int = 1
    gpus_per_worker: float = 0.0
