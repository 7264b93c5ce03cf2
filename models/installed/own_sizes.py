"""The configurations that need sizes of their own: what the names of their sizes do not tell."""

from __future__ import annotations

from typing import Any

SCAN: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_chunk_size": 4}
WINDOWS = {"embed_dim": 12, "depths": [1, 1], "num_heads": [2, 2], "window_size": 2, "patch_size": 4}
HYBRID = {"layer_types": ["linear_attention", "full_attention"]}
OWN_SIZES: dict[str, dict[str, Any]] = {
    "bamba": {**SCAN, "attn_layer_indices": [1]},
    "falcon_h1": {**SCAN, "mamba_d_ssm": 64},
    "granitemoehybrid": {**SCAN, "layer_types": ["mamba", "attention"]},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 4},
    "nemotron_h": {"mamba_num_heads": 8, "mamba_head_dim": 8, "n_groups": 1, "chunk_size": 4},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "ministral": {"head_dim": 8},
    "nemotron": {"head_dim": 8, "num_key_value_heads": 2},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "attention_layers": ["global", "local"]},
    "reformer": {"axial_pos_shape": [4, 2], "axial_pos_embds_dim": [16, 16], "attn_layers": ["local", "local"]},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_routed_experts": 4},
    "mobilebert": {"true_hidden_size": 32, "intra_bottleneck_size": 32},
    "zamba": {
        "num_hidden_layers": 3,
        "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
        "attention_head_dim": 16,
        "attention_hidden_size": 64,
    },
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid"],
        "n_mamba_heads": 8,
        "mamba_headdim": 8,
        "attention_hidden_size": 64,
    },
    "esm": {"vocab_size": 64, "mask_token_id": 4},
    "mistral4": {"head_dim": 16},
    "led": {"attention_window": [4, 4]},
    "longformer": {"attention_window": [2, 2]},
    "pegasus_x": {"block_size": 4, "num_global_tokens": 2},
    "laguna": {"num_attention_heads_per_layer": [4, 4]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "bit": {"num_groups": 4},
    "qwen3_5_text": HYBRID,
    "qwen3_5_moe_text": HYBRID,
    "lilt": {"hidden_size": 48},
    "swin": WINDOWS,
    "swinv2": WINDOWS,
    "donut-swin": WINDOWS,
}
"""``{model_type: {attribute: value}}``; of a configuration within another one, by its own model_type."""
