"""Small unmodified `transformers` models of random weights, saved as folders that `load` takes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import PreTrainedTokenizerFast

from faithcheck.models.architectures import architecture, base_models
from faithcheck.models.architectures import bert as bert_family
from faithcheck.models.pretrained.folder import ModelError
from faithcheck.models.pretrained.loading import load

SPECIAL = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*SPECIAL, *"a quick brown fox jumps over the lazy dog and runs".split()]
TEXTS = ["a quick brown fox", "the dog", "the lazy dog jumps over a quick fox and runs"]
SMALL, TOKENS = architecture.SMALL_SIZES, architecture.SPECIAL_TOKENS
assert SMALL["vocab_size"] == len(WORDS)

DECODERS = tuple(name for name, family in base_models.ARCHITECTURES.items() if family.decoder)
IMAGE_CLASSIFIERS = tuple(name for name, family in base_models.ARCHITECTURES.items() if family.images)
ARCHITECTURES = {
    name: partial(family.small, **({"image_size": 8, "num_labels": 10} if family.images else TOKENS))
    for name, family in base_models.ARCHITECTURES.items()
}
"""The function that makes a small model of each architecture: texts of `WORDS`, or images of 8 × 8 pixels."""

bert = partial(bert_family.bert, **TOKENS)
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


def tokenizer(*, special: bool) -> PreTrainedTokenizerFast:
    """One token a word; with ``special`` it adds [CLS] and [SEP], and has [PAD] and [MASK]."""
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    if not special:
        return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special_tokens = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", **special_tokens)


def spread(model: nn.Module, seed: int = 0) -> None:
    """Add noise to every weight, see `architecture.spread`, drawn with this seed."""
    torch.manual_seed(seed)
    architecture.spread(model)


def load_widest(folder: Path, max_length: int | None = None) -> Any:
    """Load a saved model in float64, or in float32 if it cannot be run in float64."""
    try:
        return load(folder, dtype=torch.float64, max_length=max_length)
    except ModelError as error:
        if "NaN in torch.float64" not in str(error):
            raise
        return load(folder, dtype=torch.float32, max_length=max_length)


def save(name: str, folder: Path) -> Path:
    """Save an architecture's small model in float64, weights from a fixed seed, with its tokenizer or preparation."""
    torch.manual_seed(0)
    model = ARCHITECTURES[name]().double()
    spread(model)
    model.save_pretrained(folder)
    if name in IMAGE_CLASSIFIERS:
        (folder / "preprocessor_config.json").write_text(json.dumps(PREPARATION))
    else:
        tokenizer(special=name not in DECODERS).save_pretrained(folder)
    return folder
