"""The file protocol between faithcheck and a peer in an environment of its own: the worker's half.

faithcheck writes a request folder and runs ``python WORKER FOLDER`` there; the worker writes its answer to the same
folder. It stands alone: torch, safetensors and, for a model of `transformers`, that are all that it needs besides the
peer; faithcheck need not be installed. Nothing is pickled.

The request:

* ``request.json``: ``protocol`` (1), ``peer``, ``method``, ``options`` (of the method), ``dtype`` ("float64"), and
  ``model``: ``{"form": "exported"}``, or ``{"form": "transformers", "attention": "eager" or "sdpa", "throughout": …}``,
  the last being whether float64 stays float64, see `KeepFloat64`.
* ``case.safetensors``: ``inputs`` (batch, features, …), ``baseline`` like it, ``target`` (batch,) int64, and what else
  the model is called with, by keyword, as ``context.NAME``.
* ``model/``: ``config.json`` and ``model.safetensors`` as ``save_pretrained`` writes them, and ``buffers.safetensors``,
  what `transformers` computes anew at every start, such as rotary frequencies, which hang on its version; the model is
  read at its token embeddings, see `Reader`. Or ``model.pt2``: a program of `torch.export`, called with the inputs and
  the context.

The answer:

* ``answer.safetensors``: ``attribution`` (batch, features), and ``output`` (batch, outputs): what the worker's model
  makes of the case, by which faithcheck sees that it is the model that was sent.
* ``answer.json``, written last: ``protocol``, ``status`` ("answered", "unsupported", "error"), ``versions`` of Python,
  torch, transformers and the peer, ``reason`` (of a refusal, or the error in a line), ``traceback`` (of an error) and
  ``figures`` (anything else that the peer says, plain JSON).

``python WORKER --versions`` prints the versions and does nothing else. A worker leaves when its standard input closes:
that is held open by faithcheck, so that no worker outlives it.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
import threading
import traceback
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

PROTOCOL = 1


class Refused(Exception):
    """The peer cannot explain this. The message says why."""


@dataclass(frozen=True)
class Request:
    """What is to be explained; see the module.

    Attributes:
        folder: where it lies.
        method: the peer's name of it.
        options: of the method.
        inputs: ``(batch, features, …)``.
        baseline: like ``inputs``.
        target: ``(batch,)`` int64.
        context: what else the model is called with.
        model: how it is written.
    """

    folder: Path
    method: str
    options: Mapping[str, Any]
    inputs: Tensor
    baseline: Tensor
    target: Tensor
    context: Mapping[str, Tensor]
    model: Mapping[str, Any]

    def load(self) -> nn.Module:
        """The model, in eval mode, called as ``model(inputs, **context)``: ``(batch, outputs)``."""
        if self.model["form"] == "exported":
            return exported(self.folder / "model.pt2")
        return Reader(pretrained(self.folder / "model", self.inputs.dtype, self.model["attention"]), **self.reading)

    @property
    def reading(self) -> dict[str, bool]:
        """How a model of `transformers` is read: the arguments of `Reader` behind the model."""
        return {"throughout": bool(self.model["throughout"])}


@dataclass(frozen=True)
class Answer:
    """What a peer says.

    Attributes:
        attribution: ``(batch, features)``.
        output: what the worker's model makes of the case, ``(batch, outputs)``.
        figures: anything else, plain JSON.
    """

    attribution: Tensor
    output: Tensor
    figures: Mapping[str, Any] = field(default_factory=dict)


class KeepFloat64(TorchFunctionMode):
    """Float64 stays float64 where a model would compute in float32, as faithcheck's own small models do.

    transformers 4 multiplies the rotary frequencies by positions in float32 as matrices, which must be of one dtype.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Leave the casts out."""
        kwargs = kwargs or {}
        if args and isinstance(args[0], Tensor) and args[0].dtype == torch.float64:
            if func is Tensor.float or (func is Tensor.to and args[1:] == (torch.float32,)):
                return args[0]
            if kwargs.get("dtype") == torch.float32:
                kwargs = {**kwargs, "dtype": torch.float64}
            if func in (torch.matmul, Tensor.matmul, Tensor.__matmul__) and args[1].dtype == torch.float32:
                args = (args[0], args[1].double())
        return func(*args, **kwargs)


class Reader(nn.Module):
    """A text model of `transformers`, read at its token embeddings.

    Args:
        model: a classifier, or a decoder, which is read at one position.
        throughout: whether float64 stays float64.
    """

    def __init__(self, model: Any, throughout: bool) -> None:
        super().__init__()
        self.model, self.throughout = model, throughout
        self.eval()

    def forward(self, inputs: Tensor, attention_mask: Tensor | None = None, last: Tensor | None = None) -> Tensor:
        """Embeddings ``(batch, tokens, width)`` to ``(batch, outputs)``; a decoder's at ``last`` ``(batch,)``."""
        more: dict[str, Any] = {}
        if last is not None:
            positions, which = last.unique(return_inverse=True)  # type: ignore[no-untyped-call]
            more = {"use_cache": False, "logits_to_keep": positions}
        with self.mode():
            logits: Tensor = self.model(inputs_embeds=inputs, attention_mask=attention_mask, **more).logits
        if last is not None:
            return logits[torch.arange(len(which)), which]
        return logits if logits.dim() == 2 else logits[:, -1]

    def mode(self) -> contextlib.AbstractContextManager[object]:
        """What the model is run under."""
        return KeepFloat64() if self.throughout else contextlib.nullcontext()


def pretrained(folder: Path, dtype: torch.dtype, attention: str) -> Any:
    """The model of a folder, of the class that its configuration names, with the buffers that were sent; eval mode."""
    import transformers

    name = json.loads((folder / "config.json").read_text(encoding="utf-8"))["architectures"][0]
    as_dtype = {"dtype" if int(transformers.__version__.split(".")[0]) >= 5 else "torch_dtype": dtype}
    architecture = getattr(transformers, name)
    model = architecture.from_pretrained(folder, attn_implementation=attention, use_safetensors=True, **as_dtype)
    for path, buffer in load_file(folder / "buffers.safetensors").items():
        owner, _, last = path.rpartition(".")
        setattr(model.get_submodule(owner), last, buffer)  # a buffer, or what another version keeps it as
    return model.eval()


def exported(file: Path) -> nn.Module:
    """The program of an archive that has no pickle in it."""
    with zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            pickled = entry.filename.endswith(".pt") and entry.file_size > 0
            if pickled or (entry.filename.endswith("_config.json") and b'"use_pickle": true' in archive.read(entry)):
                raise Refused(f"{file.name} has a pickle in it, {entry.filename}, which is not read")
    program: nn.Module = torch.export.load(file).module()
    return program


def read(folder: Path) -> Request:
    """The request of a folder.

    Raises:
        Refused: of another protocol.
    """
    said = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    if said["protocol"] != PROTOCOL:
        raise Refused(f"the request is of protocol {said['protocol']}, this worker speaks {PROTOCOL}")
    case = load_file(folder / "case.safetensors")
    context = {name.removeprefix("context."): case[name] for name in case if name.startswith("context.")}
    named = (case["inputs"], case["baseline"], case["target"])
    return Request(folder, said["method"], said["options"], *named, context, said["model"])


def versions(peer: str) -> dict[str, str]:
    """The versions of Python, torch, transformers and the peer."""
    found = {"python": platform.python_version()}
    for name in ("torch", "transformers", peer):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def serve(peer: str, explain: Callable[[Request], Answer]) -> None:
    """What a worker's script does: answer the request in the folder that the command line names.

    Args:
        peer: the package, as pip knows it.
        explain: the peer's answer; may raise `Refused`, any other exception is an error.
    """
    if sys.argv[1:] == ["--versions"]:
        print(json.dumps(versions(peer)))
        return
    folder = Path(sys.argv[1])
    threading.Thread(target=leave_with_parent, daemon=True).start()
    torch.manual_seed(0)
    said: dict[str, Any] = {"protocol": PROTOCOL, "status": "answered", "versions": versions(peer)}
    try:
        answer = explain(read(folder))
        tensors = {"attribution": answer.attribution, "output": answer.output}
        tensors = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
        save_file(tensors, folder / "answer.safetensors")
        said["figures"] = dict(answer.figures)
    except Refused as refusal:
        said |= {"status": "unsupported", "reason": str(refusal)}
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        said |= {"status": "error", "reason": reason, "traceback": traceback.format_exc()}
    unfinished = folder / "answer.json.part"
    unfinished.write_text(json.dumps(said, indent=1), encoding="utf-8")
    unfinished.rename(folder / "answer.json")


def leave_with_parent() -> None:
    """End the process when standard input closes."""
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os._exit(1)
