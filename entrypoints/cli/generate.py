"""`headstock generate`: answers on stdout, streamed; which backend gave them, and how fast, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from ...core.errors import InvalidInput
from . import options
from .answers import PlainAnswers
from .console import check_writable, note, print_json, read_stdin, show_log
from .document import described
from .groups import grouped
from .profile import profiling
from .record import RecordOptions
from .streaming import streamed

if TYPE_CHECKING:
    from ...core.outputs import RequestOutput
    from ...core.params import SamplingParams
    from ..llm import LLM


@grouped
def generate(
    model: options.Model,
    prompts: Annotated[list[str], Argument(metavar="PROMPT", help="One prompt or more; - reads stdin.")],
    sampling: options.SamplingOptions,
    attention: options.AttentionOptions,
    engine: options.EngineOptions,
    deployment: options.DeploymentOptions,
    record: RecordOptions,
    chat: Annotated[
        bool, Option("--chat", help="Put each prompt through the model's chat template, as a user's message.")
    ] = False,
    json: options.Json = False,
    profile: options.Profile = None,
    verbose: options.Verbose = False,
) -> None:
    """Let MODEL answer each PROMPT.

    The answer goes to stdout, streamed where there is one prompt; which
    backend computed it, and why, goes to stderr.

    Exit codes: 0 answered; 1 a request failed; 2 refused, with the reason.
    """
    show_log(verbose)
    texts = [read_stdin() if prompt == "-" else prompt for prompt in prompts]
    params, settings = sampling.params(), {**engine.settings(), **deployment.settings()}
    check_writable("profile", profile)
    if profile and deployment.engine != "inproc":
        raise InvalidInput("profile", "shows the steps of this process; with it, the engine has to be inproc")
    from ...core.engine import read_prompts
    from ...core.model import resolve_model, summary
    from ...core.text import ChatTemplate
    from ...plugins.guard import stdout_to_stderr
    from ..llm import LLM

    # A wrong prompt, or a model without a chat template, is told of before weights are loaded.
    read_prompts(texts)
    if chat:
        ChatTemplate.from_folder(resolve_model(model).path)
    recording = record.recording(deployment.engine)
    with stdout_to_stderr():  # what backends print is no answer
        llm = LLM(model, runner="generate", **attention.wishes(), **settings)
    if not verbose:  # else the log has said it
        for line in (summary(llm.model), *llm.attention.summary()):
            note(line)
    asked: Sequence[Any] = [llm.chat_prompt([{"role": "user", "content": text}]) for text in texts] if chat else texts
    streaming = not json and params.n == len(asked) == 1
    with recording, profiling(profile, model):
        if streaming:
            outputs = [_stream(llm, asked[0], params)]
        else:
            with stdout_to_stderr():
                outputs = llm.generate(asked, params)
    if not streaming:
        print_json(_document(llm, outputs)) if json else _print_all(texts, outputs)
    _report(outputs)


def _stream(llm: LLM, prompt: Any, params: SamplingParams) -> RequestOutput:
    """Print the answer as it grows; the last output."""
    answers, last = PlainAnswers(), None
    for output in streamed(llm, prompt, params, answers.grow):
        last = output
    answers.grow("\n")
    assert last is not None  # a request that was accepted ends with an output
    return last


def _print_all(texts: Sequence[str], outputs: Sequence[RequestOutput]) -> None:
    for text, output in zip(texts, outputs, strict=True):
        for completion in output.outputs:
            note(f"--- {text!r}" + (f" [{completion.index}]" if len(output.outputs) > 1 else ""))
            sys.stdout.write(completion.text + "\n")
            sys.stdout.flush()


def _report(outputs: Sequence[RequestOutput]) -> None:
    """Counts and times; exit code 1 where a request failed."""
    count = sum(len(c.token_ids) for output in outputs for c in output.outputs)
    times = [output.metrics for output in outputs if output.metrics]
    first = min(m.arrival_time for m in times)
    last = max((m.last_token_time or first) for m in times)
    ttft = min((m.time_to_first_token or 0.0) for m in times)
    cached = sum(output.num_cached_tokens for output in outputs)
    note(
        f"{count} tokens in {last - first:.2f} s ({count / max(last - first, 1e-9):.1f} tokens/s), "
        f"TTFT {ttft * 1000:.0f} ms" + (f", {cached} prompt tokens from the cache" if cached else "")
    )
    errors = [c.error for output in outputs for c in output.outputs if c.finish_reason == "error"]
    for error in errors:
        note(f"headstock: {error}")
    if errors:
        raise Exit(1)


def _document(llm: LLM, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
    from dataclasses import asdict

    return {**described(llm), "outputs": [_plain(asdict(output)) for output in outputs]}


def _plain(value: Any) -> Any:
    """JSON's types: bytes become lists of numbers, as in OpenAI's logprobs."""
    if isinstance(value, bytes):
        return list(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
