"""Explainers that leave traces behind: their own check is red, and no trace reaches the next check."""

import copy
import io
import math
import os
import random
import signal
import sys
import tempfile
import threading
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack, _pop_mode
from transformers.activations import ACT2FN
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface
from transformers.models.bert import modeling_bert

from faithcheck import Settings, check_explainer
from faithcheck.axioms.measure import measurement
from faithcheck.axioms.measure.statuses import Group
from faithcheck.axioms.trace import trace
from faithcheck.axioms.traces.model_snapshot import restored
from faithcheck.explainers import GradientTimesInput, Unsupported
from faithcheck.models import Case, Expectation, registered_pairs
from faithcheck.models import case as case_module

PAIR = registered_pairs()["control.mlp"]


class DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **kwargs or {})


class Mode(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **kwargs or {})


TRACES = {
    "train mode (Sequential and 3 more)": lambda model: model.train(),
    "hooks (0)": lambda model: model[0].register_forward_hook(lambda *_: None),
    "hooks (Sequential)": lambda model: model.register_full_backward_hook(lambda *_: None),
    "weights (0.weight)": lambda model: model[0].weight.data.mul_(1 + 1e-9),
    "weights (2.weight)": lambda model: setattr(model[2].weight, "data", model[2].weight.data.float()),
    ".grad (0.weight)": lambda model: setattr(model[0].weight, "grad", torch.zeros_like(model[0].weight)),
    "requires_grad (0.weight and 1 more)": lambda model: model.requires_grad_(False),
    "replaced parameters (2)": lambda model: setattr(model[2], "weight", nn.Parameter(model[2].weight.detach())),
    "replaced modules (Sequential)": lambda model: model.add_module("1", nn.Tanh()),
    "patched methods (0.forward)": lambda model: setattr(model[0], "forward", lambda x: x),
    "patched classes (Tanh.forward)": lambda model: setattr(nn.Tanh, "forward", lambda self, x: x),
    "patched functions (torch.nn.functional.softmax)": lambda model: setattr(nn.functional, "softmax", torch.softmax),
    "global hooks (_global_forward_hooks)": lambda model: nn.modules.module.register_module_forward_hook(
        lambda *_: None
    ),
    "random state of torch": lambda model: torch.rand(1),
    "random state of NumPy": lambda model: np.random.rand(),
    "random state of Python": lambda model: random.random(),
    "default dtype": lambda model: torch.set_default_dtype(torch.float64),
    "gradient mode": lambda model: torch.set_grad_enabled(False),
    "anomaly mode": lambda model: torch.autograd.set_detect_anomaly(True),
    "deterministic algorithms": lambda model: torch.use_deterministic_algorithms(True),
    "float32 matmul precision": lambda model: torch.set_float32_matmul_precision("medium"),
    "threads": lambda model: torch.set_num_threads(torch.get_num_threads() + 1),
    "default device or function mode (Mode)": lambda model: Mode().__enter__(),
    "default device or function mode (DeviceContext)": lambda model: torch.set_default_device("meta"),
    "dispatch mode (DispatchMode)": lambda model: DispatchMode().__enter__(),
    "inference mode": lambda model: ENTERED.append(torch.inference_mode()) or ENTERED[-1].__enter__(),
    "hooks of saved tensors": lambda model: saved_tensors_hooks(lambda x: x, lambda x: x).__enter__(),
    "patched classes (Tensor.matmul)": lambda model: setattr(torch.Tensor, "matmul", lambda a, b: a @ b),
    "patched classes (Dropout.forward)": lambda model: setattr(nn.Dropout, "forward", lambda self, x: x),
    "patched functions (torch.autograd.grad)": lambda model: setattr(torch.autograd, "grad", lambda *_: None),
    "patched functions (transformers.models.bert.modeling_bert.eager_attention_forward)": lambda model: setattr(
        modeling_bert, "eager_attention_forward", lambda *_: None
    ),
    "attributes (2.in_features)": lambda model: setattr(model[2], "in_features", 7),
    "environment variables": lambda model: os.environ.update(FAITHCHECK_LEFT_BEHIND="1"),
    "warnings filters": lambda model: warnings.filterwarnings("ignore", message="left behind"),
    "error state of NumPy": lambda model: np.seterr(over="ignore", under="raise"),
    "signal handlers (SIGUSR1)": lambda model: signal.signal(signal.SIGUSR1, signal.SIG_IGN),
}
MORE_TRACES = {
    "replaced classes (1)": lambda model: setattr(model[1], "__class__", OtherTanh),
    "replaced buffers (0)": lambda model: model[0].register_buffer("more", torch.zeros(1)),
    "replaced parameters (Sequential)": lambda model: model.register_parameter("more", None),
    "weights (1.constant)": lambda model: model[1].constant.add_(1),
    "hooks of tensors (0.weight)": lambda model: model[0].weight.register_post_accumulate_grad_hook(lambda _: None),
    "patched classes (Function.apply)": lambda model: setattr(torch.autograd.Function, "apply", classmethod(print)),
    "patched classes (Case.run)": lambda model: setattr(Case, "run", print),
    "patched classes (Case.shape)": lambda model: setattr(Case, "shape", property(print)),
    "patched functions (faithcheck.models.case.input_gradient)": lambda model: setattr(
        case_module, "input_gradient", 0
    ),
    "patched functions (faithcheck.axioms.measure.measurement.relative_gap)": lambda model: setattr(
        measurement, "relative_gap", lambda *_: 0.0
    ),
    "patched functions (copy.deepcopy)": lambda model: setattr(copy, "deepcopy", lambda x: x),
    "patched functions (math.isfinite)": lambda model: setattr(math, "isfinite", lambda x: True),
    "patched functions (numpy.mean)": lambda model: setattr(np, "mean", lambda x: 0),
    "patched functions (torch.linalg.norm)": lambda model: setattr(torch.linalg, "norm", lambda x: 0),
    "autocast": lambda model: torch.set_autocast_enabled("cpu", True),
    "dtype of autocast": lambda model: torch.set_autocast_dtype("cpu", torch.float16),
    "cuDNN": lambda model: setattr(torch.backends.cudnn, "enabled", False),
    "TF32 of cuDNN": lambda model: setattr(torch.backends.cudnn, "allow_tf32", not torch.backends.cudnn.allow_tf32),
    "oneDNN": lambda model: torch._C._set_mkldnn_enabled(False),
    "fast path of nn.MultiheadAttention": lambda model: torch.backends.mha.set_fastpath_enabled(False),
    "flush of denormal numbers": lambda model: torch.set_flush_denormal(True),
    "forward differentiation": lambda model: forward_ad.enter_dual_level(),
    "error state of NumPy": lambda model: np.seterrcall(print),
    "current folder": lambda model: os.chdir(os.sep),
    "timers": lambda model: signal.setitimer(signal.ITIMER_REAL, 1000),
    "patched registries (transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS['eager'])": lambda model: (
        ALL_ATTENTION_FUNCTIONS.update(eager=print)
    ),
    "patched registries (transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS['sdpa'])": lambda model: (
        AttentionInterface.register("sdpa", print)
    ),
    "patched registries (transformers.activations.ACT2FN['gelu'])": lambda model: ACT2FN.update(gelu=nn.ReLU),
    "attributes (1.constants)": lambda model: model[1].constants.update(slope=2),
    "attributes (1.settings)": lambda model: setattr(model[1].settings, "slope", 2),
    "attributes (2.out_features)": lambda model: setattr(model[2], "out_features", torch.ones(2)),
    "standard output": lambda model: setattr(sys, "stdout", io.StringIO()),
}
ENTERED = []  # inference modes that were entered: torch leaves the mode when its object is deleted


class Leaves:
    name = "leaves"

    def __init__(self, leave):
        self.leave = leave

    def attribute(self, model, case):
        attribution = GradientTimesInput().attribute(model, case)
        self.leave(model)
        return attribution


@pytest.mark.parametrize("what", TRACES)
# torch warns of what anomaly mode costs.
@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_a_trace_is_a_red_check_and_reaches_no_other_check(what):
    with restored() as left_outside:
        before = torch.get_rng_state()
        explainer = Leaves(TRACES[what])
        (red,) = check_explainer(explainer, ["trace"], [PAIR])
        assert (red.status, red.detail["left behind"]) == ("broken claim", what)
        assert torch.equal(torch.get_rng_state(), before)
        (clean,) = check_explainer(GradientTimesInput(), ["trace"], [PAIR])
        assert (clean.status, clean.gap) == ("holds", 0.0)
    assert left_outside == []


@pytest.mark.parametrize(
    ("what", "status"),
    [
        ("hooks (0)", "left behind"),
        # Every check has its own.
        ("random state of torch", "recorded"),
        ("warnings filters", "recorded"),
        # The check explains two models.
        ("patched functions (torch.autograd.grad)", "error"),
    ],
)
def test_a_trace_in_another_check(what, status):
    (record,) = check_explainer(Leaves(TRACES[what]), ["invariance"], [PAIR])
    assert record.status == status
    assert status != "left behind" or record.detail["left behind"].startswith("hooks")


class LeavesAndRefuses(Leaves):
    def attribute(self, model, case):
        super().attribute(model, case)
        raise Unsupported("after the trace")


@pytest.mark.parametrize("kind", [Leaves, LeavesAndRefuses])
@pytest.mark.parametrize("axiom", ["invariance", "completeness", "determinism", "precision_bfloat16"])
def test_a_trace_is_red_in_every_check_that_sees_it(kind, axiom):
    record, *_ = check_explainer(kind(nn.Module.train), [axiom], [PAIR])
    assert record.status == "left behind"
    assert record.detail["left behind"].startswith("train mode (Sequential and ")
    assert record.group is Group.RED


def test_a_trace_is_red_in_a_coarse_type():
    (record,) = check_explainer(Leaves(nn.Module.train), ["invariance"], [PAIR], Settings(dtype=torch.bfloat16))
    assert record.status == "left behind"


@pytest.mark.parametrize("verdict", ["UNCLAIMED", "HOLDS"])
def test_a_trace_that_is_expected_turns_no_other_check_red(verdict):
    explainer = Leaves(nn.Module.train)
    explainer.expected = {("trace", "*"): Expectation(verdict, "the author knows")}
    (record,) = check_explainer(explainer, ["invariance"], [PAIR])
    assert record.status == ("recorded" if verdict == "UNCLAIMED" else "left behind")
    assert "train mode" in record.detail["left behind"]


class OtherTanh(nn.Tanh):
    pass


@pytest.mark.parametrize("what", MORE_TRACES)
def test_the_guard_sees_and_undoes(what):
    model, _ = PAIR.build(0, torch.float64, torch.device("cpu"))
    model[1].constant, model[1].constants, model[1].settings = torch.ones(1), {"slope": 1}, SimpleNamespace(slope=1)
    with restored(model) as left_outside:
        with restored(model) as left_behind:
            MORE_TRACES[what](model)
        assert left_behind == [what]
    assert left_outside == []


def test_a_folder_that_was_deleted_is_left():
    before = os.getcwd()
    with restored() as left_behind, tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
    assert left_behind == ["current folder"]
    assert os.getcwd() == before


def test_private_attributes_of_a_module_are_put_back():
    model = nn.Tanh()
    model._gain, model._cache = 1, {"gain": 1}
    with restored(model) as left_behind:
        model._gain, model._new = 2, 3
        model._cache["gain"] = 2
    assert left_behind == [], "a module may change its own"
    assert (model._gain, model._cache, hasattr(model, "_new")) == (1, {"gain": 1}, False)


def test_a_timer_that_was_left_does_not_end_the_run():
    with restored():
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 0.01)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_thread_that_still_runs_is_seen():
    ended = threading.Event()
    with restored() as left_behind:
        thread = threading.Thread(target=ended.wait, name="still running")
        thread.start()
    ended.set()
    thread.join()
    assert left_behind == ["threads that still run (still running)"]


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize(
    ("what", "reseed"), [("torch", torch.manual_seed), ("NumPy", np.random.seed), ("Python", random.seed)]
)
def test_a_reseeding_to_the_seed_of_the_suite_is_seen(what, reseed, seed):
    (record,) = check_explainer(Leaves(lambda model: reseed(seed)), ["trace"], [PAIR], Settings(seed=seed))
    assert record.detail["left behind"] == f"random state of {what}"


def test_the_private_seed_follows_from_the_seed_of_the_check():
    def drawn(seed):
        numbers = []
        draw = Leaves(lambda model: numbers.append((random.random(), np.random.rand(), torch.rand(1).item())))
        check_explainer(draw, ["trace"], [PAIR], Settings(seed=seed))
        return numbers

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)


class LeavesOnFailure:
    name = "leaves_on_failure"

    def attribute(self, model, case):
        handle = model[0].register_forward_hook(lambda *_: None)
        attribution = GradientTimesInput().attribute(model, case)
        handle.remove()
        return attribution


def test_a_trace_that_only_a_failure_leaves_is_found():
    (record,) = check_explainer(LeavesOnFailure(), ["trace"], [PAIR])
    assert record.status == "broken claim"
    assert record.detail["left behind"] == "hooks (0), when the model failed"


def test_traces_are_removed_from_the_model():
    model, _ = PAIR.build(0, torch.float64, torch.device("cpu"))
    case = PAIR.case(0, torch.float64, torch.device("cpu"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    output = case.run(model)
    for what, leave in TRACES.items():
        if what.split(" (")[0] in ("train mode", "hooks", "weights", ".grad", "requires_grad", "patched methods"):
            assert trace(Leaves(leave), model, case).gap == 1
    assert not model.training
    assert not model[0]._forward_hooks
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(case.run(model), output)


def test_traces_of_a_block_that_raises_are_removed():
    model = nn.Linear(2, 1).eval()

    def block():
        with restored(model) as left_behind:
            yielded.append(left_behind)
            model.train()
            raise RuntimeError("from the block")

    yielded = []
    with pytest.raises(RuntimeError, match="from the block"):
        block()
    assert yielded == [["train mode (Linear)"]]
    assert not model.training


class Draws:
    """Draws its attribution from NumPy's and Python's random numbers."""

    name = "draws"

    def attribute(self, model, case):
        return case.inputs * random.random() + torch.from_numpy(np.random.rand(*case.shape))


def test_a_check_that_draws_random_numbers_is_reproducible():
    first, second = (check_explainer(Draws(), ["completeness"], [PAIR])[0] for _ in range(2))
    assert first.gap == second.gap > 0
    (of_another_seed,) = check_explainer(Draws(), ["completeness"], [PAIR], Settings(seed=1))
    assert of_another_seed.gap != first.gap


def test_a_dispatch_mode_that_was_left_is_entered_again():
    with DispatchMode() as mode:
        with restored() as left_behind:
            _pop_mode()
        assert _get_current_dispatch_mode_stack() == [mode]
    assert left_behind == ["dispatch mode (left)"]
