"""`headstock chat`: a conversation in the terminal, or one that comes line by line through a pipe."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Exit, Option

from ...core.errors import HeadstockError, InvalidInput
from . import options
from .answers import Answers, JsonAnswers, PlainAnswers
from .console import note, show_log
from .groups import grouped
from .lines import Lines
from .streaming import streamed

if TYPE_CHECKING:
    from ...core.outputs import RequestOutput
    from ...core.params import SamplingParams
    from ..conversation import Conversation
    from ..llm import LLM

HELP = """\
/backend         say which attention backend computes which layers
/backend NAME    let NAME, or auto, compute from the next turn on; the weights stay, the KV cache starts empty
/reset           begin a new conversation
/help            this
/exit            leave, as does Ctrl-D
Ctrl-C stops an answer; what it had said stays in the conversation. A line that begins with a space is no command."""


@grouped
def chat(
    model: options.Model,
    sampling: options.ChatSamplingOptions,
    attention: options.AttentionOptions,
    engine: options.EngineOptions,
    system: Annotated[str | None, Option(help="A message before all others.", metavar="TEXT")] = None,
    chat_template: Annotated[
        str | None, Option(help="A Jinja template instead of the model's own.", metavar="FILE")
    ] = None,
    json: Annotated[bool, Option("--json", help="Print each answer as an object on one line.")] = False,
    verbose: options.Verbose = False,
) -> None:
    """Talk with MODEL.

    Answers are streamed; Ctrl-C stops one, Ctrl-D leaves. /help lists what else
    can be typed. Without a terminal every line of stdin is a turn, and answers
    go to stdout. They may have several lines: --json tells which answers what.

    Exit codes: 0 left; 1 a turn failed, without a terminal; 2 refused, with the reason.
    """
    show_log(verbose)
    lines = Lines(">>> ")
    params, settings = sampling.params(), engine.settings()
    from ...core.model import summary
    from ...plugins.guard import stdout_to_stderr
    from ..conversation import Conversation
    from ..llm import LLM

    template = None if chat_template is None else _read(chat_template)
    _check_template(model, template, system)
    with stdout_to_stderr():  # what backends print is no answer
        llm = LLM(model, runner="generate", **attention.wishes(), **settings)
    if not verbose:  # else the log has said it
        note(summary(llm.model))
        _tell_backends(llm)
    conversation = Conversation(llm, system=system, chat_template=template)
    kept = {"attention_backend_config": attention.attention_backend_config, "aiter_ops": attention.aiter_ops}
    answers = JsonAnswers() if json else PlainAnswers()
    if not _Session(lines, answers, llm, conversation, params, kept).run():
        raise Exit(1)


class _Session:
    """Reads lines until there are no more."""

    def __init__(
        self,
        lines: Lines,
        answers: Answers,
        llm: LLM,
        conversation: Conversation,
        params: SamplingParams,
        kept: dict[str, Any],
    ) -> None:
        """`kept` are wishes about backends that stay through `/backend`."""
        self._lines = lines
        self._answers = answers
        self._llm = llm
        self._conversation = conversation
        self._params = params
        self._kept = kept
        self._commands = {
            "/backend": self._backend,
            "/reset": self._reset,
            "/help": lambda _: note(HELP),
            "/exit": self._exit,
        }
        self._done = False

    def run(self) -> bool:
        """Whether all turns went well, or somebody was there to see it."""
        fine = True
        if self._lines.interactive:
            note("/help lists commands, Ctrl-D leaves")
        while not self._done:
            try:
                line = self._lines.read()
                if line is None:
                    break
                if line.strip():
                    self._take(line)
            except HeadstockError as error:
                note(f"headstock: {error}")
                fine = self._lines.interactive
            except KeyboardInterrupt:
                if not self._lines.interactive:
                    raise
                note("")
        if self._lines.interactive and not self._done:
            note("")  # the terminal shows no line's end for Ctrl-D
        return fine

    def _take(self, line: str) -> None:
        if not line.startswith("/"):
            self._turn(line.strip())
            return
        name, _, rest = line.strip().partition(" ")
        if name not in self._commands:
            raise InvalidInput("command", f"{name} is not known; known are {', '.join(self._commands)}")
        self._commands[name](rest.strip())

    def _turn(self, text: str) -> None:
        """Say `text` and print the answer. A turn that fails leaves the conversation as it was."""
        turn: dict[str, Any] = {"line": self._lines.number, "prompt": text}
        try:
            last = self._answer(text)
            turn |= _told(last)
        except BaseException as error:
            turn["error"] = str(error) or type(error).__name__
            raise
        finally:
            self._answers.end(turn)
        if last is None:
            note("[stopped]")
            return
        self._conversation.add(text, last.outputs[0].text)
        note(_figures(last))

    def _answer(self, text: str) -> RequestOutput | None:
        """The last output for `text`; None where it was stopped before there was one."""
        last: RequestOutput | None = None
        prompt = self._conversation.prompt(text)
        try:
            with closing(streamed(self._llm, prompt, self._params, self._answers.grow)) as outputs:
                for output in outputs:
                    last = output
        except KeyboardInterrupt:
            if not self._lines.interactive:
                raise
        if last is not None and last.outputs[0].finish_reason == "error":
            raise HeadstockError(last.outputs[0].error or "the request failed")
        return last

    def _backend(self, name: str) -> None:
        if name:
            from ...plugins.guard import stdout_to_stderr

            with stdout_to_stderr():
                self._llm.set_attention(attention_backend=name, **self._kept)
        _tell_backends(self._llm)

    def _reset(self, _: str) -> None:
        self._conversation.reset()
        note("a new conversation")

    def _exit(self, _: str) -> None:
        self._done = True


def _tell_backends(llm: LLM) -> None:
    for line in llm.attention.summary():
        note(line)


def _told(output: RequestOutput | None) -> dict[str, Any]:
    """An answer for programs; no reason where it was stopped."""
    if output is None:
        return {"text": "", "finish_reason": None}
    completion = output.outputs[0]
    return {
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "prompt_tokens": len(output.prompt_token_ids),
        "cached_tokens": output.num_cached_tokens,
        "completion_tokens": len(completion.token_ids),
    }


def _figures(output: RequestOutput) -> str:
    """Counts and times of an answer, and why it ended where that is not plain."""
    times, completion = output.metrics, output.outputs[0]
    count = len(completion.token_ids)
    parts = [f"{count} tokens"]
    if times and times.first_token_time and times.last_token_time and count > 1:
        seconds = times.last_token_time - times.first_token_time
        parts.append(f"{(count - 1) / max(seconds, 1e-9):.1f} tokens/s")
    if times and times.time_to_first_token is not None:
        parts.append(f"TTFT {times.time_to_first_token * 1000:.0f} ms")
    if output.num_cached_tokens:
        parts.append(f"{output.num_cached_tokens} of {len(output.prompt_token_ids)} prompt tokens from the cache")
    if completion.finish_reason in (None, "length"):
        parts.append("stopped" if completion.finish_reason is None else "cut off at the limit")
    return f"[{', '.join(parts)}]"


def _read(path: str) -> str:
    try:
        return Path(os.path.expanduser(path)).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput("chat_template", f"cannot be read: {error}") from error


def _check_template(model: str, template: str | None, system: str | None) -> None:
    """Render a first turn before weights are loaded: a template may be broken, or take no system message."""
    from ...core.model import resolve_model
    from ...core.text import ChatTemplate
    from ...core.text.tokenizer_files import read_tokenizer_files

    folder = resolve_model(model).path
    if template is None:
        own = ChatTemplate.from_folder(folder)
    else:
        own = ChatTemplate({"default": template}, read_tokenizer_files(folder).named)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Hello"}]
    own.render([{"role": "system", "content": system}, *messages] if system is not None else messages)
