"""The request of ``faithcheck align``: what is measured, on what, and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from faithcheck.alignment.defaults import MAX_TOKENS
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
