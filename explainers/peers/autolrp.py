"""autolrp's presets: relevance over the nodes of the autograd graph.

Where the explained output's relevance starts: autolrp seeds it with 1 (``backward/engine.py``, ``_unit_seed``), so that
its map sums to 1 and not, as its README says, to the logit. Where the logit is negative the sign is then the other way
round. The adapter multiplies by the logit, as the README has it.

The README's claim, "the logit equals the sum of the relevance that reaches the input", is conservation, and Σ = f(x),
not f(x) − f(x′): completeness, an axiom with a baseline, is not claimed. ``pytest -m peers`` measures Σ = f(x).
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from faithcheck.explainers.peers import Peer, imported
from faithcheck.models.case import Case


class Base(Peer):
    """autolrp's table ``BASE``: softmax and norms pass relevance through, sums and products split it by magnitude."""

    name = "autolrp_base"
    distribution = "autolrp"
    claims = frozenset({"conservation"})
    refuses = (
        (UserWarning, "the native gradient runs there"),
        (UserWarning, "degrades to plain gradient"),
        (UserWarning, "could not register"),
        (ValueError, "no entry for node"),
        (RuntimeError, "no wrapped-input leaf"),
        (RuntimeError, "no wrapped input under this output"),
        (NotImplementedError, "attention decomposition does not support"),
    )
    way_out = "autolrp takes a rule of yours by register_installer or register_rewrite"
    relevance = True

    def rules(self, autolrp: Any) -> dict[str, Any]:
        """The table of rules."""
        return dict(autolrp.BASE)

    def explain(self, model: nn.Module, case: Case) -> Tensor:
        """Relevance, shaped like the inputs; one forward and one backward pass for each example."""
        autolrp = imported("autolrp")
        config = autolrp.LRPConfig(rule=self.rules(autolrp))
        rows = torch.arange(len(case.inputs), device=case.inputs.device).unsqueeze(1)
        return torch.cat([self._of_one(autolrp, config, model, case.select(row)) for row in rows])

    def _of_one(self, autolrp: Any, config: Any, model: nn.Module, case: Case) -> Tensor:
        with torch.enable_grad(), warnings.catch_warnings():
            # It warns, once in a call, where it has no rule and lets the plain gradient stand for relevance.
            warnings.simplefilter("error", UserWarning)
            inputs = autolrp.tensor(case.inputs.detach().clone())
            output = model(inputs)[0, int(case.target[0])]
            output.lrp(config=config)
        relevance: Tensor = inputs.relevance.as_subclass(Tensor) * output.detach().as_subclass(Tensor)
        return relevance


class AttnLRP(Base):
    """autolrp's preset ``ATTNLRP``, as the README merges it: ``BASE`` with the softmax rule of Achtibat et al. 2024."""

    name = "autolrp_attnlrp"

    def rules(self, autolrp: Any) -> dict[str, Any]:
        """The table of rules."""
        return {**autolrp.BASE, **autolrp.ATTNLRP}


class CPLRP(Base):
    """autolrp's preset ``CPLRP``: ``BASE``, the operand that looks like attention weights held constant."""

    name = "autolrp_cplrp"

    def rules(self, autolrp: Any) -> dict[str, Any]:
        """The table of rules."""
        return {**autolrp.BASE, **autolrp.CPLRP}
