"""Puts an engine together: plugins found, the user's policy read, a device probed, a selector handed to the core."""

from __future__ import annotations

import logging
from functools import cache

from ..core.engine import (
    AsyncLLMEngine,
    AsyncRemoteClient,
    EngineConfig,
    EngineCore,
    InprocClient,
    InputProcessor,
    LLMEngine,
    Observer,
    ThreadPort,
)
from ..core.model import ModelFolder, describe_model
from ..core.text import Tokenizer
from ..plugins import Plugins, check_environment, load_plugins
from ..selector import Policy, Selector

log = logging.getLogger("headstock")


@cache
def installed_plugins() -> Plugins:
    """What is installed, found once a process; a misspelt variable of ours is told of on the way."""
    for warning in check_environment():
        log.warning("%s", warning)
    return load_plugins()


def build_engine(folder: ModelFolder, config: EngineConfig, policy: Policy) -> LLMEngine:
    """The engine for a model in a folder. Its configuration and the choice of backends come before the weights."""
    core, inputs = _build_core(folder, config, policy)
    return LLMEngine(InprocClient(core), inputs)


def build_async_engine(
    folder: ModelFolder, config: EngineConfig, policy: Policy, observer: Observer | None = None
) -> AsyncLLMEngine:
    """The same for an event loop: the engine runs in a thread of its own."""
    core, inputs = _build_core(folder, config, policy)
    return AsyncLLMEngine(AsyncRemoteClient(ThreadPort(core)), inputs, observer)


def _build_core(folder: ModelFolder, config: EngineConfig, policy: Policy) -> tuple[EngineCore, InputProcessor]:
    model = describe_model(folder.path, config.model_impl)
    tokenizer = Tokenizer.from_folder(folder.path)
    core = EngineCore(config, folder, model, Selector(installed_plugins(), policy))
    inputs = InputProcessor(
        tokenizer,
        vocab_size=model.vocab_size,
        eos_token_ids=model.eos_token_ids or tokenizer.eos_token_ids,
        seed=config.seed,
    )
    return core, inputs
