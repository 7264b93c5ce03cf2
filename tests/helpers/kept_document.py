"""The benchmark document on the disk, complete after each point, so that a run that was stopped resumes."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from msgspec import structs

from faithcheck.alignment.run_key import plain_json
from faithcheck.reports.documents.benchmark import Agreements, Benchmark, Device, Point, Settings, Size
from faithcheck.reports.documents.document import COMMITS, DocumentError, Environment, load, save, to_json


class KeptDocument:
    """A benchmark document and its file.

    A document of the same code and settings is continued. Any other one stays beside it, named by its key.
    """

    def __init__(
        self, path: Path, faithcheck: str, environment: Environment, settings: Settings, device: Device, code: str
    ) -> None:
        versions = {name: value for name, value in environment.items() if name not in COMMITS}
        key = hashlib.sha256(plain_json(to_json([faithcheck, versions, settings, device, code])).encode()).hexdigest()
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        found = self._read()
        if found is None or found.key != key:
            if path.exists():
                os.replace(path, self._beside(found.key if found else "damaged"))
            if self._beside(key).exists():
                os.replace(self._beside(key), path)
                found = self._read()
        empty = Benchmark(
            schema_version=Benchmark.VERSION,
            faithcheck=faithcheck,
            environment=environment,
            key=key,
            settings=settings,
            device=device,
            points=[],
            agreements=[],
        )
        self.document = found if found is not None and found.key == key else empty

    def _beside(self, key: str) -> Path:
        return self.path.with_suffix(f".{key[:8]}.json")

    def _read(self) -> Benchmark | None:
        """The content of the file; None if it is missing or damaged."""
        try:
            return load(self.path, Benchmark)
        except DocumentError:
            return None

    def has_point(self, shape: str, size: Size) -> bool:
        """Whether this shape was measured at this size."""
        return any(point.shape == shape and point.has_size(size) for point in self.document.points)

    def add_point(self, point: Point) -> None:
        """Add a point and write the document."""
        self._write(structs.replace(self.document, points=[*self.document.points, point]))

    def add_agreement(self, agreement: Agreements) -> None:
        """Add an agreement with Leave-One-Out and write the document."""
        self._write(structs.replace(self.document, agreements=[*self.document.agreements, agreement]))

    def has_agreement(self, data: str) -> bool:
        """Whether the agreement was measured on this data."""
        return any(agreement.data == data for agreement in self.document.agreements)

    def _write(self, document: Benchmark) -> None:
        save(document, self.path)
        self.document = document
