"""Maps that were made elsewhere: an explainer that looks its maps up in a file (`faithcheck.explainers.map_files`).

`subjects` gives the models and the cases to explain, and `save_maps` writes a file.
"""

from __future__ import annotations

import fnmatch
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from faithcheck.explainers import map_files
from faithcheck.explainers.protocol import InvalidAttribution, Unsupported
from faithcheck.models.case import Case
from faithcheck.models.pair import Pair, registered_pairs, seed_torch
from faithcheck.models.unknown_name import families, unknown_name

CPU = torch.device("cpu")


@dataclass(frozen=True)
class StoredMaps:
    """An explainer that looks its maps up, and runs nothing.

    Attributes:
        name: the name of the file.
        maps: the maps by subject.
        models: the models that a check measures, each with the name of its subject; see `of_models`.
    """

    name: str
    maps: Mapping[str, map_files.StoredMap]
    models: Sequence[tuple[nn.Module, str]] = ()
    summary = "maps that were made elsewhere"
    made_elsewhere = True

    def of_models(self, models: Iterable[tuple[nn.Module, str]]) -> StoredMaps:
        """The same maps for these models, each with the name of its subject."""
        return replace(self, models=tuple(models))

    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """The stored map of the subject.

        Raises Unsupported if the file has no map of it, and InvalidAttribution if the map is of other inputs.
        """
        subject = next((name for one, name in self.models if one is model), "")
        if subject not in self.maps:
            raise Unsupported(f"{self.name} has no map of {subject or 'this model'}")
        stored, expected = self.maps[subject], hash_of_inputs(case)
        if stored.inputs != expected:
            raise InvalidAttribution(
                f"the map of {subject} in {self.name} is of other inputs: the hash of its inputs is "
                f"{stored.inputs[:12]}…, and that of this run is {expected[:12]}…: make it with the same seed and dtype"
            )
        return torch.tensor(stored.values, device=case.inputs.device)


def hash_of_inputs(case: Case) -> str:
    """SHA-256 of what is explained: the dtypes, shapes and values of inputs, target, baseline and forward arguments."""
    further = [case.forward_arguments[name] for name in sorted(case.forward_arguments)]
    hashed = hashlib.sha256()
    for tensor in (case.inputs, case.target, case.baseline, *further):
        values = tensor.detach().cpu().contiguous().numpy()
        hashed.update(f"{values.dtype}{values.shape}".encode() + values.tobytes())
    return hashed.hexdigest()


@dataclass(frozen=True)
class Subject:
    """What a map explains: a model of a pair, in eval mode, and the case.

    ``name`` is that of the pair, with ``.f`` or ``.g``.
    """

    name: str
    model: nn.Module
    case: Case


def subjects(*pairs: str | Pair, seed: int = 0, dtype: torch.dtype = torch.float64) -> Iterator[Subject]:
    """The models of these pairs, with their cases, as a run of this seed measures them on the CPU.

    Args:
        pairs: pairs, their names or globs.
        seed: that of the run.
        dtype: that of the run.

    Raises:
        ValueError: no pair has the name.
    """
    registered = registered_pairs()
    for pair in pairs:
        names = [] if isinstance(pair, Pair) else fnmatch.filter(registered, pair)
        if not names and not isinstance(pair, Pair):
            raise ValueError(unknown_name("pair", pair, registered, families(registered)))
        for one in [pair] if isinstance(pair, Pair) else [registered[name] for name in names]:
            with torch.random.fork_rng(devices=[]):
                seed_torch(seed)
                models = one.build(seed, dtype, CPU)
                seed_torch(seed)
                case = one.case(seed, dtype, CPU)
            for side, model in zip("fg", models, strict=True):
                yield Subject(f"{one.name}.{side}", model, case)


def save_maps(path: str | Path, maps: Iterable[tuple[Subject, Tensor]]) -> None:
    """Write maps, in the format that the file's name ends in.

    Args:
        path: ends in ``.npz``, ``.safetensors`` or ``.parquet``.
        maps: each subject with its map, ``(batch, features)``.

    Raises:
        ValueError: another ending.
        OSError: the file cannot be written.
    """
    stored = {s.name: map_files.StoredMap(values.detach().cpu().numpy(), hash_of_inputs(s.case)) for s, values in maps}
    map_files.write(Path(path), stored)


def load_maps(path: str | Path) -> StoredMaps:
    """The explainer of a file of maps.

    Raises:
        ValueError: see `map_files.read`.
    """
    path = Path(path)
    return StoredMaps(path.name, map_files.read(path))
