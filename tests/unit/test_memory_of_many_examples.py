"""What the process that is started holds does not grow with the examples: they are in files, and read one by one."""

import gc
import tracemalloc
from contextlib import ExitStack
from itertools import count

import numpy as np
import pytest
import torch

from faithcheck.alignment import figures, parquet, summary
from faithcheck.alignment.batch_result import BatchResult, MeasuredExample
from faithcheck.alignment.batches import batches
from faithcheck.alignment.explainer_pass import ExplainerPass
from faithcheck.alignment.shown_examples import shown_examples
from faithcheck.axioms.measure import statistics
from faithcheck.models.data.texts import load_texts
from faithcheck.models.pretrained.example import Example, Examples

FEWER, MORE = 500, 2_500
UNCOUNTED, COUNTED = 1, 3  # runs of each, in turn: the first import modules, and keep what is kept once
FEATURES = 4
BATCH = 100  # examples; with LOO's rows they have BATCH · FEATURES · (FEATURES + 1) tokens
HELD = 6.0
"""Bytes of each further example: an index takes 8, its figures 136. A store holds one byte of a batch. Without growth,
0 to 5 were measured: which freed lists of Python hold what is kept differs from run to run, by 10 kB in all. In a
process that had run thousands of other tests, one run held 18 kB more, and one 11 kB less: so the median of three
counts. In another one, the runs that came last held 15 kB more: so fewer and more examples take turns."""
AT_ONCE = 40.0
"""Bytes of each further example while all are sorted, or one figure of all is tested: 22 were measured."""


class Stub:
    """An explainer that is never run."""

    def __init__(self, name):
        self.name = name

    def attribute(self, model, case):
        raise NotImplementedError


def example_of(text):
    special = torch.tensor([True, False, False, False])
    return Example(torch.full((FEATURES,), len(text)), special, (text,) * FEATURES)


def record(draw):
    values = {name: draw.random(FEATURES).round(3).tolist() for name in ("map", "morf", "lerf")}
    return MeasuredExample(target=0, **values)


def examples_of(number, folder):
    texts = load_texts(str(folder.parent / "texts.tsv"), number)
    return texts, Examples(texts.texts, example_of)


def planned(number, folder):
    """Tasks of one example each, on a cluster, of which some are done."""
    texts, examples = examples_of(number, folder)
    plan = batches(examples, FEATURES)
    assert len(plan) == number
    passes = {name: ExplainerPass(Stub(name), plan, {}, folder) for name in ("loo", "other")}
    assert sum(1 for one in passes.values() for _ in one.missing()) == 2 * number
    return texts, examples, plan, passes


def summarised(number, folder):
    """An alignment without a model: its stores, figures, summary, Parquet files and shown examples."""
    texts, examples = examples_of(number, folder)
    plan = batches(examples, BATCH * FEATURES * (FEATURES + 1))
    assert len(plan) == number // BATCH
    passes = {name: ExplainerPass(Stub(name), plan, {"number": number}, folder) for name in ("loo", "attnlrp")}
    draw = np.random.default_rng(0)
    with ExitStack() as stores:
        for one in passes.values():
            stores.enter_context(one)
            for batch in one.missing():
                records = [record(draw) for _ in plan[batch]]
                one.keep(batch, BatchResult(examples=records, warnings=["one"], attribution=2, forward=1))
    results = [one.result() for one in passes.values()]
    found = figures.figures_of(examples, results, torch.float64)
    document = summary.summary(examples, results, found, 0)
    assert document.counts.measured == number
    assert document.examples is None
    files = [parquet.write_parquet(folder / "rows", one, found[one.name], str, str, {}) for one in results]
    shown = shown_examples(found, examples, {one.name: one.records for one in results})
    return texts, examples, plan, passes, results, found, document, files, shown


def bytes_of(work, number, folder):
    """The bytes that are held after this work, and the most that were held at once."""
    gc.collect()
    tracemalloc.start()
    try:
        kept = work(number, folder)
        gc.collect()
        held, peak = tracemalloc.get_traced_memory()
        assert kept
    finally:
        tracemalloc.stop()
    return np.array([held, peak])


@pytest.mark.slow
@pytest.mark.parametrize("work", [planned, summarised])
def test_memory_does_not_grow_with_the_examples(work, tmp_path, monkeypatch):
    """Numbers of round figures in place of correlations, and few resamples, which take time and no memory here."""
    pytest.importorskip("pyarrow", reason="Parquet needs the optional library pyarrow")
    (tmp_path / "texts.tsv").write_text("".join(f"text {i}\t{i % 2}\n" for i in range(MORE)))
    numbers = count()
    constant = dict.fromkeys(figures.SCOPES, "constant LOO")
    defined = dict.fromkeys(figures.SCOPES)

    def drawn(example, record, loo, dtype):
        number = next(numbers)
        undefined = number % 5 == 0
        values = {name: None if undefined else number % 97 / 97 + place for place, name in enumerate(figures.FIGURES)}
        return values, constant if undefined else defined

    monkeypatch.setattr(figures, "_figures", drawn)
    monkeypatch.setattr(statistics, "RESAMPLES", 9)
    monkeypatch.setattr(statistics, "BLOCK", 1)
    monkeypatch.setattr(parquet, "VALUES", 1_000)  # of all examples here, there are more
    monkeypatch.setattr(summary, "EACH", 0)
    runs = []
    for turn, number in enumerate((FEWER, MORE) * (UNCOUNTED + COUNTED)):
        folder = tmp_path / f"turn {turn}"
        folder.mkdir()
        runs.append(bytes_of(work, number, folder))
    counted = runs[2 * UNCOUNTED :]
    fewer, more = np.median(counted[::2], axis=0), np.median(counted[1::2], axis=0)
    held, at_once = (more - fewer) / (MORE - FEWER)
    print(f"{work.__name__}: {held:.2f} bytes of an example held, {at_once:.1f} at once; {fewer}, {more}")
    assert held < HELD
    assert at_once < AT_ONCE
