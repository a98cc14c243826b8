"""`headstock serve`: a model behind an HTTP interface like OpenAI's."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, Any, get_args

from typer import Exit, Option

from ...core.errors import InvalidInput
from ...core.scheduler.config import Policy
from . import options
from .console import size_in_bytes
from .extras import require_extra
from .groups import grouped
from .record import RecordOptions

WHERE, ACCESS, LIMITS, REPORTS = "Where it listens", "Who may come in", "Limits", "Names, logs and metrics"


@dataclass(frozen=True, kw_only=True)
class ListenOptions:
    """Address and TLS."""

    host: Annotated[
        str | None,
        Option(help="Name or address (127.0.0.1); 0.0.0.0 is all of IPv4.", metavar="HOST", rich_help_panel=WHERE),
    ] = None
    port: Annotated[int | None, Option(help="0 takes a free one (8000).", rich_help_panel=WHERE)] = None
    uds: Annotated[
        str | None, Option(help="Unix socket instead, for this user only.", metavar="PATH", rich_help_panel=WHERE)
    ] = None
    ssl_certfile: Annotated[
        str | None, Option(help="Certificate, for https.", metavar="FILE", rich_help_panel=WHERE)
    ] = None
    ssl_keyfile: Annotated[
        str | None, Option(help="Its key, if not in the same file.", metavar="FILE", rich_help_panel=WHERE)
    ] = None
    ssl_ca_certs: Annotated[
        str | None,
        Option(help="Ask clients for a certificate signed by one of these.", metavar="FILE", rich_help_panel=WHERE),
    ] = None


@dataclass(frozen=True, kw_only=True)
class AccessOptions:
    """Keys and origins."""

    api_key: Annotated[
        list[str] | None,
        Option(
            help="Asked of all but /health; may be repeated. Better in HEADSTOCK_API_KEY, as others see flags.",
            metavar="KEY",
            rich_help_panel=ACCESS,
        ),
    ] = None
    allowed_origin: Annotated[
        list[str] | None,
        Option(
            help="Web pages of this origin, or * for all, may call (CORS); may be repeated; none by default.",
            metavar="URL",
            rich_help_panel=ACCESS,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """What is refused, and when."""

    max_body_size: Annotated[str, Option(help="Larger bodies: 413.", metavar="SIZE", rich_help_panel=LIMITS)] = "16M"
    max_queued_requests: Annotated[
        int, Option(help="Answers that wait for their first token; beyond them: 503.", rich_help_panel=LIMITS)
    ] = 1024
    max_queued_tokens: Annotated[
        int | None, Option(help="The same in tokens of their prompts (no limit).", rich_help_panel=LIMITS)
    ] = None
    max_requests_per_key: Annotated[
        int | None,
        Option(help="Requests of one API key at a time; beyond them: 429 (no limit).", rich_help_panel=LIMITS),
    ] = None
    max_logprobs: Annotated[int, Option(help="Log probabilities a position.", rich_help_panel=LIMITS)] = 20
    request_timeout: Annotated[
        float | None, Option(help="Seconds, then a request ends: 504 (none).", rich_help_panel=LIMITS)
    ] = None
    shutdown_timeout: Annotated[
        float, Option(help="Seconds for running requests once told to end.", rich_help_panel=LIMITS)
    ] = 30.0
    scheduling_policy: Annotated[
        str, Option(help="fcfs, or priority to heed that of requests.", metavar="NAME", rich_help_panel=LIMITS)
    ] = "fcfs"


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """How it speaks."""

    served_model_name: Annotated[
        list[str] | None,
        Option(help="What requests call the model; may be repeated (MODEL).", metavar="NAME", rich_help_panel=REPORTS),
    ] = None
    log_format: Annotated[
        str, Option(help="text, or json: an object a line.", metavar="FORMAT", rich_help_panel=REPORTS)
    ] = "text"
    metrics_prefix: Annotated[
        str, Option(help="Of metric names, before the colon.", metavar="NAME", rich_help_panel=REPORTS)
    ] = "vllm"


@grouped
def serve(
    model: options.Model,
    listen: ListenOptions,
    access: AccessOptions,
    limits: LimitOptions,
    attention: options.AttentionOptions,
    engine: options.EngineOptions,
    deployment: options.DeploymentOptions,
    reports: ReportOptions,
    record: RecordOptions,
    runner: Annotated[
        str, Option(help="generate (text), pooling (vectors), or auto: as the model's files say.", metavar="NAME")
    ] = "auto",
    verbose: options.Verbose = False,
) -> None:
    """Serve MODEL over HTTP, with OpenAI's interface.

    Try it with:

      curl localhost:8000/v1/chat/completions -H 'Content-Type: application/json'
      -d '{"messages": [{"role": "user", "content": "Why is the sky blue?"}]}'

    Ends on SIGTERM or Ctrl+C, once running requests are finished; a second
    signal ends it at once. Nothing of prompts or answers is logged.

    Exit codes: 0 ended as told; 1 the engine died; 2 refused, with the reason.
    """
    require_extra("headstock serve", "server", ("fastapi", "uvicorn", "prometheus_client"))
    from ...core.engine import AsyncLLMEngine, EmbeddingEngine, EngineConfig, Observer
    from ...core.model import resolve_model, resolve_runner
    from ...selector import find_device, read_policy
    from ..compose import build_async_engine, build_embedding_engine, installed_plugins
    from ..deploy import Deployment
    from ..server.listen import Address
    from ..server.logs import set_up_logging
    from ..server.serve import serve as run

    kind = _one_of("log_format", reports.log_format, ("text", "json"))
    policy = _one_of("scheduling_policy", limits.scheduling_policy, get_args(Policy))
    address = Address(**vars(listen))
    settings = _settings(model, access, limits, reports)
    wishes = read_policy(**attention.wishes())
    set_up_logging(kind, verbose=verbose)
    config = EngineConfig(
        device=find_device(hooks=installed_plugins().hooks), scheduling_policy=policy, **engine.settings()
    )
    where = Deployment(**deployment.settings())
    folder = resolve_model(model)
    pooling = resolve_runner(runner, folder.path) == "pooling"
    if pooling:
        _check_pooling(where.engine, limits, record.record_attention)

    def build(observer: Observer) -> AsyncLLMEngine | EmbeddingEngine:
        if pooling:
            return build_embedding_engine(folder, config, wishes)
        return build_async_engine(folder, config, wishes, observer, where)

    with record.recording(deployment.engine):
        code = run(folder, build, settings, address)
    if code:
        raise Exit(code)


def _settings(model: str, access: AccessOptions, limits: LimitOptions, reports: ReportOptions) -> Any:
    from ...plugins.environment import API_KEY
    from ..server.settings import ServerSettings

    keys = access.api_key or [key.strip() for key in os.environ.get(API_KEY, "").split(",") if key.strip()]
    if API_KEY in os.environ and not keys:  # whoever sets it wants to be asked for a key
        raise InvalidInput(API_KEY, "is set and holds no key; unset it to serve without one")
    body = size_in_bytes("max_body_size", limits.max_body_size)
    return ServerSettings(
        model_names=tuple(reports.served_model_name or [model]),
        api_keys=tuple(keys),
        allowed_origins=tuple(access.allowed_origin or ()),
        max_body_bytes=body or 0,
        max_queued_requests=limits.max_queued_requests,
        max_queued_tokens=limits.max_queued_tokens,
        max_requests_per_key=limits.max_requests_per_key,
        max_logprobs=limits.max_logprobs,
        request_timeout=limits.request_timeout,
        shutdown_timeout=limits.shutdown_timeout,
        metrics_prefix=reports.metrics_prefix,
    )


def _check_pooling(engine: str, limits: LimitOptions, recording: str | None) -> None:
    """Raise `InvalidInput` for what a model that embeds cannot do."""
    if engine != "inproc":
        raise InvalidInput("engine", f"models that embed run in this process, not as {engine!r}")
    if limits.scheduling_policy != "fcfs":
        problem = f"models that embed serve who comes first, not by {limits.scheduling_policy}"
        raise InvalidInput("scheduling_policy", problem)
    if limits.max_queued_tokens is not None:
        raise InvalidInput("max_queued_tokens", "models that embed count texts: give max_queued_requests")
    if recording is not None:
        raise InvalidInput("record_attention", "models that embed are not recorded")


def _one_of(name: str, value: str, known: tuple[str, ...]) -> Any:
    if value not in known:
        raise InvalidInput(name, f"must be one of {', '.join(known)}, not {value!r}")
    return value
