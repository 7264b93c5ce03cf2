"""Leave-One-Out of texts of 2,000 tokens on small decoders: error against cost, and the five sentences that matter.

``make long`` runs it, on a decoder of 2 layers or of ``--layers``. It needs ../shared, and stores models and maps in
build/long: a second run goes on where the first stopped; remove that folder to measure again. From the labelled
sentences and long reviews of ../shared, a decoder learns to continue a text by "bad" or "good". Held-out reviews of one
label, one after the other, make texts of 2,000 tokens.

There are two references: LOO by token, where a sentence counts as much as its tokens do together, and LOO by sentence.
Cost is the number of forward rows over that of LOO by token; all rows of a text have the same length, so it is the
share of forward tokens, too. A backward row counts as one, and a row of a proxy model as its share of the layers.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from scipy.stats import binomtest
from sklearn.metrics import average_precision_score
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from faithcheck.explainers.gates.finite_mask_gate import FiniteMaskGate
from faithcheck.explainers.gates.grouped_mask_gate import GroupedMaskGate
from faithcheck.explainers.gates.mask_gate import MaskGate
from faithcheck.explainers.gates.readout_gate import ReadoutGate
from faithcheck.explainers.loo.budget import BudgetedLeaveOneOut
from faithcheck.explainers.loo.hierarchical import PROXY_ROWS, TOP_FIVE, HierarchicalLeaveOneOut
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.models.data.texts import load_texts
from faithcheck.models.files import write_atomically
from faithcheck.models.networks.digit_classifier import one_thread
from faithcheck.models.pretrained import SENTIMENT
from faithcheck.models.pretrained.loading import load
from faithcheck.tests.helpers.training.decoder import accuracy, label_words, next_token
from faithcheck.tests.helpers.training.sentiment import batches, fit, read_corpus

TOKENS, TOP, ROWS, SEED = 2000, 5, 8, 0
SCORED = 10  # sentences that the explained model scores, after a cheaper map has chosen them
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


def model_of(layers):
    """The decoder of so many layers; trained if there is none."""
    folder = FOLDER / str(layers) / "model"
    if not (folder / "config.json").exists():
        with one_thread():
            train(folder, layers)
    return load(folder, max_length=TOKENS)


def train(folder, layers):
    """A decoder that reads sentences first, then long texts."""
    tokenizer = AutoTokenizer.from_pretrained(SENTIMENT)
    corpus, long = read_corpus(DATA, SEED), joined(DATA / "movie_reviews/train.jsonl.gz", tokenizer, 300)
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, num_hidden_layers=layers, num_attention_heads=4,
        intermediate_size=176, max_position_embeddings=2048, tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id, bos_token_id=tokenizer.cls_token_id, eos_token_id=tokenizer.sep_token_id,
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
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


def encode_whole(tokenizer, examples):
    return [tokenizer(text)["input_ids"] for text, _ in examples]


def shuffled(items):
    random.Random(SEED).shuffle(items)
    return items


def explainers(tokens, sentences):
    """``{name: (explainer, forward rows, attention)}``; without rows if the explainer's report says how many."""
    most = ROWS * tokens
    return {
        "LOO by sentence": (LeaveOneOut(by="sentence", max_tokens=most), sentences + 1, "sdpa"),
        "mask gate": (MaskGate(), 2, "eager"),
        "finite mask gate": (FiniteMaskGate(), 2, "eager"),
        "readout gate": (ReadoutGate(), PROXY_ROWS, "eager"),
        "LOO": (LeaveOneOut(max_tokens=most), tokens + 1, "sdpa"),
        "hierarchical": (HierarchicalLeaveOneOut(max_tokens=most), None, "sdpa"),
        "hierarchical, top 5": (replace(TOP_FIVE, max_tokens=most), None, "sdpa"),
        "hierarchical, no proxy, top 5": (replace(TOP_FIVE, proxy=None, max_tokens=most), None, "sdpa"),
        "grouped mask gate, 4": (GroupedMaskGate(), 8, "eager"),
        "budgeted LOO, 5 %": (BudgetedLeaveOneOut(0.05), 0.05 * (tokens + 1), "eager"),
    }


BY_TOKEN = {"LOO", "hierarchical", "hierarchical, top 5", "hierarchical, no proxy, top 5"}
SLOW = {"grouped mask gate, 4", "budgeted LOO, 5 %"}


def explain(models, text, left_out, one):
    """Add to a text's results the maps that they lack; yields the name of each."""
    (layers, model), *proxies = models.items()
    case = case_of(model, text)
    part = case.segments["sentence"][0]
    one |= {"part": part.tolist(), "special": case.special_tokens_mask[0].tolist()}
    known = explainers(case.shape[1], int(part.max()) + 1)
    for name in (name for name in known if name not in left_out and name not in one["maps"]):
        explainer, rows, attention = known[name]
        model.model.set_attn_implementation(attention)
        if isinstance(explainer, HierarchicalLeaveOneOut):
            attribution, report = explainer.attribute_with_report(model, case)
            rows, one["estimated"][name] = int(report.rows[0]), float(report.error[0])
        else:
            attribution = explainer.attribute(model, case)
        one["maps"][name], one["costs"][name] = attribution[0].tolist(), rows
        yield name
    explainer, rows, _ = known["LOO by sentence"]
    for its_layers, proxy in proxies:
        name = f"{its_layers}-layer proxy"
        if name not in one["maps"]:
            attribution = explainer.attribute(proxy, replace(case_of(proxy, text), target=case.target))
            one["maps"][name], one["costs"][name] = attribution[0].tolist(), rows * its_layers / layers
            yield name


def case_of(model, text):
    (example,) = model.encode([text])
    return model.case([example])


def sums(values, one):
    """The sum of a map over each sentence, special tokens aside."""
    return np.bincount(one["part"], weights=np.where(one["special"], 0, values))


def top(of_sentences, count=TOP):
    """The sentences with the largest absolute values."""
    return set(np.argsort(-np.abs(of_sentences), kind="stable")[:count].tolist())


def with_chosen(one):
    """A text's maps and costs, with those where a cheap map chooses the sentences that LOO by sentence then scores."""
    maps, costs = ({name: of for name, of in one[key].items()} for key in ("maps", "costs"))
    for name in [name for name in maps if name.endswith("proxy") or name == "finite mask gate"]:
        is_chosen = np.isin(one["part"], list(top(sums(maps[name], one), SCORED)))
        maps[f"{name} chooses {SCORED}"] = np.where(is_chosen, maps["LOO by sentence"], 0)
        costs[f"{name} chooses {SCORED}"] = costs[name] + 1 + SCORED
    return maps, costs


def relative_error(values, reference):
    return np.sqrt(np.mean((values - reference) ** 2) / np.mean(reference**2))


def by_token(one):
    """Per map: cost, r and error over tokens, r of the sums of sentences, whether the five are found, the estimate."""
    maps, costs = with_chosen(one)
    keep, loo = ~np.array(one["special"], bool), np.array(maps["LOO"])
    for name, of in maps.items():
        values = np.array(of)
        found, reference = sums(values, one), sums(loo, one)
        error = np.sqrt(np.mean((values - loo) ** 2))
        yield (
            name,
            (
                costs[name] / (len(loo) + 1),
                np.corrcoef(values[keep], loo[keep])[0, 1],
                relative_error(values[keep], loo[keep]),
                np.corrcoef(found, reference)[0, 1],
                one["estimated"][name] / error if name in one["estimated"] else np.nan,
                top(found) == top(reference),
            ),
        )


def by_sentence(one):
    """Per map: cost, r and error over sentences, the average precision on outlying ones, whether the five are found.

    A sentence is outlying if its absolute effect is more than three standard deviations above their mean.
    """
    maps, costs = with_chosen(one)
    reference = sums(maps["LOO by sentence"], one)
    sizes = np.abs(reference)
    is_outlying = sizes > sizes.mean() + 3 * sizes.std()
    for name, values in maps.items():
        found = sums(values, one)
        yield (
            name,
            (
                costs[name] / (len(one["part"]) + 1),
                np.corrcoef(found, reference)[0, 1],
                relative_error(found, reference),
                average_precision_score(is_outlying, np.abs(found)) if is_outlying.any() else np.nan,
                top(found) == top(reference),
            ),
        )


def print_table(title, columns, results, figures):
    """The means over texts; of the last column, the number of texts and its 95 % interval by Clopper and Pearson."""
    print(f"\n{title}\n\n| | {' | '.join(columns)} |\n|{'---|' * (1 + len(columns))}")
    rows = {}
    for one in results:
        for name, values in figures(one):
            rows.setdefault(name, []).append(values)
    for name, of in rows.items():
        means = (f"{np.nanmean(column):.3f}" if np.isfinite(column).any() else "" for column in np.array(of).T[:-1])
        found = binomtest(sum(bool(values[-1]) for values in of), len(of))
        low, high = found.proportion_ci(0.95, "exact")
        print(f"| {name} | {' | '.join(means)} | {found.k} of {found.n} ({low:.0%} – {high:.0%}) |")


def main():
    """Explain what is not explained yet, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=2, help="of the decoder that is explained")
    parser.add_argument("--proxies", type=int, nargs="*", default=[], help="layers of smaller decoders, its proxies")
    parser.add_argument("--texts", type=int, default=71, help="that are explained")
    parser.add_argument("--by-token", type=int, default=71, help="the first so many by token, too")
    parser.add_argument("--slow", type=int, default=6, help="the first so many by all explainers")
    options = parser.parse_args()
    models, results = {layers: model_of(layers) for layers in (options.layers, *options.proxies)}, []
    texts = joined(DATA / "movie_reviews/dev.jsonl.gz", models[options.layers].tokenizer, options.texts)
    for i, (text, _) in enumerate(texts):
        file = FOLDER / str(options.layers) / f"{i}.json"
        one = json.loads(file.read_text()) if file.exists() else {"maps": {}, "costs": {}, "estimated": {}}
        left_out = (BY_TOKEN if i >= options.by_token else set()) | (SLOW if i >= options.slow else set())
        for name in explain(models, text, left_out, one):
            write_atomically(file, json.dumps(one))
            print(f"text {i}, {name}: {time.process_time():.0f} s", flush=True)
        results.append(one)
    columns = ["cost", "r", "error", "r of sentences", "estimated ÷ true error", "five found"]
    print_table("Against LOO by token", columns, [one for one in results if "LOO" in one["maps"]], by_token)
    columns = ["cost", "r", "error", "average precision", "five found"]
    print_table("Against LOO by sentence", columns, results, by_sentence)


if __name__ == "__main__":
    main()
