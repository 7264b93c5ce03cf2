"""Attributions from plain gradients: gradient × input and Integrated Gradients."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from faithcheck.explainers.protocol import input_gradient, per_feature, replacement_value
from faithcheck.models.case import Case, output_difference


class CompletenessWarning(UserWarning):
    """The quadrature of Integrated Gradients is too coarse for this model: use more steps."""


@dataclass(frozen=True)
class GradientTimesInput:
    """x ⊙ ∂f(x); Shrikumar et al. 2016, arXiv 1605.01713."""

    name: str = "gradient_x_input"
    claims: frozenset[str] = frozenset("invariance dummy linearity symmetry scale determinism batching".split())

    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """One forward and one backward pass: ``(batch, features)``."""
        return per_feature(case.inputs * input_gradient(model, case))


@dataclass(frozen=True)
class IntegratedGradients:
    """(x − x′) ⊙ ∫₀¹ ∂f(x′ + α(x − x′)) dα; Sundararajan, Taly & Yan 2017, arXiv 1703.01365, Eq. 1.

    The integral is Gauss–Legendre quadrature, exact for outputs of degree up to 2·steps along the path.

    Attributes:
        steps: quadrature nodes, a row of a forward and a backward pass each.
        baseline: one of ``case.replacements`` to start from at every feature; by default ``case.baseline``.
        max_tokens: the most features, padding included, in one pass; bounds memory, not the result.
    """

    steps: int = 32
    baseline: str | None = None
    name: str = "integrated_gradients"
    claims: frozenset[str] = frozenset(
        "invariance completeness sensitivity dummy linearity symmetry shift scale determinism batching".split()
    )
    max_tokens: int = 2048

    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """The attribution ``(batch, features)``; warns where its completeness error exceeds a hundredth.

        Warns:
            CompletenessWarning: with the error; see `attribute_with_error`.
        """
        attribution, error = self.attribute_with_error(model, case)
        worst = float((error.abs() / attribution.abs().sum(1).clamp_min(torch.finfo(error.dtype).tiny)).max())
        if not worst <= 0.01:  # so that NaN is said too
            warnings.warn(
                f"Integrated Gradients with {self.steps} steps misses completeness by up to {worst:.1%} of Σ|a|: "
                "use more steps",
                CompletenessWarning,
                stacklevel=2,
            )
        return attribution

    def attribute_with_error(self, model: nn.Module, case: Case) -> tuple[Tensor, Tensor]:
        """The attribution ``(batch, features)`` and its completeness error Σᵢ aᵢ − (f(x) − f(x′)), ``(batch,)``.

        Raises:
            Unsupported: the case has no such reference.
        """
        nodes, weights = np.polynomial.legendre.leggauss(self.steps)
        if self.baseline is not None:
            case = replace(case, baseline=replacement_value(case, self.baseline).expand_as(case.inputs))
        path = case.inputs - case.baseline
        gradient = torch.zeros_like(path)
        everyone = torch.arange(len(path), device=path.device)
        at_once = max(1, self.max_tokens // case.shape.numel())
        for start in range(0, self.steps, at_once):
            # leggauss lives on [−1, 1]; the path on [0, 1].
            part = slice(start, start + at_once)
            along = torch.as_tensor((nodes[part] + 1) / 2).to(path)
            share = torch.as_tensor(weights[part] / 2).to(path)
            rows = case.select(everyone.repeat(len(along)))
            points = case.baseline + torch.einsum("n,b...->nb...", along, path)
            gradients = input_gradient(model, replace(rows, inputs=points.flatten(0, 1)))
            gradient += torch.einsum("n,nb...->b...", share, gradients.view_as(points))
        attribution = per_feature(path * gradient)
        return attribution, attribution.sum(1) - output_difference(model, case)
