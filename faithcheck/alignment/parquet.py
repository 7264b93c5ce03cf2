"""``faithcheck align --parquet``: what was measured of every example, as Parquet files that say what made them."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from faithcheck.alignment.explainer_pass import ExplainerResult
from faithcheck.alignment.figures import FIGURES, REASONS, SCOPES, Figures

Row: TypeAlias = Mapping[str, Any]
"""The values of an example by column."""
CURVES = ("morf_curve", "lerf_curve")
"""The columns of the curves: MoRF and LeRF are figures too, the means of the curves."""
SHARD = 10_000
"""The most examples of a file."""
VALUES = 2**19
"""So many values of maps and curves are held until they are written: some 30 MB."""


def write_parquet(
    folder: Path,
    result: ExplainerResult,
    figures: Figures,
    digest_of: Callable[[int], str],
    answer_of: Callable[[int], str | None],
    about: Mapping[str, object],
) -> list[str]:
    """Write what was measured of one explainer: a row for each example, in the order of the batches.

    A row has ``example``, its index in the data, and its ``digest``; ``target``; ``answer``, null if none is explained;
    ``map``; the `CURVES`; the figures, null where they are undefined; and ``undefined_no_special`` and
    ``undefined_all``, why. The metadata has under ``faithcheck``, as JSON, everything that determined the numbers.
    Equal measurements give equal files, whose names are returned; each has at most `SHARD` examples.
    """
    import pyarrow.parquet

    assert result.store is not None
    made_by = {**about, "explainer": result.name, "key": json.loads(result.store.key)}
    schema = _schema().with_metadata({"faithcheck": json.dumps(made_by, sort_keys=True)})
    folder.mkdir(parents=True, exist_ok=True)
    rows, shards = _rows(result, figures, digest_of, answer_of), -(-len(result.records) // SHARD)
    names = [f"{result.store.file.stem}-{shard:05}-of-{shards:05}.parquet" for shard in range(shards)]
    for name in names:
        unfinished = folder / f".{name}.part"
        with pyarrow.parquet.ParquetWriter(unfinished, schema) as writer:
            for group in _groups(islice(rows, SHARD)):
                writer.write_table(pyarrow.Table.from_pylist(group, schema))
        os.replace(unfinished, folder / name)
    return names


def _schema() -> Any:
    import pyarrow

    number, word = pyarrow.float64(), pyarrow.string()
    kinds = {"example": pyarrow.int64(), "digest": word, "target": pyarrow.int64(), "answer": word}
    kinds |= dict.fromkeys(("map", *CURVES), pyarrow.list_(number)) | dict.fromkeys(FIGURES, number)
    return pyarrow.schema({**kinds, **{f"undefined_{scope}": word for scope in SCOPES}})


def _rows(
    result: ExplainerResult,
    figures: Figures,
    digest_of: Callable[[int], str],
    answer_of: Callable[[int], str | None],
) -> Iterator[Row]:
    for example, record in result.records.items():
        place = int(np.searchsorted(figures.examples, example))
        values = {name: column[place] for name, column in figures.columns.items()}
        yield {
            "example": example,
            "digest": digest_of(example),
            "answer": answer_of(example),
            "target": record.target,
            "map": record.map,
            **dict(zip(CURVES, (record.morf, record.lerf), strict=True)),
            **{name: None if value is np.ma.masked else float(value) for name, value in values.items()},
            **{f"undefined_{scope}": REASONS[reasons[place]] for scope, reasons in figures.undefined.items()},
        }


def _groups(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """The rows in lists of about `VALUES` values."""
    group: list[Row] = []
    values = 0
    for row in rows:
        group.append(row)
        values += sum(len(row[name]) for name in ("map", *CURVES))
        if values >= VALUES:
            yield group
            group, values = [], 0
    if group:
        yield group
