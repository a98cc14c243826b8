"""Runs as CSV, JSON and Parquet: one row a measurement, with what there is to know about its run."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from ...core.errors import HeadstockError
from .documents import EXPORT
from .records import Run

COLUMNS: tuple[str, ...] = (
    "run", "kind", "source", "when", "machine_id", "machine", "subject", "package", "source_hash", "workload", "metric",
    "unit", "value", "better", "right",
)  # fmt: skip
"""Of a table; `value` is a number, `right` a truth or nothing, all others are text."""


def flat(runs: Sequence[Run]) -> Iterator[dict[str, Any]]:
    """Rows of a table; samples are left out."""
    for run in runs:
        for m in run.measurements:
            yield {
                "run": run.id,
                "kind": run.kind,
                "source": run.source,
                "when": run.when,
                "machine_id": run.machine_id,
                "machine": run.machine.get("cpu", ""),
                "subject": m.subject,
                "package": m.package,
                "source_hash": m.source_hash,
                "workload": m.workload,
                "metric": m.metric,
                "unit": m.unit,
                "value": m.value,
                "better": m.better,
                "right": m.right,
            }


def write_csv(runs: Sequence[Run], file: TextIO) -> None:
    writer = csv.DictWriter(file, fieldnames=COLUMNS)
    writer.writeheader()
    writer.writerows(flat(runs))


def write_json(runs: Sequence[Run], file: TextIO) -> None:
    """With samples and machines: `headstock results import` reads it back."""
    json.dump({"schema": EXPORT, "runs": [run.to_dict() for run in runs]}, file, indent=1)
    file.write("\n")


def write_parquet(runs: Sequence[Run], path: Path) -> None:
    """Raises `HeadstockError` where pyarrow is missing, and `OSError` where the file cannot be written."""
    try:
        import pyarrow  # pyright: ignore[reportMissingImports] - optional
        from pyarrow import parquet  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise HeadstockError("--format parquet needs pyarrow: pip install 'headstock[parquet]'") from error
    kinds = {"value": pyarrow.float64(), "right": pyarrow.bool_()}
    schema = pyarrow.schema([(name, kinds.get(name, pyarrow.string())) for name in COLUMNS])
    parquet.write_table(pyarrow.Table.from_pylist(list(flat(runs)), schema), path)
