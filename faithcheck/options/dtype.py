"""``--dtype``: the type that a run measures in."""

FLOATING = ("float64", "float32", "bfloat16", "float16")
"""The floating-point types by name, from the finest; this module does not import torch."""
DTYPES = (*FLOATING, "int8")
"""And weights of 8 bits."""
MEANING = "the type of the arithmetic, int8 for weights of 8 bits, see docs/explanation/types.md (default: float64)"
"""What the option does in a check."""
