"""The worker of quantus (Hedström et al. 2023, arXiv 2202.06861), a library of metrics that calls captum to explain.

Methods: ``Gradient``, ``InputXGradient``, ``IntegratedGradients``, ``FeatureAblation`` of ``quantus.explain``, with its
own settings (Integrated Gradients: 10 steps of the trapezoid rule, from ``baseline`` where it is asked for), summed
over what is behind a feature, not over quantus's default, axis 1. Options: ``{"completeness": true}`` also asks
``quantus.Completeness`` about the attribution: by default, without its normalisation, and from a baseline of 0.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor
from worker_protocol import Answer, Refused, Request, serve  # type: ignore[import-not-found]

METHODS = ("Gradient", "InputXGradient", "IntegratedGradients", "FeatureAblation")  # that see nothing of modules


def explain(request: Request) -> Answer:
    """What ``quantus.explain`` gives."""
    quantus: Any = importlib.import_module("quantus")
    if request.method not in METHODS:
        raise Refused(f"{request.method!r} is none of {', '.join(METHODS)}: a program has no modules to put hooks on")
    if request.forward_arguments:
        raise Refused(f"quantus.explain passes on nothing but inputs, and not {', '.join(request.context)}")
    program = request.load()
    program.eval = lambda: program  # a program has no mode to change, and says so by an error
    output = program(request.inputs).detach()
    axes = tuple(range(2, request.inputs.dim()))
    found = quantus.explain(
        program,
        request.inputs.clone().requires_grad_(),
        request.target,
        method=request.method,
        baseline=request.baseline,
        reduce_axes=axes,
        keepdims=False,
    )
    attribution = torch.as_tensor(found)
    figures = completeness(program, request, attribution) if request.options.get("completeness") else {}
    return Answer(attribution, output, figures)


def completeness(program: Any, request: Request, attribution: Tensor) -> dict[str, Any]:
    """What ``quantus.Completeness`` says of an attribution: a boolean for each example."""
    quantus: Any = importlib.import_module("quantus")

    class InFloat(torch.nn.Module):
        """The program, fed what quantus makes of its inputs: float32."""

        def forward(self, inputs: Tensor) -> Tensor:
            result: Tensor = program(inputs.to(request.inputs.dtype).reshape(-1, *request.inputs.shape[1:]))
            return result

    figures = {}
    asked: dict[str, dict[str, Any]] = {
        "default": {},  # the map over its maximum; from a baseline "black", each example's least input
        "not normalised": {"normalise": False},
        "not normalised, from 0": {"normalise": False, "perturb_baseline": 0.0},
    }
    for name, settings in asked.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            metric = quantus.Completeness(disable_warnings=True, **settings)
            said = metric(
                model=InFloat().eval(),
                x_batch=request.inputs.numpy(),
                y_batch=request.target.numpy(),
                a_batch=attribution.numpy(),
                channel_first=True,
            )
        figures[name] = [bool(value) for value in np.ravel(said)]
    return figures


if __name__ == "__main__":
    serve("quantus", explain)
