"""The benchmark document on the disk, complete after each point, so that a run that was stopped resumes."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from faithcheck.axioms.alignment.run_key import plain_json
from faithcheck.reports import benchmark, results
from faithcheck.reports.results import Json, ResultsError


class KeptDocument:
    """A benchmark document and its file.

    A document of the same code and settings is continued. Any other one is renamed to ``….previous.json``.

    Attributes:
        path: of the file; its folder is created.
        document: what is in the file, or an empty document that is not in it yet.

    Args:
        path: see there.
        settled: ``faithcheck``, ``environment``, ``settings`` and ``device`` of the document.
        code: a digest of the code that is measured and that measures.
    """

    def __init__(self, path: Path, settled: Json, code: str) -> None:
        versions = {name: value for name, value in settled["environment"].items() if name != "commit"}
        key = hashlib.sha256(plain_json([results.plain({**settled, "environment": versions}), code]).encode())
        self.path = path
        self.document: Json = {
            "schema_version": benchmark.SCHEMA_VERSION,
            "kind": results.BENCHMARK,
            "key": key.hexdigest(),
            **settled,
            "points": [],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            self._continue()

    def _continue(self) -> None:
        try:
            found = benchmark.check(results.read(self.path), self.path)
        except ResultsError:
            found = {"key": None}
        if found["key"] == self.document["key"]:
            self.document = found
        else:
            os.replace(self.path, self.path.with_suffix(".previous.json"))

    def has_point(self, shape: str, size: Json) -> bool:
        """Whether this shape was measured at this size."""
        return any({"shape": shape, **size}.items() <= point.items() for point in self.document["points"])

    def add_point(self, point: Json) -> None:
        """Add a point and write the document."""
        self._write(points=[*self.document["points"], point])

    def add_agreement(self, agreement: Json) -> None:
        """Add the agreement with Leave-One-Out and write the document."""
        self._write(agreement=agreement)

    def _write(self, **changed: object) -> None:
        document = results.plain({**self.document, **changed})
        results.save(benchmark.check(document, self.path), self.path)
        self.document = document
