"""What explainers by gradients or relevance state of a linear model without bias, where features are removed by 0."""

from __future__ import annotations

from faithcheck.models.expectation import Expectations, expect

ON_LINEAR_MODELS: Expectations = expect(
    "completeness full_removal local_limit", "probe.linear.f", "f(x) = w·x: feature i has w_i x_i, and nothing else"
)
"""It fixes the scale and the sign of an attribution, which most axioms leave open."""
