"""Figure 2 and Table A3 of arXiv 2510.18810: the softmax bypassed layer by layer; and which part of CP-LRP helps.

They run on the project's own 12-layer model and sentences, or on those of --paper-model, --paper-texts, --paper-limit.
"""

from itertools import chain

import pytest
from msgspec import structs

from faithcheck.alignment.evaluate import align
from faithcheck.alignment.figures import figures_of
from faithcheck.alignment.summary import summary
from faithcheck.explainers import CPLRP, AttnLRP
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.reports.pages.alignment_wording import number
from faithcheck.tests.experiments.layer_ablation import ablate, name_of
from faithcheck.tests.helpers.attnlrp_variants import PARTS, attnlrp_without, figure_2_sets, sets_of_parts

pytestmark = [pytest.mark.paper]

R, SUM_TO_ONE, DELTA = "pearson_no_special", "pearson_sum_to_one_no_special", "delta"
# arXiv 2510.18810, Table A3: SST on BERT-base, sum-to-one r; from the first k = 1 … 12, the last 12 … 1, and k alone.
PAPER = {
    "first k layers": "0.22 0.23 0.23 0.24 0.26 0.29 0.33 0.36 0.41 0.50 0.52 0.52",
    "last k layers": "0.22 0.26 0.38 0.47 0.53 0.55 0.54 0.54 0.53 0.53 0.52 0.52",
    "layer k alone": "0.22 0.23 0.22 0.23 0.24 0.24 0.27 0.25 0.28 0.32 0.26 0.22",
}


def cell(figure):
    """A mean with its 95 % interval."""
    return with_interval(figure.mean, figure.low, figure.high)


def with_interval(mean, low, high):
    if mean is None:
        return "undefined"
    between = "" if low is None else f" [{low:.3f}, {high:.3f}]"
    return f"{mean:.3f}{between}".replace("-", "−")


def against_attnlrp(results, name, figure):
    """The paired difference to AttnLRP with its interval, and p of the Wilcoxon test."""
    for c in results.comparisons:
        if (c.explainer, c.figure) == (name, figure):
            p = "–" if c.p is None else f"{c.p:.2g}"
            return [with_interval(c.difference, c.low, c.high), p]
    return ["–", "–"]


def loo_outcome(prepared):
    setup = prepared.setup
    loo = LeaveOneOut(setup.removal, max_tokens=setup.max_tokens)
    return align(prepared.model, prepared.examples, [loo], setup, prepared.folder)


def compared_with_loo(prepared, outcomes):
    """``{explainer: figures}`` in comparison with LOO, and the whole summary."""
    every = [*loo_outcome(prepared), *outcomes]
    columns = figures_of(prepared.examples, every, prepared.model.model.dtype)
    results = summary(prepared.examples, every, columns, prepared.setup.seed)
    return {explainer.name: structs.asdict(explainer.figures) for explainer in results.explainers}, results


def how(prepared, results):
    counts, config = results.counts, prepared.model.model.config
    return (
        f"{counts.measured} of {counts.examples} examples ({prepared.data.name}), "
        f"{counts.truncated} truncated, "
        f"{counts.empty} empty; {config.num_hidden_layers} layers; r is Pearson's with LOO by "
        f"{prepared.setup.removal.name}, raw, without special tokens, mean over examples with its 95 % bootstrap "
        f"interval; ε → 0; seed {prepared.setup.seed}."
    )


def test_figure_2_and_table_a3(prepared, table, figure):
    depth = prepared.model.model.config.num_hidden_layers
    series = figure_2_sets(depth)
    sets = [frozenset(), *dict.fromkeys(chain(*series.values()))]
    outcomes = ablate(prepared.model, prepared.examples, sets, prepared.setup, prepared.folder)
    measured, results = compared_with_loo(prepared, outcomes)
    note = how(prepared, results)
    layers = list(range(1, depth + 1))

    def panel(title, name, axis):
        lines = [
            {"label": label, "x": layers, "y": [measured[name_of(s)][name].mean for s in chosen]}
            for label, chosen in series.items()
        ]
        base = measured["attnlrp"][name].mean
        lines.append({"label": "AttnLRP (none)", "x": layers, "y": [base] * depth, "dashed": True})
        return {"title": title, "x": "k", "y": axis, "lines": lines}

    panels = [panel("Agreement with LOO", R, "r"), panel("Perturbation", DELTA, "Δ = LeRF − MoRF")]
    figure({"title": "Figure 2: the softmax bypassed layer by layer", "note": note, "panels": panels})

    for name, what in ((R, "r"), (SUM_TO_ONE, "r, maps sum to one"), (DELTA, "Δ")):
        rows = [[label, *(number(measured[name_of(s)][name].mean) for s in chosen)] for label, chosen in series.items()]
        beside = name == SUM_TO_ONE and depth == 12
        rows += [[f"the paper's: {label}", *PAPER[label].split()] for label in PAPER if beside]
        rows.append(["AttnLRP", *[number(measured["attnlrp"][name].mean)] * depth])
        columns = ["softmax bypassed in", *(f"k = {k}" for k in layers)]
        paper = " The paper's: BERT-base, other sentences of SST." if beside else ""
        table({"title": f"Table A3: {what}", "note": note + paper, "columns": columns, "rows": rows})
    table(
        {
            "title": "Table A3: intervals, and against AttnLRP",
            "note": note + " The difference is paired; p of the two-sided Wilcoxon signed-rank test, not corrected.",
            "columns": ["softmax bypassed in", "k", "r", "r − AttnLRP's", "p", "Δ"],
            "rows": [
                [
                    label,
                    k,
                    cell(measured[name_of(s)][R]),
                    *against_attnlrp(results, name_of(s), R),
                    cell(measured[name_of(s)][DELTA]),
                ]
                for label, chosen in series.items()
                for k, s in zip(layers, chosen, strict=True)
            ],
        }
    )
    # The three series share maps: all layers bypassed, and one layer at either end.
    first, last, alone = series.values()
    assert (first[-1], first[0], last[0]) == (last[-1], alone[0], alone[-1])
    # All layers bypassed is CP-LRP, and none is AttnLRP; the ablation ran neither.
    whole, _ = compared_with_loo(prepared, align_with(prepared, [AttnLRP(), CPLRP()]))
    for name in (R, DELTA):
        assert measured["attnlrp"][name].mean == pytest.approx(whole["attnlrp"][name].mean, abs=1e-3)
        assert measured[name_of(first[-1])][name].mean == pytest.approx(whole["cplrp"][name].mean, abs=1e-3)


def align_with(prepared, explainers):
    return align(prepared.model, prepared.examples, explainers, prepared.setup, prepared.folder)


def test_which_part_of_cplrp_helps(prepared, table):
    explainers = {parts: attnlrp_without(parts) for parts in sets_of_parts()}
    measured, results = compared_with_loo(prepared, align_with(prepared, explainers.values()))
    rows = []
    for parts, explainer in explainers.items():
        figures = measured[explainer.name]
        marks = ["yes" if part in parts else "–" for part in PARTS]
        rows.append([*marks, cell(figures[R]), *against_attnlrp(results, explainer.name, R), cell(figures[DELTA])])
    note = (
        "AttnLRP with parts replaced; the first row is AttnLRP, softmax bypassed alone is CP-LRP. AttnLRP: Eq. 5, σ of "
        "LayerNorm held constant, f(x)/x for activations, half of a product's relevance each. Rows are equal where the "
        f"model has no such operation, or no relevance reaches it. {how(prepared, results)}"
    )
    columns = [*PARTS, "r", "r − AttnLRP's", "p", "Δ"]
    table({"title": "Which part of CP-LRP helps", "note": note, "columns": columns, "rows": rows})
    names = [explainer.name for explainer in explainers.values()]
    assert all(figure.n for name in names for figure in (measured[name][R], measured[name][DELTA]))
    assert measured["attnlrp"][R] != measured["softmax bypassed"][R], "the bypass changes nothing"
