"""The folder or file of a model: what can be said of it before transformers is imported, which takes seconds."""

import importlib.util
from pathlib import Path


class ModelError(ValueError):
    """A model cannot be loaded or used. The message names the model, the reason and what to do."""


HOLDS = "config.json, model.safetensors and tokenizer.json (for images: preprocessor_config.json)"
"""The files of a model, in words for messages."""
GGUF_SUFFIX, GGUF_MAGIC = ".gguf", b"GGUF"
"""The ending and the first bytes of a GGUF file, in which llama.cpp keeps a decoder with its tokenizer."""


def refuse_wrong_folder(name: str) -> None:
    """Raise `ModelError` for a path that is no folder or GGUF file of a model; ``owner/model`` may be the hub's."""
    path = Path(name).expanduser()
    if is_gguf(name):
        gguf_source(name)
    elif path.is_file():
        raise ModelError(f"{name} is a file: give the folder of the model, with {HOLDS}, or a file that ends in .gguf")
    elif path.is_dir() and not (path / "config.json").is_file():
        inside = sorted(file.name for file in path.glob(f"*{GGUF_SUFFIX}"))
        or_file = f", or the file: {path / inside[0]}" if inside else ""
        raise ModelError(f"{name} has no config.json: give a folder with {HOLDS}{or_file}")
    elif not path.exists() and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise ModelError(f"there is no folder {name}: give one with {HOLDS}, or a hub name such as owner/model")


def is_gguf(name: str) -> bool:
    """Whether a path ends in ``.gguf``, in whatever letters."""
    return Path(name).suffix.lower() == GGUF_SUFFIX


def gguf_source(name: str) -> tuple[str, dict[str, str]]:
    """The folder of a GGUF file, and transformers' options to read it; `ModelError` if the file or gguf is missing."""
    path = Path(name).expanduser()
    if not path.is_file():
        raise ModelError(f"there is no file {name}")
    with path.open("rb") as file:
        if file.read(len(GGUF_MAGIC)) != GGUF_MAGIC:
            raise ModelError(f"{name} is not a GGUF file: it does not begin with the letters {GGUF_MAGIC.decode()}")
    if importlib.util.find_spec("gguf") is None:
        raise ModelError(f"{name}: GGUF files are read by the package gguf: pip install 'faithcheck[gguf]'")
    return str(path.parent), {"gguf_file": path.name}
