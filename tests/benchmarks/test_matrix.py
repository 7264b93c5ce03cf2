"""The matrix of costs: every explainer at many sizes of four shapes, and its agreement with Leave-One-Out.

Calls are measured in turn until their ratios are precise, see `until_precise`. Each point is a table of the report.
"""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch

from faithcheck.alignment import measurement, preparation
from faithcheck.alignment.settings import AlignRequest, specs_of, table_2
from faithcheck.explainers.protocol import input_gradient
from faithcheck.models.data.texts import load_texts
from faithcheck.options.explainers import choose_explainers
from faithcheck.tests.helpers import cost, timing

pytestmark = pytest.mark.bench

LIMITS = timing.Limits()
TEXTS = {"short": (60, 1), "long": (12, 6)}  # texts for the agreement with Leave-One-Out, and sentences in each


@pytest.mark.parametrize("point", cost.POINTS, ids=lambda point: "-".join(map(str, point)))
def test_cost(point, settings, table):
    shape, dimension, factor = point
    middle = cost.MIDDLE["cuda" if settings.device.type == "cuda" else "cpu"]
    size = cost.size_of(middle, dimension, factor)
    model, case = cost.build(shape, size, settings.seed, settings.device)
    reference = partial(input_gradient, *cost.build(shape, middle, settings.seed, settings.device))
    rows = cost.measured_rows(model, case, cost.explainers(), reference, LIMITS, settings.seed)
    of = ", ".join(f"{name} {value}" for name, value in size._asdict().items())
    note = f"{cost.NOTE}The reference is the shape's middle point. {torch.get_num_threads()} threads, float32."
    table({"title": f"Cost: {shape}, {of}", "note": note, "columns": cost.COLUMNS, "rows": list(rows.values())})
    assert not any("not measured" in rows[name][2] for name in ("attnlrp", "loo"))


@pytest.mark.parametrize("texts", TEXTS)
def test_cost_and_agreement_with_loo(texts, settings, table, tmp_path):
    """On the project's own model and sentences: r with LOO of every explainer, and its cost on the median text."""
    count, joined = TEXTS[texts]
    chosen = cost.explainers()
    names = [name for name in chosen if "not installed" not in getattr(chosen[name], "origin", "")]
    request = AlignRequest(
        data=str(joined_sentences(tmp_path / "texts.jsonl", count, joined)),
        explainer=names,
        chunk=10**6,  # one step: no curve is asked for
        settings=replace(settings, dtype=torch.float32),
    )
    alignment = measurement.measure(request)
    prepared = preparation.prepare(request)
    case = prepared.model.case([sorted(prepared.examples, key=len)[count // 2]])
    measured = {one.name: one for one in choose_explainers(specs_of(names), table_2(prepared.setup))}
    reference = partial(input_gradient, prepared.model, case)
    rows = cost.measured_rows(prepared.model, case, {**chosen, **measured}, reference, LIMITS, settings.seed)
    agreements = {one.name: one.figures.r for one in alignment.explainers}
    table(
        {
            "title": f"Cost and agreement with Leave-One-Out, {case.shape[1]} tokens",
            "note": f"{cost.NOTE}The reference is the text itself. r: mean correlation with Leave-One-Out over n of "
            f"{count} texts of {joined} of the project's sentences, special tokens left out, and its 95 % interval; "
            f"{alignment.model.name}, removal: {alignment.settings.removal}.",
            "columns": [*cost.COLUMNS, "r", "95 %", "n"],
            "rows": [[*row, *agreement_cells(agreements.get(name))] for name, row in rows.items()],
        }
    )


def agreement_cells(r):
    """The mean correlation, its interval and the number of texts; empty where it is not defined."""
    if r is None or r.mean is None:
        return ["", "", ""]
    return [f"{r.mean:.3f}", f"{r.low:.3f} – {r.high:.3f}" if r.low is not None else "", str(r.n)]


def joined_sentences(path, count, joined):
    """Save so many texts of so many of the project's own sentences each."""
    sentences = load_texts("own", count * joined).texts
    texts = [" ".join(sentences[i * joined : (i + 1) * joined]) for i in range(count)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path
