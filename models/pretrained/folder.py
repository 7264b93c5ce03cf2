"""The folder of a model: what can be said of it before transformers is imported, which takes seconds."""

from __future__ import annotations

from pathlib import Path


class ModelError(ValueError):
    """A model cannot be loaded or used. The message names the model, the reason and what to do."""


HOLDS = "config.json, model.safetensors and tokenizer.json (for images: preprocessor_config.json)"
"""The files of a model, in words for messages."""


def refuse_wrong_folder(name: str) -> None:
    """Refuse a path that is no folder of a model. A name such as ``gpt2`` or ``owner/model`` may be the hub's.

    Raises:
        ModelError: there is no such folder, or it has no config.json.
    """
    path = Path(name).expanduser()
    if path.is_file():
        raise ModelError(f"{name} is a file: give the folder of the model, with {HOLDS}")
    if path.is_dir() and not (path / "config.json").is_file():
        raise ModelError(f"{name} has no config.json: give a folder with {HOLDS}")
    if not path.exists() and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise ModelError(f"there is no folder {name}: give one with {HOLDS}, or a hub name such as owner/model")
