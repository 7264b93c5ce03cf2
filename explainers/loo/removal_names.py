"""The names of the removals. Nothing here imports torch: the command line lists them."""

REPLACEMENTS = ("baseline", "black", "mask", "mean", "pad", "zero")
"""Removals by a fixed value: "baseline" for ``case.baseline``, "zero", or a name in ``case.replacements``."""
RANDOM = ("resample", "noise")
"""Removals by random values, which take draws and a seed."""
NAMES = tuple(sorted(("attention_mask", "delete", *REPLACEMENTS, *RANDOM)))
"""All removals; `faithcheck.explainers.loo.removal.REMOVALS` makes each."""
