"""The sentences, labels and number formats of the alignment document."""

import math
from collections.abc import Iterator

from faithcheck.reports.documents.alignment import Alignment, Comparison

FEWEST = 6  # examples: 2 · 2⁻⁶ < 0.05
# Figures of the paper, arXiv 2510.18810, Table 2, BERT-base: r (maps sum to one), LeRF, MoRF, Δ.
PAPER = {
    "SST-2": {
        "LOO": (1.00, 1.11, 0.33, 0.78),
        "IG": (-0.05, 0.48, 0.36, 0.12),
        "Attention Rollout": (0.08, 0.72, 0.38, 0.35),
        "AttnLRP": (0.22, 0.88, 0.05, 0.83),
        "CP-LRP": (0.52, 1.00, 0.22, 0.79),
    },
    "IMDB": {
        "LOO": (1.00, 2.20, -0.94, 3.14),
        "IG": (0.00, 1.98, 2.70, -0.72),
        "Attention Rollout": (0.04, 2.85, 1.38, 1.47),
        "AttnLRP": (0.25, 3.72, -2.64, 6.36),
        "CP-LRP": (0.26, 3.73, -3.02, 6.75),
    },
}
CORRELATIONS = {
    "pearson": "r",
    "pearson_sum_to_one": "r, sum to one",
    "spearman": "Spearman's ρ",
    "kendall": "Kendall's τ",
}
SCOPES = {"no_special": "without special ones", "all": "all"}
FIGURES = {
    **{f"{key}_{scope}": f"{name}, {where}" for scope, where in SCOPES.items() for key, name in CORRELATIONS.items()},
    "delta": "Δ",
}
SHARES = {
    "share_first": "first token",
    "share_separators": "separators",
    "share_punctuation": "punctuation",
    "share_positions": "positions",
}


def number(value: float | None, digits: int = 3) -> str:
    """A figure with a true minus sign; a dash for one that is undefined."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:.{digits}f}".replace("-", "−")


def interval(low: float | None, high: float | None) -> str:
    """``[0.700, 0.771]``; a dash if there are too few examples."""
    return "–" if low is None else f"[{number(low)}, {number(high)}]"


def paper_data(document: Alignment) -> str | None:
    """The data set of the paper with the name of this source; None if it is another one."""
    name = document.data.name.lower().replace("-", "").replace("_", "")
    return "SST-2" if "sst2" in name else "IMDB" if "imdb" in name else None


def verdict(comparison: Comparison) -> str:
    """Beats, does not beat, no difference, or cannot be told.

    Two explainers differ if the 95 % interval excludes 0 and the signed-rank test has a corrected p < 0.05; where they
    disagree, the one that finds no difference decides, see `deciding`. Below `FEWEST` examples the test cannot reach
    p < 0.05.
    """
    if comparison.low is None or comparison.high is None or comparison.n < FEWEST:
        return "cannot be told"
    if not _rejects(comparison) or not _excludes_0(comparison):
        return "no difference"
    return "beats" if comparison.low > 0 else "does not beat"


def _rejects(comparison: Comparison) -> bool:
    p = corrected_p(comparison)
    return p is not None and p < 0.05


def corrected_p(comparison: Comparison) -> float | None:
    """The p that decides: corrected for the number of explainers; as it is in a document without the correction."""
    return comparison.p if comparison.corrected_p is None else comparison.corrected_p


def _excludes_0(comparison: Comparison) -> bool:
    low, high = comparison.low, comparison.high
    return low is not None and high is not None and (low > 0 or high < 0)


DECIDES = (
    "A difference is claimed only where the interval excludes 0 and the corrected p is below 0.05. Where they "
    "disagree, the one that finds no difference decides: the interval is about the mean difference, which is what is "
    "claimed, and the test about the ranks of the differences."
)
"""Which of interval and test decides, and why."""


def deciding(comparison: Comparison) -> str:
    """``interval`` or ``test``, the one that decides where the two disagree; else empty."""
    if verdict(comparison) == "cannot be told" or _rejects(comparison) == _excludes_0(comparison):
        return ""
    return "interval" if _rejects(comparison) else "test"


def in_short(comparison: Comparison) -> str:
    """The verdict in a cell of a table: which of the two has the larger mean, and what decided if that is not both."""
    larger = {"beats": "larger", "does not beat": "smaller"}.get(verdict(comparison), verdict(comparison))
    return f"{larger}: the {decided} decides" if (decided := deciding(comparison)) else larger


def probability(p: float | None) -> str:
    """``0.012``, or one digit and the power of ten."""
    return number(p) if p is None or p >= 1e-3 else f"{p:.0e}"


def claim(document: Alignment, comparison: Comparison) -> str:
    """The verdict as a clause: ``CP-LRP does not beat AttnLRP on this model``."""
    explainer, rival = document.title_of(comparison.explainer), document.title_of(comparison.against)
    return {
        "beats": f"{explainer} beats {rival} on this model",
        "does not beat": f"{explainer} does not beat {rival} on this model",
        "no difference": f"No difference between {explainer} and {rival} shows on this model",
        "cannot be told": f"Whether {explainer} beats {rival} cannot be told",
    }[verdict(comparison)]


def finding(document: Alignment, comparison: Comparison) -> str:
    """The clause with its figures, and for CP-LRP with the finding of the paper."""
    clause = claim(document, comparison)
    if comparison.difference is None:
        return f"{clause}: the correlation of both is defined on no example."
    return (
        f"{clause}: mean r {number(comparison.mean)} against {number(comparison.mean_against)}, "
        f"difference {number(comparison.difference)} {interval(comparison.low, comparison.high)} over {comparison.n} "
        f"{document.data.items}{_disagreement(comparison)}{_finding_of_the_paper(document, comparison)}."
    )


def _disagreement(comparison: Comparison) -> str:
    p = f"the test has a corrected p of {probability(corrected_p(comparison))}"
    return {
        "interval": f"; {p}, but the interval includes 0, and decides, as the claim is about the mean",
        "test": f"; the interval excludes 0, but {p}, and decides",
        "": "",
    }[deciding(comparison)]


def _finding_of_the_paper(document: Alignment, comparison: Comparison) -> str:
    if comparison.explainer != "cplrp":
        return ""
    data = paper_data(document) or "SST-2"
    cplrp, attnlrp = PAPER[data]["CP-LRP"][0], PAPER[data]["AttnLRP"][0]
    finding = {
        "beats": "the paper found the same",
        "does not beat": "the paper found the opposite",
        "no difference": "the paper found that it beats AttnLRP",
        "cannot be told": "the paper found that it does",
    }[verdict(comparison)]
    return f"; {finding} on BERT-base, {data} ({cplrp:.2f} against {attnlrp:.2f}, maps that sum to one)"


def headline(document: Alignment) -> str:
    """CP-LRP against AttnLRP if both were measured, else how many explainers were; and how many failed."""
    measured = len(document.measured)
    of_cplrp = [row for row in _correlations_compared(document) if row.explainer == "cplrp"]
    explainers = "1 explainer" if measured == 1 else f"{measured} explainers"
    said = claim(document, of_cplrp[0]) if of_cplrp else f"{explainers} against Leave-One-Out"
    failed = sum(explainer.failed for explainer in document.explainers)
    left_behind = sum(bool(explainer.left_behind) for explainer in document.explainers)
    return (
        said
        + (f"; {failed} {'explainer' if failed == 1 else 'explainers'} failed" if failed else "")
        + (f"; {left_behind} left something behind" if left_behind else "")
    )


def findings(document: Alignment) -> list[str]:
    """A sentence for each explainer against AttnLRP, CP-LRP first; LOO is the reference and has no sentence."""
    compared = [row for row in _correlations_compared(document) if row.explainer != "loo"]
    return [finding(document, row) for row in sorted(compared, key=lambda row: row.explainer != "cplrp")]


def _correlations_compared(document: Alignment) -> list[Comparison]:
    return [row for row in document.comparisons if row.figure == "pearson_no_special"]


def counted(document: Alignment) -> list[str]:
    """Sentences on the examples: how many were measured, left out or cut, and why."""
    counts, items, features, feature = (
        document.counts,
        document.data.items,
        document.model.features,
        document.model.feature,
    )
    return [
        f"{counts.measured} of {counts.examples} {items} are measured.",
        f"Left out: {counts.empty} that hold special {features} alone, and {counts.alone} of a single {feature}, whose "
        "removal leaves nothing."
        if counts.empty or counts.alone
        else f"No {document.data.item} is left out for having too few {features}.",
        *_left_out(document),
        f"Cut to {document.settings.max_length} {features}: {counts.truncated}."
        if counts.truncated
        else f"No {document.data.item} is cut.",
        f"With a single {feature} that is not special, so that the correlation without special {features} is "
        f"undefined: {counts.one_feature}.",
        *_of_each(document),
    ]


def _left_out(document: Alignment) -> Iterator[str]:
    """How many texts the model does not answer or does not take, and the way out."""
    if document.counts.unanswered:
        yield (
            f"Left out because the model's answer is empty: {document.counts.unanswered}: its most likely next token "
            "ends the text. --target gives an answer."
        )
    if document.counts.too_long:
        yield (
            f"Left out, with more than the {document.settings.max_length} tokens that a prompt may have: "
            f"{document.counts.too_long}. The model's next token depends on the last ones, so no prompt is cut. "
            "--max-length=N cuts texts to N tokens."
        )


def _of_each(document: Alignment) -> Iterator[str]:
    """Where the figures of each example are, unless they are in this document alone."""
    item = document.data.item
    if document.examples is None:
        yield f"This document does not hold the figures of each {item}; faithcheck align --parquet writes them."
    if document.parquet is not None:
        yield f"The map, the curves and the figures of every {item} are in {document.parquet.folder}, as Parquet files."
