"""The file protocol between faithcheck and a peer in the peer's own environment: the worker's half.

faithcheck writes a request to a folder and runs ``python WORKER FOLDER``; the worker writes its answer to the same
folder. This module imports nothing of faithcheck: besides the peer, it needs torch, safetensors and, for a model of
`transformers`, that library. No file is pickled.

The request:

* ``request.json``: ``protocol`` (2), ``peer``, ``method``, ``options`` (of the method), ``dtype`` ("float64"), and
  ``model``: ``{"form": "exported"}``, or ``{"form": "transformers", "attention": "eager" or "sdpa", "throughout": …}``,
  whose last entry says whether float64 stays float64, see `KeepFloat64`.
* ``case.safetensors``: ``inputs`` (batch, features, …), ``baseline`` of the same shape, ``target`` (batch,) int64, and
  the forward arguments, which the model gets by keyword, as ``forward_arguments.NAME``.
* ``model/``: ``config.json`` and ``model.safetensors`` as ``save_pretrained`` writes them, and ``buffers.safetensors``:
  values that `transformers` computes whenever it makes the model, such as rotary frequencies, which depend on its
  version. The model is called on token embeddings, see `WorkerEmbeddingModel`. Or ``model.pt2``: a program of
  `torch.export`, called with the inputs and the forward arguments.

The answer:

* ``answer.safetensors``: ``attribution`` (batch, features), and ``output`` (batch, outputs): the outputs of the
  worker's model, which faithcheck compares with those of the model that it sent.
* ``answer.json``, written last: ``protocol``, ``status`` ("answered", "unsupported", "error"), ``versions`` of Python,
  torch, transformers and the peer, ``reason`` (of a refusal, or the error in one line), ``traceback`` (of an error) and
  ``figures`` (further results of the peer, plain JSON).

``python WORKER --versions`` prints the versions and exits. A worker exits when its standard input closes. faithcheck
holds that input open, so no worker outlives faithcheck.
"""

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

PROTOCOL = 2
FORWARD_ARGUMENT = "forward_arguments."
"""The prefix of the names of forward arguments in ``case.safetensors``."""


class Refused(Exception):
    """The peer cannot explain this model or case. The message says why."""


@dataclass(frozen=True)
class WorkerRequest:
    """A model and a case to explain; see the module's docstring."""

    folder: Path
    method: str
    options: Mapping[str, Any]
    inputs: Tensor
    baseline: Tensor
    target: Tensor
    forward_arguments: Mapping[str, Tensor]
    model: Mapping[str, Any]

    def load(self) -> nn.Module:
        """The model, in eval mode, called as ``model(inputs, **forward_arguments)``: ``(batch, outputs)``."""
        if self.model["form"] == "exported":
            return exported(self.folder / "model.pt2")
        model = pretrained(self.folder / "model", self.inputs.dtype, self.model["attention"])
        return WorkerEmbeddingModel(model, throughout=bool(self.model["throughout"]))


@dataclass(frozen=True)
class WorkerAnswer:
    """The answer of a peer; see the module's docstring."""

    attribution: Tensor
    output: Tensor
    figures: Mapping[str, Any] = field(default_factory=dict)


class KeepFloat64(TorchFunctionMode):
    """Float64 stays float64 in a model that casts to float32, as in faithcheck's own small models.

    transformers 4 multiplies the rotary frequencies by float32 positions as matrices, which must have the same dtype.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function without the cast to float32."""
        kwargs = kwargs or {}
        if args and isinstance(args[0], Tensor) and args[0].dtype == torch.float64:
            if func is Tensor.float or (func is Tensor.to and args[1:] == (torch.float32,)):
                return args[0]
            if kwargs.get("dtype") == torch.float32:
                kwargs = {**kwargs, "dtype": torch.float64}
            if func in (torch.matmul, Tensor.matmul, Tensor.__matmul__) and args[1].dtype == torch.float32:
                args = (args[0], args[1].double())
        return func(*args, **kwargs)


class WorkerEmbeddingModel(nn.Module):
    """A classifier of `transformers`, or a decoder's logits at one position, called on token embeddings."""

    def __init__(self, model: Any, throughout: bool) -> None:
        super().__init__()
        self.model, self.throughout = model, throughout
        self.eval()

    def forward(self, inputs: Tensor, attention_mask: Tensor | None = None, last: Tensor | None = None) -> Tensor:
        """Embeddings ``(batch, tokens, width)`` to ``(batch, outputs)``; a decoder's at ``last`` ``(batch,)``."""
        options: dict[str, Any] = {}
        if last is not None:
            positions, position_of_row = last.unique(return_inverse=True)  # type: ignore[no-untyped-call]
            options = {"use_cache": False, "logits_to_keep": positions}
        with self.mode():
            logits: Tensor = self.model(inputs_embeds=inputs, attention_mask=attention_mask, **options).logits
        if last is not None:
            return logits[torch.arange(len(position_of_row)), position_of_row]
        return logits if logits.dim() == 2 else logits[:, -1]

    def mode(self) -> contextlib.AbstractContextManager[object]:
        """The context manager that the model runs in."""
        return KeepFloat64() if self.throughout else contextlib.nullcontext()


def pretrained(folder: Path, dtype: torch.dtype, attention: str) -> Any:
    """The model of a folder, of the class that its configuration names, with the folder's buffers; in eval mode."""
    import transformers

    name = json.loads((folder / "config.json").read_text(encoding="utf-8"))["architectures"][0]
    as_dtype = {"dtype" if int(transformers.__version__.split(".")[0]) >= 5 else "torch_dtype": dtype}
    architecture = getattr(transformers, name)
    model = architecture.from_pretrained(folder, attn_implementation=attention, use_safetensors=True, **as_dtype)
    for path, buffer in load_file(folder / "buffers.safetensors").items():
        owner, _, last = path.rpartition(".")
        setattr(model.get_submodule(owner), last, buffer)  # in some versions a plain attribute, not a buffer
    return model.eval()


def exported(file: Path) -> nn.Module:
    """The program of an archive; one with a pickle in it is refused."""
    with zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            pickled = entry.filename.endswith(".pt") and entry.file_size > 0
            if pickled or (entry.filename.endswith("_config.json") and b'"use_pickle": true' in archive.read(entry)):
                raise Refused(f"{file.name} has a pickle in it, {entry.filename}, and pickles are not read")
    program: nn.Module = torch.export.load(file).module()
    return program


def read(folder: Path) -> WorkerRequest:
    """The request in a folder; one of another version of the protocol is refused."""
    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    if request["protocol"] != PROTOCOL:
        raise Refused(f"the request has protocol {request['protocol']}, this worker has protocol {PROTOCOL}")
    tensors = load_file(folder / "case.safetensors")
    prefix = FORWARD_ARGUMENT
    arguments = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    inputs, baseline, target = (tensors[name] for name in ("inputs", "baseline", "target"))
    method, options, model = (request[name] for name in ("method", "options", "model"))
    return WorkerRequest(folder, method, options, inputs, baseline, target, arguments, model)


def versions_of(peer: str) -> dict[str, str]:
    """The versions of Python, torch, transformers and the peer."""
    versions = {"python": platform.python_version()}
    for name in ("torch", "transformers", peer):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def serve(peer: str, explain: Callable[[WorkerRequest], WorkerAnswer]) -> None:
    """Run a worker of a package: answer the request in the folder that the command line names."""
    if sys.argv[1:] == ["--versions"]:
        print(json.dumps(versions_of(peer)))
        return
    folder = Path(sys.argv[1])
    threading.Thread(target=exit_with_parent, daemon=True).start()
    torch.manual_seed(0)
    document: dict[str, Any] = {"protocol": PROTOCOL, "status": "answered", "versions": versions_of(peer)}
    try:
        answer = explain(read(folder))
        tensors = {"attribution": answer.attribution, "output": answer.output}
        tensors = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
        save_file(tensors, folder / "answer.safetensors")
        document["figures"] = dict(answer.figures)
    except Refused as refusal:
        document |= {"status": "unsupported", "reason": str(refusal)}
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        document |= {"status": "error", "reason": reason, "traceback": traceback.format_exc()}
    unfinished = folder / "answer.json.part"
    unfinished.write_text(json.dumps(document, indent=1), encoding="utf-8")
    unfinished.rename(folder / "answer.json")


def exit_with_parent() -> None:
    """Exit when standard input closes."""
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os._exit(1)
