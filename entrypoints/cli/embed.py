"""`headstock embed`: a vector for each text."""

from __future__ import annotations

import json as jsonlib
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from ...core.scheduler.config import DEFAULT_BATCHED_TOKENS, DEFAULT_NUM_SEQS
from . import options
from .console import note, print_json, read_stdin, show_log
from .document import described
from .groups import grouped

if TYPE_CHECKING:
    from ...core.outputs import EmbeddingRequestOutput
    from ..llm import LLM

DIGITS = 7
"""Significant digits printed: what float32 holds."""


@dataclass(frozen=True, kw_only=True)
class EmbeddingOptions:
    """Sizes of the steps."""

    max_num_batched_tokens: Annotated[
        int | None,
        Option(help=f"Tokens a step, and the longest text ({DEFAULT_BATCHED_TOKENS}).", rich_help_panel=options.ENGINE),
    ] = None
    max_num_seqs: Annotated[int, Option(help="Texts a step.", rich_help_panel=options.ENGINE)] = DEFAULT_NUM_SEQS
    max_model_len: Annotated[
        int | None, Option(help="Longest text in tokens (the model's).", rich_help_panel=options.ENGINE)
    ] = None
    dtype: Annotated[str, Option(help="auto, float32, bfloat16, float16, float64.", rich_help_panel=options.ENGINE)] = (
        "auto"
    )
    model_impl: options.ModelImpl = "auto"


@grouped
def embed(
    model: options.Model,
    texts: Annotated[list[str], Argument(metavar="TEXT", help="One text or more; - reads stdin.")],
    attention: options.AttentionOptions,
    engine: EmbeddingOptions,
    json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Give each TEXT a vector: a JSON list a line, in their order.

    How a text becomes one vector, the model's files say; without them it is
    the first token's state of an encoder, and the last one's of a decoder, at
    length 1.

    Exit codes: 0 embedded; 2 refused, with the reason.
    """
    show_log(verbose)
    read = [read_stdin() if text == "-" else text for text in texts]
    from ...core.engine import read_prompts
    from ...core.model import summary
    from ...plugins.guard import stdout_to_stderr
    from ..llm import LLM

    read_prompts(read)  # an empty text is told of before weights are loaded
    with stdout_to_stderr():  # what backends print is no vector
        llm = LLM(model, runner="pooling", **attention.wishes(), **asdict(engine))
        if not verbose:  # else the log has said it
            for line in (summary(llm.model), *llm.attention.summary()):
                note(line)
        started = time.perf_counter()
        outputs = llm.embed(read)
    seconds = time.perf_counter() - started
    if json:
        print_json(_document(llm, read, outputs))
    else:
        for output in outputs:
            print(jsonlib.dumps(_rounded(output)))
    count = sum(len(output.prompt_token_ids) for output in outputs)
    note(f"{len(outputs)} texts, {count} tokens in {seconds:.2f} s ({count / max(seconds, 1e-9):.0f} tokens/s)")


def _rounded(output: EmbeddingRequestOutput) -> list[float]:
    return [float(f"{number:.{DIGITS}g}") for number in output.outputs.embedding]


def _document(llm: LLM, texts: Sequence[str], outputs: Sequence[EmbeddingRequestOutput]) -> dict[str, Any]:
    pooling = llm.pooling
    return {
        **described(llm),
        "pooling": {"kind": pooling.kind, "normalize": pooling.normalize},
        "outputs": [
            {
                "request_id": output.request_id,
                "prompt": text,
                "prompt_token_ids": list(output.prompt_token_ids),
                "embedding": _rounded(output),
            }
            for text, output in zip(texts, outputs, strict=True)
        ],
    }
