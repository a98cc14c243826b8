"""The tables, as the steps that lead to them. A step that has been released is never changed."""

from __future__ import annotations

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE runs (
            id TEXT PRIMARY KEY, kind TEXT NOT NULL, source TEXT NOT NULL, at TEXT NOT NULL, command TEXT NOT NULL,
            machine TEXT NOT NULL, machine_id TEXT NOT NULL, versions TEXT NOT NULL
        )""",
        """CREATE TABLE measurements (
            run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE, subject TEXT NOT NULL, workload TEXT NOT NULL,
            metric TEXT NOT NULL, unit TEXT NOT NULL, value REAL NOT NULL,
            better TEXT NOT NULL CHECK (better IN ('lower', 'higher')), samples TEXT NOT NULL, right_ INTEGER,
            package TEXT NOT NULL, source_hash TEXT NOT NULL
        )""",
        "CREATE INDEX measurements_by_run ON measurements (run)",
        "CREATE INDEX measurements_by_series ON measurements (subject, workload, metric)",
    ),
)
"""Statements from form n to form n + 1; the file's form is SQLite's ``user_version``."""
