"""An answer on stdout while it grows."""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...core.outputs import RequestOutput
    from ...core.params import SamplingParams
    from ..llm import LLM


def streamed(llm: LLM, prompt: Any, params: SamplingParams) -> Generator[RequestOutput]:
    """The outputs of `LLM.stream`, each after its new text went to stdout. What backends print goes to stderr.

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
            sys.stdout.write(text[printed:])
            sys.stdout.flush()
            printed = len(text)
            yield output
    finally:
        news.close()
