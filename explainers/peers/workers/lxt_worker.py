"""The worker of lxt (Achtibat et al. 2024, arXiv 2402.05602): ``lxt.efficient``, rules by monkey patches of classes.

Methods: ``attnlrp`` and ``cplrp``, lxt's own tables of patches for BERT, GPT-2, Llama and others. The attribution is
x ⊙ gradient of the patched model, as in lxt's README. lxt patches classes and does not restore them, so a worker
answers one request only.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from typing import Any

import torch
from torch import nn
from worker_protocol import Refused, WorkerAnswer, WorkerRequest, serve  # type: ignore[import-not-found]


def without_torchvision() -> None:
    """Put an empty module in the place of torchvision, which ``lxt.efficient`` imports for a vision model only."""
    vision: Any = types.ModuleType("torchvision.models.vision_transformer")
    vision.nn = nn
    models: Any = types.ModuleType("torchvision.models")
    models.vision_transformer = vision
    for module in (types.ModuleType("torchvision"), models, vision):
        sys.modules[module.__name__] = module


def explain(request: WorkerRequest) -> WorkerAnswer:
    """x ⊙ gradient of the patched model; ``output`` is that of the model without patches."""
    embedding_model = request.load()
    output = embedding_model(request.inputs, **request.forward_arguments).detach()
    kind = embedding_model.model.config.model_type if hasattr(embedding_model, "model") else "an exported program"
    has_torchvision = importlib.util.find_spec("torchvision") is not None
    if not has_torchvision:
        without_torchvision()
    efficient: Any = importlib.import_module("lxt.efficient")
    try:
        rules = importlib.import_module(f"lxt.efficient.models.{kind}")
    except ModuleNotFoundError as error:
        raise Refused(f"lxt.efficient has no rules for {kind!r}") from error
    attribute = {"attnlrp": "attnLRP", "cplrp": "cp_LRP"}[request.method]
    if not hasattr(rules, attribute):
        raise Refused(f"lxt.efficient has no {attribute} for {kind!r}")
    modeling = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    efficient.monkey_patch(modeling, getattr(rules, attribute))
    embedding_model = request.load()  # loaded again: for BERT, lxt replaces classes, so only new models are patched
    point = request.inputs.clone().requires_grad_()
    patched = embedding_model(point, **request.forward_arguments)
    explained = patched.gather(1, request.target.unsqueeze(1)).sum()
    (gradient,) = torch.autograd.grad(explained, point)
    figures = {"largest change of the output by the patches": float((patched - output).abs().max().detach())}
    return WorkerAnswer((point * gradient).flatten(2).sum(2), output, figures | {"torchvision": has_torchvision})


if __name__ == "__main__":
    serve("lxt", explain)
