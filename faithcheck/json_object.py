"""The type of what documents and messages hold. Nothing here imports torch: the command line reads documents."""

from __future__ import annotations

from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]
"""A JSON object."""
