"""Models: found, read and run."""

from .config import ModelConfig, resolve_dtype
from .config_reader import parse_config, read_config
from .decoder import Decoder
from .description import Described, Model, ModelDescription, summary
from .implementation import IMPLEMENTATIONS, describe_model, load_model, resolve_runner
from .pooling import Pooling, read_pooling
from .progress import Progress
from .sources import ModelFolder, resolve_model

__all__ = [
    "IMPLEMENTATIONS",
    "Decoder",
    "Described",
    "Model",
    "ModelConfig",
    "ModelDescription",
    "ModelFolder",
    "Pooling",
    "Progress",
    "describe_model",
    "load_model",
    "parse_config",
    "read_config",
    "read_pooling",
    "resolve_dtype",
    "resolve_model",
    "resolve_runner",
    "summary",
]
