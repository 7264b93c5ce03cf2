"""Attention sinks: what takes 0.99 of every head's weight, a first token, a learned logit or register tokens.

A feature is removed by the attention mask.

* *A first token*, as in most decoders. Its value is 0, and without it every row is another one, many times larger.
  With an RMSNorm behind, a map to first order leaves every bound there: a derivative 1/|h| at a small state h, times
  the change to a large one. With one layer and no norm the output is linear in the attention, and finite changes are
  exact although 1 − A is below 0.01.
* *A learned logit*, as in GPT-OSS (arXiv 2508.10925): a further term exp s of the denominator, beside the keys. The
  same is a softmax over the keys times σ(log Σ exp z − s).
* *Register tokens*, as in ViTs (arXiv 2309.16588): positions before the features, and no features themselves.

Every state keeps two marks, which no layer writes to: coordinate 0 is 1 at the sink and 0 elsewhere, and coordinate 1
is 1 everywhere. The first coordinate of each head's query reads the second mark, and that of its key the first, so that
the sink's logit exceeds the others' by about `MARGIN`.
"""

from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case
from faithcheck.models.cases import generator
from faithcheck.models.expectation import Expectations, expect, expect_lrp, with_invariance
from faithcheck.models.networks.masked_attention import OUTPUTS, WIDTH
from faithcheck.models.pair import WHY, MakeCase, Pair, copies, register

Sink: TypeAlias = Literal["first token", "learned", "registers"]

MARGIN = 9.0
"""A key whose logit is larger by 9 than those of n others has 1 − A ≈ n e⁻⁹ of the weight, below 0.002 for n = 10."""
HEADS = 2
REGISTERS = 2
TOKENS = 6


class SinkLayer(nn.Module):
    """x + attention(x) W_O. What is read without the sink is larger than the states, and with it smaller."""

    def __init__(self, sink: Sink) -> None:
        super().__init__()
        self.sink = sink
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        for part, std in ((self.query, 0.2), (self.key, 0.2), (self.value, 1.0), (self.output, 20.0)):
            nn.init.normal_(part.weight, std=std)
        head = WIDTH // HEADS
        with torch.no_grad():
            self.output.weight[:2] = 0
            self.value.weight[:, :2] = 0
            self.query.weight[::head] = self.key.weight[::head] = 0
            self.query.weight[::head, 1] = MARGIN * head**0.5
            self.key.weight[::head, 0] = 1
        self.logit = nn.Parameter(torch.full((HEADS, 1, 1), MARGIN))

    def forward(self, states: Tensor, mask: Tensor, rescaled: bool) -> Tensor:
        """States ``(batch, tokens, width)`` and a mask that is added to the logits, ``(batch, 1, queries, keys)``."""
        q, k, v = (
            part(states).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        logits = torch.matmul(q, k.transpose(-1, -2)) / q.shape[-1] ** 0.5 + mask
        attended = torch.matmul(self.weights(logits, rescaled), v)
        result: Tensor = states + self.output(attended.transpose(1, 2).flatten(2))
        return result

    def weights(self, logits: Tensor, rescaled: bool) -> Tensor:
        """The attention weights, ``(batch, heads, queries, keys)``; a learned sink takes its share and is dropped."""
        if self.sink != "learned":
            return torch.softmax(logits, -1)
        if rescaled:  # Σ_k exp z_k / (exp s + Σ_k exp z_k) = σ(log Σ_k exp z_k − s)
            return torch.softmax(logits, -1) * torch.sigmoid(torch.logsumexp(logits, -1, keepdim=True) - self.logit)
        sink = self.logit.expand(len(logits), -1, logits.shape[-2], -1)
        return torch.softmax(torch.cat([logits, sink], -1), -1)[..., :-1]


class AttentionWithSink(nn.Module):
    """Layers, an RMSNorm if wanted, and a linear map at the last token: ``(batch, tokens, width)`` to outputs.

    ``sink`` takes nearly all weight. If ``rescaled``, a learned sink rescales the weights of the keys, instead of
    standing beside them.
    """

    def __init__(self, sink: Sink, layers: int, norm: bool = True) -> None:
        super().__init__()
        self.sink, self.norm, self.rescaled = sink, norm, False
        self.layers = nn.ModuleList(SinkLayer(sink) for _ in range(layers))
        self.registers = nn.Parameter(torch.randn(REGISTERS, WIDTH))
        with torch.no_grad():
            self.registers[:, :2] = 1
        self.head = nn.Linear(WIDTH, OUTPUTS, bias=False)

    def forward(self, inputs: Tensor, attention_mask: Tensor) -> Tensor:
        """The outputs ``(batch, 2)``, causal but for register tokens; mask ``(batch, tokens)`` in [0, 1]."""
        lowest, states = torch.finfo(inputs.dtype).min, inputs
        mask = attention_mask.to(inputs).log().clamp_min(lowest)[:, None, None]
        if self.sink == "registers":
            states = torch.cat([self.registers.expand(len(inputs), -1, -1), inputs], 1)
            mask = nn.functional.pad(mask, (REGISTERS, 0))
        else:
            count = inputs.shape[1]
            after = torch.ones(count, count, dtype=torch.bool, device=inputs.device).triu(1)
            mask = torch.where(after, lowest, mask)
        for layer in self.layers:
            states = layer(states, mask.expand(-1, -1, states.shape[1], -1), self.rescaled)
        last = states[:, -1]
        if self.norm:
            last = last * torch.rsqrt(last.square().mean(-1, keepdim=True) + 1e-5)
        outputs: Tensor = self.head(last)
        return outputs


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
    **expect(
        "invariance",
        "attnlrp blockwise_lrp",
        "the logits get relevance by Eq. 5 in f, and in g through σ besides",
        floor=1e-3,
        ceiling=1.0,  # measured: 0.007 and 0.47
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
