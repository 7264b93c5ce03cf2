"""Files of maps that were made elsewhere, read and written with NumPy: a damaged one is refused before torch is loaded.

A file holds, for each subject by its name, such as ``product.x1x2x3.f``, the map ``(batch, features)`` and the hash of
the inputs that it explains:

* ``.npz``: an array under the subject's name, and a text under that name with ``/inputs`` behind it;
* ``.safetensors``: a tensor under the subject's name, and the hash under it in the metadata;
* ``.parquet``: a row for each number, with the columns ``subject``, ``inputs``, ``example``, ``feature``, ``value``.

No format runs code of the file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np

INPUTS = "/inputs"
"""What follows a subject's name in the name of the hash of its inputs, in an npz file."""


@dataclass(frozen=True)
class StoredMap:
    """The map of one subject, ``(batch, features)``, and the hash of the inputs that it explains."""

    values: np.ndarray[Any, Any]
    inputs: str


Maps: TypeAlias = dict[str, StoredMap]


def is_named(spec: str) -> bool:
    """Whether an explainer is given as a file of maps."""
    return spec.endswith(SUFFIXES)


def read(path: Path) -> Maps:
    """The maps of a file, by the names of their subjects.

    Raises:
        ValueError: the file is missing, is of another format, is damaged, has no map, or has one that is no table of
            numbers or that has no hash of its inputs. The message names the file and the map.
    """
    read_format, _ = _format(path)
    try:
        maps = read_format(path)
    except ImportError as error:
        raise ValueError(f"{path}: needs {error.name}, which is not installed: pip install {error.name}") from error
    except FileNotFoundError as error:
        raise ValueError(
            f"there is no file {path}; docs/how_to/adapt_an_explainer.md says how maps are written"
        ) from error
    except Exception as error:  # each format has errors of its own
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise ValueError(f"{path}: not a file of maps: {reason}: write it with save_maps") from error
    if not maps:
        raise ValueError(f"{path}: has no map: write the file with save_maps")
    return maps


def write(path: Path, maps: Maps) -> None:
    """Write maps, in the format that the file's name ends in; ValueError for another ending."""
    _, write_format = _format(path)
    write_format(path, maps)


def _format(path: Path) -> tuple[Callable[[Path], Maps], Callable[[Path, Maps], None]]:
    if path.suffix not in _FORMATS:
        raise ValueError(f"{path}: a file of maps ends in {', '.join(_FORMATS)}")
    return _FORMATS[path.suffix]


def _stored(subject: str, values: Any, inputs: object) -> StoredMap:
    if not isinstance(inputs, str) or not inputs:
        raise ValueError(f"the map of {subject} has no hash of its inputs")
    if values.ndim != 2 or values.dtype.kind != "f":
        raise ValueError(
            f"the map of {subject} has the shape {values.shape} and the dtype {values.dtype}: expected floating-point "
            "numbers (batch, features)"
        )
    return StoredMap(values, inputs)


def _read_npz(path: Path) -> Maps:
    import numpy as np  # not at the top: names are refused without it

    with np.load(path, allow_pickle=False) as arrays:
        names = [name for name in arrays.files if not name.endswith(INPUTS)]
        hashes = {name: str(arrays[name + INPUTS]) for name in names if name + INPUTS in arrays.files}
        return {name: _stored(name, arrays[name], hashes.get(name)) for name in names}


def _write_npz(path: Path, maps: Maps) -> None:
    import numpy as np

    arrays = {name: one.values for name, one in maps.items()}
    hashes = {name + INPUTS: np.array(one.inputs) for name, one in maps.items()}
    np.savez(path, allow_pickle=False, **arrays, **hashes)


def _read_safetensors(path: Path) -> Maps:
    from safetensors import safe_open

    with safe_open(path, framework="np") as tensors:
        hashes = tensors.metadata() or {}
        return {name: _stored(name, tensors.get_tensor(name), hashes.get(name)) for name in [*tensors.keys()]}


def _write_safetensors(path: Path, maps: Maps) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    tensors = {name: np.ascontiguousarray(one.values) for name, one in maps.items()}
    save_file(tensors, path, metadata={name: one.inputs for name, one in maps.items()})


COLUMNS = ("subject", "inputs", "example", "feature", "value")
"""The columns of a Parquet file."""


def _read_parquet(path: Path) -> Maps:
    import numpy as np
    from pyarrow import parquet

    table = parquet.read_table(path, columns=list(COLUMNS))
    subject, inputs, example, feature, value = (table[name].to_numpy() for name in COLUMNS)
    maps = {}
    for name in sorted(set(subject.tolist())):
        rows = subject == name
        hashes, shape = set(inputs[rows].tolist()), (int(example[rows].max()) + 1, int(feature[rows].max()) + 1)
        values = np.full(shape, np.nan, value.dtype)
        values[example[rows], feature[rows]] = value[rows]
        maps[name] = _stored(name, values, hashes.pop() if len(hashes) == 1 else None)
    return maps


def _write_parquet(path: Path, maps: Maps) -> None:
    import pyarrow
    from pyarrow import parquet

    rows = [
        (name, one.inputs, example, feature, value)
        for name, one in maps.items()
        for example, values in enumerate(one.values.tolist())
        for feature, value in enumerate(values)
    ]
    columns = zip(*rows, strict=True) if rows else ([] for _ in COLUMNS)
    parquet.write_table(pyarrow.table(dict(zip(COLUMNS, map(list, columns), strict=True))), path)


_FORMATS: dict[str, tuple[Callable[[Path], Maps], Callable[[Path, Maps], None]]] = {
    ".npz": (_read_npz, _write_npz),
    ".safetensors": (_read_safetensors, _write_safetensors),
    ".parquet": (_read_parquet, _write_parquet),
}
SUFFIXES = tuple(_FORMATS)
"""How the names of files of maps end."""
