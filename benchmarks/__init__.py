"""Measurements: of attention backends against each other and against the machine. Commands come in by entry point."""
