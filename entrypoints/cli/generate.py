"""`headstock generate`: answers on stdout, streamed; which backend gave them, and how fast, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...core.errors import InvalidInput
from ...core.params import SamplingParams
from ...core.scheduler.config import DEFAULT_NUM_SEQS
from . import options
from .console import note, print_json, show_log, size_in_bytes

if TYPE_CHECKING:
    from ...core.outputs import RequestOutput
    from ..llm import LLM


def generate(
    model: options.ModelArgument,
    prompts: Annotated[list[str], typer.Argument(metavar="PROMPT...", help="One prompt or more; - reads stdin.")],
    max_tokens: Annotated[int | None, typer.Option(help="Most new tokens.", rich_help_panel=options.SAMPLING)] = 128,
    temperature: Annotated[
        float, typer.Option(help="0 takes the likeliest token.", rich_help_panel=options.SAMPLING)
    ] = 0.0,
    top_p: Annotated[float, typer.Option(help="In (0, 1].", rich_help_panel=options.SAMPLING)] = 1.0,
    top_k: Annotated[int, typer.Option(help="0 keeps all.", rich_help_panel=options.SAMPLING)] = 0,
    min_p: Annotated[float, typer.Option(help="In [0, 1].", rich_help_panel=options.SAMPLING)] = 0.0,
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1 discourages repetition.", rich_help_panel=options.SAMPLING)
    ] = 1.0,
    n: Annotated[int, typer.Option("-n", "--n", help="Answers a prompt.", rich_help_panel=options.SAMPLING)] = 1,
    stop: Annotated[
        list[str] | None, typer.Option(help="Ends the answer; may be repeated.", rich_help_panel=options.SAMPLING)
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on after the end token.", rich_help_panel=options.SAMPLING)
    ] = False,
    logprobs: Annotated[
        int | None, typer.Option(help="Likeliest tokens to report, with --json.", rich_help_panel=options.SAMPLING)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of sampling.", rich_help_panel=options.SAMPLING)] = 0,
    chat: Annotated[
        bool, typer.Option("--chat", help="Put each prompt through the model's chat template, as a user's message.")
    ] = False,
    attention_backend: options.AttentionBackend = "auto",
    decode_attention_backend: options.DecodeAttentionBackend = None,
    prefill_attention_backend: options.PrefillAttentionBackend = None,
    attention_policy: options.AttentionPolicy = None,
    attention_backend_config: options.AttentionBackendConfig = None,
    block_size: options.BlockSize = None,
    enable_prefix_caching: Annotated[
        bool, typer.Option(help="Reuse the KV of shared prefixes.", rich_help_panel=options.ENGINE)
    ] = True,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(help="Tokens a step [default: 2048].", rich_help_panel=options.ENGINE)
    ] = None,
    max_num_seqs: Annotated[
        int, typer.Option(help="Requests at once.", rich_help_panel=options.ENGINE)
    ] = DEFAULT_NUM_SEQS,
    max_model_len: options.MaxModelLen = None,
    dtype: options.Dtype = "auto",
    kv_cache_memory: Annotated[
        str | None,
        typer.Option(help="Size of the KV cache, e.g. 512M [default: measured].", rich_help_panel=options.ENGINE),
    ] = None,
    json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Let MODEL answer each PROMPT.

    The answer goes to stdout, streamed where there is one prompt; which backend computed it and why goes to stderr.

    Exit codes: 0 answered; 1 a request failed; 2 refused, with the reason.
    """
    show_log(verbose)
    texts = [sys.stdin.read() if prompt == "-" else prompt for prompt in prompts]
    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        n=n,
        stop=stop,
        ignore_eos=ignore_eos,
        logprobs=logprobs,
    )
    from ..llm import LLM

    llm = LLM(
        model,
        attention_backend=attention_backend,
        decode_attention_backend=decode_attention_backend,
        prefill_attention_backend=prefill_attention_backend,
        attention_policy=attention_policy,
        attention_backend_config=attention_backend_config,
        block_size=block_size,
        enable_prefix_caching=enable_prefix_caching,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        dtype=dtype,
        seed=seed,
        kv_cache_memory_bytes=size_in_bytes("kv_cache_memory", kv_cache_memory),
    )
    for line in (*llm.attention.summary(), *llm.attention.notes):
        note(line)
    asked: Sequence[Any] = [_conversation(llm, text) for text in texts] if chat else texts
    if json or n > 1 or len(asked) > 1:
        outputs = llm.generate(asked, params)
        print_json(_document(llm, outputs)) if json else _print_all(texts, outputs)
    else:
        outputs = [_stream(llm, asked[0], params)]
    _report(outputs)


def _conversation(llm: LLM, text: str) -> dict[str, Any]:
    """The prompt of a conversation that starts with `text`."""
    if not text:
        raise InvalidInput("prompt", "is empty; give at least one token")
    rendered = llm.chat_template.render([{"role": "user", "content": text}], add_generation_prompt=True)
    return {"prompt_token_ids": llm.engine.tokenizer.encode(rendered, add_special_tokens=False)}


def _stream(llm: LLM, prompt: Any, params: SamplingParams) -> RequestOutput:
    """Print the answer as it grows; the last output."""
    printed, last = 0, None
    for last in llm.stream(prompt, params):
        text = last.outputs[0].text
        sys.stdout.write(text[printed:])
        sys.stdout.flush()
        printed = len(text)
    sys.stdout.write("\n")
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
        raise typer.Exit(1)


def _document(llm: LLM, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
    from dataclasses import asdict

    choices: dict[str, dict[str, Any]] = {}
    for layer, choice in llm.attention.choices.items():
        entry = {"backend": choice.backend, "distribution": choice.distribution, "origin": choice.origin, "layers": []}
        choices.setdefault(f"{choice.backend}/{choice.origin}", entry)["layers"].append(layer)
    return {
        "model": {"name": llm.folder.name, "path": str(llm.folder.path), "origin": llm.folder.origin},
        "attention": {
            "block_size": llm.attention.block_size,
            "layout": llm.attention.layout.name,
            "choices": list(choices.values()),
        },
        "outputs": [_plain(asdict(output)) for output in outputs],
    }


def _plain(value: Any) -> Any:
    """JSON's types: bytes become lists of numbers, as in OpenAI's logprobs."""
    if isinstance(value, bytes):
        return list(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
