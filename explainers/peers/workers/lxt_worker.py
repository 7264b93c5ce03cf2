"""The worker of lxt (Achtibat et al. 2024, arXiv 2402.05602): ``lxt.efficient``, rules by monkey patches of classes.

Methods: ``attnlrp`` and ``cplrp``, lxt's own maps of patches for BERT, GPT-2, Llama and others. The attribution is
x ⊙ gradient under the patches, as its README has it. Its patches are of classes, for good: one worker, one request.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from typing import Any

import torch
from torch import nn
from worker_protocol import Answer, Refused, Request, serve  # type: ignore[import-not-found]


def without_torchvision() -> None:
    """Let ``lxt.efficient`` be imported where torchvision is not: it wants it for a vision model that is not used."""
    vision: Any = types.ModuleType("torchvision.models.vision_transformer")
    vision.nn = nn
    models: Any = types.ModuleType("torchvision.models")
    models.vision_transformer = vision
    for module in (types.ModuleType("torchvision"), models, vision):
        sys.modules[module.__name__] = module


def explain(request: Request) -> Answer:
    """x ⊙ gradient under lxt's patches; the output is of the model as it was before."""
    embedding_model = request.load()
    output = embedding_model(request.inputs, **request.forward_arguments).detach()
    kind = embedding_model.model.config.model_type if hasattr(embedding_model, "model") else "an exported program"
    stand_in = importlib.util.find_spec("torchvision") is None
    if stand_in:
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
    embedding_model = (
        request.load()
    )  # of BERT it replaces the classes of the module: models made from now on are patched
    point = request.inputs.clone().requires_grad_()
    patched = embedding_model(point, **request.forward_arguments)
    explained = patched.gather(1, request.target.unsqueeze(1)).sum()
    (gradient,) = torch.autograd.grad(explained, point)
    figures = {"largest change of the output by the patches": float((patched - output).abs().max().detach())}
    return Answer((point * gradient).flatten(2).sum(2), output, figures | {"torchvision": not stand_in})


if __name__ == "__main__":
    serve("lxt", explain)
