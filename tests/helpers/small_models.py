"""Small unmodified `transformers` models of random weights, saved as folders that `load` takes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import PreTrainedTokenizerFast

from faithcheck.models.architectures import base_models

SPECIAL = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*SPECIAL, *"a quick brown fox jumps over the lazy dog and runs".split()]
TEXTS = ["a quick brown fox", "the dog", "the lazy dog jumps over a quick fox and runs"]
SMALL, TOKENS = base_models.SMALL, base_models.SPECIAL
assert SMALL["vocab_size"] == len(WORDS)


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


bert = partial(base_models.bert, **TOKENS)
ARCHITECTURES = {
    "bert": bert,
    "roberta": base_models.roberta,
    "gpt2": base_models.gpt2,
    "llama": base_models.llama,
    "vit": partial(base_models.vit, image_size=8, num_labels=10),
}
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


def spread(model: nn.Module, seed: int = 0) -> None:
    """Move every weight, see `base_models.spread`, by numbers of this seed."""
    torch.manual_seed(seed)
    base_models.spread(model)


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
