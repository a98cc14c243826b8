"""Puts an engine together: plugins found, the user's policy read, a device probed, a selector handed to the core."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path

import msgspec

from ..core.attention import AttentionProvider, AttentionSelection
from ..core.engine import (
    AgreedProvider,
    AsyncLLMEngine,
    AsyncRemoteClient,
    AttentionRecord,
    EmbeddingEngine,
    EngineConfig,
    EngineCore,
    EnginePort,
    InprocClient,
    InputProcessor,
    LLMEngine,
    LoopPort,
    Observer,
    RemoteClient,
    ThreadCarrier,
    wanted_attention,
)
from ..core.model import ModelFolder, describe_model
from ..core.text import Tokenizer
from ..plugins import Plugins, check_environment, load_plugins
from ..selector import Policy, Selector, installed_tuning
from .deploy import Deployment, Order, open_port

log = logging.getLogger("headstock")


@cache
def installed_plugins() -> Plugins:
    """What is installed, found once a process; a misspelt variable of ours is told of on the way."""
    for warning in check_environment():
        log.warning("%s", warning)
    return load_plugins()


def make_selector(policy: Policy | None = None) -> Selector:
    """Who chooses among what is installed: the user's policy, then what was measured here, then the ranking."""
    plugins = installed_plugins()
    return Selector(plugins, policy, tuned=installed_tuning(plugins))


def build_engine(folder: ModelFolder, config: EngineConfig, policy: Policy) -> LLMEngine:
    """The engine for a model in a folder. Its configuration and the choice of backends come before the weights."""
    core = EngineCore(config, folder, describe_model(folder.path, config.model_impl), make_selector(policy))
    return LLMEngine(InprocClient(core), _inputs(folder, config))


def connect_engine(
    folder: ModelFolder, config: EngineConfig, policy: Policy, selection: AttentionSelection, deployment: Deployment
) -> LLMEngine:
    """The same where the engine lives elsewhere; `selection` is from `select_attention`."""
    inputs = _inputs(folder, config)  # what is wrong with the tokenizer is told before an engine is started
    return LLMEngine(RemoteClient(_port(folder, config, policy, selection, deployment)), inputs)


def build_embedding_engine(folder: ModelFolder, config: EngineConfig, policy: Policy) -> EmbeddingEngine:
    """An engine that gives each text a vector, for the model in a folder."""
    model = describe_model(folder.path, config.model_impl, "pooling")
    tokenizer = Tokenizer.from_folder(folder.path)
    inputs = InputProcessor(tokenizer, vocab_size=model.vocab_size, eos_token_ids=model.eos_token_ids)
    return EmbeddingEngine(config, folder, model, make_selector(policy), inputs)


def build_async_engine(
    folder: ModelFolder,
    config: EngineConfig,
    policy: Policy,
    observer: Observer | None = None,
    deployment: Deployment | None = None,
) -> AsyncLLMEngine:
    """The same for an event loop; an engine in this process runs in a thread of its own."""
    inputs = _inputs(folder, config)
    if deployment is None or deployment.engine == "inproc":
        core = EngineCore(config, folder, describe_model(folder.path, config.model_impl), make_selector(policy))
        return AsyncLLMEngine(AsyncRemoteClient(LoopPort(ThreadCarrier(core))), inputs, observer)
    selection = select_attention(folder, config, policy)
    return AsyncLLMEngine(AsyncRemoteClient(_port(folder, config, policy, selection, deployment)), inputs, observer)


def select_attention(folder: ModelFolder, config: EngineConfig, policy: Policy) -> AttentionSelection:
    """The backends that engines elsewhere are to compute with, chosen here, once for all of them."""
    specs = wanted_attention(config, describe_model(folder.path, config.model_impl))
    return make_selector(policy).select(specs, config.device, config.block_size)


def compose_core(payload: bytes) -> EngineCore:
    """In an engine's own process: the core that `payload`, an `Order`, asks for."""
    order = msgspec.msgpack.decode(payload, type=Order)
    folder = ModelFolder(name=order.model, path=Path(order.path), origin=order.origin)
    provider = AgreedProvider(make_selector(order.policy), order.attention, order.rank)
    return _core(folder, order.config, provider)


def _core(folder: ModelFolder, config: EngineConfig, provider: AttentionProvider) -> EngineCore:
    return EngineCore(config, folder, describe_model(folder.path, config.model_impl), provider)


def _port(
    folder: ModelFolder, config: EngineConfig, policy: Policy, selection: AttentionSelection, deployment: Deployment
) -> EnginePort:
    record = AttentionRecord.of(selection, wanted_attention(config, describe_model(folder.path, config.model_impl)))
    return open_port(folder, config, policy, record, deployment)


def _inputs(folder: ModelFolder, config: EngineConfig) -> InputProcessor:
    model, tokenizer = describe_model(folder.path, config.model_impl), Tokenizer.from_folder(folder.path)
    return InputProcessor(
        tokenizer,
        vocab_size=model.vocab_size,
        eos_token_ids=model.eos_token_ids or tokenizer.eos_token_ids,
        seed=config.seed,
        policy=config.scheduling_policy,
    )
