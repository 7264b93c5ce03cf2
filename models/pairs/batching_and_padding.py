"""Examples run together or one at a time, padded or not: an example's output does not depend on the rest of its batch.

Why AttnLRP and CP-LRP hold on these pairs, at ε = 0:

1. Padding. The logits of a real token at padding are masked, so that its attention weights there are exactly 0. In the
   backward pass:
   (a) at the output nothing enters the rows of padding, as the output is read at real tokens;
   (b) through O = AV, the values of padding get Aᵀ S = 0;
   (c) the softmax's gradient A ⊙ (r − Σ A r) is 0 at padding, so that its keys get 0;
   (d) its queries get 0, as the attention of real tokens does not use the rows of padding.
   All other operations work token by token. So real tokens get the same relevance as without padding: their sums over
   positions lose only terms that are 0.
2. Batches. Every rule works example by example, as every operation does in eval mode. Splitting a batch and
   concatenating the results are rearrangements, which pass the gradient on.

A decoder is padded on the right, as faithcheck's own cases are, and read at the last real token: its causal mask alone
would be enough. Or it is padded on the left, as for generation, with explicit position ids: only the attention mask
keeps padding out. A ViT takes images of one size, and has no padding.
"""

from typing import Any

import torch
from torch import Tensor, nn

from faithcheck.models.architectures.architecture import PADDING
from faithcheck.models.architectures.embedding_model import KeepFloat64
from faithcheck.models.case import Case
from faithcheck.models.expectation import Expectation
from faithcheck.models.networks.derived import Derived
from faithcheck.models.transform import function_preserving_transform, is_architecture


class Padded(nn.Module):
    """A text model that pads token embeddings with random ones, on the left or on the right, and masks these."""

    def __init__(self, embedding_model: Any, left: bool = False) -> None:
        super().__init__()
        self.embedding_model, self.left = embedding_model, left
        embeddings = embedding_model.model.get_input_embeddings().weight
        self.padding = nn.Buffer(torch.randn(1, PADDING, embeddings.shape[1]).to(embeddings))

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


class OneByOne(Derived):
    """A model that runs the examples of a batch one by one."""

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.cat([self.model(inputs[i : i + 1]) for i in range(len(inputs))])


@torch.no_grad()
def shifted_rollout(f: Any, g: nn.Module, case: Case) -> Tensor:
    """Attention Rollout's attribution of f minus that of g, ``(batch, tokens)``.

    g has n + k positions for n features. Rollout takes the last n positions for the features, as a ViT's patches follow
    its class token. As the padding is on the right, these are entries k to n of f's attribution, and then k zeros.
    """
    with KeepFloat64():
        output = f.model(inputs_embeds=case.inputs, output_attentions=True)
    rollout = identity = torch.eye(case.shape[1]).to(case.inputs)
    for layer in output.attentions:
        rollout = (layer.mean(1) + identity) / 2 @ rollout
    row = rollout[:, 0 if output.logits.dim() == 2 else -1]  # a decoder is read at its last token
    return row - nn.functional.pad(row, (0, PADDING))[:, PADDING:]


MASKED = "a masked token has attention weight 0, and no other operation combines tokens"
NO_RELEVANCE = "the attention weights of padding are 0, so that neither its values nor its logits get relevance"


@function_preserving_transform(
    "batching.padded",
    why=MASKED,
    lrp=NO_RELEVANCE,
    requires=[is_architecture("texts as inputs", lambda architecture: not architecture.images)],
    expected={
        ("invariance", "attention_rollout"): Expectation(
            "VIOLATES",
            "takes the last n of n + k positions for the features, as a ViT's patches follow its class token",
            predict=shifted_rollout,
        )
    },
)
def padded(embedding_model: nn.Module) -> nn.Module:
    return Padded(embedding_model)


@function_preserving_transform(
    "batching.left_padded",
    why=f"{MASKED}; position ids are explicit",
    lrp=NO_RELEVANCE,
    requires=[is_architecture("a decoder", lambda architecture: architecture.decoder)],
)
def left_padded(embedding_model: nn.Module) -> nn.Module:
    return Padded(embedding_model, left=True)


@function_preserving_transform(
    "batching.single",
    why="in eval mode no operation mixes examples",
    lrp="every rule works example by example, and splitting and concatenating pass the gradient on",
    too_slow_on=("bert_trained",),
)
def single(embedding_model: nn.Module) -> nn.Module:
    """Run the examples one by one; Attention Rollout needs the weights of the whole batch and refuses this."""
    return OneByOne(embedding_model)
