"""The figures of the alignment document: r with its intervals, cost against r, and the perturbation curves."""

from __future__ import annotations

from collections.abc import Iterator

from faithcheck.reports.pages.alignment_tables import COST, R, by_agreement, measured_curves
from faithcheck.reports.pages.alignment_wording import label
from faithcheck.reports.results import Json


def figures(document: Json) -> list[Json]:
    """The figures of a page; documents of older versions hold no cost and no mean curves."""
    return [*_agreement(document), *_cost(document), *_curves(document)]


def _agreement(document: Json) -> Iterator[Json]:
    estimates = [
        {"label": label(document, one["name"]), "value": r["mean"], "low": r["low"], "high": r["high"]}
        for one in by_agreement(document)
        if one["name"] != "loo" and (r := one["figures"][R])["mean"] is not None
    ]
    if estimates:
        panel = {"title": "", "x": "r with Leave-One-Out", "y": "explainer", "estimates": estimates}
        note = f"Mean r over {document['data']['items']} and its bootstrap 95 % interval, the largest on top."
        yield {"title": "Agreement with Leave-One-Out", "note": note, "panels": [panel]}


def _cost(document: Json) -> Iterator[Json]:
    lines = [
        {"label": label(document, one["name"]), "x": [one["cost"]], "y": [r]}
        for one in by_agreement(document)
        if one.get("cost") and (r := one["figures"][R]["mean"]) is not None
    ]
    if lines:
        axes = {"x": "plain forward passes", "y": "r with Leave-One-Out", "log": "x"}
        note = f"{COST} It counts the operations of matrix products, so that it does not depend on the machine."
        panel = {"title": "", **axes, "lines": lines}
        yield {"title": "Cost and agreement with Leave-One-Out", "note": note, "panels": [panel]}


def _curves(document: Json) -> Iterator[Json]:
    measured = [one for one in measured_curves(document) if one.get("mean_curves")]
    features = document["model"]["features"]
    names = {"lerf": "LeRF: the least relevant first", "morf": "MoRF: the most relevant first"}
    panels = []
    for key, title in names.items():
        curves = [(label(document, one["name"]), one["mean_curves"]) for one in measured]
        lines = [{"label": name, "x": curve["removed"], "y": curve[key]} for name, curve in curves]
        panels.append(
            {"title": title, "x": f"share of {features} removed", "y": "mean explained output", "lines": lines}
        )
    if measured:
        note = (
            f"Mean over {document['data']['items']} of the explained output as {features} are removed; special ones "
            "stay. A good order keeps LeRF high and makes MoRF fall at once."
        )
        yield {"title": "Perturbation curves", "note": note, "panels": panels}
