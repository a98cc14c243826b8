"""`Store`: runs in an SQLite file that several processes write to at once."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ...core.errors import HeadstockError, InvalidInput
from ...plugins.environment import DATABASE, data_folder, read
from .records import Measurement, Run
from .schema import MIGRATIONS

WAIT_SECONDS = 30.0
"""For another writer."""
RUN_COLUMNS = ("id", "kind", "source", "at", "command", "machine", "machine_id", "versions")


class Store:
    """Owner of one results file. `add` keeps a run whole or not at all."""

    def __init__(self, path: str | os.PathLike[str] | None = None, *, create: bool = True) -> None:
        """Open the file, migrating it: `path`, or `HEADSTOCK_DB`, or the user's data folder. With `create` it is made
        where there is none.

        Raises `InvalidInput` where it cannot be opened, is no database, or was made by a newer version.
        """
        self.path = Path(os.path.expanduser(path or read(DATABASE) or default_path()))
        if not create and not self.path.exists():
            raise InvalidInput(
                DATABASE,
                f"there is no file {self.path}; results come in with --save or headstock results import",
            )
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.path, timeout=WAIT_SECONDS, isolation_level=None)
            self._db.row_factory = sqlite3.Row
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA foreign_keys=ON")
            self._migrate()
        except (sqlite3.Error, OSError) as error:
            raise InvalidInput(DATABASE, f"the results file {self.path} cannot be used: {error}") from error

    def _migrate(self) -> None:
        if self._version() == len(MIGRATIONS):
            return
        with self._writing():
            version = self._version()  # another process may have been first
            if version > len(MIGRATIONS):
                raise InvalidInput(
                    DATABASE, f"the results file {self.path} was made by a newer Headstock (form {version}); update"
                )
            for number, statements in enumerate(MIGRATIONS[version:], version + 1):
                for statement in statements:
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version={number}")

    def _version(self) -> int:
        return self._db.execute("PRAGMA user_version").fetchone()[0]

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One transaction: locked from its start, so that two writers wait for each other and do not fail."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            with self._db:
                yield
        except sqlite3.Error as error:
            raise HeadstockError(f"the results file {self.path} cannot be written: {error}") from error

    def add(self, run: Run) -> bool:
        """Keep `run`; False where it is there already."""
        with self._writing():
            row = (run.id, run.kind, run.source, run.when, run.command, _json(run.machine), run.machine_id)
            added = self._db.execute(
                f"INSERT OR IGNORE INTO runs ({', '.join(RUN_COLUMNS)}) VALUES (?,?,?,?,?,?,?,?)",
                (*row, _json(run.versions)),
            ).rowcount
            if added:
                self._db.executemany(
                    "INSERT INTO measurements (run, subject, workload, metric, unit, value, better, samples, right_, "
                    "package, source_hash) VALUES (:run, :subject, :workload, :metric, :unit, :value, :better, "
                    ":samples, :right, :package, :source_hash)",
                    [{**asdict(m), "run": run.id, "samples": _json(m.samples)} for m in run.measurements],
                )
        return bool(added)

    def runs(self, *, kind: str | None = None, subject: str | None = None, limit: int | None = None) -> list[Run]:
        """The latest first, with their measurements: all, or those of a kind or about a subject."""
        wanted = "SELECT DISTINCT r.* FROM runs r LEFT JOIN measurements m ON m.run = r.id WHERE 1"
        values: list[Any] = []
        for clause, value in ((" AND r.kind = ?", kind), (" AND m.subject = ?", subject)):
            if value is not None:
                wanted, values = wanted + clause, [*values, value]
        wanted += " ORDER BY r.at DESC, r.rowid DESC"
        if limit is not None:
            wanted, values = f"{wanted} LIMIT ?", [*values, limit]
        with closing(self._db.execute(wanted, values)) as found:
            return [self._run(row) for row in found.fetchall()]

    def find(self, name: str) -> Run:
        """The run whose id starts with `name`, or the latest for ``last``.

        Raises `InvalidInput` where there is none, or more than one.
        """
        if name == "last":
            if not (found := self.runs(limit=1)):
                raise InvalidInput("run", f"there are no runs in {self.path} yet")
            return found[0]
        pattern = name.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
        rows = self._db.execute("SELECT * FROM runs WHERE id LIKE ? ESCAPE '\\' LIMIT 9", (pattern,)).fetchall()
        if name and len(rows) == 1:
            return self._run(rows[0])
        if name and rows:
            raise InvalidInput("run", f"{name!r} is the start of several: {', '.join(row['id'] for row in rows)}")
        raise InvalidInput("run", f"{name!r} is not in {self.path}; headstock results list shows what is")

    def _run(self, row: sqlite3.Row) -> Run:
        rows = self._db.execute("SELECT * FROM measurements WHERE run = ? ORDER BY rowid", (row["id"],))
        return Run(
            id=row["id"],
            kind=row["kind"],
            source=row["source"],
            when=row["at"],
            command=row["command"],
            machine=json.loads(row["machine"]),
            versions=json.loads(row["versions"]),
            measurements=tuple(map(_measurement, rows)),
        )

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def default_path() -> Path:
    """In the user's data folder."""
    return data_folder() / "results.db"


def _measurement(row: sqlite3.Row) -> Measurement:
    return Measurement(
        subject=row["subject"],
        workload=row["workload"],
        metric=row["metric"],
        unit=row["unit"],
        value=row["value"],
        better=row["better"],
        samples=tuple(json.loads(row["samples"])),
        right=None if row["right_"] is None else bool(row["right_"]),
        package=row["package"],
        source_hash=row["source_hash"],
    )


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
