"""The benchmark document on the disk, complete after each point, so that a run that was stopped resumes."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from faithcheck.alignment.run_key import plain_json
from faithcheck.reports import benchmark, results
from faithcheck.reports.results import Json, ResultsError


class KeptDocument:
    """A benchmark document and its file.

    A document of the same code and settings is continued. Any other one stays beside it, named by its key.

    Attributes:
        path: of the file; its folder is created.
        document: what is in the file, or an empty document that is not in it yet.

    Args:
        path: see there.
        settled: ``faithcheck``, ``environment``, ``settings`` and ``device`` of the document.
        code: a digest of the code that is measured and that measures.
    """

    def __init__(self, path: Path, settled: Json, code: str) -> None:
        versions = {name: value for name, value in settled["environment"].items() if name not in results.COMMITS}
        key = hashlib.sha256(plain_json([results.plain({**settled, "environment": versions}), code]).encode())
        self.path = path
        self.document: Json = {
            "schema_version": benchmark.SCHEMA_VERSION,
            "kind": results.BENCHMARK,
            "key": key.hexdigest(),
            **settled,
            "points": [],
            "agreements": [],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        found = self._read()
        if found.get("key") != self.document["key"]:
            if path.exists():
                os.replace(path, self._beside(found.get("key", "damaged")))
            if self._beside(self.document["key"]).exists():
                os.replace(self._beside(self.document["key"]), path)
                found = self._read()
        self.document = found if found.get("key") == self.document["key"] else self.document

    def _beside(self, key: str) -> Path:
        return self.path.with_suffix(f".{key[:8]}.json")

    def _read(self) -> Json:
        """The content of the file; empty if it is missing or damaged."""
        try:
            return benchmark.check(results.read(self.path), self.path)
        except ResultsError:
            return {}

    def has_point(self, shape: str, size: Json) -> bool:
        """Whether this shape was measured at this size."""
        return any({"shape": shape, **size}.items() <= point.items() for point in self.document["points"])

    def add_point(self, point: Json) -> None:
        """Add a point and write the document."""
        self._write(points=[*self.document["points"], point])

    def add_agreement(self, agreement: Json) -> None:
        """Add an agreement with Leave-One-Out and write the document."""
        self._write(agreements=[*self.document["agreements"], agreement])

    def has_agreement(self, data: str) -> bool:
        """Whether the agreement was measured on this data."""
        return any(agreement["data"] == data for agreement in self.document["agreements"])

    def _write(self, **changed: object) -> None:
        document = results.plain({**self.document, **changed})
        results.save(benchmark.check(document, self.path), self.path)
        self.document = document
