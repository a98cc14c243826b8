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
from .lives.launch import Launch
from .lives.loop_port import LoopPort
from .lives.port import EnginePort
from .lives.process import ProcessCarrier
from .lives.pulse import Vigil
from .lives.ray_carrier import RayCarrier
from .lives.restart import RestartingPort
from .lives.router import RouterPort
from .lives.thread import ThreadCarrier
from .llm_engine import LLMEngine
from .observer import IterationStats, Observer
from .prompts import Prompt, chat_prompt, read_prompt, read_prompts
from .remote import AsyncRemoteClient, RemoteClient

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
    "LoopPort",
    "Observer",
    "PauseMode",
    "ProcessCarrier",
    "Prompt",
    "RayCarrier",
    "RemoteClient",
    "RequestStream",
    "RestartingPort",
    "RouterPort",
    "ThreadCarrier",
    "Vigil",
    "chat_prompt",
    "read_prompt",
    "read_prompts",
    "wanted_attention",
]
