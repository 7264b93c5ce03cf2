"""Peers that cannot share a process with this project: each runs in a virtual environment of its own.

inseq, quantus and lxt require other versions of other libraries, or patch classes and do not restore them.
`OwnEnvironment` writes the model and the case to a folder, runs the peer's worker on the folder with the interpreter of
the peer's environment, and reads the answer; `faithcheck.explainers.peers.workers.worker_protocol` specifies the files.
Every attribution runs in a new process, so changes that a peer makes to classes, models or random states cannot affect
the next attribution.

An environment variable names the interpreter, such as ``FAITHCHECK_LXT_PYTHON``; docs/how_to/peers.md says how to
make the environments. A model is sent as a folder of `transformers`, if `transformers` makes the same model from its
configuration, or as a program of `torch.export`. If the sent model would not have the same operations, it is refused.
"""

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
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

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
    """A peer's worker ended without an attribution. The message says why, and a note has the worker's traceback."""

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        if traceback:
            self.add_note(traceback)


class Answer(NamedTuple):
    """The answer of a worker."""

    attribution: Tensor  # ``(batch, features)``, not yet checked
    versions: Mapping[str, str]  # of Python, torch, transformers and the peer
    figures: Mapping[str, Any]  # further results of the peer


@dataclass(frozen=True)
class OwnEnvironment:
    """An explainer of a peer in its own environment; name, claims, label and summary are as in `Peer`.

    Attributes:
        peer: the package, as pip knows it.
        method: the worker's name of the method.
        form: the form in which the model is sent.
        options: the options of the method, plain JSON.
        python: the interpreter; by default the value of the environment variable ``FAITHCHECK_…_PYTHON``.
        worker: the script; by default this project's worker for the peer.
    """

    peer: str
    method: str
    form: Form
    name: str
    claims: frozenset[str] = frozenset()
    options: Mapping[str, Any] = field(default_factory=dict)
    python: str | Path | None = None
    worker: Path | None = None
    label: str = ""
    summary: str = ""

    @property
    def settings(self) -> str:
        """The method of the peer and its options, in words."""
        options = ", ".join(f"{key} = {value}" for key, value in self.options.items())
        return f"{self.peer}'s {self.method}" + (f" with {options}" if options else "")

    @property
    def origin(self) -> str:
        """The versions of the peer and its environment: "lxt 2.1, in its own environment (python 3.11.2, …)"."""
        try:
            versions = _versions(str(self._interpreter()), str(self._script()))
        except Unsupported:
            return f"{self.peer}, no environment"
        except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:  # the checks show the whole error
            return f"{self.peer}, an environment that cannot be run ({type(error).__name__})"
        environment = (f"{name} {version}" for name, version in versions.items() if name != self.peer)
        return f"{self.peer} {versions[self.peer]}, in its own environment ({', '.join(environment)})"

    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """The peer's attribution: ``(batch, features)``; errors as in `ask`."""
        return self.ask(model, case).attribution

    def ask(self, model: nn.Module, case: Case) -> Answer:
        """The peer's whole answer.

        Raises:
            Unsupported: the environment is not named, the model cannot be sent, or the peer refuses it.
            FileNotFoundError: the environment is named but does not exist.
            WorkerFailed: the worker crashed, broke the protocol, or explained another function than the model's.
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
                "docs/how_to/peers.md says how to make the environment"
            )
        if not Path(named).is_file():
            raise FileNotFoundError(f"{self.variable}: the interpreter {named} does not exist")
        return Path(named).absolute()  # not resolved: Python finds a virtual environment by the path of the link

    def _script(self) -> Path:
        return self.worker or WORKERS / f"{self.peer}_worker.py"

    def _write(self, model: nn.Module, case: Case, folder: Path) -> None:
        if case.inputs.device.type != "cpu":
            raise Unsupported(f"{self.peer} runs on the CPU, the case is on {case.inputs.device}: use --device=cpu")
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
        tensors |= {f"{protocol.FORWARD_ARGUMENT}{name}": value for name, value in case.forward_arguments.items()}
        save_file({name: value.detach().contiguous().clone() for name, value in tensors.items()}, folder / CASE)

    def _read(self, model: nn.Module, case: Case, folder: Path) -> Answer:
        document = _answer_document(self.peer, folder)
        tensors = load_file(folder / "answer.safetensors")
        with torch.no_grad():
            output = case.run(model)
        if not _alike(tensors["output"], output):
            raise WorkerFailed(
                f"the outputs of the model in {self.peer}'s worker, {describe_tensor(tensors['output'])}, differ by up "
                f"to {_largest_difference(tensors['output'], output)} from the outputs here: it is not the model that "
                f"was sent (versions in the worker: {document['versions']})"
            )
        return Answer(tensors["attribution"], document["versions"], document.get("figures", {}))


CASE = "case.safetensors"
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}  # of the largest output; as in the axioms


def write_transformers(model: nn.Module, case: Case, folder: Path) -> dict[str, Any]:
    """Write a model of `transformers` that is called on token embeddings to ``folder/model``; returns its form.

    Raises Unsupported if the model is no text model of transformers, or if the model that a worker would make of the
    folder has other modules or operations.
    """
    inner = getattr(model, "model", None)
    if not isinstance(inner, PreTrainedModel) or inner.main_input_name != "input_ids":
        raise Unsupported(f"{type(model).__name__} is no text model of transformers: no other model can be sent")
    attention = inner.config._attn_implementation
    with _refusing(f"{type(inner).__name__} cannot be sent as a folder"):
        inner.save_pretrained(folder / "model")
        buffers = {name: buffer.clone() for name, buffer in inner.named_buffers() if buffer.is_floating_point()}
        save_file(buffers, folder / "model" / "buffers.safetensors")
        read_back = protocol.pretrained(folder / "model", case.inputs.dtype, attention)
        sent = protocol.WorkerEmbeddingModel(read_back, throughout=isinstance(model, EmbeddingModel))
        same = modules(inner) == modules(read_back) and operations(model, case) == operations(sent, case)
        same = same and _same_function(model, sent, case)
    if not same:
        raise Unsupported(
            f"{type(inner).__name__} is not as transformers makes it from its configuration, or is called in another "
            "way: a model made from the folder would not have its operations"
        )
    return {"form": "transformers", "attention": attention, "throughout": sent.throughout}


def write_exported(model: nn.Module, case: Case, folder: Path) -> dict[str, Any]:
    """Write a model as a program of `torch.export` to ``folder/model.pt2``, without pickle; returns its form.

    Raises Unsupported if the model cannot be exported for any number of rows, or the program is another function.
    """
    first = next(iter(inspect.signature(model.forward).parameters))
    rows = {name: {0: torch.export.Dim.AUTO} for name in (first, *case.forward_arguments)}
    twice = case.select(torch.arange(len(case.inputs)).repeat(2))
    with _refusing(f"{type(model).__name__} cannot be exported by torch.export"):
        copied = (case.inputs.clone(),), {name: value.clone() for name, value in case.forward_arguments.items()}
        program = torch.export.export(model, *copied, dynamic_shapes=rows, strict=False)
        program.example_inputs = None  # torch would pickle them
        exported = program.module()
        same = _same_function(model, exported, case) and _same_function(model, exported, twice)
        torch.export.save(program, folder / "model.pt2")
    if not same:
        raise Unsupported(f"the program that torch.export makes of {type(model).__name__} is another function")
    return {"form": "exported"}


def operations(model: nn.Module, case: Case) -> list[tuple[str, list[torch.Size]]]:
    """The operations of a forward pass: the name of each torch function that returns tensors, and their shapes."""

    class Recorder(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            name = resolve_name(func) or getattr(func, "__name__", repr(func))
            results = result if isinstance(result, tuple | list) else [result]
            shapes = [value.shape for value in results if isinstance(value, Tensor)]
            if shapes and not name.endswith(".__get__"):  # an attribute of a tensor, which computes nothing
                recorded.append((name, shapes))
            return result

    recorded: list[tuple[str, list[torch.Size]]] = []
    with torch.no_grad(), Recorder():
        case.run(model)
    return recorded


def modules(model: nn.Module) -> list[tuple[str, str, str]]:
    """The modules of a model: path, class, and the first path of the same module, which differs if it is shared."""
    first_path: dict[nn.Module, str] = {}
    named = model.named_modules(remove_duplicate=False)
    return [(path, type(module).__qualname__, first_path.setdefault(module, path)) for path, module in named]


def _same_function(model: nn.Module, sent: nn.Module, case: Case) -> bool:
    """Whether two models have the same outputs and input gradients on a case."""
    copied = replace(case, inputs=case.inputs.detach().clone())
    with torch.no_grad():
        outputs = case.run(model), copied.run(sent)
    return _alike(*outputs) and _alike(input_gradient(model, case), input_gradient(sent, copied))


def _alike(actual: Tensor, expected: Tensor) -> bool:
    bound = TOLERANCE[expected.dtype] * float(expected.abs().max())
    return actual.dtype == expected.dtype and _largest_difference(actual, expected) <= bound


def _largest_difference(actual: Tensor, expected: Tensor) -> float:
    if actual.shape != expected.shape:
        return float("inf")
    return float((actual.double() - expected.double()).abs().max())


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    """Refuse a model on any error of it, of torch or of transformers; hide their warnings and progress bars."""
    transformers_logging: Any = logging  # has no types
    bars, verbosity = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        message = " ".join(str(error).split())
        raise Unsupported(f"{what}: {message[:300]}") from error
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()


def _run(command: list[str], folder: Path) -> None:
    """Run a worker to its end. An interruption also ends the worker and all processes that it started."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(torch.get_num_threads())}
    with (folder / "log.txt").open("wb") as log:
        # A session of its own, so that the whole process group can be ended. The worker exits when its input closes.
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


def _answer_document(peer: str, folder: Path) -> dict[str, Any]:
    """The ``answer.json`` of an answered request."""
    log = (folder / "log.txt").read_text(encoding="utf-8", errors="replace").strip()
    if not (folder / "answer.json").exists():
        raise WorkerFailed(f"{peer}'s worker ended without an answer", log or "the worker printed nothing")
    document: dict[str, Any] = json.loads((folder / "answer.json").read_text(encoding="utf-8"))
    if document.get("protocol") != protocol.PROTOCOL:
        raise WorkerFailed(
            f"{peer}'s worker answered in protocol {document.get('protocol')!r}, expected {protocol.PROTOCOL}: use the "
            "worker of this version of faithcheck"
        )
    if document["status"] == "unsupported":
        raise Unsupported(f"{peer}: {document['reason']}")
    if document["status"] != "answered":
        raise WorkerFailed(f"{peer}'s worker failed: {document['reason']}", document["traceback"])
    return document


@cache
def _versions(interpreter: str, script: str) -> dict[str, str]:
    process = subprocess.run(
        [interpreter, "-E", "-s", script, "--versions"], capture_output=True, text=True, check=True, timeout=60
    )
    return json.loads(process.stdout)


_lxt, _inseq = (partial(OwnEnvironment, peer, form="transformers") for peer in ("lxt", "inseq"))
_quantus = partial(OwnEnvironment, "quantus", form="exported")
LXT_ATTNLRP = _lxt(
    "attnlrp",
    name="lxt_attnlrp",
    label="AttnLRP (lxt)",
    summary="lxt's AttnLRP, by patches of transformers' classes; Achtibat et al. 2024",
)
LXT_CPLRP = _lxt(
    "cplrp",
    name="lxt_cplrp",
    label="CP-LRP (lxt)",
    summary="lxt's CP-LRP, by patches of transformers' classes; Ali et al. 2022",
)
INSEQ_INPUT_X_GRADIENT = _inseq(
    "input_x_gradient",
    name="inseq_input_x_gradient",
    label="input × gradient (inseq)",
    summary="inseq's input × gradient of the next token's logit",
)
INSEQ_INTEGRATED_GRADIENTS = _inseq(
    "integrated_gradients",
    name="inseq_integrated_gradients",
    claims=frozenset({"invariance", "completeness"}),  # captum's claims, which its docstring refers to
    label="Integrated Gradients (inseq)",
    summary="inseq's Integrated Gradients of the next token's logit; Sundararajan, Taly & Yan 2017",
)
QUANTUS_INPUT_X_GRADIENT = _quantus(
    "InputXGradient",
    name="quantus_input_x_gradient",
    label="input × gradient (quantus)",
    summary="quantus's input × gradient, by captum",
)
QUANTUS_INTEGRATED_GRADIENTS = _quantus(
    "IntegratedGradients",
    name="quantus_integrated_gradients",
    label="Integrated Gradients (quantus)",
    summary="quantus's Integrated Gradients, 10 steps of the trapezoid rule; Sundararajan, Taly & Yan 2017",
)
QUANTUS_FEATURE_ABLATION = _quantus(
    "FeatureAblation",
    name="quantus_feature_ablation",
    label="feature ablation (quantus)",
    summary="quantus's ablation of one coordinate at a time, by captum",
)
