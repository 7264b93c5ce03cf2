"""Table 1 of You et al. 2025 (arXiv 2510.18810): linear attention on MNIST, reproduced, with a row for CP-LRP.

``pytest -m paper --data-dir=PATH``, where PATH holds ``mnist/``. The tests assert what theory derives. The paper's
figures are printed beside ours and not asserted. docs/results/table1.md discusses the differences.
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy import stats

from faithcheck.explainers.gradients import IntegratedGradients
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.explainers.lrp.attnlrp import AttnLRP
from faithcheck.explainers.lrp.cplrp import CPLRP
from faithcheck.models import Case
from faithcheck.models.data import handwritten_digits
from faithcheck.models.networks.digit_classifier import Recipe, one_thread, trained
from faithcheck.models.networks.linear_attention import LinearAttention
from faithcheck.tests.helpers.correlation import pearson
from faithcheck.tests.helpers.reading_points import read_at

pytestmark = [pytest.mark.paper]

SEEDS, SWEEP_SEEDS = 5, 3
IMAGES, SWEEP_IMAGES = 200, 100
EPSILON = 1e-6
COLUMNS = ("L vs R", "L vs LOO", "R vs LOO")
PAPER = {"LOO": (1.0, 1.0, 1.0), "IG": (1.0, -0.3707, -0.3707), "AttnLRP": (0.7865, 0.0730, -0.0698)}

# Few rows in a forward pass keep the left order's (pixels, pixels) products in the processor's cache.
LOO = LeaveOneOut(max_tokens=32 * 196)
EXPLAINERS = {
    "LOO": LOO,
    "IG": IntegratedGradients(steps=2),  # exact: the gradient has degree 2 along the path
    "AttnLRP": AttnLRP(epsilon=EPSILON),
    "CP-LRP": CPLRP(epsilon=EPSILON),
}


@dataclass(frozen=True)
class Variation:
    """A choice that the paper leaves open, made differently from the default."""

    choice: str
    options: dict[str, object] = field(default_factory=dict)
    standardised: bool = False
    read: str = "pixel"
    ig_baseline: float | None = None


SWEEP = [
    Variation("default: mean pooling, position learned, unit pixels, read at pixels"),
    Variation("pooling: flatten", {"pooling": "flatten"}),
    Variation("position: none", {"position": False}),
    Variation("position: none, pooling: flatten", {"position": False, "pooling": "flatten"}),
    Variation("scaling: standardised, removed = black", standardised=True),
    Variation("scaling: standardised, removed = mean grey", standardised=True, read="scaled pixel"),
    Variation("read at: embedding, removed = black pixel's", read="embedding"),
    Variation("read at: embedding, removed = zero vector", read="embedding from zero"),
    Variation("IG's baseline: white, LOO's black", ig_baseline=1.0),
]


class Correlation(NamedTuple):
    """Means over images of Pearson's r, of raw maps and of maps divided by their sums."""

    raw: float
    sum_to_one: float


class RunOfOneSeed(NamedTuple):
    """One trained model: accuracy, the three correlations of each explainer, and maps with a negative sum."""

    accuracy: float
    correlations: dict[str, tuple[Correlation, Correlation, Correlation]]
    negative: dict[str, tuple[int, int]]


def correlation(a, b):
    r = pearson(a, b)
    assert torch.isfinite(r).all(), "a map is constant, or a value is not finite"
    return Correlation(r.mean().item(), (r * a.sum(1).sign() * b.sum(1).sign()).mean().item())


@one_thread()
def train_and_correlate(variation, seed, images):
    digits = handwritten_digits.load_digits()
    options = {"pixels": digits.pixels, **variation.options}
    if variation.standardised:
        options |= {"mean": digits.train_images.mean().item(), "std": digits.train_images.std().item()}
    # Both orders use the weights of one training, of the right order, which costs less.
    result = trained(LinearAttention, {"order": "right", **options}, digits, seed)

    inputs = digits.dev_images[:images]
    models = {order: LinearAttention(order, **options).double().eval() for order in ("left", "right")}
    for model in models.values():
        model.load_state_dict(result.weights)
    with torch.no_grad():
        case = Case(inputs, models["right"](inputs).argmax(1), torch.zeros_like(inputs))
    (left, read_case), (right, _) = (read_at(variation.read, model, case) for model in models.values())

    loo = LOO.attribute(left, read_case), LOO.attribute(right, read_case)
    correlations, negative = {}, {}
    for name, explainer in EXPLAINERS.items():
        explained = read_case
        if variation.ig_baseline is not None and name == "IG":
            explained = replace(read_case, baseline=torch.full_like(inputs, variation.ig_baseline))
        maps = loo if name == "LOO" else (explainer.attribute(left, explained), explainer.attribute(right, explained))
        correlations[name] = (correlation(*maps), correlation(maps[0], loo[0]), correlation(maps[1], loo[1]))
        negative[name] = tuple(int((attribution.sum(1) < 0).sum()) for attribution in maps)
    return RunOfOneSeed(result.accuracy, correlations, negative)


def over_seeds(runs, explainer, column, normalised):
    """Mean and half the width of the 95 % t-interval over training seeds."""
    values = [run.correlations[explainer][column][normalised] for run in runs]
    spread = np.std(values, ddof=1) / np.sqrt(len(values))
    return float(np.mean(values)), float(spread * stats.t.ppf(0.975, len(values) - 1))


def difference_in_words(explainer, figures):
    """The columns in which the paper's figure is outside our interval by more than its last digit, in words."""
    if explainer not in PAPER:
        return "no such row in the paper"
    words = [
        f"{column} {'above' if mean > paper else 'below'} by {abs(mean - paper):.2f}"
        for column, (mean, half), paper in zip(COLUMNS, figures, PAPER[explainer], strict=True)
        if abs(mean - paper) > half + 5e-5
    ]
    return "; ".join(words) or "no"


@pytest.fixture(scope="module")
def mnist():
    if "MNIST" not in handwritten_digits.source():
        pytest.skip("Table 1 needs MNIST: --data-dir=PATH, a folder that holds mnist/train.npz and mnist/dev.npz")


@pytest.fixture(scope="module")
def seeds(settings):
    return [settings.seed + i for i in range(SEEDS)]


def check_theory(runs):
    for result in runs:
        for name in ("LOO", "IG", "CP-LRP"):
            r = result.correlations[name][0]
            assert r.raw == pytest.approx(1, abs=1e-6), f"{name} differs between left and right: r = {r.raw}"
            assert r.sum_to_one == pytest.approx(1, abs=1e-6)
        assert result.correlations["AttnLRP"][0].raw < 1 - 1e-4, "AttnLRP is the same left and right"


def test_table_1(mnist, seeds, table):
    runs = [train_and_correlate(SWEEP[0], seed, IMAGES) for seed in seeds]

    recipe = Recipe()
    how = (
        f"Mean over {len(seeds)} training seeds ({seeds[0]}–{seeds[-1]}) ± half of the 95 % t-interval; a seed's "
        f"figure is the mean of Pearson's r over {IMAGES} dev images, predicted class. ε = {EPSILON:g}, "
        f"{recipe.epochs} epochs, Adam {recipe.learning_rate:g}, batch {recipe.batch_size}, float64. "
        f"L = (QKᵀ)V, R = Q(KᵀV). {handwritten_digits.source()}."
    )
    for normalised, maps in enumerate(("raw", "sum to one")):
        rows = []
        for name in EXPLAINERS:
            figures = [over_seeds(runs, name, column, normalised) for column in range(3)]
            paper = ", ".join(f"{figure:.4f}" for figure in PAPER.get(name, ())) or "–"
            beside = [paper, difference_in_words(name, figures)] if normalised else []
            rows.append([name, *(f"{mean:.4f} ± {half:.4f}" for mean, half in figures), *beside])
        columns = ["explainer", *COLUMNS, *(["paper's three", "ours differs"] if normalised else [])]
        table({"title": f"Table 1: linear attention, maps {maps}", "note": how, "columns": columns, "rows": rows})
    table(
        {
            "title": "Table 1: accuracy, and maps that sum to a negative number",
            "note": f"Divided by its sum, such a map's correlations change sign. Of {IMAGES} images a seed, L / R.",
            "columns": ["seed", "accuracy", *EXPLAINERS],
            "rows": [
                [
                    str(seed),
                    f"{run.accuracy:.3f}",
                    *("{} / {}".format(*run.negative[name]) for name in EXPLAINERS),
                ]
                for seed, run in zip(seeds, runs, strict=True)
            ],
        }
    )
    check_theory(runs)
    assert all(result.accuracy > 0.75 for result in runs), "not the trained classifier that the table is about"


def test_sweep_of_choices_that_the_paper_leaves_open(mnist, seeds, table):
    swept = {
        variation.choice: [train_and_correlate(variation, seed, SWEEP_IMAGES) for seed in seeds[:SWEEP_SEEDS]]
        for variation in SWEEP
    }

    def cell(runs, name, column):
        raw, normalised = (over_seeds(runs, name, column, which)[0] for which in (0, 1))
        return f"{raw:.3f} / {normalised:.3f}"

    table(
        {
            "title": "Table 1: the choices that the paper leaves open",
            "note": f"Raw / sum to one; means over seeds {seeds[0]}–{seeds[SWEEP_SEEDS - 1]}, {SWEEP_IMAGES} images. "
            "IG and CP-LRP are the same left and right. LOO removes as the row says.",
            "columns": [
                "choice",
                "accuracy",
                *(f"AttnLRP {column}" for column in COLUMNS),
                "IG vs LOO",
                "CP-LRP vs LOO",
            ],
            "rows": [
                [
                    choice,
                    f"{np.mean([result.accuracy for result in runs]):.3f}",
                    *(cell(runs, "AttnLRP", column) for column in range(3)),
                    cell(runs, "IG", 1),
                    cell(runs, "CP-LRP", 1),
                ]
                for choice, runs in swept.items()
            ],
        }
    )
    for runs in swept.values():
        check_theory(runs)
