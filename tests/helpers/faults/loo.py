"""Faults of Leave-One-Out and Attention Rollout."""

from __future__ import annotations

from faithcheck.explainers.loo.removal import GaussianNoise, Replacement
from faithcheck.tests.helpers.faults.fault import Fault, Settings

LEAVE_ONE_OUT = [
    Fault("drawn noise", "loo", Settings({"removal": GaussianNoise(draws=1, seed=0)}), "not the baseline"),
    Fault("the zero value", "loo", Settings({"removal": Replacement("zero")}), "zero, not the baseline"),
]

ROLLOUT = [
    Fault("no residual", "attention_rollout", Settings({"residual": False}), "A, not ½A + ½I"),
    Fault("the wrong row", "attention_rollout", Settings({"row": 1}), "row 1, whatever row the output is read at"),
]

FAULTS = [*LEAVE_ONE_OUT, *ROLLOUT]
