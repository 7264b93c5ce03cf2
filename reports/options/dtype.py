"""``--dtype``: the floating-point type that a run measures in."""

DTYPES = ("float64", "float32", "bfloat16", "float16")
"""The types by name, from the finest; this module does not import torch."""
MEANING = "the floating-point type, see docs/types.md (default: float64)"
"""What the option does in a check."""
