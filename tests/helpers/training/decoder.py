"""Training of a small decoder, to explain a model of another architecture than the ones that ship.

``python -m faithcheck.tests.helpers.training.decoder gpt2 FOLDER``, or llama: four minutes on one core.

From random weights the decoder learns to continue ``[CLS] text [SEP]`` by "bad" or "good", on the labelled sentences
that `faithcheck.tests.helpers.training.sentiment` reads, in the shipped model's vocabulary. `faithcheck align --model
FOLDER` explains the logit of the most likely next token. No dev label is read before the one evaluation at the end.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
)

from faithcheck.models.data.texts import load_texts
from faithcheck.models.networks.digit_classifier import one_thread
from faithcheck.models.pretrained import SENTIMENT
from faithcheck.tests.helpers.training.sentiment import batches, encode, fit, read_corpus

SEED = 0
EPOCHS = 4
LEARNING_RATE = 1e-3
WARM_UP = 0.1  # of all steps
WORDS = ("bad", "good")  # of the labels 0 and 1

Decoder = GPT2LMHeadModel | LlamaForCausalLM
Labelled = list[tuple[str, int]]


def new_decoder(kind: str, tokenizer: PreTrainedTokenizerBase) -> Decoder:
    """The untrained model, "gpt2" or "llama": 4 layers, 4 heads of width 32; Llama has two key-value heads."""
    common = {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.cls_token_id,
        "eos_token_id": tokenizer.sep_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": True,
    }
    if kind == "gpt2":
        return GPT2LMHeadModel(GPT2Config(n_embd=128, n_layer=4, n_head=4, n_positions=512, **common))
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=128,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=352,
            max_position_embeddings=512,
            **common,
        )
    )


def next_token(model: Decoder, ids: list[list[int]]) -> Tensor:
    """The logits ``(batch, vocabulary)`` of the token after each text's last token; texts are right-padded with 0."""
    rows = pad_sequence([torch.tensor(row) for row in ids], batch_first=True)
    states = model.base_model(input_ids=rows, attention_mask=(rows != 0).long()).last_hidden_state
    logits: Tensor = model.lm_head(states[torch.arange(len(ids)), torch.tensor([len(row) - 1 for row in ids])])
    return logits


@torch.no_grad()
def accuracy(model: Decoder, tokenizer: PreTrainedTokenizerBase, sentences: Labelled) -> float:
    """The share of labelled sentences whose most likely next token, of the whole vocabulary, is the label's word."""
    model.eval()  # type: ignore[no-untyped-call]
    ids, words = encode(tokenizer, [text for text, _ in sentences]), label_words(tokenizer, sentences)
    right = 0
    for batch in batches(ids, sorted(range(len(ids)), key=lambda row: len(ids[row]))):
        right += int((next_token(model, [ids[row] for row in batch]).argmax(1) == words[batch]).sum())
    return right / len(ids)


def label_words(tokenizer: PreTrainedTokenizerBase, sentences: Labelled) -> Tensor:
    """The token of each label's word, ``(n,)``."""
    return torch.tensor(tokenizer.convert_tokens_to_ids(list(WORDS)))[[label for _, label in sentences]]


def plan(ids: list[list[int]], generator: random.Random) -> list[list[list[int]]]:
    """The batches of every epoch: texts of similar lengths together, shuffled."""
    epochs = []
    for _ in range(EPOCHS):
        rows = list(range(len(ids)))
        generator.shuffle(rows)
        epochs.append(batches(ids, sorted(rows, key=lambda row: len(ids[row]))))
        generator.shuffle(epochs[-1])
    return epochs


def train(kind: str, sentences: Labelled, held_out: Labelled, tokenizer: PreTrainedTokenizerBase) -> Decoder:
    """Train a new decoder on labelled sentences; prints its progress."""
    ids, words = encode(tokenizer, [text for text, _ in sentences]), label_words(tokenizer, sentences)
    torch.manual_seed(SEED)
    model = new_decoder(kind, tokenizer)
    epochs = plan(ids, random.Random(SEED))

    def loss(batch: list[int]) -> Tensor:
        return cross_entropy(next_token(model, [ids[row] for row in batch]), words[batch])

    fit(model, epochs, loss, lambda: accuracy(model, tokenizer, held_out), LEARNING_RATE, WARM_UP)
    return model


def main(arguments: list[str] | None = None) -> None:
    """Train, save, and print the accuracy on SST-2's dev sentences."""
    parser = argparse.ArgumentParser(prog="python -m faithcheck.tests.helpers.training.decoder", description=__doc__)
    parser.add_argument("kind", choices=("gpt2", "llama"))
    parser.add_argument("folder", type=Path, help="where it is saved; created if missing")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("../shared/data"),
        help="folder of training data",
    )
    options = parser.parse_args(arguments)
    with one_thread():
        tokenizer = AutoTokenizer.from_pretrained(SENTIMENT)
        corpus = read_corpus(options.data, SEED)
        model = train(options.kind, corpus.sentences, corpus.held_out, tokenizer)
        model.save_pretrained(options.folder)
        tokenizer.save_pretrained(options.folder)
        dev = load_texts(str(options.data / "sst2" / "dev.tsv"))
        share = accuracy(model, tokenizer, list(zip(dev.texts, dev.labels or [], strict=True)))
    print(f"{options.folder}: {model.num_parameters():,} parameters, accuracy {share:.3f} on SST-2 dev")


if __name__ == "__main__":
    main()
