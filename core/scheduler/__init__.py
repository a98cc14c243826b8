"""Decides what each step computes. Values in, values out; no tensors."""

from __future__ import annotations

from .config import SchedulerConfig
from .output import (
    CachedRequestData,
    EngineCoreOutput,
    EngineRequest,
    ModelRunnerOutput,
    NewRequestData,
    SchedulerOutput,
    TokenLogprobs,
)
from .request import Request
from .scheduler import Scheduler
from .stats import SchedulerStats
from .status import RequestStatus

__all__ = [
    "CachedRequestData",
    "EngineCoreOutput",
    "EngineRequest",
    "ModelRunnerOutput",
    "NewRequestData",
    "Request",
    "RequestStatus",
    "Scheduler",
    "SchedulerConfig",
    "SchedulerOutput",
    "SchedulerStats",
    "TokenLogprobs",
]
