"""The engine: `EngineCore` decides and computes on token ids; clients reach it wherever it lives; `LLMEngine` puts text
in front of one."""

from .async_llm import AsyncLLMEngine, RequestStream
from .client import AsyncEngineClient, EngineClient, PauseMode
from .config import EngineConfig
from .core import EngineCore
from .info import EngineInfo
from .inproc import InprocClient
from .inputs import InputProcessor
from .llm_engine import LLMEngine
from .observer import IterationStats, Observer
from .port import EnginePort
from .process import Launch, ProcessPort
from .prompts import Prompt, chat_prompt, read_prompts
from .pulse import Vigil
from .remote import AsyncRemoteClient, RemoteClient
from .thread import ThreadPort

__all__ = [
    "AsyncEngineClient",
    "AsyncLLMEngine",
    "AsyncRemoteClient",
    "EngineClient",
    "EngineConfig",
    "EngineCore",
    "EngineInfo",
    "EnginePort",
    "InprocClient",
    "InputProcessor",
    "IterationStats",
    "LLMEngine",
    "Launch",
    "Observer",
    "PauseMode",
    "ProcessPort",
    "Prompt",
    "RemoteClient",
    "RequestStream",
    "ThreadPort",
    "Vigil",
    "chat_prompt",
    "read_prompts",
]
