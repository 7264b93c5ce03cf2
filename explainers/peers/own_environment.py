"""Peers that cannot share a process with this project: each runs in a virtual environment of its own.

inseq, quantus and lxt want other versions of other libraries, or patch classes for good. `OwnEnvironment` writes what
is to be explained to a folder, runs the peer's worker on it with the interpreter of the peer's environment, and reads
the answer; `faithcheck.explainers.peers.workers.worker_protocol` says what the files hold. One attribution is one
process: nothing that a peer does to a class, a model or a random state reaches another attribution.

The interpreter is named by an environment variable, ``FAITHCHECK_LXT_PYTHON`` and the like; docs/own_environments.md
says how to make the environments. A model is sent as one of `transformers`, where it is one as `transformers` makes it,
or as a program of `torch.export`; one that the sent form would not be, operation by operation, is refused.
"""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name
from transformers import PreTrainedModel
from transformers.utils import logging

from faithcheck.explainers.peers.workers import worker_protocol as protocol
from faithcheck.explainers.protocol import Unsupported
from faithcheck.models.architectures.embedding_model import EmbeddingModel
from faithcheck.models.case import Case, describe_tensor, input_gradient

WORKERS = Path(protocol.__file__).parent
Form: TypeAlias = Literal["transformers", "exported"]


class WorkerFailed(RuntimeError):
    """A peer's worker ended without an attribution. The message has its last words, a note its traceback."""


@dataclass(frozen=True)
class Answer:
    """What a worker answered.

    Attributes:
        attribution: ``(batch, features)``, not yet checked.
        versions: of Python, torch, transformers and the peer.
        figures: anything else that the peer said.
    """

    attribution: Tensor
    versions: Mapping[str, str]
    figures: Mapping[str, Any]


@dataclass(frozen=True)
class OwnEnvironment:
    """An explainer of a peer in its own environment.

    Attributes:
        peer: the package, as pip knows it.
        method: the worker's name of the method.
        form: how the worker takes its model.
        name: in test ids and reports.
        claims: the axioms that the peer says it satisfies.
        options: of the method; plain JSON.
        python: the interpreter; by default what the environment variable ``FAITHCHECK_…_PYTHON`` names.
        worker: the script; by default this project's for the peer.
    """

    peer: str
    method: str
    form: Form
    name: str
    claims: frozenset[str] = frozenset()
    options: Mapping[str, Any] = field(default_factory=dict)
    python: str | Path | None = None
    worker: Path | None = None

    @property
    def origin(self) -> str:
        """The peer's version and what it runs on, such as "lxt 2.1, its own Python 3.11.2, torch 2.13.0, …"."""
        try:
            found = _versions(str(self._interpreter()), str(self._script()))
        except Unsupported:
            return f"{self.peer}, no environment"
        except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:  # the checks say it in full
            return f"{self.peer}, an environment that cannot be run ({type(error).__name__})"
        others = (f"{name} {version}" for name, version in found.items() if name != self.peer)
        return f"{self.peer} {found[self.peer]}, in its own environment ({', '.join(others)})"

    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """What the peer says: ``(batch, features)``.

        Raises:
            Unsupported: see `ask`.
            WorkerFailed: see `ask`.
        """
        return self.ask(model, case).attribution

    def ask(self, model: nn.Module, case: Case) -> Answer:
        """The peer's whole answer.

        Raises:
            Unsupported: the environment is not named, the model cannot be sent as it is, or the peer refuses.
            FileNotFoundError: the environment is named, but not there.
            WorkerFailed: the worker crashed, broke the protocol, or explained another function than that of the model.
        """
        interpreter = self._interpreter()
        with tempfile.TemporaryDirectory(prefix="faithcheck-") as name:
            folder = Path(name)
            self._write(model, case, folder)
            _run([str(interpreter), "-E", "-s", str(self._script()), name], folder)
            return self._read(model, case, folder)

    @property
    def variable(self) -> str:
        """The environment variable that names the interpreter."""
        return f"FAITHCHECK_{self.peer.upper()}_PYTHON"

    def _interpreter(self) -> Path:
        named = self.python or os.environ.get(self.variable)
        if not named:
            raise Unsupported(
                f"{self.peer} runs in an environment of its own: set {self.variable} to its interpreter; "
                "docs/own_environments.md says how to make it"
            )
        if not Path(named).is_file():
            raise FileNotFoundError(f"{self.variable}: there is no interpreter {named}")
        return Path(named).absolute()  # not resolved: a link to the interpreter is what makes the environment

    def _script(self) -> Path:
        return self.worker or WORKERS / f"{self.peer}_worker.py"

    def _write(self, model: nn.Module, case: Case, folder: Path) -> None:
        if case.inputs.device.type != "cpu":
            raise Unsupported(f"{self.peer} is run on the CPU, the case is on {case.inputs.device}: use --device=cpu")
        written = write_transformers(model, case, folder) if self.form == "transformers" else None
        request = {
            "protocol": protocol.PROTOCOL,
            "peer": self.peer,
            "method": self.method,
            "options": dict(self.options),
            "dtype": str(case.inputs.dtype).removeprefix("torch."),
            "model": written or write_exported(model, case, folder),
        }
        (folder / "request.json").write_text(json.dumps(request, indent=1), encoding="utf-8")
        tensors = {"inputs": case.inputs, "baseline": case.baseline, "target": case.target}
        tensors |= {f"context.{name}": value for name, value in case.forward_arguments.items()}
        save_file({name: value.detach().contiguous().clone() for name, value in tensors.items()}, folder / CASE)

    def _read(self, model: nn.Module, case: Case, folder: Path) -> Answer:
        said = _said(self.peer, folder)
        tensors = load_file(folder / "answer.safetensors")
        with torch.no_grad():
            output = case.run(model)
        if not _alike(tensors["output"], output):
            raise WorkerFailed(
                f"the model that {self.peer}'s worker ran gives {describe_tensor(tensors['output'])}, up to "
                f"{_apart(tensors['output'], output)} from what it gives here: it is not the model that was sent "
                f"(versions there: {said['versions']})"
            )
        return Answer(tensors["attribution"], said["versions"], said.get("figures", {}))


CASE = "case.safetensors"
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}  # of the largest output; as in the axioms


def write_transformers(model: nn.Module, case: Case, folder: Path) -> dict[str, Any]:
    """Write a model of `transformers`, read at its token embeddings, to ``folder/model``; how, for the request.

    Raises:
        Unsupported: it is none, or what a worker would make of the folder is not this model, operation by operation.
    """
    inner = getattr(model, "model", None)
    if not isinstance(inner, PreTrainedModel) or inner.main_input_name != "input_ids":
        raise Unsupported(f"{type(model).__name__} is no text model of transformers, which is all that can be sent")
    attention = inner.config._attn_implementation
    with _quiet():
        try:
            inner.save_pretrained(folder / "model")
            buffers = {name: buffer.clone() for name, buffer in inner.named_buffers() if buffer.is_floating_point()}
            save_file(buffers, folder / "model" / "buffers.safetensors")
            there = protocol.pretrained(folder / "model", case.inputs.dtype, attention)
            embedding_model = protocol.Reader(there, throughout=isinstance(model, EmbeddingModel))
            alike = parts(inner) == parts(there) and operations(model, case) == operations(embedding_model, case)
            same = alike and _same_function(model, embedding_model, case)
        except Exception as error:  # of the model: its words are kept
            said = " ".join(str(error).split())
            raise Unsupported(f"{type(inner).__name__} cannot be sent as a folder: {said[:300]}") from error
    if not same:
        raise Unsupported(
            f"{type(inner).__name__} is not as transformers makes it from its configuration, or is read in another "
            "way: what is written to a folder would not have its operations"
        )
    return {"form": "transformers", "attention": attention, "throughout": embedding_model.throughout}


def write_exported(model: nn.Module, case: Case, folder: Path) -> dict[str, Any]:
    """Write a model as a program of `torch.export` to ``folder/model.pt2``, without pickle; how, for the request.

    Raises:
        Unsupported: it cannot be exported for any number of rows, or the program is another function.
    """
    first = next(iter(inspect.signature(model.forward).parameters))
    rows = {name: {0: torch.export.Dim.AUTO} for name in (first, *case.forward_arguments)}
    twice = case.select(torch.arange(len(case.inputs)).repeat(2))
    with _quiet():
        try:
            lent = (case.inputs.clone(),), {name: value.clone() for name, value in case.forward_arguments.items()}
            program = torch.export.export(model, *lent, dynamic_shapes=rows, strict=False)
            program.example_inputs = None  # would be pickled
            there = program.module()
            same = _same_function(model, there, case) and _same_function(model, there, twice)
            torch.export.save(program, folder / "model.pt2")
        except Exception as error:  # of the model, or of torch: its words are kept
            said = " ".join(str(error).split())
            raise Unsupported(f"{type(model).__name__} cannot be exported by torch.export: {said[:300]}") from error
    if not same:
        raise Unsupported(f"the program that torch.export makes of {type(model).__name__} is another function")
    return {"form": "exported"}


def operations(model: nn.Module, case: Case) -> list[tuple[str, list[torch.Size]]]:
    """What a model does in its forward pass: each function of torch that gives tensors, by name, and their shapes."""

    class Recorder(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            name = resolve_name(func) or getattr(func, "__name__", repr(func))
            given = result if isinstance(result, tuple | list) else [result]
            shapes = [one.shape for one in given if isinstance(one, Tensor)]
            if shapes and not name.endswith(".__get__"):  # nothing is computed where a tensor is only looked at
                done.append((name, shapes))
            return result

    done: list[tuple[str, list[torch.Size]]] = []
    with torch.no_grad(), Recorder():
        case.run(model)
    return done


def parts(model: nn.Module) -> list[tuple[str, str, str]]:
    """The modules of a model: each one's path, its class, and the first path of the same module, where it is shared."""
    first: dict[nn.Module, str] = {}
    named = model.named_modules(remove_duplicate=False)
    return [(path, type(module).__qualname__, first.setdefault(module, path)) for path, module in named]


def _same_function(model: nn.Module, other: nn.Module, case: Case) -> bool:
    """Whether two models give the same outputs and input gradients."""
    point = replace(case, inputs=case.inputs.detach().clone())
    with torch.no_grad():
        outputs = case.run(model), point.run(other)
    return _alike(*outputs) and _alike(input_gradient(model, case), input_gradient(other, point))


def _alike(found: Tensor, wanted: Tensor) -> bool:
    same_kind = found.shape == wanted.shape and found.dtype == wanted.dtype
    return same_kind and _apart(found, wanted) <= TOLERANCE[wanted.dtype] * float(wanted.abs().max())


def _apart(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted.double()).abs().max()) if found.shape == wanted.shape else float("inf")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what is said while a model is written and read: what matters of it is refused here, by name."""
    said: Any = logging  # has no types
    bars, verbosity = said.is_progress_bar_enabled(), said.get_verbosity()
    said.disable_progress_bar()
    said.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        said.set_verbosity(verbosity)
        if bars:
            said.enable_progress_bar()


def _run(command: list[str], folder: Path) -> None:
    """Run a worker to its end; whatever interrupts this ends the worker, and all that it started, too."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(torch.get_num_threads())}
    with (folder / "log.txt").open("wb") as log:
        # A session of its own, so that it can be ended as a whole. Its input is held open: it leaves when we are gone.
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        try:
            process.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdin is not None
            process.stdin.close()


def _said(peer: str, folder: Path) -> dict[str, Any]:
    """The ``answer.json`` of an attribution.

    Raises:
        Unsupported: the peer refuses.
        WorkerFailed: there is none, of another protocol, or it tells of an error.
    """
    log = (folder / "log.txt").read_text(encoding="utf-8", errors="replace").strip()
    if not (folder / "answer.json").exists():
        raise _failure(f"{peer}'s worker ended without an answer", log or "it said nothing")
    said: dict[str, Any] = json.loads((folder / "answer.json").read_text(encoding="utf-8"))
    if said.get("protocol") != protocol.PROTOCOL:
        raise WorkerFailed(
            f"{peer}'s worker answered in protocol {said.get('protocol')!r}, this is protocol {protocol.PROTOCOL}: "
            "use the worker of this version of faithcheck"
        )
    if said["status"] == "unsupported":
        raise Unsupported(f"{peer}: {said['reason']}")
    if said["status"] != "answered":
        raise _failure(f"{peer}'s worker failed: {said['reason']}", said["traceback"])
    return said


def _failure(message: str, traceback: str) -> WorkerFailed:
    """An error with the worker's own words as a note: a traceback shows it once, the message not at all."""
    failure = WorkerFailed(message)
    failure.add_note(traceback)
    return failure


@cache
def _versions(interpreter: str, script: str) -> dict[str, str]:
    done = subprocess.run(
        [interpreter, "-E", "-s", script, "--versions"], capture_output=True, text=True, check=True, timeout=60
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


LXT_ATTNLRP = OwnEnvironment("lxt", "attnlrp", "transformers", "lxt_attnlrp")
LXT_CPLRP = OwnEnvironment("lxt", "cplrp", "transformers", "lxt_cplrp")
INSEQ_INPUT_X_GRADIENT = OwnEnvironment("inseq", "input_x_gradient", "transformers", "inseq_input_x_gradient")
INSEQ_INTEGRATED_GRADIENTS = OwnEnvironment(
    "inseq",
    "integrated_gradients",
    "transformers",
    "inseq_integrated_gradients",
    frozenset({"invariance", "completeness"}),  # captum's, to which its docstring refers
)
QUANTUS_INPUT_X_GRADIENT = OwnEnvironment("quantus", "InputXGradient", "exported", "quantus_input_x_gradient")
QUANTUS_INTEGRATED_GRADIENTS = OwnEnvironment(
    "quantus", "IntegratedGradients", "exported", "quantus_integrated_gradients"
)
QUANTUS_FEATURE_ABLATION = OwnEnvironment("quantus", "FeatureAblation", "exported", "quantus_feature_ablation")


def own_environments() -> list[OwnEnvironment]:
    """Every explainer of these peers, whether its environment is there or not."""
    return [
        LXT_ATTNLRP,
        LXT_CPLRP,
        INSEQ_INPUT_X_GRADIENT,
        INSEQ_INTEGRATED_GRADIENTS,
        QUANTUS_INPUT_X_GRADIENT,
        QUANTUS_INTEGRATED_GRADIENTS,
        QUANTUS_FEATURE_ABLATION,
    ]
