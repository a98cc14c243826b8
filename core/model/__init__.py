"""Models: found, read and run."""

from .sources import ModelFolder as ModelFolder
from .sources import resolve_model as resolve_model
