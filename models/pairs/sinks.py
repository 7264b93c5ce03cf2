"""Attention sinks: what takes 0.99 of every head's weight, a first token, a learned logit or register tokens.

The models are those of `faithcheck.models.networks.sinks`. A feature is removed by the attention mask.

* *A first token*, as in most decoders. Its value is 0, and without it every row is another one, many times larger.
  With an RMSNorm behind, a map to first order leaves every bound there: a derivative 1/|h| at a small state h, times
  the change to a large one. With one layer and no norm the output is linear in the attention, and finite changes are
  exact although 1 − A is below 0.01.
* *A learned logit*, as in GPT-OSS (arXiv 2508.10925): a further term exp s of the denominator, beside the keys. The
  same is a softmax over the keys times σ(log Σ exp z − s).
* *Register tokens*, as in ViTs (arXiv 2309.16588): positions before the features, and no features themselves.
"""

from __future__ import annotations

import torch

from faithcheck.models.case import Case
from faithcheck.models.cases import generator
from faithcheck.models.expectation import Expectations, expect_lrp, with_invariance
from faithcheck.models.networks.masked_attention import OUTPUTS, WIDTH
from faithcheck.models.networks.sinks import AttentionWithSink, Sink
from faithcheck.models.pair import WHY, MakeCase, Pair, copies, register

TOKENS = 6


def texts(has_sink: bool) -> MakeCase:
    """A pair's ``case``: eight texts of six tokens with the marks of the models; the first token may be a sink."""

    def case(seed: int, dtype: torch.dtype, device: torch.device) -> Case:
        inputs = torch.randn(8, TOKENS, WIDTH, dtype=torch.float64, generator=generator(seed))
        inputs[:, :, 0], inputs[:, :, 1] = 0, 1
        if has_sink:
            inputs[:, 0, 2:], inputs[:, 0, 0] = 0, 1
        inputs = inputs.to(device, dtype)
        target = torch.arange(len(inputs), device=device) % OUTPUTS
        mask = {"attention_mask": torch.ones(inputs.shape[:2], device=device, dtype=dtype)}
        return Case(inputs, target, torch.zeros_like(inputs), forward_arguments=mask)

    return case


def control(name: str, sink: Sink, layers: int, norm: bool, axioms: str) -> None:
    """Register a model with a sink, and its deep copy, as a control on which these axioms are measured."""
    build = copies(lambda: AttentionWithSink(sink, layers, norm))
    register(
        Pair(f"sinks.{name}", build, texts(sink == "first token"), WHY, axioms=frozenset(axioms.split()), control=True)
    )


control("first_token", "first token", 2, True, "bounds")
control("first_token_of_one_layer", "first token", 1, False, "bounds full_removal")
control("registers", "registers", 1, False, "bounds full_removal")

LRP: Expectations = {
    **expect_lrp("weights are constants, a product with σ too: the output is linear in the values", of="cplrp"),
    **expect_lrp(
        "the logits get relevance by Eq. 5 in f, and in g through σ besides", floor=1e-3, of="attnlrp blockwise_lrp"
    ),
}
register(
    Pair(
        "sinks.learned",
        copies(lambda: AttentionWithSink("learned", 2), rescaled=True),
        texts(False),
        "exp z / (exp s + Σ exp z) is exp z / Σ exp z, times Σ exp z / (exp s + Σ exp z) = σ(log Σ exp z − s)",
        cite="arXiv 2508.10925",
        expected=with_invariance(LRP),
        axioms=frozenset({"invariance", "bounds"}),
    )
)
