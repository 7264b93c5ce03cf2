"""The base class of the adapters to explainers of other libraries, and the import of such a library."""

import importlib
import warnings
from copy import deepcopy
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from faithcheck.explainers.adapters import AdaptedExplainer
from faithcheck.explainers.protocol import Unsupported
from faithcheck.models.case import Case


@dataclass(frozen=True)
class Peer:
    """An explainer of another library.

    A subclass describes itself in class attributes, and explains in `explain`.

    Attributes:
        distribution: the package that the explainer comes from, as pip knows it.
        claims: the axioms that the peer's own documentation says it satisfies.
        refuses: ``(error, words)``: an error of this type whose message has these words is the peer's refusal.
        way_out: what the user can do about a refusal.
        relevance: whether the attribution is relevance: its sum is compared with f(x), not with f(x) − f(x′).
        leaves: what the peer leaves behind on a model; then it gets a copy of the model. "" for nothing.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    summary: ClassVar[str]
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
        """The peer's attribution, ``(batch, features)``.

        Raises Unsupported with the peer's own message if it refuses the model; an ImportError names the missing extra.
        """
        adapted = AdaptedExplainer(
            self.name, lambda m, example: self.explain(m, replace(example, forward_arguments={}))
        )
        try:
            return adapted.attribute(deepcopy(model) if self.leaves else model, case)
        except Exception as error:
            if not any(isinstance(error, kind) and words in str(error) for kind, words in self.refuses):
                raise
            message = " ".join(str(error).split())
            raise Unsupported(f"{self.origin} says: {message[:400]} – {self.way_out}") from error

    def explain(self, model: nn.Module, case: Case) -> Tensor:
        """Call the peer on a model of the inputs alone, and on a case without forward arguments.

        The attribution is shaped like ``case.inputs``, or ``(batch, features)``.
        """
        raise NotImplementedError


def import_peer(module: str) -> Any:
    """A module of a peer; an ImportError names the extra if the peer is not installed.

    Warnings during its import are ignored: the user of the peer cannot act on them.
    """
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=()):  # autolrp draws random numbers
            warnings.simplefilter("ignore")
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{error}: pip install 'faithcheck[peers]'; zennit and lxt require packages that they do not need here: "
            "pip install --no-deps zennit lxt"
        ) from error
