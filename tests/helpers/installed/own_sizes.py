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
    "longformer": {"attention_window": [4, 4]},
    "layoutlmv3": {"hidden_size": 768, "coordinate_size": 128, "shape_size": 128},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8}},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
    "hiera": {
        "image_size": [32, 32],
        "embed_dim": 16,
        "depths": [1, 1, 1],
        "num_heads": [1, 2, 4],
        "num_query_pool": 1,
        "masked_unit_size": [4, 4],
    },
    "levit": {
        "image_size": 32,
        "hidden_sizes": [16, 16, 16],
        "depths": [1, 1, 1],
        "num_attention_heads": [2, 2, 2],
        "key_dim": [8, 8, 8],
        "patch_size": 16,
    },
    "efficientnet": {
        "in_channels": [32, 8],
        "out_channels": [8, 8],
        "kernel_sizes": [3, 3],
        "strides": [1, 2],
        "num_block_repeats": [1, 1],
        "expand_ratios": [1, 2],
        "hidden_dim": 1280,
        "width_coefficient": 1.0,
        "depth_coefficient": 1.0,
    },
    "textnet": {"hidden_sizes": [8, 8, 8, 8, 8], "stem_out_channels": 8, "image_size": [32, 32]},
    "mobilevitv2": {"output_stride": 8},
    "canine": {"num_hash_functions": 1},
    "musicgen_decoder": {"num_codebooks": 1},
    "musicgen_melody_decoder": {"num_codebooks": 1},
    "perceiver": {"num_self_attends_per_block": 2, "num_cross_attention_heads": 1},
    "encoder-decoder": {
        "decoder": {
            "model_type": "bert",
            "is_decoder": True,
            "add_cross_attention": True,
            "vocab_size": 64,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 48,
        }
    },
    "dots3_note_vision_encoder": {
        "mlp_layer_types": ["dense", "sparse"],
        "adapter_in_dim": 32,
        "adapter_out_dim": 32,
    },
    "dots3_note_audio_encoder": {"adapter_input_size": 32, "adapter_out_dim": 32},
    "pegasus_x": {"block_size": 4, "num_global_tokens": 2},
    "laguna": {"num_attention_heads_per_layer": [4, 4]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "bit": {"num_groups": 4},
    "qwen3_5_text": HYBRID,
    "qwen3_5_moe_text": HYBRID,
    "qwen3_next": HYBRID,
    "kimi_linear": HYBRID,
    "bailing_hybrid": HYBRID,
    "lfm3": {"layer_types": ["conv", "full_attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lilt": {"hidden_size": 48},
    "swin": WINDOWS,
    "swinv2": WINDOWS,
    "donut-swin": WINDOWS,
}
"""``{model_type: {attribute: value}}``; of a configuration within another one, by its own model_type."""

ASSISTED = "the keys and values of the model that it assists"
OTHER_INPUTS = {
    "gemma4_assistant": ASSISTED,
    "gemma4_unified_assistant": ASSISTED,
    "voxtral_realtime": "audio",
    "shieldgemma2": "an image and a text at once",
}
"""``{model_type: what it takes besides, or in place of, a text or an image}``: no small model is built."""
