"""Options that several commands share, in groups, with the words that explain them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any

from typer import Argument, Option

from ...core.params import SamplingParams
from ...core.scheduler.config import DEFAULT_BATCHED_TOKENS, DEFAULT_NUM_SEQS
from .console import size_in_bytes

SAMPLING, CHOICE, ENGINE, WHERE = "Sampling", "Attention backend", "Engine", "Where the engine lives"

Model = Annotated[str, Argument(metavar="MODEL", help="smollm2, a Hugging Face folder, a .gguf file or a Hub name.")]
ModelImpl = Annotated[
    str,
    Option(help="Whose code runs it: headstock, transformers, or auto.", metavar="NAME", rich_help_panel=ENGINE),
]
Json = Annotated[bool, Option("--json", help="Print one JSON document to stdout.")]
AiterOps = Annotated[
    list[str] | None,
    Option(
        "--aiter-op",
        help="A function in the place of one of AITER's, in all backends that call it; may be repeated.",
        metavar="OP=PKG:FN",
        rich_help_panel=CHOICE,
    ),
]
Profile = Annotated[
    str | None, Option("--profile", help="Write where each step's time went, as a Chrome trace.", metavar="FILE")
]
Verbose = Annotated[bool, Option("--verbose", "-v", help="Show what the engine does, on stderr.")]


@dataclass(frozen=True, kw_only=True)
class TokenOptions:
    """How the next token is chosen, and when an answer ends."""

    temperature: Annotated[float, Option(help="0 takes the likeliest token.", rich_help_panel=SAMPLING)] = 0.0
    top_p: Annotated[float, Option(help="Likeliest tokens up to this share.", rich_help_panel=SAMPLING)] = 1.0
    top_k: Annotated[int, Option(help="So many likeliest tokens; 0 is all.", rich_help_panel=SAMPLING)] = 0
    min_p: Annotated[float, Option(help="Least share of the likeliest's.", rich_help_panel=SAMPLING)] = 0.0
    repetition_penalty: Annotated[float, Option(help="Above 1: repeat less.", rich_help_panel=SAMPLING)] = 1.0
    stop: Annotated[
        list[str] | None,
        Option(help="Text that ends the answer; may be repeated.", metavar="TEXT", rich_help_panel=SAMPLING),
    ] = None

    def params(self) -> SamplingParams:
        """Raises `InvalidInput` naming the option."""
        return SamplingParams(**asdict(self))


@dataclass(frozen=True, kw_only=True)
class SamplingOptions(TokenOptions):
    """Those of a single question."""

    max_tokens: Annotated[int, Option(help="Most new tokens.", rich_help_panel=SAMPLING)] = 128
    ignore_eos: Annotated[bool, Option("--ignore-eos", help="Go on after the end token.", rich_help_panel=SAMPLING)] = (
        False
    )
    logprobs: Annotated[
        int | None, Option(help="Likeliest tokens to report, with --json.", rich_help_panel=SAMPLING)
    ] = None
    n: Annotated[int, Option("-n", "--n", help="Answers a prompt.", rich_help_panel=SAMPLING)] = 1


@dataclass(frozen=True, kw_only=True)
class ChatSamplingOptions(TokenOptions):
    """Those of a conversation."""

    max_tokens: Annotated[
        int | None, Option(help="Most new tokens an answer (what the model has room for).", rich_help_panel=SAMPLING)
    ] = None


@dataclass(frozen=True, kw_only=True)
class AttentionOptions:
    """Which backends compute attention."""

    attention_backend: Annotated[
        str,
        Option(
            help="Backend of all layers, or auto. One that is named is used, or is an error. See: headstock backends",
            metavar="NAME",
            rich_help_panel=CHOICE,
        ),
    ] = "auto"
    decode_attention_backend: Annotated[
        str | None, Option(help="Backend of decode rows only.", metavar="NAME", rich_help_panel=CHOICE)
    ] = None
    prefill_attention_backend: Annotated[
        str | None, Option(help="Backend of all other rows.", metavar="NAME", rich_help_panel=CHOICE)
    ] = None
    attention_policy: Annotated[
        str | None,
        Option(
            help='Backends by layer, kind and phase: {"window": "sdpa", "0,4-7": {"decode": "sdpa"}}.',
            metavar="JSON|FILE",
            rich_help_panel=CHOICE,
        ),
    ] = None
    attention_backend_config: Annotated[
        str | None,
        Option(help="Options of backends, an object by name.", metavar="JSON|FILE", rich_help_panel=CHOICE),
    ] = None
    aiter_ops: AiterOps = None

    def wishes(self) -> dict[str, Any]:
        """As `read_policy` and `LLM` take them."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Sizes and switches of the engine."""

    block_size: Annotated[
        int | None, Option(help="Tokens a KV block (16, or what the backends take).", rich_help_panel=ENGINE)
    ] = None
    enable_prefix_caching: Annotated[bool, Option("--enable-prefix-caching", hidden=True)] = True
    no_enable_prefix_caching: Annotated[
        bool, Option("--no-enable-prefix-caching", help="Compute shared prefixes each time.", rich_help_panel=ENGINE)
    ] = False
    max_num_batched_tokens: Annotated[
        int | None, Option(help=f"Tokens a step ({DEFAULT_BATCHED_TOKENS}).", rich_help_panel=ENGINE)
    ] = None
    max_num_seqs: Annotated[int, Option(help="Requests at once.", rich_help_panel=ENGINE)] = DEFAULT_NUM_SEQS
    max_model_len: Annotated[
        int | None, Option(help="Longest prompt and answer (the model's, or what fits).", rich_help_panel=ENGINE)
    ] = None
    dtype: Annotated[str, Option(help="auto, float32, bfloat16, float16, float64.", rich_help_panel=ENGINE)] = "auto"
    kv_cache_memory: Annotated[
        str | None, Option(help="Size of the KV cache, e.g. 512M (measured).", metavar="SIZE", rich_help_panel=ENGINE)
    ] = None
    enforce_eager: Annotated[
        bool, Option("--enforce-eager", help="No device graphs (there are none on CPUs).", rich_help_panel=ENGINE)
    ] = False
    async_scheduling: Annotated[
        bool, Option("--async-scheduling", help="Schedule a step while one is computed.", rich_help_panel=ENGINE)
    ] = False
    model_impl: ModelImpl = "auto"
    seed: Annotated[int, Option(help="Of all that is random.", rich_help_panel=ENGINE)] = 0

    def settings(self) -> dict[str, Any]:
        """As `LLM` takes them."""
        values = asdict(self)
        values["kv_cache_memory_bytes"] = size_in_bytes("kv_cache_memory", values.pop("kv_cache_memory"))
        # Two options, because rich cuts the names of a switch with two long ones short; on is the default anyway.
        values["enable_prefix_caching"] = not values.pop("no_enable_prefix_caching")
        return values


@dataclass(frozen=True, kw_only=True)
class DeploymentOptions:
    """Where the engine lives."""

    engine: Annotated[
        str, Option(help="inproc: in this process; process: in its own; ray: in an actor.", rich_help_panel=WHERE)
    ] = "inproc"
    data_parallel_size: Annotated[
        int, Option(help="Engines that share the requests, each with the whole model.", rich_help_panel=WHERE)
    ] = 1
    restart_engine: Annotated[
        bool, Option("--restart-engine", help="Start an engine again that has died.", rich_help_panel=WHERE)
    ] = False

    def settings(self) -> dict[str, Any]:
        """As `LLM` and `Deployment` take them."""
        return asdict(self)
