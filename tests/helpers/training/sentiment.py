"""Training of the project's own sentiment model, which ships in ``models/pretrained/sentiment``.

To run it: ``python -m faithcheck.tests.helpers.training.sentiment --data FOLDER --teacher FOLDER``. The data and the
teacher, ``minilm-l6-sst2``, are not in the repository.

A 12-layer BERT of width 96 learns from random weights to give the teacher's logits (squared error, as Tang et al. 2019,
arXiv:1903.12136) on sentences, spans of sentences and passages of reviews, and the labels of labelled sentences.
SST-2's dev labels are read once, after training; settings were chosen on the tenth of its train set held out here.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from tokenizers import BertWordPieceTokenizer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertTokenizer,
    PreTrainedTokenizerBase,
    get_cosine_schedule_with_warmup,
)

from faithcheck.models.data.texts import load_texts
from faithcheck.models.files import cache_folder, write_atomically
from faithcheck.models.networks.digit_classifier import one_thread
from faithcheck.models.pretrained import SENTIMENT

SEED = 0
VOCABULARY = 8000
EPOCHS = 4
REVIEW_SHARE = 6  # an epoch has one in six of the sentences and passages of reviews
LEARNING_RATE = 1e-3
WARM_UP = 0.1  # of all steps: post-LayerNorm models of 12 layers do not learn from a start at the full rate
BATCH_TOKENS = 1536
LABEL_WEIGHT = 0.5  # of the labels' cross-entropy, added to the squared error of the logits
NO_LABEL = -100  # ignored by cross_entropy
MAX_TOKENS = 512


@dataclass(frozen=True)
class Corpus:
    """Texts of training: labelled sentences and their spans, in every epoch, and unlabelled text from reviews."""

    sentences: list[tuple[str, int]]
    spans: list[str]
    reviews: list[str]
    held_out: list[tuple[str, int]]

    @property
    def all(self) -> list[str]:
        """All texts of training: labelled sentences, then spans, then reviews."""
        return [text for text, _ in self.sentences] + self.spans + self.reviews


def read_corpus(data: Path, seed: int) -> Corpus:
    """Read the train files, hold out a tenth of SST-2's train sentences, and drop overlaps with unseen sentences.

    Unseen are the held-out sentences and SST-2's dev sentences (only their texts are read). Snippets of the sentence
    polarity data are often two sentences of a review, of which SST-2 has one: about one snippet in fifty contains an
    unseen sentence.
    """
    generator = random.Random(seed)
    sst, polarity = (_labelled(data / name) for name in ("sst2/train.tsv", "sentence_polarity/train.jsonl.gz"))
    generator.shuffle(sst)
    held_out, sst = sst[: len(sst) // 10], sst[len(sst) // 10 :]
    unseen = {_letters(text) for text, _ in held_out}
    # Dev sentences are dropped below, after spans are drawn: the shipped weights depend on the order of random numbers.
    sentences = [(text, label) for text, label in sst + polarity if _letters(text) not in unseen]
    spans = [_span(text, generator) for text, _ in sentences for _ in range(2)]
    reviews = []
    for text, _ in _labelled(data / "movie_reviews/train.jsonl.gz"):
        reviews += [s for s in re.split(r"(?<=[.!?]) ", text) if 3 <= len(s.split()) <= 60]
        words, length = text.split(), generator.randint(60, 400)
        start = generator.randint(0, max(0, len(words) - length))
        reviews.append(" ".join(words[start : start + length]))
    unseen |= {_letters(text) for text, _ in _labelled(data / "sst2/dev.tsv")}
    rows = [row for row, (text, _) in enumerate(sentences) if not _overlaps(_letters(text), unseen)]
    spans = [spans[2 * row + k] for row in rows for k in (0, 1)]
    return Corpus([sentences[row] for row in rows], spans, reviews, held_out)


def _overlaps(letters: str, unseen: set[str]) -> bool:
    """Whether this text contains an unseen text or is contained in one; below 20 letters ("very bad"): equals one."""
    return letters in unseen or any(min(len(u), len(letters)) >= 20 and (u in letters or letters in u) for u in unseen)


def _labelled(file: Path) -> list[tuple[str, int]]:
    texts = load_texts(str(file))
    return list(zip(texts.texts, texts.labels or [], strict=True))


def _letters(text: str) -> str:
    """The letters a–z of a sentence: data sets write hyphens, accents and spaces differently."""
    return re.sub(r"[^a-z]", "", text.lower())


def _span(text: str, generator: random.Random) -> str:
    words = text.split()
    length = generator.randint(1, len(words))
    start = generator.randint(0, len(words) - length)
    return " ".join(words[start : start + length])


def load_tokenizer(texts: list[str], folder: Path) -> BertTokenizer:
    """The tokenizer of the folder; if it has none, a lower-case WordPiece vocabulary trained on the texts.

    An existing vocabulary is reused, because `tokenizers` breaks ties in the order of a randomised hash: two trainings
    differ in a few pieces, and weights fit one vocabulary only.
    """
    if not (folder / "tokenizer.json").is_file():
        pieces = BertWordPieceTokenizer(lowercase=True)
        pieces.train_from_iterator(texts, vocab_size=VOCABULARY, min_frequency=2, show_progress=False)
        BertTokenizer(tokenizer_object=pieces._tokenizer, model_max_length=MAX_TOKENS).save_pretrained(folder)
    tokenizer: BertTokenizer = BertTokenizer.from_pretrained(folder)
    return tokenizer


def encode(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[list[int]]:
    """Token ids with [CLS] and [SEP], cut at `MAX_TOKENS`."""
    ids: list[list[int]] = tokenizer(texts, truncation=True, max_length=MAX_TOKENS)["input_ids"]
    return ids


def batches(ids: list[list[int]], rows: list[int]) -> list[list[int]]:
    """Cut rows that are sorted by length into batches of at most `BATCH_TOKENS` tokens, padding included."""
    result: list[list[int]] = [[]]
    for row in rows:
        if len(ids[row]) * (len(result[-1]) + 1) > BATCH_TOKENS and result[-1]:
            result.append([])
        result[-1].append(row)
    return result


def logits(model: nn.Module, ids: list[list[int]]) -> Tensor:
    """The model's logits ``(batch, 2)`` for one batch of token ids, padded on the right with 0, which is [PAD]."""
    length = max(map(len, ids))
    padded = torch.tensor([row + [0] * (length - len(row)) for row in ids])
    output: Tensor = model(input_ids=padded, attention_mask=(padded != 0).long()).logits
    return output


@torch.no_grad()
def predict(model: nn.Module, ids: list[list[int]]) -> Tensor:
    """The logits ``(n, 2)`` of all texts, without dropout, in batches of similar lengths."""
    model.eval()
    result = torch.empty(len(ids), 2)
    for batch in batches(ids, sorted(range(len(ids)), key=lambda row: len(ids[row]))):
        result[batch] = logits(model, [ids[row] for row in batch])
    return result


def accuracy(model: nn.Module, tokenizer: PreTrainedTokenizerBase, sentences: list[tuple[str, int]]) -> float:
    """The share of labelled sentences that the model classifies correctly."""
    predicted = predict(model, encode(tokenizer, [text for text, _ in sentences])).argmax(1)
    return (predicted == torch.tensor([label for _, label in sentences])).double().mean().item()


def teacher_logits(folder: Path, texts: list[str]) -> Tensor:
    """The teacher's logits ``(n, 2)``, computed once and stored in the cache folder."""
    key = hashlib.sha256((folder / "model.safetensors").read_bytes() + "\n".join(texts).encode()).hexdigest()
    file = cache_folder() / f"teacher-{key[:32]}.safetensors"
    if not file.is_file():
        teacher = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
        result = predict(teacher, encode(AutoTokenizer.from_pretrained(folder), texts))
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, save({"logits": result}))
    return load_file(file)["logits"]


def new_student(tokenizer: PreTrainedTokenizerBase) -> BertForSequenceClassification:
    """The untrained model: 12 layers, 6 heads of width 16."""
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=96,
            num_hidden_layers=12,
            num_attention_heads=6,
            intermediate_size=192,
            max_position_embeddings=MAX_TOKENS,
            pad_token_id=tokenizer.pad_token_id,
            id2label={0: "negative", 1: "positive"},
            label2id={"negative": 0, "positive": 1},
        )
    )


def plan(corpus: Corpus, ids: list[list[int]], generator: random.Random) -> list[list[list[int]]]:
    """The batches of every epoch: all sentences and spans, a part of the reviews; shuffled by length."""
    every_epoch = list(range(len(corpus.sentences) + len(corpus.spans)))
    reviews = list(range(len(every_epoch), len(ids)))
    epochs = []
    for epoch in range(EPOCHS):
        if epoch % REVIEW_SHARE == 0:
            generator.shuffle(reviews)
        rows = every_epoch + reviews[epoch % REVIEW_SHARE :: REVIEW_SHARE]
        generator.shuffle(rows)
        epochs.append(batches(ids, sorted(rows, key=lambda row: len(ids[row]))))
        generator.shuffle(epochs[-1])
    return epochs


def train(corpus: Corpus, goal: Tensor, tokenizer: PreTrainedTokenizerBase, seed: int) -> BertForSequenceClassification:
    """Train a new student on the teacher's logits ``(n, 2)`` and the labels; prints its progress."""
    ids = encode(tokenizer, corpus.all)
    labels = torch.full((len(ids),), NO_LABEL)
    labels[: len(corpus.sentences)] = torch.tensor([label for _, label in corpus.sentences])
    torch.manual_seed(seed)
    model = new_student(tokenizer)
    epochs = plan(corpus, ids, random.Random(seed))
    steps = sum(map(len, epochs))
    print(f"seed {seed}, {model.num_parameters()} parameters, {len(ids)} texts, {steps} steps", flush=True)

    def loss(batch: list[int]) -> Tensor:
        output = logits(model, [ids[row] for row in batch])
        from_teacher = mse_loss(output, goal[batch])
        if (labels[batch] == NO_LABEL).all():
            return from_teacher
        return from_teacher + LABEL_WEIGHT * cross_entropy(output, labels[batch], ignore_index=NO_LABEL)

    fit(model, epochs, loss, lambda: accuracy(model, tokenizer, corpus.held_out), LEARNING_RATE, WARM_UP)
    return model


def fit(
    model: nn.Module,
    epochs: list[list[list[int]]],
    loss_of: Callable[[list[int]], Tensor],
    accuracy_now: Callable[[], float],
    learning_rate: float,
    warm_up: float,
) -> None:
    """Train by AdamW on the batches of every epoch; prints its progress."""
    steps = sum(map(len, epochs))
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.01, fused=True)
    schedule = get_cosine_schedule_with_warmup(optimizer, int(warm_up * steps), steps)
    start = time.monotonic()
    for number, epoch in enumerate(epochs, start=1):
        model.train()
        total = 0.0
        for batch in epoch:
            loss = loss_of(batch)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += loss.item()
        share, spent = accuracy_now(), f"{time.monotonic() - start:.0f} s"
        print(f"epoch {number}: loss {total / len(epoch):.3f}, held-out accuracy {share:.4f}, {spent}", flush=True)


def main() -> None:
    """Train, save in fp16, read back in float32 and print the accuracy on SST-2's dev sentences."""
    parser = argparse.ArgumentParser(prog="faithcheck.tests.helpers.training.sentiment", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with sst2, sentence_polarity, movie_reviews")
    parser.add_argument("--teacher", type=Path, required=True, help="folder of the teacher, fine-tuned on SST-2")
    parser.add_argument("--out", type=Path, default=SENTIMENT, help="where it is written")
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with one_thread():
        corpus = read_corpus(options.data, options.seed)
        tokenizer = load_tokenizer(corpus.all, options.out)
        model = train(corpus, teacher_logits(options.teacher, corpus.all), tokenizer, options.seed)
        model.half().save_pretrained(options.out)  # type: ignore[no-untyped-call]
        model = AutoModelForSequenceClassification.from_pretrained(options.out, dtype=torch.float32)
        share = accuracy(model, AutoTokenizer.from_pretrained(options.out), _labelled(options.data / "sst2/dev.tsv"))
    print(f"seed {options.seed}: accuracy {share:.4f} on SST-2 dev; written to {options.out}")


if __name__ == "__main__":
    main()
