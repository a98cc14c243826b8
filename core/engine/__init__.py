"""The engine: `EngineCore` decides and computes on token ids; clients reach it wherever it lives; `LLMEngine` puts text
in front of one."""

from .agreement import AgreedProvider, AttentionRecord
from .async_llm import AsyncLLMEngine, RequestStream
from .client import AsyncEngineClient, EngineClient, PauseMode
from .config import EngineConfig
from .core import EngineCore, wanted_attention
from .embedding import EmbeddingEngine
from .info import EngineInfo
from .inproc import InprocClient
from .inputs import InputProcessor
from .llm_engine import LLMEngine
from .observer import IterationStats, Observer
from .port import EnginePort
from .process import Launch, ProcessPort
from .prompts import Prompt, chat_prompt, read_prompt, read_prompts
from .pulse import Vigil
from .ray_port import RayPort
from .remote import AsyncRemoteClient, RemoteClient
from .restart import RestartingPort
from .router import RouterPort
from .thread import ThreadPort

__all__ = [
    "AgreedProvider",
    "AsyncEngineClient",
    "AsyncLLMEngine",
    "AsyncRemoteClient",
    "AttentionRecord",
    "EmbeddingEngine",
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
    "RayPort",
    "RemoteClient",
    "RequestStream",
    "RestartingPort",
    "RouterPort",
    "ThreadPort",
    "Vigil",
    "chat_prompt",
    "read_prompt",
    "read_prompts",
    "wanted_attention",
]
