"""Faults of state: what a correct explainer leaves behind on the model, its inputs or the process."""

from __future__ import annotations

import os
import random
import signal
import warnings

import numpy as np
import torch
import transformers
from torch import nn

from faithcheck.tests.helpers.faults.fault import Attribute, Fault, around

EXPLAINERS = ("gradient_x_input", "loo")


def after(act) -> Attribute:
    """A method that explains, and then acts on the model and the case."""

    def attribute(explainer, model, case):
        attribution = explainer.attribute(model, case)
        act(model, case)
        return attribution

    return attribute


def before(act) -> Attribute:
    """A method that acts on the model and the case, and then explains."""

    def attribute(explainer, model, case):
        act(model, case)
        return explainer.attribute(model, case)

    return attribute


def parameters_changed(model, case):
    """A change of the first weight by 1e-6 of its size."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + 1e-6)


def buffer_added(model, case):
    """A new buffer."""
    model.register_buffer("left_behind", torch.ones(1))


def gradients_left(model, case):
    """A backward pass into ``.grad``."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.ones_like(parameter)


def gradients_off(model, case):
    """Parameters that need no gradient from now on."""
    for parameter in model.parameters():
        parameter.requires_grad_(not parameter.requires_grad)


def gelu_patched(model, case):
    """A function of torch, replaced by another."""
    plain = nn.functional.gelu
    nn.functional.gelu = lambda x, **options: plain(x, **options)


def attention_patched(model, case):
    """A function of a modelling module of transformers, replaced as LXT does."""
    module = transformers.models.bert.modeling_bert
    plain = module.eager_attention_forward
    module.eager_attention_forward = lambda *args, **options: plain(*args, **options)


def forward_patched(model, case):
    """The method ``forward`` of the model itself."""
    plain = model.forward
    model.forward = lambda *args, **options: plain(*args, **options)


def inputs_changed(model, case):
    """The inputs, changed in place."""
    case.inputs.mul_(1 + 1e-6)


def baseline_changed(model, case):
    """The baseline, changed in place."""
    case.baseline.add_(1e-6)


def modules_replaced(model, case):
    """A child module, replaced by a copy."""
    for name, child in list(model.named_children())[:1]:
        setattr(model, name, nn.Sequential(child))


ENTERED: list[torch.inference_mode] = []
"""Held, since torch leaves inference mode when the object that entered it is deleted."""


def inference_mode(model, case):
    """All tensors from now on refuse gradients."""
    ENTERED.append(torch.inference_mode())
    ENTERED[-1].__enter__()


STATES = {
    "a hook left": (lambda model, case: model.register_forward_hook(lambda *_: None), "every later pass runs it"),
    "a backward hook left": (
        lambda model, case: model.register_full_backward_hook(lambda *_: None),
        "every later pass runs it",
    ),
    "a global hook left": (
        lambda model, case: nn.modules.module.register_module_forward_hook(lambda *_: None),
        "it runs in every model",
    ),
    "train mode left": (lambda model, case: model.train(), "dropout and batch statistics"),
    "a module in train mode": (lambda model, case: list(model.modules())[-1].train(), "dropout in one module"),
    "gradients left": (gradients_left, "the user's next step adds to them"),
    "requires_grad left": (gradients_off, "the user's parameters train no more"),
    "weights changed": (parameters_changed, "another model from now on"),
    "a buffer added": (buffer_added, "the state dict has another key"),
    "a module replaced": (modules_replaced, "another structure"),
    "forward replaced": (forward_patched, "the model's own method"),
    "gelu patched": (gelu_patched, "a function of torch"),
    "attention patched": (attention_patched, "a function of transformers"),
    "gradients off": (lambda model, case: torch.set_grad_enabled(not torch.is_grad_enabled()), "the user's grad mode"),
    "another default dtype": (lambda model, case: torch.set_default_dtype(torch.float64), "the user's later tensors"),
    "another number of threads": (
        lambda model, case: torch.set_num_threads(torch.get_num_threads() + 1),
        "the user's later sums",
    ),
    "a printing option": (
        lambda model, case: torch.set_printoptions(precision=2),
        "the user's prints",
    ),
    "the environment changed": (lambda model, case: os.environ.__setitem__("LEFT_BEHIND", "1"), "the user's processes"),
    "a warnings filter": (lambda model, case: warnings.simplefilter("ignore"), "the user's warnings are silent"),
    "a signal handler": (lambda model, case: signal.signal(signal.SIGUSR1, lambda *_: None), "the user's signals"),
    "NumPy's error state": (lambda model, case: np.seterr(all="ignore"), "the user's divisions"),
    "inference mode entered": (inference_mode, "the user's later tensors"),
    "deterministic algorithms": (
        lambda model, case: torch.use_deterministic_algorithms(True),
        "the user's later operations",
    ),
    "inputs changed in place": (inputs_changed, "the user's data"),
    "baseline changed in place": (baseline_changed, "the user's data"),
}

RESEEDED = {
    "torch reseeded": (lambda model, case: torch.manual_seed(0), "the user's later draws repeat"),
    "NumPy reseeded": (lambda model, case: np.random.seed(0), "the user's later draws repeat"),
    "Python reseeded": (lambda model, case: random.seed(0), "the user's later draws repeat"),
}

FAULTS = [
    *(Fault(name, "gradient_x_input", around(after(act)), why) for name, (act, why) in STATES.items()),
    *(Fault(name, "gradient_x_input", around(after(act)), why) for name, (act, why) in RESEEDED.items()),
    *(
        Fault(f"{name}, before", "loo", around(before(act)), why)
        for name, (act, why) in STATES.items()
        if name in ("a hook left", "train mode left", "weights changed", "gradients left", "inputs changed in place")
    ),
]
