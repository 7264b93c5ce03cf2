"""Models of random weights whose attributions take megabytes, and cases of any length for them."""

from __future__ import annotations

import torch

from faithcheck.models.architectures.base_models import ARCHITECTURES
from faithcheck.models.architectures.embedding_model import EmbeddingModel, PatchModel
from faithcheck.models.case import Case
from faithcheck.models.pretrained.image_preparation import Preparation

WIDTH, PATCH, PATCHES = 192, 16, 196
SIZES = {"hidden_size": WIDTH, "num_hidden_layers": 3, "num_attention_heads": 4}
TEXT = {**SIZES, "vocab_size": 1000, "max_position_embeddings": 512}
OPTIONS = {
    "bert": {**TEXT, "intermediate_size": 768},
    "gpt2": TEXT,
    "llama": {**TEXT, "intermediate_size": 512, "num_key_value_heads": 2},
    "vit": {**SIZES, "intermediate_size": 768, "image_size": 14 * PATCH, "patch_size": PATCH, "num_channels": 3},
}


def model(name, attention="eager", device="cpu"):
    """A model of one of the families of `OPTIONS` on embeddings or patches."""
    torch.manual_seed(0)
    built = ARCHITECTURES[name].small(**OPTIONS[name]).to(device)
    built.set_attn_implementation(attention)
    if name == "vit":
        return PatchModel(built, Preparation(None, None, "nearest", (0.0,) * 3, (1.0,) * 3)).eval()
    return EmbeddingModel(built).eval()


def case(name, batch, features, device="cpu"):
    """Random features for it; those of a text have an attention mask, and the first and the last are special."""
    images = name == "vit"
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(batch, features, 3 * PATCH**2 if images else WIDTH, generator=generator).to(device)
    special = torch.zeros(inputs.shape[:2], dtype=torch.bool, device=device)
    special[:, [0, -1]] = not images
    arguments = {} if images else {"attention_mask": torch.ones(inputs.shape[:2], dtype=torch.int64, device=device)}
    target = torch.zeros(batch, dtype=torch.int64, device=device)
    return Case(inputs, target, torch.zeros_like(inputs), special, arguments)
