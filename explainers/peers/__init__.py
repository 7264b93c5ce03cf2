"""Adapters to other libraries' explainers, so that the suite can check them: the extra ``peers``.

An adapter is an explainer of this project's protocol that hands a case to a peer and returns what the peer says, with
the peer's own defaults. It changes nothing but the shape: what a peer gives for the coordinates of a feature is summed,
and where a case has a context (an attention mask) the examples are explained one at a time. What a peer refuses is
refused in its own words; what it gets wrong without a word is left as it is, for the axioms to find. ``claims`` are the
peer's own, from its documentation; ``origin`` is its name and version.

A peer is imported when it is first asked to explain, not before. One that would leave something behind on a model
(`Peer.leaves`, measured by ``pytest -m peers``) is given a copy of it.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from faithcheck.explainers.adapters import AdaptedExplainer
from faithcheck.explainers.protocol import Unsupported
from faithcheck.models.case import Case


@dataclass(frozen=True)
class Peer:
    """An explainer of another library.

    A subclass says what it is in class attributes, and explains in `explain`.

    Attributes:
        name: its name in test ids and reports.
        distribution: the package that it comes from, as pip knows it.
        claims: the axioms that the peer's own documentation says it satisfies.
        refuses: ``(error, words)``: an error of this kind with these words in it is the peer's refusal.
        way_out: what to do about a refusal.
        relevance: whether its map is relevance, whose sum is held against the explained output f(x): no baseline.
        leaves: what the peer leaves behind on a model, which is why it is given a copy; "" for nothing.
    """

    name: ClassVar[str]
    distribution: ClassVar[str]
    claims: ClassVar[frozenset[str]] = frozenset()
    refuses: ClassVar[tuple[tuple[type[Exception], str], ...]] = ()
    way_out: ClassVar[str] = ""
    relevance: ClassVar[bool] = False
    leaves: ClassVar[str] = ""

    @property
    def origin(self) -> str:
        """The package and its version, such as "captum 0.9.0"."""
        try:
            return f"{self.distribution} {metadata.version(self.distribution)}"
        except metadata.PackageNotFoundError:
            return f"{self.distribution}, not installed"

    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """What the peer says: ``(batch, features)``.

        Raises:
            ImportError: the peer is not installed; names the extra.
            Unsupported: the peer refuses; in its own words.
        """
        adapted = AdaptedExplainer(
            self.name,
            lambda of_inputs, example: self.explain(of_inputs, replace(example, forward_arguments={})),
        )
        try:
            return adapted.attribute(deepcopy(model) if self.leaves else model, case)
        except Exception as error:
            if not any(isinstance(error, kind) and words in str(error) for kind, words in self.refuses):
                raise
            said = " ".join(str(error).split())
            raise Unsupported(f"{self.origin} says: {said[:400]} – {self.way_out}") from error

    def explain(self, model: nn.Module, case: Case) -> Tensor:
        """Call the peer: shaped like ``case.inputs``, or ``(batch, features)``; the context is in the model."""
        raise NotImplementedError


def every_peer() -> list[Peer]:
    """One of each peer's explainers, installed or not; imports no peer."""
    from faithcheck.explainers.peers import autolrp, captum, lxt, shap, zennit  # they import this module

    modules = (captum, autolrp, shap, zennit, lxt)
    kinds = [kind for module in modules for kind in vars(module).values() if isinstance(kind, type)]
    return [kind() for kind in kinds if issubclass(kind, Peer) and "name" in vars(kind)]


def imported(module: str) -> Any:
    """A peer's module; what other libraries warn of while it is imported is not its user's to mend.

    Raises:
        ImportError: it is not installed; names the extra.
    """
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=()):  # autolrp draws numbers to check itself
            warnings.simplefilter("ignore")
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        ways = (
            "pip install 'faithcheck[peers]'; zennit and lxt, which ask for more than they need: --no-deps zennit lxt"
        )
        raise ImportError(f"{error}: {ways}") from error


@contextmanager
def numpy_random_state() -> Iterator[None]:
    """Put numpy's global random state back on the way out: some peers seed it."""
    state = np.random.get_state()
    try:
        yield
    finally:
        np.random.set_state(state)
