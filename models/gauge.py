"""Gauges: changes to a model that leave its function alone, each a short function, applied to every host that fits.

A gauge on a host makes a pair: f is the host's model, g a changed deep copy. Such pairs should hold for every explainer
that claims implementation invariance, and show a stabiliser or a rule that depends on more than the function.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn

from faithcheck.models.architectures import ARCHITECTURES, HOSTS, Host, trained
from faithcheck.models.pair import FUNCTION, Expected, Pair, register, registered_pairs, relevance
from faithcheck.models.transformer import ModelError

Change: TypeAlias = Callable[[Any], nn.Module]


@dataclass(frozen=True)
class Gauge:
    """A change to a model that leaves its function alone.

    Attributes:
        name: ``family.member``; on a host the pair is ``family.member_host``.
        change: ``change(reader) -> module``: the host's model in eval mode, a copy of its own to be changed in place
            and returned, or wrapped; called without gradients, random numbers seeded.
        why: why the function is left alone.
        expected: of the explainers, on every host.
        hosts: names in `HOSTS` that it applies to.
        where: for a checkpoint whose architecture is that of one of these hosts: whether it applies to this model,
            ``where(reader)``.
        cite: paper and equation.
    """

    name: str
    change: Change
    why: str
    expected: Expected
    hosts: tuple[str, ...]
    where: Callable[[Any], bool]
    cite: str = ""

    def on(self, host: Host) -> Pair:
        """The pair that it makes of a host."""

        def build(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
            f = host.model(seed, dtype, device)
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                torch.manual_seed(seed)
                return f, self.change(deepcopy(f)).eval()

        axioms = frozenset({"invariance"})
        return Pair(f"{self.name}_{host.name}", build, host.case, self.why, self.cite, self.expected, axioms)


_gauges: list[Gauge] = []


def gauge(
    name: str,
    *,
    why: str,
    lrp: str,
    hosts: Collection[str] = ARCHITECTURES,
    where: Callable[[Any], bool] = lambda reader: True,
    expected: Expected | None = None,
    cite: str = "",
) -> Callable[[Change], Change]:
    """Register a gauge on its hosts; the decorated function is its `Gauge.change`.

    Args:
        name: ``family.member``.
        why: why the function is left alone.
        lrp: why AttnLRP's and CP-LRP's relevance is left alone too.
        hosts: names in `HOSTS`, by default `ARCHITECTURES`.
        where: which checkpoints of these hosts' architectures it applies to, see `Gauge.where`; all by default.
        expected: what else is expected, or something other than that everything holds.
        cite: paper and equation.

    Raises:
        KeyError: no such host.
        ValueError: a name that is taken.
    """

    def decorate(change: Change) -> Change:
        everything = {**FUNCTION, **relevance(lrp), **(expected or {})}
        made = Gauge(name, change, why, everything, tuple(hosts), where, cite)
        for pair in [made.on(HOSTS[host]) for host in hosts]:
            register(pair)
        _gauges.append(made)
        return change

    return decorate


def registered_gauges() -> dict[str, Gauge]:
    """All gauges by name; imports every module of `faithcheck.models.pairs` first."""
    registered_pairs()
    return {gauge.name: gauge for gauge in sorted(_gauges, key=lambda gauge: gauge.name)}


def architecture(host: str) -> str:
    """The ``model_type`` of a host in `HOSTS`: what its name begins with."""
    return host.partition("_")[0]


def register_checkpoint(path: str) -> list[Pair]:
    """Register every gauge that applies on a trained model, as pairs named ``family.member_checkpoint``.

    Args:
        path: a folder or hub name, as `faithcheck.models.transformer.load` takes it.

    Raises:
        ModelError: it cannot be loaded, no gauge is known for its architecture, or it cannot be run in float64.
    """
    host = trained("checkpoint", path)
    reader: Any = host.model(0, torch.float64, torch.device("cpu"))
    kind = reader.model.config.model_type
    fits = [g for g in registered_gauges().values() if kind in map(architecture, g.hosts) and g.where(reader)]
    if not fits:
        known = ", ".join(sorted({architecture(host) for host in HOSTS}))
        raise ModelError(f"{path}: no gauge is known for the architecture {kind!r}; they are known for: {known}")
    try:
        with torch.no_grad():
            host.case(0, torch.float64, torch.device("cpu")).run(reader)
    except RuntimeError as error:
        raise ModelError(f"{path}: cannot be run in float64, which pairs are proved in: {error}") from error
    return [register(gauge.on(host)) for gauge in fits]
