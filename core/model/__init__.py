"""Models: found, read and run."""

from .config import ModelConfig, resolve_dtype
from .config_reader import parse_config, read_config
from .decoder import Decoder
from .progress import Progress
from .sources import ModelFolder, resolve_model
from .weights import load_model

__all__ = [
    "Decoder",
    "ModelConfig",
    "ModelFolder",
    "Progress",
    "load_model",
    "parse_config",
    "read_config",
    "resolve_dtype",
    "resolve_model",
]
