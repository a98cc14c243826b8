"""The engine: `EngineCore` decides and computes on token ids; `LLMEngine` puts text in front of it."""

from .config import EngineConfig
from .core import EngineCore
from .inputs import InputProcessor
from .llm_engine import LLMEngine
from .prompts import Prompt, read_prompts

__all__ = ["EngineConfig", "EngineCore", "InputProcessor", "LLMEngine", "Prompt", "read_prompts"]
