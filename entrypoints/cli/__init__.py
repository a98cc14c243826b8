"""The command line. Commands load when they run: `--help` imports neither torch nor a plugin."""

from .app import main

__all__ = ["main"]
