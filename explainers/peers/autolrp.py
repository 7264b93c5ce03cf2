"""autolrp's presets: relevance over the nodes of the autograd graph.

autolrp starts the backward pass with a relevance of 1 at the target output (``backward/engine.py``, ``_unit_seed``), so
that its attributions sum to 1. Its README says that they sum to the logit. If the logit is negative, the sign of every
attribution differs between the two. The adapter multiplies by the logit, as the README describes it.

The README claims: "the logit equals the sum of the relevance that reaches the input". This is conservation, Σ = f(x),
and not completeness, Σ = f(x) − f(x′), an axiom with a baseline. ``pytest -m peers`` measures Σ = f(x).
"""

import warnings
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from faithcheck.explainers.peers.peer import Peer, import_peer
from faithcheck.models.case import Case


class Base(Peer):
    """autolrp's table ``BASE``: softmax and norms leave relevance unchanged, sums and products split it by size."""

    name = "autolrp_base"
    label = "LRP, BASE (autolrp)"
    summary = "autolrp's table BASE: sums and products split relevance by magnitude"
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
    way_out = "register a rule of your own by autolrp's register_installer or register_rewrite"
    relevance = True
    tables: ClassVar[tuple[str, ...]] = ("BASE",)

    def explain(self, model: nn.Module, case: Case) -> Tensor:
        autolrp = import_peer("autolrp")
        config = autolrp.LRPConfig(
            rule={key: rule for table in self.tables for key, rule in getattr(autolrp, table).items()}
        )
        rows = torch.arange(len(case.inputs), device=case.inputs.device).unsqueeze(1)
        return torch.cat([self._of_one(autolrp, config, model, case.select(row)) for row in rows])

    def _of_one(self, autolrp: Any, config: Any, model: nn.Module, case: Case) -> Tensor:
        with torch.enable_grad(), warnings.catch_warnings():
            # autolrp warns once per call if it has no rule for a node and uses the plain gradient as relevance.
            warnings.simplefilter("error", UserWarning)
            inputs = autolrp.tensor(case.inputs.detach().clone())
            output = model(inputs)[0, int(case.target[0])]
            output.lrp(config=config)
        return inputs.relevance.as_subclass(Tensor) * output.detach().as_subclass(Tensor)


class AttnLRP(Base):
    """``BASE`` with the preset ``ATTNLRP``, merged as in the README: the softmax rule of Achtibat et al. 2024."""

    name = "autolrp_attnlrp"
    label = "AttnLRP (autolrp)"
    summary = "autolrp's table BASE with AttnLRP's softmax rule; Achtibat et al. 2024"
    tables = ("BASE", "ATTNLRP")


class CPLRP(Base):
    """``BASE`` with the preset ``CPLRP``: the operand that looks like attention weights is held constant."""

    name = "autolrp_cplrp"
    label = "CP-LRP (autolrp)"
    summary = "autolrp's table BASE with attention weights held constant; Ali et al. 2022"
    tables = ("BASE", "CPLRP")
