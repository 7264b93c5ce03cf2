"""The matrix of costs: every explainer at many sizes of four shapes, and its agreement with Leave-One-Out.

Calls are measured in turn until their ratios are precise, see `until_precise`. Each point is in the benchmark document,
build/bench/cost.json, when its test ends: a run that was stopped resumes. `make bench` makes the pages of the document.
A document of other code, versions or settings is kept beside it, for ``faithcheck compare``.
"""

import json
from dataclasses import asdict, replace
from functools import partial

import pytest
import torch
from msgspec import structs

import faithcheck.explainers
import faithcheck.models
from faithcheck.alignment import measurement, preparation
from faithcheck.alignment.run_key import sources
from faithcheck.alignment.settings import AlignRequest, specs_of, table_2
from faithcheck.explainers.protocol import input_gradient
from faithcheck.models.data.texts import load_texts
from faithcheck.options.explainers import choose_explainers
from faithcheck.reports.documents.alignment import Mean
from faithcheck.reports.documents.benchmark import Agreement, AgreementRow, Agreements, Point, Settings
from faithcheck.reports.documents.environment import environment, version
from faithcheck.tests.helpers import cost, timing
from faithcheck.tests.helpers.kept_document import KeptDocument

pytestmark = pytest.mark.bench

LIMITS = timing.Limits()
TEXTS = {"short": (60, 1), "long": (12, 6)}  # texts for the agreement with Leave-One-Out, and sentences in each


@pytest.fixture(scope="module")
def kept(settings, pytestconfig):
    """The document of an earlier run of the same code and settings, or an empty one."""
    how = Settings(
        dtype="float32",
        settings=replace(settings, dtype=torch.float32),
        threads=torch.get_num_threads(),
        **asdict(LIMITS),
        middle=middle(settings.device),
    )
    about, device = (version(), environment(cost.LIBRARIES)), cost.about_device(settings.device)
    code = sources(faithcheck.explainers, faithcheck.models, measurement, preparation, timing, cost)
    return KeptDocument(pytestconfig.rootpath / "build" / "bench" / "cost.json", *about, how, device, code)


def middle(device):
    return cost.MIDDLE["cuda" if device.type == "cuda" else "cpu"]


@pytest.mark.parametrize("point", cost.POINTS, ids=lambda point: "-".join(map(str, point)))
def test_cost(point, kept, settings):
    shape, dimension, factor = point
    size = cost.size_of(middle(settings.device), dimension, factor)
    if kept.has_point(shape, size):
        pytest.skip(f"measured already: {kept.path}")
    model, case = cost.build(shape, size, settings.seed, settings.device)
    reference = partial(input_gradient, *cost.build(shape, middle(settings.device), settings.seed, settings.device))
    rows = cost.measured_rows(model, case, cost.explainers(), reference, LIMITS, settings.seed)
    state = cost.state_of_device(settings.device)
    kept.add_point(Point(shape=shape, **structs.asdict(size), state=state, rows=rows))
    assert [row.why for row in rows if row.explainer in ("attnlrp", "loo")] == ["", ""]


@pytest.mark.parametrize("texts", TEXTS)
def test_cost_and_agreement_with_loo(texts, kept, settings):
    """On the project's own model and sentences: r with LOO of every explainer, and its cost on the median text."""
    count, joined = TEXTS[texts]
    data = f"{count} texts of {joined} of its sentences"
    if kept.has_agreement(data):
        pytest.skip(f"measured already: {kept.path}")
    chosen = cost.explainers()
    names = [name for name in chosen if "not installed" not in getattr(chosen[name], "origin", "")]
    request = AlignRequest(
        data=str(joined_sentences(kept.path.with_name(f"{texts}.jsonl"), count, joined)),
        explainer=names,
        chunk=10**6,  # one step: no curve is asked for
        settings=replace(settings, dtype=torch.float32),
        cache=kept.path.parent / "alignment",
    )
    alignment = measurement.measure(request)
    prepared = preparation.prepare(request)
    case = prepared.model.case([sorted(prepared.examples, key=len)[count // 2]])
    measured = {one.name: one for one in choose_explainers(specs_of(names), table_2(prepared.setup))}
    reference = partial(input_gradient, prepared.model, case)
    rows = cost.measured_rows(prepared.model, case, {**chosen, **measured}, reference, LIMITS, settings.seed)
    r = {one.name: one.figures.r for one in alignment.explainers}
    undefined = Mean(mean=None, low=None, high=None, n=0)
    with_r = [(row, r.get(row.explainer, undefined)) for row in rows]
    kept.add_agreement(
        Agreements(
            model=alignment.model.name,
            data=data,
            removal=alignment.settings.removal,
            length=case.shape[1],
            rows=[
                AgreementRow(**structs.asdict(row), r=Agreement(mean=of.mean, low=of.low, high=of.high, n=of.n))
                for row, of in with_r
            ],
        )
    )


def joined_sentences(path, count, joined):
    """Save so many texts of so many of the project's own sentences each."""
    sentences = load_texts("own", count * joined).texts
    texts = [" ".join(sentences[i * joined : (i + 1) * joined]) for i in range(count)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path
