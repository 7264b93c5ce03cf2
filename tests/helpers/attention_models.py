"""Small models with attention, and cases for them, that the tests of gates and of Leave-One-Out share."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
from torch import nn

from faithcheck.models import Case
from faithcheck.models.architectures.base_models import BASE_MODELS
from faithcheck.models.architectures.embedding_model import KeepFloat64
from faithcheck.tests.helpers.hidden_keys import HIDDEN

CPU = torch.device("cpu")
TEXT_MODELS, DECODERS = ("bert", "gpt2", "llama"), ("gpt2", "llama")
LENGTHS, WIDTH = (6, 4, 5), 16


class SmallEmbeddingModel(nn.Module):
    """A small unmodified model; a decoder is read at ``last``."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, inputs, attention_mask=None, last=None):
        with KeepFloat64():
            logits = self.model(inputs_embeds=inputs, attention_mask=attention_mask).logits
        return logits if last is None else logits[torch.arange(len(last)), last]


@cache
def embedding_model(name, implementation="eager"):
    """The base model of this name, called on embeddings or patches, with eager or fused attention."""
    base_model = BASE_MODELS[name].model(0, torch.float64, CPU)
    base_model.model.set_attn_implementation(implementation)
    return base_model if name == "vit" else SmallEmbeddingModel(base_model.model)


def case_of(name, side="right", seed=0):
    """Three padded texts of different lengths, first and last token special; or images."""
    if name == "vit":
        return BASE_MODELS[name].case(seed, torch.float64, CPU)
    numbers = torch.Generator().manual_seed(seed)
    inputs = torch.randn(3, max(LENGTHS), WIDTH, dtype=torch.float64, generator=numbers)
    lengths, positions = torch.tensor(LENGTHS).unsqueeze(1), torch.arange(max(LENGTHS))
    first = 0 if side == "right" else max(LENGTHS) - lengths
    last = first + lengths - 1
    unpadded = (first <= positions) & (positions <= last)
    arguments = {"attention_mask": unpadded.long()}
    if name in DECODERS:
        arguments["last"] = last.squeeze(1)
    special = ~unpadded | (positions == first) | (positions == last)
    return Case(inputs, torch.tensor([0, 1, 2]), torch.zeros_like(inputs), special, arguments)


def single_example(case, i):
    """One example of a right-padded case, without its padding."""
    n = LENGTHS[i]
    single = case.select(torch.tensor([i]))
    arguments = {name: value[:, :n] if value.dim() > 1 else value for name, value in single.forward_arguments.items()}
    return Case(
        single.inputs[:, :n], single.target, single.baseline[:, :n], single.special_tokens_mask[:, :n], arguments
    )


def with_other_baseline(case, seed=3):
    """The case with another baseline than 0."""
    baseline = torch.randn(case.inputs.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return replace(case, baseline=baseline)


def readout_rows(case, queries):
    """The readout row of these models, ``(batch, queries)`` bool: a decoder's last token, else the first position."""
    last = case.forward_arguments.get("last", torch.zeros(len(case.inputs), dtype=torch.int64))
    return torch.arange(queries) == last.unsqueeze(1)


class OneLayer(nn.Module):
    """One layer of attention and a linear map to a power: tokens ``(batch, tokens, 6)`` to ``(batch, 2)``.

    Read at one row, or at the mean of all rows.
    """

    def __init__(self, read=0, power=1, heads=1):
        super().__init__()
        numbers = torch.Generator().manual_seed(heads)
        self.query, self.key, self.value = torch.randn(3, heads, 6, 3, dtype=torch.float64, generator=numbers) / 2
        self.head = nn.Parameter(torch.randn(heads * 3, 2, dtype=torch.float64, generator=numbers))
        self.read, self.power = read, power

    def attention(self, x, attention_mask=None):
        """Weights ``(batch, heads, tokens, tokens)`` and values."""
        q, k, v = (x.unsqueeze(1) @ weight for weight in (self.query, self.key, self.value))
        logits = q @ k.transpose(-1, -2)
        if attention_mask is not None:
            logits = logits.masked_fill(attention_mask[:, None, None] == 0, HIDDEN)
        return torch.softmax(logits, -1), v

    def forward(self, inputs, attention_mask=None):
        weights, values = self.attention(inputs, attention_mask)
        outputs = (weights @ values).transpose(1, 2).flatten(2) @ self.head
        return (outputs.mean(1) if self.read is None else outputs[:, self.read]) ** self.power


def tokens(n=5, batch=2, special=None, seed=0):
    """Random tokens of width 6 for `OneLayer`, with an attention mask of ones."""
    numbers = torch.Generator().manual_seed(seed)
    inputs = torch.randn(batch, n, 6, dtype=torch.float64, generator=numbers)
    mask = {"attention_mask": torch.ones(batch, n, dtype=torch.int64)}
    return Case(inputs, torch.arange(batch) % 2, torch.zeros_like(inputs), special, mask)


class PyTorchEncoder(nn.Module):
    """The encoder layer of torch.nn, whose fused operations hide the attention weights."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True, dtype=torch.float64)

    def forward(self, x, **arguments):
        return self.layer(x)[:, 0]
