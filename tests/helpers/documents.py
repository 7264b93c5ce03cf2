"""Results documents, records and figures, written by hand."""

from faithcheck.axioms.engine.statuses import RED, SKIPPED, UNMEASURED
from faithcheck.reports import results
from faithcheck.reports.results import Json


def record(status: str, **changed: object) -> Json:
    """A record of this status, with these fields changed."""
    explainer = f"by_{status.replace(' ', '_')}"
    return {
        "id": f"invariance/{explainer}-family.pair",
        "axiom": "invariance",
        "explainer": explainer,
        "subject": "family.pair",
        "gap": None if status in ("error", "unsupported", "not run") else 0.31,
        "tol": 1e-9,
        "predicted": 0.62,
        "prediction_error": 0.5,
        "floor": None,
        "expected": "HOLDS",
        "status": status,
        "why": f"why of {status}",
        "cite": "Someone 2025, Eq. 1",
        "seed": 7,
        "detail": {},
        "traceback": None,
        **changed,
    }


def figure(**changed: object) -> Json:
    """A figure of two panels: plain lines with a gap, and a dashed one on logarithmic axes."""
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


def document(records: list[Json], **changed: object) -> Json:
    """A results document with these records, with these keys changed."""
    red = sum(r["status"] in RED for r in records)
    skipped = sum(r["status"] in SKIPPED for r in records)
    passed = len(records) - red - skipped - sum(r["status"] in UNMEASURED for r in records)
    counts = {"planned": len(records), "ran": passed + red, "passed": passed, "failed": red}
    return {
        "schema_version": results.SCHEMA_VERSION,
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
        },
        "axioms": {"invariance": "two implementations get one attribution"},
        "counts": {**counts, "skipped": skipped, "deselected": 3},
        "skips": results.skips_by_reason([("a::b[c]", "no rule for mul")] * skipped),
        "failures": [],
        "records": records,
        "tables": [
            {"title": "Table 1", "note": "five seeds", "columns": ["explainer", "r"], "rows": [["LOO", 0.73521]]}
        ],
        "figures": [figure()],
        **changed,
    }
