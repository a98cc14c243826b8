"""The results store: what was measured, on which machine, by which versions, kept in one SQLite file."""
