"""What clients may send. Types are strict; ranges are checked by `SamplingParams`, which knows them already.

Fields that nobody here knows are ignored, as vLLM does, and named in a response header. Fields that are known and would
change the answer, but are not offered, are refused unless they say what happens anyway: `UNSUPPORTED`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from ...core.params import SamplingParams
from .errors import ApiError

NOTHING = (None, "", [], {}, False)
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "audio": NOTHING,
    "bad_words": NOTHING,
    "chat_template": NOTHING,
    "continue_final_message": NOTHING,
    "dimensions": NOTHING,
    "documents": NOTHING,
    "function_call": (None, "none"),
    "functions": NOTHING,
    "guided_choice": NOTHING,
    "guided_grammar": NOTHING,
    "guided_json": NOTHING,
    "guided_regex": NOTHING,
    "length_penalty": (None, 1),
    "logits_processors": NOTHING,
    "modalities": (None, ["text"]),
    "prediction": NOTHING,
    "prompt_embeds": NOTHING,
    "reasoning_effort": (None, "none"),
    "response_format": (None, {"type": "text"}),
    "structured_outputs": NOTHING,
    "suffix": NOTHING,
    "tool_choice": (None, "none", "auto"),
    "tools": NOTHING,
    "truncate_prompt_tokens": NOTHING,
    "use_beam_search": NOTHING,
    "web_search_options": NOTHING,
}
"""Field → values that ask for nothing."""
HARMLESS = frozenset(
    (
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "safety_identifier",
        "service_tier",
        "spaces_between_special_tokens",
        "store",
        "user",
        "verbosity",
    )
)
"""Known fields that change nothing here."""


class Schema(BaseModel):
    """Base of all bodies."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    model: str | None = None
    """One of the served names; None is the first."""

    def ignored(self) -> list[str]:
        """Fields that nobody knows. Raises `ApiError` for those that are known and cannot be had."""
        extra = self.model_extra or {}
        for name, harmless in UNSUPPORTED.items():
            if name in extra and extra[name] not in harmless:
                raise ApiError(400, f"{name}: is not offered by this server", param=name, code="unsupported_parameter")
        return sorted(name for name in extra if name not in UNSUPPORTED and name not in HARMLESS)


class StreamOptions(BaseModel):
    """What a stream tells beside the text."""

    model_config = ConfigDict(strict=True)

    include_usage: bool | None = None
    """One last chunk with the usage; the others say null."""
    continuous_usage_stats: bool | None = None
    """With `include_usage`: every chunk says the usage so far."""


class GenerationSchema(Schema):
    """Fields that completions and chat share. None is the default of `SamplingParams`."""

    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: int | None = None
    cache_salt: str | None = None
    return_token_ids: bool | None = None
    """Also give the token ids of prompt and answer."""


class CompletionSchema(GenerationSchema):
    """`POST /v1/completions`."""

    prompt: Any = Field(description="Text, a list of token ids, or a list of either.")
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None
    add_special_tokens: bool | None = None


class ChatSchema(GenerationSchema):
    """`POST /v1/chat/completions`."""

    messages: Any = Field(description="A list of objects with role and content.")
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    """Variables for the model's chat template, such as `enable_thinking`."""


class EmbeddingSchema(Schema):
    """`POST /v1/embeddings`."""

    input: Any = Field(description="Text, a list of token ids, or a list of either.")
    encoding_format: str | None = None
    """`float`, or `base64`."""


class TokenizeSchema(Schema):
    """`POST /tokenize`: a prompt or messages."""

    prompt: str | None = None
    messages: Any = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeSchema(Schema):
    """`POST /detokenize`."""

    tokens: list[int]


PARAMS = [name for name in GenerationSchema.model_fields if name in SamplingParams.__dataclass_fields__]
"""Fields that are passed on as they are."""


def given(body: GenerationSchema, names: Iterable[str] = PARAMS) -> dict[str, Any]:
    """The fields of `names` that the client has set."""
    return {name: value for name in names if (value := getattr(body, name)) is not None}
