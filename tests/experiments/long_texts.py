"""Leave-One-Out of texts of 2,000 tokens on a small decoder: error against cost, and the five sentences that matter.

`make long` runs it, half an hour on one idle core. It needs ../shared, and stores each text in build/long: remove that
to measure again. From the labelled sentences and long reviews there, a decoder learns to continue a text by "bad" or
"good". Held-out reviews of one label, one after the other, make texts of 2,000 tokens.

The reference is LOO by token. A sentence counts as much as its tokens do together. Beside that, LOO by sentence itself
is a reference. Cost is the number of forward rows over that of LOO by token; all rows of a text have the same length,
so it is the share of forward tokens, too. A backward row counts as one.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from faithcheck.explainers.gates.finite_mask_gate import FiniteMaskGate
from faithcheck.explainers.gates.grouped_mask_gate import GroupedMaskGate
from faithcheck.explainers.gates.mask_gate import MaskGate
from faithcheck.explainers.gates.readout_gate import ReadoutGate
from faithcheck.explainers.loo.budget import BudgetedLeaveOneOut
from faithcheck.explainers.loo.hierarchical import HierarchicalLeaveOneOut
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.explainers.loo.sparse_surrogate import SparseSurrogate
from faithcheck.models.data.texts import load_texts
from faithcheck.models.pretrained import SENTIMENT
from faithcheck.models.pretrained.loading import load
from faithcheck.models.training.decoder import accuracy, label_words, next_token
from faithcheck.models.training.one_thread import one_thread
from faithcheck.models.training.sentiment import batches, fit, read_corpus

TOKENS, TEXTS, BUDGETED, TOP, ROWS, SEED = 2000, 20, 3, 5, 8, 0
FOLDER = Path("build/long")
DATA = Path("../shared/data")


def joined(file, tokenizer, limit):
    """Texts of `TOKENS` tokens with their labels: reviews of one label, one after the other, the last one cut."""
    texts = load_texts(str(file))
    found = []
    for label in (0, 1):
        words = []
        for text in (text for text, its in zip(texts.texts, texts.labels, strict=True) if its == label):
            words.append(text)
            ids = tokenizer("\n\n".join(words), verbose=False)
            if len(ids["input_ids"]) >= TOKENS:
                end = ids.token_to_chars(TOKENS - 2).end  # with [CLS] before and [SEP] after
                found.append(("\n\n".join(words)[:end], label))
                words = []
    random.Random(SEED).shuffle(found)
    return found[:limit]


def train(folder):
    """A decoder of two layers: sentences first, then long texts."""
    tokenizer = AutoTokenizer.from_pretrained(SENTIMENT)
    corpus, long = read_corpus(DATA, SEED), joined(DATA / "movie_reviews/train.jsonl.gz", tokenizer, 300)
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=176,
        max_position_embeddings=2048, tie_word_embeddings=True, pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.cls_token_id, eos_token_id=tokenizer.sep_token_id,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    for examples, epochs, rate in ((corpus.sentences, 2, 3e-3), (long, 2, 1e-3)):
        ids, words = encode_whole(tokenizer, examples), label_words(tokenizer, examples)
        plan = [shuffled(batches(ids, sorted(range(len(ids)), key=lambda row: len(ids[row])))) for _ in range(epochs)]
        fit(
            model,
            plan,
            lambda batch, ids=ids, words=words: cross_entropy(next_token(model, [ids[i] for i in batch]), words[batch]),
            lambda: accuracy(model, tokenizer, corpus.held_out),
            rate,
            0.1,
        )
    tokenizer.model_max_length = config.max_position_embeddings
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def encode_whole(tokenizer, examples):
    return [tokenizer(text)["input_ids"] for text, _ in examples]


def shuffled(items):
    random.Random(SEED).shuffle(items)
    return items


def explained(model, text, with_budget):
    """Each explainer's map and its cost; of budgeted LOO, which takes long, on request."""
    (example,) = model.encode([text])
    case = model.case([example])
    n = case.shape[1]
    part = case.segments["sentence"]
    sentences = int(part.max()) + 1
    gate = 2 / (n + 1)
    explainers = {
        "LOO": (LeaveOneOut(max_tokens=ROWS * n), 1.0),
        "LOO by sentence": (LeaveOneOut(by="sentence", max_tokens=ROWS * n), (sentences + 1) / (n + 1)),
        "hierarchical, 10 %": (HierarchicalLeaveOneOut(max_tokens=ROWS * n), None),
        "sparse surrogate, 64 ablations": (SparseSurrogate(max_tokens=ROWS * n), 64 / (n + 1)),
        "mask gate": (MaskGate(), gate),
        "finite mask gate": (FiniteMaskGate(), gate),
        "readout gate": (ReadoutGate(), gate),
        "grouped mask gate, 4": (GroupedMaskGate(), 4 * gate),
    } | ({"budgeted LOO, 5 %": (BudgetedLeaveOneOut(0.05), 0.05)} if with_budget else {})
    maps, costs, estimated = {}, {}, {}
    for name, (explainer, cost) in explainers.items():
        model.model.set_attn_implementation("eager" if "gate" in name or "budget" in name else "sdpa")
        if isinstance(explainer, HierarchicalLeaveOneOut):
            attribution, report = explainer.attribute_with_report(model, case)
            cost, estimated[name] = int(report.rows[0]) / (n + 1), float(report.error[0])
        else:
            attribution = explainer.attribute(model, case)
        maps[name], costs[name] = attribution[0].tolist(), cost
        print(name, f"{time.process_time():.0f} s", flush=True)
    special = case.special_tokens_mask[0].tolist()
    return {"maps": maps, "costs": costs, "estimated": estimated, "part": part[0].tolist(), "special": special}


def sums(values, one):
    """The sum of a map over each sentence, special tokens aside."""
    return np.bincount(one["part"], weights=np.where(one["special"], 0, values))


def top(of_sentences):
    """The `TOP` sentences with the largest absolute values."""
    return set(np.argsort(-np.abs(of_sentences), kind="stable")[:TOP].tolist())


COLUMNS = "texts | cost | r | error | r of sentences | found | all five by token | all five by sentence | estimate"


def figures(results):
    """The rows of the table: a name, the number of texts, and the means of the other `COLUMNS`."""
    for name in results[0]["maps"]:
        of_text = []
        for one in (one for one in results if name in one["maps"]):
            loo, sentence, values = (np.array(one["maps"][key]) for key in ("LOO", "LOO by sentence", name))
            keep = ~np.array(one["special"])
            by_token, by_sentence, found = (sums(of, one) for of in (loo, sentence, values))
            row = [
                one["costs"][name],
                np.corrcoef(values[keep], loo[keep])[0, 1],
                np.sqrt(np.mean((values - loo)[keep] ** 2) / np.mean(loo[keep] ** 2)),
                np.corrcoef(found, by_token)[0, 1],
                len(top(found) & top(by_token)) / TOP,
                top(found) == top(by_token),
                top(found) == top(by_sentence),
                one["estimated"].get(name, np.nan) / np.sqrt(np.mean((values - loo) ** 2) or np.nan),
            ]
            of_text.append(row)
        yield name, len(of_text), np.mean(of_text, 0)


def main():
    """Train the decoder if there is none, explain what is not explained yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=TEXTS)
    texts = parser.parse_args().texts
    if not (FOLDER / "model" / "config.json").exists():
        with one_thread():
            train(FOLDER / "model")
    model = load(FOLDER / "model", max_length=TOKENS)
    results = []
    for i, (text, _) in enumerate(joined(DATA / "movie_reviews/dev.jsonl.gz", model.tokenizer, texts)):
        file = FOLDER / f"{i}.json"
        if not file.exists():
            file.write_text(json.dumps(explained(model, text, i < BUDGETED)))
            print(f"text {i}", flush=True)
        results.append(json.loads(file.read_text()))
    print(f"| | {COLUMNS} |")
    for name, count, row in figures(results):
        print(f"| {name} | {count} |", " | ".join(f"{value:.3f}" for value in row), "|")


if __name__ == "__main__":
    main()
