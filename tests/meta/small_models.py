"""Small unmodified `transformers` models of random weights, saved as folders that `load` takes."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

SPECIAL = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*SPECIAL, *"a quick brown fox jumps over the lazy dog and runs".split()]
TEXTS = ["a quick brown fox", "the dog", "the lazy dog jumps over a quick fox and runs"]
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": len(WORDS)}
TOKENS = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3}


def tokenizer(*, special: bool) -> PreTrainedTokenizerFast:
    """One token a word; ``special`` adds [CLS] and [SEP], and knows [PAD] and [MASK]."""
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    if not special:
        return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    named = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", **named)


def bert() -> PreTrainedModel:
    config = transformers.BertConfig(**SMALL, intermediate_size=32, max_position_embeddings=32, **TOKENS)
    return transformers.BertForSequenceClassification(config)


def roberta(positions: int = 34) -> PreTrainedModel:
    config = transformers.RobertaConfig(**SMALL, intermediate_size=32, max_position_embeddings=positions, **TOKENS)
    return transformers.RobertaForSequenceClassification(config)


def gpt2(layers: int = 2) -> PreTrainedModel:
    config = transformers.GPT2Config(
        vocab_size=len(WORDS), n_embd=16, n_layer=layers, n_head=4, n_positions=32, **TOKENS
    )
    return transformers.GPT2LMHeadModel(config)


def llama() -> PreTrainedModel:
    config = transformers.LlamaConfig(
        **SMALL, num_key_value_heads=2, intermediate_size=24, max_position_embeddings=32, **TOKENS
    )
    return transformers.LlamaForCausalLM(config)


def vit() -> PreTrainedModel:
    config = transformers.ViTConfig(
        image_size=8,
        patch_size=2,
        num_channels=1,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
        num_labels=10,
    )
    return transformers.ViTForImageClassification(config)


ARCHITECTURES = {"bert": bert, "roberta": roberta, "gpt2": gpt2, "llama": llama, "vit": vit}
DECODERS = ("gpt2", "llama")
PREPARATION = {
    "do_resize": True,
    "size": {"height": 8, "width": 8},
    "resample": 2,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.3],
    "image_std": [0.4],
}


@torch.no_grad()
def spread(model: nn.Module, seed: int = 0) -> None:
    """Move every weight, biases and norms too, so far that softmax and activations are well away from linear."""
    torch.manual_seed(seed)
    for weight in model.parameters():
        weight += 0.2 * torch.randn_like(weight)


def save(name: str, folder: Path) -> Path:
    """Save an architecture, its weights from a fixed seed, in float64, with its tokenizer or preparation."""
    torch.manual_seed(0)
    model = ARCHITECTURES[name]().double()
    spread(model)
    model.save_pretrained(folder)
    if name == "vit":
        (folder / "preprocessor_config.json").write_text(json.dumps(PREPARATION))
    else:
        tokenizer(special=name not in DECODERS).save_pretrained(folder)
    return folder
