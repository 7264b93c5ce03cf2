"""The worker of quantus (Hedström et al. 2023, arXiv 2202.06861), a library of metrics that calls captum to explain.

Methods: ``Gradient``, ``InputXGradient``, ``IntegratedGradients``, ``FeatureAblation`` of ``quantus.explain``, with
quantus's own settings (Integrated Gradients: 10 steps of the trapezoid rule from the case's baseline), summed over the
coordinates of each feature instead of quantus's default, axis 1. Options: ``{"completeness": true}`` also runs
``quantus.Completeness`` on the attribution: with its defaults, without its normalisation, and with a baseline of 0.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor
from worker_protocol import Refused, WorkerAnswer, WorkerRequest, serve  # type: ignore[import-not-found]

METHODS = ("Gradient", "InputXGradient", "IntegratedGradients", "FeatureAblation")  # without hooks on modules


def explain(request: WorkerRequest) -> WorkerAnswer:
    """The attribution of ``quantus.explain``."""
    quantus: Any = importlib.import_module("quantus")
    if request.method not in METHODS:
        raise Refused(f"{request.method!r} is not one of {', '.join(METHODS)}: a program has no modules for hooks")
    if request.forward_arguments:
        raise Refused(f"quantus.explain passes only the inputs, not {', '.join(request.forward_arguments)}")
    program = request.load()
    program.eval = lambda: program  # an exported program raises an error if eval is called
    output = program(request.inputs).detach()
    axes = tuple(range(2, request.inputs.dim()))
    attribution = quantus.explain(
        program,
        request.inputs.clone().requires_grad_(),
        request.target,
        method=request.method,
        baseline=request.baseline,
        reduce_axes=axes,
        keepdims=False,
    )
    attribution = torch.as_tensor(attribution)
    figures = completeness(program, request, attribution) if request.options.get("completeness") else {}
    return WorkerAnswer(attribution, output, figures)


def completeness(program: Any, request: WorkerRequest, attribution: Tensor) -> dict[str, Any]:
    """The results of ``quantus.Completeness`` for an attribution: for each setting a boolean per example."""
    quantus: Any = importlib.import_module("quantus")

    class FromFloat32(torch.nn.Module):
        """The program, called on the float32 inputs that quantus passes."""

        def forward(self, inputs: Tensor) -> Tensor:
            result: Tensor = program(inputs.to(request.inputs.dtype).reshape(-1, *request.inputs.shape[1:]))
            return result

    figures = {}
    variants: dict[str, dict[str, Any]] = {
        "default": {},  # the map divided by its maximum; the baseline is "black", the smallest input of each example
        "not normalised": {"normalise": False},
        "not normalised, from 0": {"normalise": False, "perturb_baseline": 0.0},
    }
    for name, settings in variants.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            metric = quantus.Completeness(disable_warnings=True, **settings)
            complete = metric(
                model=FromFloat32().eval(),
                x_batch=request.inputs.numpy(),
                y_batch=request.target.numpy(),
                a_batch=attribution.numpy(),
                channel_first=True,
            )
        figures[name] = [bool(value) for value in np.ravel(complete)]
    return figures


if __name__ == "__main__":
    serve("quantus", explain)
