"""An answer while it grows."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...core.outputs import RequestOutput
    from ...core.params import SamplingParams
    from ..llm import LLM


def streamed(llm: LLM, prompt: Any, params: SamplingParams, show: Callable[[str], None]) -> Generator[RequestOutput]:
    """The outputs of `LLM.stream`, each after its new text was shown. What backends print goes to stderr.

    Closing it, or an interrupt, ends the request.
    """
    from ...plugins.guard import stdout_to_stderr

    news = llm.stream(prompt, params)
    printed = 0
    try:
        while True:
            with stdout_to_stderr():
                output = next(news, None)
            if output is None:
                return
            text = output.outputs[0].text
            show(text[printed:])
            printed = len(text)
            yield output
    finally:
        news.close()
