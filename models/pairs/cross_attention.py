"""Cross-attention of an encoder and a decoder in another basis: queries of one side, keys and values of the other.

The features are the embeddings of the encoder's tokens; the decoder's tokens are constant. Why the function, AttnLRP
and CP-LRP stay the same, at ε = 0: as for self-attention, in `faithcheck.models.pairs.basis_of_queries_keys_values`.
What is special here: in the decoder's first layer queries are constants, so that keys get all of the relevance of the
logits. Behind M⁻ᵀ they get Gᵀ M q, and W_K's M⁻¹ turns it into Gᵀ q, as without M.
"""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from faithcheck.models.architectures.architecture import HEADS, TOKENS, WIDTH, random_features, spread
from faithcheck.models.architectures.transformer_layer import LinearView, linear_view
from faithcheck.models.expectation import expect_lrp
from faithcheck.models.pair import copies, invariance_pair
from faithcheck.models.pairs.basis_of_queries_keys_values import multiply, well_conditioned

DECODED = 3


class EncoderDecoder(nn.Module):
    """A small BART: embeddings ``(batch, tokens, 16)`` to logits ``(batch, 16)`` after the decoder's tokens 0, 1, 2."""

    def __init__(self) -> None:
        super().__init__()
        config = transformers.BartConfig(
            vocab_size=16,
            d_model=WIDTH,
            encoder_layers=1,
            decoder_layers=2,
            encoder_attention_heads=HEADS,
            decoder_attention_heads=HEADS,
            encoder_ffn_dim=2 * WIDTH,
            decoder_ffn_dim=2 * WIDTH,
            max_position_embeddings=TOKENS,
            use_cache=False,
        )
        self.model: Any = transformers.BartForConditionalGeneration(config)
        self.model.set_attn_implementation("eager")
        spread(self.model)

    def forward(self, inputs: Tensor) -> Tensor:
        decoded = torch.arange(DECODED, device=inputs.device).expand(len(inputs), -1)
        logits: Tensor = self.model(inputs_embeds=inputs, decoder_input_ids=decoded).logits
        return logits[:, -1]


def query_key(attention: Any) -> None:
    """W_Q → M W_Q and W_K → M⁻ᵀ W_K in each head, with their biases."""
    matrices = torch.stack([well_conditioned(WIDTH // HEADS) for _ in range(HEADS)])
    multiply(matrices, linear_view(attention, "q_proj"))
    multiply(matrices.inverse().mT, linear_view(attention, "k_proj"))


def value_output(attention: Any) -> None:
    """W_V → M W_V with its bias, and W_O → W_O M⁻¹, in each head."""
    matrices = torch.stack([well_conditioned(WIDTH // HEADS) for _ in range(HEADS)])
    multiply(matrices, linear_view(attention, "v_proj"))
    multiply(matrices.inverse().mT, LinearView(linear_view(attention, "out_proj").weight.T, None))


def register_change(name: str, change: Callable[[Any], None], why: str, lrp: str) -> None:
    """Register the pair of a model and its copy, in which every cross-attention is changed."""

    def change_layers(model: EncoderDecoder) -> None:
        for layer in model.model.get_decoder().layers:
            change(layer.encoder_attn)

    build, expected = copies(EncoderDecoder, change_layers), expect_lrp(lrp, of="attnlrp cplrp blockwise_lrp")
    invariance_pair(f"cross_attention.{name}", build, random_features(), expected, why=why)


register_change(
    "query_key",
    query_key,
    "(M q)·(M⁻ᵀ k) = q·k for queries of the decoder and keys of the encoder",
    "the rule for products gives G M⁻ᵀ k at M q and Gᵀ M q at M⁻ᵀ k; the maps' Mᵀ and M⁻¹ cancel M",
)
register_change(
    "value_output",
    value_output,
    "attention weights mix the encoder's tokens and M mixes coordinates, so that W_O M⁻¹ cancels M",
    "the gradient at M V is M⁻ᵀ times the one without M: Mᵀ cancels M⁻ᵀ at V, and M V cancels it at the weights",
)
