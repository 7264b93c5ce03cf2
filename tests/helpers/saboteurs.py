"""Saboteurs: explainers that damage what other explainers use, or end, stop or flood the process that runs them.

Each is gradient × input, and does its damage in every call. ``EXPLAINERS.NAME`` is an explainer that a run takes as
``faithcheck.tests.helpers.saboteurs:EXPLAINERS.NAME``.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.bert import modeling_bert

from faithcheck.axioms.measure import measurement
from faithcheck.explainers import GradientTimesInput
from faithcheck.models.case import Case
from faithcheck.tests.helpers.process_saboteurs import LONG, NoException, Unprintable

Act = Callable[[nn.Module, Case], object]


@dataclass(frozen=True)
class Saboteur:
    """An explainer that does damage."""

    name: str
    act: Act
    needs_process: bool = False
    first: bool = False
    claims: frozenset[str] = frozenset({"invariance", "determinism"})

    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """Gradient × input, before or after the damage."""
        if self.first:
            self.act(model, case)
            return GradientTimesInput().attribute(model, case)
        attribution = GradientTimesInput().attribute(model, case)
        self.act(model, case)
        return attribution


def raises(error: BaseException) -> Act:
    """An act that raises this."""

    def act(model: nn.Module, case: Case) -> None:
        raise error

    return act


def weights(model: nn.Module, case: Case) -> None:
    """Every weight is doubled."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)


def gradients(model: nn.Module, case: Case) -> None:
    """A gradient is left on every parameter."""
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)


def doubling_hooks(model: nn.Module, case: Case) -> None:
    """A hook that doubles the output is left, and an error is raised."""
    model.register_forward_hook(lambda module, args, output: 2 * output)
    raise RuntimeError("after the hooks")


def global_hook(model: nn.Module, case: Case) -> None:
    """A hook of all modules is left."""
    nn.modules.module.register_module_forward_hook(lambda module, args, output: None)


def patch(owner: Any, name: str) -> Act:
    """An act that puts a function in the place of another which doubles its result if that is a tensor."""

    def act(model: nn.Module, case: Case) -> None:
        plain = getattr(owner, name)

        def doubled(*args: Any, **options: Any) -> Any:
            result = plain(*args, **options)
            return 2 * result if isinstance(result, Tensor) else result

        setattr(owner, name, doubled)

    return act


ENTERED: list[Any] = []
"""Held, since torch leaves inference mode when the object that entered it is deleted."""


def inference_mode(model: nn.Module, case: Case) -> None:
    """All tensors from now on refuse gradients."""
    ENTERED.append(torch.inference_mode())
    ENTERED[-1].__enter__()


def hooks_of_saved_tensors(model: nn.Module, case: Case) -> None:
    """Saved tensors are doubled from now on, in every backward pass."""
    torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: 2 * x).__enter__()


def reseeded(model: nn.Module, case: Case) -> None:
    """All random numbers start again."""
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


def environment(model: nn.Module, case: Case) -> None:
    """Environment variables that others read."""
    os.environ["HF_HUB_OFFLINE"] = "0"
    os.environ["LEFT_BEHIND"] = "1"


def registers_attention(model: nn.Module, case: Case) -> None:
    """The attention of every model that is called eager has three times its size."""

    def tripled(module: nn.Module, *tensors: Any, **options: Any) -> Any:
        output, weights = modeling_bert.eager_attention_forward(module, *tensors, **options)
        return 3 * output, weights

    ALL_ATTENTION_FUNCTIONS["eager"] = tripled


def timer(model: nn.Module, case: Case) -> None:
    """A timer of the explainer's own, which it forgets to end when it raises."""
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    raise RuntimeError("not enough time")


def leaves_for_a_folder_that_ends(model: nn.Module, case: Case) -> None:
    """The current folder does not exist any more, and every weight is doubled."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
    weights(model, case)


def numbers_to_tensors(model: nn.Module, case: Case) -> None:
    """Tensors in place of the numbers that modules have, and private numbers are changed."""
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if type(value) in (int, float):
                setattr(module, name, torch.full((3, 1, 1), value + 1))


def flood(model: nn.Module, case: Case) -> None:
    """Five million characters on each stream."""
    for stream in (sys.stdout, sys.stderr):
        stream.write("flood " * 800_000 + "\n")
    raise RuntimeError("after the flood")


def spins(model: nn.Module, case: Case) -> None:
    """A loop that catches whatever would stop it."""
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    while True:
        try:
            time.sleep(1)
        except BaseException:
            continue


def memory(model: nn.Module, case: Case) -> None:
    """64 GiB, not written to: without a limit the machine survives it."""
    held = [bytearray(2**30) for _ in range(64)]
    raise MemoryError(f"{len(held)} GiB")


def forks(model: nn.Module, case: Case) -> None:
    """A second process goes on with the run."""
    os.fork()


def crashes(model: nn.Module, case: Case) -> None:
    """A read of address 0."""
    ctypes.string_at(0)


def measurements_patched(model: nn.Module, case: Case) -> None:
    """The suite's own measure of a gap becomes 0."""
    measurement.relative_gap = lambda *tensors: 0.0


SABOTEURS = (
    Saboteur("changes_weights", weights),
    Saboteur("changes_weights_first", weights, first=True),
    Saboteur("adds_a_buffer", lambda model, case: model.register_buffer("left_behind", torch.ones(1))),
    Saboteur("hooks_and_raises", doubling_hooks),
    Saboteur("hooks_all_modules", global_hook),
    Saboteur("patches_softmax", patch(nn.functional, "softmax")),
    Saboteur("patches_matmul", patch(torch, "matmul")),
    Saboteur("patches_a_method", patch(Tensor, "masked_fill")),
    Saboteur("patches_autograd", patch(torch.autograd, "grad")),
    Saboteur("patches_transformers", patch(modeling_bert, "eager_attention_forward")),
    Saboteur("patches_a_layer", patch(nn.Linear, "forward")),
    Saboteur("registers_attention", registers_attention),
    Saboteur("leaves_a_timer", timer),
    Saboteur("leaves_for_a_folder_that_ends", leaves_for_a_folder_that_ends),
    Saboteur("replaces_numbers_by_tensors", numbers_to_tensors),
    Saboteur("trains", lambda model, case: model.train()),
    Saboteur("freezes", lambda model, case: model.requires_grad_(False)),
    Saboteur("leaves_gradients", gradients),
    Saboteur("changes_the_default_dtype", lambda model, case: torch.set_default_dtype(torch.float16)),
    Saboteur("turns_gradients_off", lambda model, case: torch.set_grad_enabled(False)),
    Saboteur("enters_inference_mode", inference_mode),
    Saboteur("hooks_saved_tensors", hooks_of_saved_tensors),
    Saboteur("reseeds", reseeded),
    Saboteur("changes_the_environment", environment),
    Saboteur("handles_signals", lambda model, case: signal.signal(signal.SIGINT, signal.SIG_IGN)),
    Saboteur("ignores_warnings", lambda model, case: warnings.simplefilter("ignore")),
    Saboteur("changes_the_inputs", lambda model, case: case.inputs.mul_(2)),
    Saboteur("leaves_with_0", raises(SystemExit(0))),
    Saboteur("raises_no_exception", raises(NoException("base"))),
    Saboteur("interrupts", raises(KeyboardInterrupt())),
    Saboteur("cannot_be_printed", raises(Unprintable())),
    Saboteur("has_a_long_message", raises(ValueError("long " + "x" * LONG))),
    Saboteur("skips_a_test", lambda model, case: pytest.skip("not today")),
    Saboteur("leaves_pytest", lambda model, case: pytest.exit("as if all were well", returncode=0)),
    Saboteur("floods", flood),
    Saboteur("ends_the_process", lambda model, case: os._exit(0), needs_process=True),
    Saboteur("crashes", crashes, needs_process=True),
    Saboteur("aborts", lambda model, case: os.abort(), needs_process=True),
    Saboteur("is_killed", lambda model, case: os.kill(os.getpid(), signal.SIGKILL), needs_process=True),
    Saboteur("spins", spins, needs_process=True),
    Saboteur("takes_memory", memory, needs_process=True),
    Saboteur("forks", forks, needs_process=True),
    Saboteur("patches_the_suite", measurements_patched, needs_process=True),
)

EXPLAINERS = SimpleNamespace(**{saboteur.name: saboteur for saboteur in SABOTEURS})
"""The saboteurs by name."""


def spec(saboteur: Saboteur) -> str:
    """How a run names a saboteur."""
    return f"{__name__}:EXPLAINERS.{saboteur.name}"
