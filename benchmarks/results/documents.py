"""From the JSON documents of our own commands to runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...core.errors import InvalidInput
from .records import Measurement, Run

Document = Mapping[str, Any]
EXPORT = "headstock.results/1"
"""Schema of ``headstock results export --format json``."""


def read_document(document: Document) -> list[Run] | None:
    """The runs in a document of ours; None where it is none. Raises `InvalidInput` where it is one and broken."""
    schema = document.get("schema")
    reader = READERS.get(schema) if isinstance(schema, str | int) and not isinstance(schema, bool) else None
    if reader is None:
        if isinstance(schema, str) and schema.startswith("headstock."):
            known = ", ".join(name for name in READERS if isinstance(name, str))
            raise InvalidInput("file", f"says it is {schema}; this version reads {known}")
        return None
    try:
        return reader(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInput("file", f"says it is {schema}, but {type(error).__name__}: {error}") from error


def _export(document: Document) -> list[Run]:
    return [Run.from_dict(values) for values in document["runs"]]


def _run(kind: str, document: Document, measurements: tuple[Measurement, ...]) -> Run:
    """Of a benchmark that describes its machine."""
    machine = document["machine"]
    return Run.of(
        kind=kind,
        source="headstock",
        when=machine["when"],
        command=document["command"],
        machine=machine,
        versions={name: machine[name] for name in ("headstock", "torch", "python") if name in machine},
        measurements=measurements,
    )


def _kernels(document: Document) -> list[Run]:
    about = {entrant["name"]: entrant for entrant in document["contenders"]}
    return [_run("kernels", document, tuple(m for row in document["rows"] for m in _kernel_row(row, about)))]


def _kernel_row(row: Document, about: Mapping[str, Document]) -> Iterator[Measurement]:
    threads = row["threads"]
    workload = f"{row['shape']} {row['dtype']} {threads} thread{'s' if threads > 1 else ''}"
    for found in row["measurements"]:
        entrant = about[found["name"]]
        common = {
            "subject": found["name"],
            "workload": workload,
            "package": entrant["package"],
            "source_hash": entrant.get("source_hash", ""),
        }
        if found["median_us"] is not None:
            samples = tuple(found["samples_us"])
            yield Measurement(
                **common,
                metric="time",
                unit="us",
                better="lower",
                value=found["median_us"],
                samples=samples,
                right=True,
            )
        elif found["failed"] and found["error"] is not None:
            yield Measurement(
                **common, metric="error", unit="of the largest value", better="lower", value=found["error"], right=False
            )


def _engine(document: Document) -> list[Run]:
    threads = document["threads"]
    workload = f"{document['model']} {document['workload']} {document['dtype']} {threads} threads"
    measurements = tuple(
        Measurement(
            subject=arm["name"],
            workload=workload,
            metric=name,
            unit=series["unit"],
            better="higher" if name.endswith("_throughput") else "lower",
            value=series["median"],
            samples=tuple(series["samples"]),
            package=arm["package"],
            source_hash=arm["source_hash"],
        )
        for arm in document["arms"]
        for name, series in (arm["metrics"] or {}).items()
    )
    return [_run(document["kind"], document, measurements)]


def _serve(document: Document) -> list[Run]:
    limit = f", at most {document['max_concurrency']} at a time" if document["max_concurrency"] else ""
    client = document["client"]
    return [
        Run.of(
            kind="serve",
            source="headstock",
            when=client["when"],
            command=document["command"],
            machine=client,
            versions={name: client[name] for name in ("headstock", "python")},
            measurements=tuple(
                Measurement(
                    subject=document["model"],
                    workload=f"{document['workload']}, {document['arrivals']}{limit}",
                    metric=name,
                    unit=found["unit"],
                    better="higher" if name.endswith("_throughput") else "lower",
                    value=found["value"],
                    right=not document["errors"],
                )
                for name, found in document["metrics"].items()
            ),
        )
    ]


def _check(document: Document) -> list[Run]:
    failed = len(document["failures"]) + document["unrun"]
    passed = sum(convention["passed"] for convention in document["conventions"])
    common = {
        "subject": document["backend"],
        "workload": f"check --level {document['level']} --seed {document['seed']}",
        "package": document["package"],
        "source_hash": document.get("source_hash", ""),
        "unit": "cases",
        "right": bool(document["conforms"]),
    }
    fields: dict[str, Any] = {
        "kind": "check",
        "source": "headstock",
        "machine": {"cpu": document["device"]},
        "versions": {"headstock": document["headstock"]},
        "measurements": (
            Measurement(**common, metric="failed", better="lower", value=float(failed)),
            Measurement(**common, metric="passed", better="higher", value=float(passed)),
        ),
    }
    when = document.get("when")  # older ones do not say
    return [Run.of(when=when, **fields) if when else Run.undated(document, **fields)]


def _ab(document: Document) -> list[Run]:
    machine, about = document["machine"], {arm["label"]: arm for arm in document["arms"]}
    wrong = {c["arm"] for c in document["comparisons"] if c["verdict"] in ("wrong", "failed")}
    return [
        Run.of(
            kind="ab",
            source="headstock",
            when=machine["when"],
            command=document["command"],
            machine=machine,
            versions={name: machine[name] for name in ("headstock", "torch", "python")},
            measurements=tuple(
                Measurement(
                    subject=label,
                    workload=line["name"],
                    metric=line["metric"],
                    unit=line["unit"],
                    better=line["better"],
                    value=value,
                    samples=tuple(line["samples"].get(label, ())),
                    right=label not in wrong,
                    package=about[label]["package"],
                    source_hash=about[label]["source_hash"],
                )
                for line in document["lines"]
                for label, value in line["values"].items()
                if value is not None  # what is not a number is null in JSON
            ),
        )
    ]


def _gathered(document: Document) -> list[Run]:
    """Of many machines: a run each."""
    return [run for found in document["comparisons"] if found["document"] for run in _ab(found["document"])]


READERS: dict[str | int, Callable[[Document], list[Run]]] = {
    EXPORT: _export,
    "headstock.bench.kernels/1": _kernels,
    "headstock.bench.throughput/1": _engine,
    "headstock.bench.latency/1": _engine,
    "headstock.bench.serve/1": _serve,
    "headstock.ab/1": _ab,
    "headstock.ab.ray/1": _gathered,
    1: _check,
}
"""Value of the field ``schema`` → reader; `headstock check` has a bare number."""
