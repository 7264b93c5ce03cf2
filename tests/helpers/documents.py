"""Results documents, records and figures, written by hand."""

from typing import Any, TypeAlias

from msgspec.structs import replace

from faithcheck.axioms.measure.record import Record
from faithcheck.axioms.measure.statuses import RED, SKIPPED, UNMEASURED
from faithcheck.reports.documents.alignment import Alignment, Means, Undefined
from faithcheck.reports.documents.document import Document, from_json, to_json
from faithcheck.reports.documents.explanation import Explanation
from faithcheck.reports.documents.figure import Figure
from faithcheck.reports.documents.results import Results, skips_by_reason

Json: TypeAlias = dict[str, Any]


def record(status: str, **changed: object) -> Record:
    """A record of this status, with these fields changed; they may be in the types of JSON."""
    explainer = f"by_{status.replace(' ', '_')}"
    content = {
        "id": f"invariance/{explainer}-family.pair",
        "axiom": "invariance",
        "explainer": explainer,
        "subject": "family.pair",
        "gap": None if status in ("error", "unsupported", "not measured", "not a pair", "not run") else 0.31,
        "tol": 1e-9,
        "predicted": 0.62,
        "prediction_error": 0.5,
        "floor": None,
        "ceiling": None,
        "expected": "HOLDS",
        "status": status,
        "why": f"why of {status}",
        "cite": "Someone 2025, Eq. 1",
        "seed": 7,
        "detail": {},
        "traceback": None,
        **changed,
    }
    # Names keep characters that JSON cannot hold, as those of an explainer do.
    made = from_json(to_json(content), Record)
    return replace(made, **{name: text for name, text in content.items() if isinstance(getattr(made, name), str)})


_MAPS = {
    **{"example": 0, "examples": 2, "features": 2},
    "maps": [{"of": "the map of f", "values": [0.5, -0.25]}, {"of": "the map of g", "values": [0.25, -0.25]}],
    "relation": {"kind": "factor", "value": 0.5, "first": "the map of f", "second": "the map of g"},
}
EVIDENCE: dict[str, Json] = {
    "words": {**_MAPS, "names": ["a", "b"]},
    "trees": {**_MAPS, "terms": [["*", "x1", "x2"], ["+", ["exp", "x1"], "x2"]], "predicted": [0.5, 0.25]},
    "images": {**_MAPS, "image": [1, 2]},
    "bars": {**_MAPS, "figures": {"f(x)": 1.5}, "relation": {"kind": "zero", "first": "sum", "second": "difference"}},
}
"""The evidence of a red record in each of the layouts of `faithcheck.reports.pages.evidence`."""


def figure(**changed: object) -> Figure:
    """A figure of two panels: plain lines with a gap, and a dashed one on logarithmic axes."""
    return from_json(figure_content(**changed), Figure)


def figure_content(**changed: object) -> Json:
    """The same in the types of JSON."""
    lines = [
        {"label": "AttnLRP", "x": [1, 2, 4], "y": [0.5, "nan", 0.25]},
        {"label": "a < b $", "x": [2], "y": [0.125]},
    ]
    dashed = {"label": "AttnLRP", "x": [0.01, 100], "y": [1e-5, 10.0], "dashed": True}
    panels = [
        {"title": "agreement", "x": "layers & $k$", "y": "r", "lines": lines},
        {"title": "size", "x": "s", "y": "share", "log": "xy", "lines": [dashed]},
    ]
    return {"title": "Figure 2", "note": "60 sentences", "panels": panels, **changed}


def document(records: list[Record], settings: Json | None = None, **changed: object) -> Results:
    """A results document with these records, with these settings and fields changed."""
    red = sum(one.status in RED for one in records)
    skipped = sum(one.status in SKIPPED for one in records)
    passed = len(records) - red - skipped - sum(one.status in UNMEASURED for one in records)
    counts = {"planned": len(records), "ran": passed + red, "passed": passed, "failed": red}
    content = {
        "schema_version": Results.VERSION,
        "faithcheck": "0.1.0",
        "created": "2026-01-01T00:00:00+00:00",
        "environment": {"python": "3.11", "commit": None},
        "settings": {
            "seed": 7,
            "dtype": "float64",
            "device": "cpu",
            "data": "digits",
            "threads": 2,
            "arguments": ["-m", "x"],
            **(settings or {}),
        },
        "axioms": {"invariance": "two implementations get one attribution"},
        "counts": {**counts, "skipped": skipped, "deselected": 3},
        "rules": {"attnlrp": {"met": 1, "of": 2, "unmet": ["mul"]}},
        "skips": skips_by_reason([("a::b[c]", "no rule for mul")] * skipped),
        "failures": [],
        "records": [],
        "tables": [
            {"title": "Table 1", "note": "five seeds", "columns": ["explainer", "r"], "rows": [["LOO", 0.73521]]}
        ],
        "figures": [],  # to draw one takes a third of a second
        **changed,
    }
    return replace(from_json(to_json(content), Results), records=records)


def alignment(**explainers: tuple[float, float] | str) -> Json:
    """An alignment document with these explainers: {name: (r, Δ)}, or the reason for which one was refused."""

    def figures(content: tuple[float, float] | str) -> Json:
        measured = {name: 0.25 for name in Means.__struct_fields__ if not name.startswith("share_")}
        measured |= {} if isinstance(content, str) else {"pearson_all": content[0], "delta": content[1]}
        mean = {name: None if isinstance(content, str) else value for name, value in measured.items()}
        return {name: {"mean": value, "low": None, "high": None, "n": 8} for name, value in mean.items()}

    return {
        "schema_version": 1,
        "kind": "alignment",
        "faithcheck": "0.1.0",
        "environment": {"torch": "2.13"},
        "model": {
            **{"name": "bert", "class": "Bert", "fingerprint": "a", "explained": "the logit", "features": "tokens"},
            **{"layers": 2, "parameters": 1234},
        },
        "data": {"name": "own", "items": "texts", "fingerprint": "b"},
        "settings": {
            **{"removal": "zero", "chunk_reason": "one at a time", "dtype": "float32", "device": "cpu"},
            **{"chunk": 1, "max_tokens": 512, "threads": 1, "seed": 0, "max_length": None},
        },
        "counts": {"examples": 9, "measured": 8, "empty": 1, "alone": 0, "truncated": 0, "one_feature": 0},
        "comparisons": [
            {
                **{"explainer": name, "against": "attnlrp", "figure": "pearson_no_special", "n": 8},
                **{"mean": 0.1, "mean_against": 0.2, "difference": -0.1, "low": -0.2, "high": 0.1, "p": 0.5},
            }
            for name, content in explainers.items()
            if name != "attnlrp" and not isinstance(content, str)
        ],
        "explainers": [
            {
                "name": name,
                "how": f"how {name} works",
                "refused": content if isinstance(content, str) else "",
                "failed": False,
                "left_behind": "",
                "warned": "",
                "figures": figures(content),
                "undefined": {scope: {"constant map": 1} for scope in Undefined.__struct_fields__},
            }
            for name, content in explainers.items()
        ],
    }


def typed(content: Json) -> Document:
    """The document of any kind that has this content."""
    kinds = {None: Results, "alignment": Alignment, "explanation": Explanation}
    return from_json(content, kinds[content.get("kind")])


def shown(*explainers: str) -> Json:
    """What an alignment document of these explainers holds further: a shown text with its maps.

    The text is [CLS] grin ##ning films [SEP]; the map of "attention_rollout" has no negative value.
    """
    texts = (("[CLS]", False), ("grin", False), ("ning", True), ("films", False), ("[SEP]", False))
    features = [{"text": text, "glued": glued, "special": text[0] == "["} for text, glued in texts]
    sign = {name: 1 if name == "attention_rollout" else -1 for name in explainers}
    maps = [{"explainer": n, "r": 0.5, "values": [0.25, 2.0, 1.0, 1.5 * sign[n], 9.0]} for n in explainers]
    return {"shown": [{"index": 7, "agreement": "least", "mean": 0.25, "features": features, "maps": maps}]}


def explanation() -> Json:
    """An explanation document of LOO and AttnLRP, of the text of `shown`."""
    (one,) = shown("loo", "attnlrp")["shown"]
    further = {"how": "as it is", "origin": "", "sum": 1.0, "left_behind": "", "notes": ["a note"]}
    return {
        "schema_version": 1,
        "kind": "explanation",
        **{"faithcheck": "0.1.0", "model": "bert", "architecture": "Bert", "device": "cpu", "text": "grinning films"},
        **{
            "explained": "good",
            "decoder": False,
            "outputs": 2,
            "change": 0.5,
            "notes": [],
            "features": one["features"],
        },
        "classes": [
            {"number": 1, "name": "good", "logit": 1.0, "probability": 0.9, "explained": True},
            {"number": 0, "name": "bad", "logit": -1.0, "probability": 0.1, "explained": False},
        ],
        "maps": [{**one_map, **further} for one_map in one["maps"]],
    }


def many_records(count: int) -> Results:
    """A results document of this many records, as the suite has them: 4 axioms, 25 explainers, 20 families of pairs."""
    statuses = ["holds"] * 12 + ["predicted violation", "unsupported", "recorded"] * 2 + ["broken claim"]
    explainers = [f"an_explainer_{number}" for number in range(25)]
    axioms = ("invariance", "completeness", "sensitivity", "determinism")
    records = []
    for i in range(count):
        pair, rest = divmod(i, len(explainers) * len(axioms))
        explainer, axiom = explainers[rest % len(explainers)], axioms[rest // len(explainers)]
        subject = f"family_{pair % 20}.a_pair_of_usual_length_{pair // 20}"
        # Whether a record is red depends on its family too, as in a run: most families are green.
        status = statuses[(i * 7 + pair) % (len(statuses) if pair % 20 < 4 else len(statuses) - 1)]
        reason = f"{explainer} and the definition of {axiom}, from which it follows that it is so: {status}, {pair % 2}"
        records.append(
            record(
                status,
                **{"id": f"{axiom}/{explainer}-{subject}", "axiom": axiom, "explainer": explainer},
                **{"subject": subject, "why": reason, "gap": None if status == "unsupported" else (i + 1) / 7e5},
                **{"predicted": 0.62 if status == "predicted violation" else None, "prediction_error": None},
                detail={"examples": 8},
            )
        )
    return document(records, axioms={axiom: f"what {axiom} means" for axiom in axioms})


def without_run(document: Json) -> Json:
    """A results document, as JSON, without what differs between two runs of the same checks."""
    of_the_run = {"created", "slowest", "seconds", "reused", "run"}
    settings = {key: value for key, value in document["settings"].items() if key != "arguments"}
    return {key: value for key, value in document.items() if key not in of_the_run} | {"settings": settings}
