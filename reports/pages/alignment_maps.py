"""The examples of the alignment document whose maps a page shows side by side."""

from __future__ import annotations

from collections.abc import Iterator

from faithcheck.reports.joined_words import relevance_of, words
from faithcheck.reports.pages import columns, relevance
from faithcheck.reports.pages.alignment_tables import by_agreement
from faithcheck.reports.pages.alignment_wording import label, number
from faithcheck.reports.results import Json

AGREEMENT = {"least": "least agreement", "median": "median agreement", "most": "most agreement"}


def shown(document: Json) -> list[Json]:
    """Each shown example: ``title``, ``rows`` of explainers with their coloured map, ``grid`` and the ``table``.

    ``grid`` is the number of patches in a row of an image, 0 for a text; ``table`` has the numbers. Documents of older
    versions hold no maps.
    """
    return [_shown(document, one) for one in document.get("shown", ())]


def note(document: Json) -> str:
    """How the shown examples were chosen, and what their colours mean."""
    features, items = document["model"]["features"], document["data"]["items"]
    joined = "A word is the sum of its tokens; special tokens are underlined. " if features == "tokens" else ""
    return (
        f"{len(document['shown'])} of {document['counts']['measured']} {items}: those of least, median and most "
        "agreement, which is the mean r of the explainers with LOO; those of fewer than 5 "
        f"{features} that are not special, or of more than 512 in all, are left out. {joined}"
        "Each map is coloured by its own largest value that is not special: red for the explained output, blue "
        "against it; violet in a map without a negative value."
    )


def _shown(document: Json, one: Json) -> Json:
    maps = {row["explainer"]: row for row in one["maps"]}
    order = [maps[explainer["name"]] for explainer in by_agreement(document) if explainer["name"] in maps]
    features = words(one["features"]) if document["model"]["features"] == "tokens" else _alone(one["features"])
    item = document["data"]["items"][:-1]
    title = f"{item.capitalize()} {one['index']}: {AGREEMENT[one['agreement']]}, mean r {number(one['mean'])}"
    values = {row["explainer"]: relevance_of(features, row["values"]) for row in order}
    return {
        "title": title,
        "grid": sum(feature["text"].startswith("r0c") for feature in one["features"]) if _is_image(document) else 0,
        "rows": [
            {
                "label": label(document, row["explainer"]),
                "r": number(row["r"]),
                "words": relevance.coloured(features, values[row["explainer"]]),
            }
            for row in order
        ],
        "table": columns.plain_table(
            title,
            f"The values of the maps, {'a word' if not _is_image(document) else 'a patch'} a row.",
            ["word" if not _is_image(document) else "patch", *(label(document, row["explainer"]) for row in order)],
            list(_rows(features, values)),
        ),
    }


def _is_image(document: Json) -> bool:
    return bool(document["model"]["features"] == "patches")


def _alone(features: list[Json]) -> list[Json]:
    return [{**feature, "features": [index]} for index, feature in enumerate(features)]


def _rows(features: list[Json], values: dict[str, list[float]]) -> Iterator[list[object]]:
    for i, feature in enumerate(features):
        yield [feature["text"], *(of[i] for of in values.values())]
