"""Attributions from plain gradients: gradient × input and Integrated Gradients."""

import warnings
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from faithcheck.explainers.builtin import builtin
from faithcheck.explainers.protocol import CompletenessWarning as CompletenessWarning
from faithcheck.explainers.protocol import in_standard_modes, input_gradient, per_feature, replacement_value
from faithcheck.explainers.refused_modules import flex_attention, quantised_weights, refuse_modules
from faithcheck.models.case import Case, output_difference
from faithcheck.models.expectation import ON_LINEAR_MODELS, Expectations, expect

gauss_legendre = cache(np.polynomial.legendre.leggauss)
"""The nodes in [−1, 1] and the weights of Gauss–Legendre quadrature; to find them takes as long as a small model."""


def checked_gradient(model: nn.Module, case: Case) -> Tensor:
    """`input_gradient`; Unsupported if weights are quantised, or flex attention has no gradient on this device."""
    refuse_modules(model, quantised_weights)
    try:
        return input_gradient(model, case)
    except NotImplementedError as error:
        if "FlexAttention" in str(error):
            refuse_modules(model, flex_attention)
        raise


@builtin("gradient")
@dataclass(frozen=True)
class GradientTimesInput:
    """x ⊙ ∂f(x); Shrikumar et al. 2016, arXiv 1605.01713."""

    label: ClassVar[str] = "Gradient × Input"
    summary: ClassVar[str] = "x ⊙ ∂f(x); Shrikumar et al. 2016"

    name: str = "gradient_x_input"
    claims: frozenset[str] = frozenset(
        "invariance dummy linearity additivity antisymmetry symmetry scale determinism batching precision "
        "randomisation".split()
    )
    expected: ClassVar[Expectations] = {
        **ON_LINEAR_MODELS,
        **expect(
            "local_limit",
            "control.mlp.f control.bert.f probe.tokens.f",
            "the derivative along x, and the baseline is 0",
        ),
    }

    @property
    def settings(self) -> str:
        """The settings in words, for reports."""
        return "none"

    @in_standard_modes
    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """One forward and one backward pass: ``(batch, features)``.

        Raises:
            Unsupported: see `checked_gradient`.
        """
        return per_feature(case.inputs * checked_gradient(model, case))


@builtin("gradient")
@dataclass(frozen=True)
class IntegratedGradients:
    """(x − x′) ⊙ ∫₀¹ ∂f(x′ + α(x − x′)) dα; Sundararajan, Taly & Yan 2017, arXiv 1703.01365, Eq. 1.

    The integral is Gauss–Legendre quadrature, exact for outputs of degree up to 2·steps along the path.

    Attributes:
        steps: how many quadrature nodes; each costs one forward and one backward row.
        baseline: the name in ``case.replacements`` of the value that every feature starts from; by default
            ``case.baseline``.
        max_tokens: the most features, padding included, in one pass; bounds memory, not the result.
    """

    label: ClassVar[str] = "Integrated Gradients"
    summary: ClassVar[str] = "gradients on the path from a baseline, integrated; Sundararajan, Taly & Yan 2017"

    steps: int = 32
    baseline: str | None = None
    name: str = "integrated_gradients"
    claims: frozenset[str] = frozenset(
        "invariance completeness sensitivity dummy linearity additivity antisymmetry symmetry shift scale determinism "
        "batching precision randomisation".split()
    )
    max_tokens: int = 2048

    @property
    def expected(self) -> Expectations:
        """What theory expects on a linear model, from the case's baseline."""
        return ON_LINEAR_MODELS if self.baseline is None else {}

    @property
    def settings(self) -> str:
        """The settings in words, for reports."""
        start = self.baseline or "the case's baseline"
        return f"Gauss–Legendre quadrature of {self.steps} nodes on the path from {start}"

    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """The attribution ``(batch, features)``; warns if the completeness error exceeds 1 % of Σ|a|.

        Warns:
            CompletenessWarning: with the error; see `attribute_with_error`.
        """
        attribution, error = self.attribute_with_error(model, case)
        worst = float((error.abs() / attribution.abs().sum(1).clamp_min(torch.finfo(error.dtype).tiny)).max())
        if not worst <= 0.01:  # NaN warns too
            warnings.warn(
                f"Integrated Gradients with {self.steps} steps misses completeness by up to {worst:.1%} of Σ|a|: "
                "use more steps",
                CompletenessWarning,
                stacklevel=2,
            )
        return attribution

    @in_standard_modes
    def attribute_with_error(self, model: nn.Module, case: Case) -> tuple[Tensor, Tensor]:
        """The attribution ``(batch, features)`` and its completeness error Σᵢ aᵢ − (f(x) − f(x′)), ``(batch,)``.

        Raises:
            Unsupported: the case has no replacement of that name, or see `checked_gradient`.
        """
        nodes, weights = gauss_legendre(self.steps)
        if self.baseline is not None:
            case = replace(case, baseline=replacement_value(case, self.baseline).expand_as(case.inputs))
        path = case.inputs - case.baseline
        gradient = torch.zeros_like(path)
        all_examples = torch.arange(len(path), device=path.device)
        nodes_per_pass = max(1, self.max_tokens // case.shape.numel())
        for start in range(0, self.steps, nodes_per_pass):
            # The nodes of leggauss are in [−1, 1], and α is in [0, 1].
            part = slice(start, start + nodes_per_pass)
            alpha = torch.as_tensor((nodes[part] + 1) / 2).to(path)
            weight = torch.as_tensor(weights[part] / 2).to(path)
            rows = case.select(all_examples.repeat(len(alpha)))
            points = case.baseline + torch.einsum("n,b...->nb...", alpha, path)
            gradients = checked_gradient(model, replace(rows, inputs=points.flatten(0, 1)))
            gradient += torch.einsum("n,nb...->b...", weight, gradients.view_as(points))
        attribution = per_feature(path * gradient)
        return attribution, attribution.sum(1) - output_difference(model, case)
