"""Examples run together or alone, padded or not: what else is in the batch is none of an example's business.

Why AttnLRP and CP-LRP hold on both, at ε = 0:

* Padding. A real token's logits at padding are masked, so its attention weights there are exactly 0. In the backward
  pass nothing enters the padding's rows at the output, which is read at real tokens; through O = AV padding's V gets
  Aᵀ S = 0; the softmax's gradient A ⊙ (r − Σ A r) is 0 at padding, so its K gets none; and its Q, whose rows the
  attention of real tokens does not have, gets none. All other operations work token by token. So real tokens get what
  they get alone, and their rows of the sums over positions only lose terms that are 0.
* Batches. Every rule works example by example, as every operation does in eval mode; splitting a batch and
  concatenating the results are rearrangements, which pass the gradient on.

A decoder is padded on the right as faithcheck's own cases are, and read at the last real token, where its causal mask
alone would do; or on the left as for generation, its tokens told their positions, where only the mask keeps padding
out. A ViT takes images of one size, and knows no padding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from faithcheck.models.architectures.base_models import PADDING, KeepFloat64
from faithcheck.models.case import Case
from faithcheck.models.pair import Expectation
from faithcheck.models.transform import function_preserving_transform


class Padded(nn.Module):
    """A text model that pads its inputs with random embeddings and masks them.

    Args:
        reader: the model, read at its token embeddings.
        left: whether the padding comes first; else it comes last.
    """

    def __init__(self, embedding_model: Any, left: bool = False) -> None:
        super().__init__()
        self.embedding_model, self.left = embedding_model, left
        words = embedding_model.model.get_input_embeddings().weight
        self.padding = nn.Buffer(torch.randn(1, PADDING, words.shape[1]).to(words))

    def forward(self, inputs: Tensor) -> Tensor:
        """Embeddings ``(batch, tokens, width)`` to logits ``(batch, outputs)``, a decoder's after the last token."""
        batch, n = inputs.shape[:2]
        padding, first = self.padding.expand(batch, -1, -1), PADDING if self.left else 0
        padded = torch.cat([padding, inputs] if self.left else [inputs, padding], 1)
        mask = torch.zeros(padded.shape[:2], dtype=torch.int64, device=inputs.device)
        mask[:, first : first + n] = 1
        positions = {"position_ids": (mask.cumsum(1) - 1).clamp_min(0)} if self.left else {}
        with KeepFloat64():
            logits: Tensor = self.embedding_model.model(inputs_embeds=padded, attention_mask=mask, **positions).logits
        return logits if logits.dim() == 2 else logits[:, first + n - 1]


class OneByOne(nn.Module):
    """A model that runs the examples of a batch one at a time."""

    def __init__(self, embedding_model: nn.Module) -> None:
        super().__init__()
        self.embedding_model = embedding_model

    def forward(self, inputs: Tensor) -> Tensor:
        """``(batch, features, …)`` to ``(batch, outputs)``, as the model itself."""
        return torch.cat([self.embedding_model(inputs[i : i + 1]) for i in range(len(inputs))])


@torch.no_grad()
def shifted_rollout(f: Any, g: nn.Module, case: Case) -> Tensor:
    """Attention Rollout's map on f minus that on g, ``(batch, tokens)``.

    Rollout sees n + k positions where it is to explain n features, and takes the last n, as a ViT's patches follow its
    class token. Padding being on the right, that is f's map, 0 at padding, from its k-th entry on.
    """
    with KeepFloat64():
        weights = f.model(inputs_embeds=case.inputs, output_attentions=True).attentions
    rollout = identity = torch.eye(case.shape[1]).to(case.inputs)
    for layer in weights:
        rollout = (layer.mean(1) + identity) / 2 @ rollout
    row = rollout[:, 0]
    return row - nn.functional.pad(row, (0, PADDING))[:, PADDING:]


MASKED = "a masked token has attention weight 0, and nothing else looks at other tokens"
NOTHING = "padding's attention weights are 0, so neither its values nor its logits pass anything on"


@function_preserving_transform(
    "batching.padded",
    why=MASKED,
    lrp=NOTHING,
    base_models=("bert", "bert_trained", "roberta", "gpt2", "llama"),
    expected={
        ("invariance", "attention_rollout"): Expectation(
            "VIOLATES",
            "takes the last n of n + k positions for the features, as a ViT's patches follow its class token",
            predict=shifted_rollout,
        )
    },
)
def padded(embedding_model: nn.Module) -> nn.Module:
    """Padded by three tokens, which are masked."""
    return Padded(embedding_model)


@function_preserving_transform(
    "batching.left_padded",
    why=f"{MASKED}; the positions are told",
    lrp=NOTHING,
    base_models=("gpt2", "llama"),
    expected={
        ("invariance", "attention_rollout"): Expectation(
            "UNCLAIMED", "its row here is the first position's, which is padding: a row that means nothing"
        )
    },
)
def left_padded(embedding_model: nn.Module) -> nn.Module:
    """Three tokens of padding before the others."""
    return Padded(embedding_model, left=True)


@function_preserving_transform(
    "batching.single",
    why="in eval mode no operation mixes examples",
    lrp="every rule works example by example, and to split and to concatenate passes the gradient on",
    base_models=("bert", "roberta", "gpt2", "llama", "vit"),  # the trained BERT takes seconds for it
)
def single(embedding_model: nn.Module) -> nn.Module:
    """The examples one by one; Attention Rollout, which wants the weights of the whole batch, refuses that."""
    return OneByOne(embedding_model)
