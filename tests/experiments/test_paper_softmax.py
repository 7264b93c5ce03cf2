"""§3.2 of You et al. 2025 (arXiv 2510.18810), measured: the structural bias and the linearisation error of Eq. 5.

``pytest -m paper tests/experiments/test_paper_softmax.py`` takes a minute. First every map is compared with its closed
form, then the curves with theory. docs/explanation/softmax.md says what they mean for the paper's argument.
"""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from faithcheck.explainers import CPLRP, AttnLRP, GradientTimesInput, IntegratedGradients, LeaveOneOut
from faithcheck.explainers.loo.removal import AttentionMask
from faithcheck.tests.helpers.correlation import pearson
from faithcheck.tests.helpers.softmax_row import (
    SoftmaxRow,
    exact_loo,
    exact_through_softmax,
    exact_through_values,
    row_case,
)

pytestmark = [pytest.mark.paper]

EXAMPLES, KEYS, HEADS = 2000, 16, 8
SCALES = np.geomspace(1e-3, 1e2, 11).tolist()
SHIFTS = np.geomspace(1e-1, 1e3, 9).tolist()
NEARLY_EQUAL = 0.1  # the scale of logits that are nearly equal
SPREADS = (0.3, 1.0, 3.0)  # the scales of logits that are also shifted
ROW = SoftmaxRow()
LOO = LeaveOneOut(AttentionMask())
ATTNLRP, CP_LRP, GRADIENT = AttnLRP(0), CPLRP(0), GradientTimesInput()
# Closed forms and engines sum at most 16 keys and 8 heads in float64; values are relative to the largest.
CLOSE = 1e-12
# A map below this share of LOO is round-off: V_i − O is then a difference of nearly equal numbers.
ROUND_OFF = 1e-9
SOFTMAX, WHOLE = "the softmax alone", "the whole row"


@dataclass(frozen=True)
class Point:
    """One explainer at one scale or shift x: means over examples, and the number of undefined examples.

    The mean r has the 95 % interval r ± error.
    """

    x: float
    explained: str
    explainer: str
    share: float
    r: float
    error: float
    sum_to_one: float
    undefined: int


@pytest.fixture(scope="module")
def draws(settings):
    """Standard normal logits and values ``(examples, keys, heads)``, and one number for each row."""
    generator = torch.Generator().manual_seed(settings.seed)
    shapes = [(EXAMPLES, KEYS, HEADS), (EXAMPLES, KEYS, HEADS), (EXAMPLES, 1, HEADS)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def equal(attribution, exact):
    return (attribution - exact).abs().max() <= CLOSE * exact.abs().max().clamp_min(1)


def measure(x, logits, values, steps):
    """The points of the explainers at one x, for the softmax alone and for the whole row.

    ``steps`` are those of Integrated Gradients: wide logits make the softmax jump along the path, and need more.
    """
    softmax, through_values = exact_through_softmax(logits, values), exact_through_values(logits, values)
    alone, whole = (row_case(logits, values, explain_values=both) for both in (False, True))
    loo = LOO.attribute(ROW, whole)
    assert equal(loo, exact_loo(logits, values)), f"LOO is not its closed form at {x}"
    exact = [
        (SOFTMAX, alone, "AttnLRP", ATTNLRP, softmax),
        (SOFTMAX, alone, "gradient × input", GRADIENT, softmax),
        (WHOLE, whole, "AttnLRP", ATTNLRP, (softmax + through_values) / 2),
        (WHOLE, whole, "gradient × input", GRADIENT, softmax + through_values),
        (WHOLE, whole, "CP-LRP", CP_LRP, through_values),
    ]
    points = []
    for what, case, label, explainer, closed_form in exact:
        attribution = explainer.attribute(ROW, case)
        assert equal(attribution, closed_form), f"{label} of {what} is not its closed form at {x}"
        points.append(point(x, what, label, attribution, loo))
    for what, case in ((SOFTMAX, alone), (WHOLE, whole)):
        attribution, missing = IntegratedGradients(steps).attribute_with_error(ROW, case)
        assert (missing.abs() <= 1e-8 * attribution.abs().sum(1)).all(), f"IG of {what} is not complete at {x}"
        points.append(point(x, what, "Integrated Gradients", attribution, loo))
    return points


def point(x, what, label, attribution, loo):
    clear = attribution.abs().sum(1) > ROUND_OFF * loo.abs().sum(1)
    attribution_, loo_ = attribution[clear], loo[clear]
    r = pearson(attribution_, loo_)
    sum_to_one = r * attribution_.sum(1).sign() * loo_.sum(1).sign()
    share = attribution.abs().sum() / loo.abs().sum()
    error = 1.96 * r.std() / len(r) ** 0.5
    means = (value.item() for value in (share, r.mean(), error, sum_to_one.mean()))
    return Point(x, what, label, *means, undefined=int((~clear).sum()))


def line(points, what, label, value, **style):
    """A line of a figure, with a gap where some maps are round-off."""
    chosen = [point for point in points if (point.explained, point.explainer) == (what, label)]
    y = [None if value == "r" and point.undefined else getattr(point, value) for point in chosen]
    return {"label": label, "x": [point.x for point in chosen], "y": y, **style}


def panel(title, x, y, lines):
    return {"title": title, "x": x, "y": y, "log": "xy" if y == SHARE else "x", "lines": lines}


def level(xs):
    return {"label": "Leave-One-Out", "x": xs, "y": [1] * len(xs)}


def table_row(where, points):
    """The row of one x, from the points of all explainers there."""
    by = {(point.explained, point.explainer): point for point in points}
    through = by[SOFTMAX, "AttnLRP"]
    agreement = [by[WHOLE, label] for label in THREE]
    assert not any(point.undefined for point in agreement)
    return [
        where,
        through.share,
        by[SOFTMAX, "Integrated Gradients"].share,
        *(f"{point.r:+.3f} ± {point.error:.3f} / {point.sum_to_one:+.3f}" for point in agreement),
    ]


COLUMNS = ["logits", "softmax alone, share: AttnLRP", "IG", "whole row, r: AttnLRP", "CP-LRP", "IG"]
SHARE = "share of LOO, Σ|R| / Σ|LOO|"
AGREEMENT = "r with LOO"
TWICE = ("AttnLRP", "Integrated Gradients")
THREE = ("AttnLRP", "CP-LRP", "Integrated Gradients")
ROWS = f"{HEADS} rows: their outputs add up, and each has a shift of its own, c·N(0, 1). "
CELLS = "Share: Σ|R| / Σ|LOO|. r: Pearson's with LOO, raw with its 95 % interval / sum to one, mean over examples."
SAME = "Gradient × input: through the softmax the same as AttnLRP, of the whole row twice AttnLRP, so the same r."


def setting(seed, logits):
    return (
        f"{EXAMPLES} drawn examples of {KEYS} keys, seed {seed}, float64; values N(0, 1), logits {logits}. LOO removes "
        "a key by attention mask. LRP with ε → 0, IG from 0. "
    )


def test_structural_bias(draws, settings, figure, table):
    normal, values, _ = (draw[:, :, :1] for draw in draws)
    points_at = {s: measure(s, s * normal, values, steps=256) for s in SCALES}
    points = [point for at_scale in points_at.values() for point in at_scale]

    how = setting(settings.seed, "s·N(0, 1)")
    x = "scale s of the logits"
    figure(
        {
            "title": "§3.2 (1), structural bias: logits that grow from zero",
            "note": how + f"r: Pearson's, raw, mean over examples; none where only round-off is left of a map. {SAME}",
            "panels": [
                panel(
                    "The softmax alone", x, SHARE, [*(line(points, SOFTMAX, n, "share") for n in TWICE), level(SCALES)]
                ),
                panel("The softmax alone", x, AGREEMENT, [line(points, SOFTMAX, n, "r") for n in TWICE]),
                panel("The whole row: logits and values", x, AGREEMENT, [line(points, WHOLE, n, "r") for n in THREE]),
            ],
        }
    )
    shown = [SCALES[i] for i in (0, 2, 4, 6, 7, 8, 10)]
    table(
        {
            "title": "§3.2 (1), structural bias",
            "note": how + CELLS,
            "columns": COLUMNS,
            "rows": [table_row(f"s = {s:.3g}", points_at[s]) for s in shown],
        }
    )
    by = {(point.x, point.explained, point.explainer): point for point in points}
    first, second = (by[s, SOFTMAX, "AttnLRP"].share for s in SCALES[:2])
    # R/LOO = Z_i (1 − A_i) is linear in s while the weights are uniform; s = 0.003 changes them by some thousandths.
    assert second / first == pytest.approx(SCALES[1] / SCALES[0], rel=0.01)
    assert first < 1e-3, "a softmax of logits near zero passes on relevance"
    for label in ("AttnLRP", "CP-LRP"):
        assert by[SCALES[0], WHOLE, label].r > 0.999, "with uniform weights LOO is the values, less their mean"


def test_linearisation_error(draws, settings, figure, table):
    normal, values, shift_of_row = draws
    one_normal, one_values = normal[:, :, :1], values[:, :, :1]
    points_at = {
        "+": {c: measure(c, NEARLY_EQUAL * one_normal + c, one_values, steps=16) for c in SHIFTS},
        "−": {c: measure(c, NEARLY_EQUAL * one_normal - c, one_values, steps=16) for c in SHIFTS},
        "±": {c: measure(c, NEARLY_EQUAL * normal + c * shift_of_row, values, steps=16) for c in SHIFTS},
    }
    points = {
        sign: [point for at_shift in by_shift.values() for point in at_shift] for sign, by_shift in points_at.items()
    }

    how = setting(settings.seed, f"{NEARLY_EQUAL:g}·N(0, 1) + c, to which LOO is blind") + ROWS
    signed = [line(points[sign], WHOLE, name, "r", dashed=sign == "−") for name in THREE for sign in ("+", "−")]
    figure(
        {
            "title": "§3.2 (2), linearisation error: nearly equal logits that grow together",
            "note": how + f"Dashed: the shift is −c. r: Pearson's, raw, mean over examples. {SAME}",
            "panels": [
                panel(
                    "The softmax alone",
                    "common shift c",
                    SHARE,
                    [*(line(points["+"], SOFTMAX, name, "share") for name in TWICE), level(SHIFTS)],
                ),
                panel("The whole row: logits and values", "common shift c or −c", AGREEMENT, signed),
                panel(
                    f"{HEADS} whole rows, shifts of either sign",
                    "size c of the shifts",
                    AGREEMENT,
                    [line(points["±"], WHOLE, name, "r") for name in THREE],
                ),
            ],
        }
    )
    shown = [SHIFTS[i] for i in (0, 2, 4, 8)]
    named = {"+": "c = {:g}", "−": "c = −{:g}", "±": f"{HEADS} rows, {{:g}}·N(0, 1)"}
    table(
        {
            "title": "§3.2 (2), linearisation error",
            "note": how + CELLS,
            "columns": COLUMNS,
            "rows": [table_row(where.format(c), points_at[sign][c]) for sign, where in named.items() for c in shown],
        }
    )
    by = {(sign, point.x, point.explained, point.explainer): point for sign in points for point in points[sign]}
    last, before = SHIFTS[-1], SHIFTS[-3]
    # R/LOO = Z_i (1 − A_i) is c (1 − A_i), up to the 0.1 of the logits themselves.
    growth = by["+", last, SOFTMAX, "AttnLRP"].share / by["+", before, SOFTMAX, "AttnLRP"].share
    assert growth == pytest.approx(last / before, rel=0.01)
    assert by["+", last, WHOLE, "AttnLRP"].r > 0.99
    assert by["−", last, WHOLE, "AttnLRP"].r < -0.99
    assert abs(by["±", last, WHOLE, "AttnLRP"].r) < 0.3, "rows whose shifts differ in sign still agree with LOO"
    for sign in points:
        r = [by[sign, c, WHOLE, "CP-LRP"].r for c in SHIFTS]
        assert np.ptp(r) < 1e-9, "CP-LRP or LOO sees a shift"
        assert min(r) > 0.99


def test_structural_bias_and_linearisation_error_together(draws, settings, figure):
    normal, values, shift_of_row = draws
    r = {
        (s, c): {
            point.explainer: point.r
            for point in measure(c, s * normal + c * shift_of_row, values, steps=64)
            if point.explained == WHOLE
        }
        for s in SPREADS
        for c in SHIFTS[:5]
    }
    lines = [
        {"label": f"s = {s:g}", "x": SHIFTS[:5], "y": [r[s, c][label] for c in SHIFTS[:5]], "dashed": label == "CP-LRP"}
        for s in SPREADS
        for label in ("AttnLRP", "CP-LRP")
    ]
    title = f"AttnLRP solid, CP-LRP dashed; {HEADS} whole rows"
    figure(
        {
            "title": "§3.2 (3), both together: spread s and shifts c of the logits",
            "note": setting(settings.seed, "s·N(0, 1) + c") + ROWS + "r: Pearson's, raw, mean over examples.",
            "panels": [panel(title, "size c of the shifts", AGREEMENT, lines)],
        }
    )
    assert r[3.0, SHIFTS[0]]["AttnLRP"] > r[3.0, SHIFTS[0]]["CP-LRP"] + 0.05
    assert r[0.3, SHIFTS[4]]["AttnLRP"] < r[0.3, SHIFTS[4]]["CP-LRP"] - 0.5
