"""`EmbeddingEngine`: texts in, vectors out. Nothing is cached, so nothing is scheduled: steps are filled in turn."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..attention import AttentionProvider, AttentionSelection, Limits
from ..errors import InvalidInput
from ..model import ModelDescription, ModelFolder, load_model, read_pooling, resolve_dtype, summary
from ..outputs import EmbeddingOutput, EmbeddingRequestOutput
from ..worker.embedder import Embedder
from .config import EngineConfig
from .inputs import InputProcessor
from .prompts import Prompt

logger = logging.getLogger(__name__)


class EmbeddingEngine:
    """A model that gives each text one vector. Everything that can be refused is refused before the weights load."""

    def __init__(
        self,
        config: EngineConfig,
        folder: ModelFolder,
        model: ModelDescription,
        provider: AttentionProvider,
        inputs: InputProcessor,
    ) -> None:
        dtype = resolve_dtype(config.dtype, model, config.device)
        wanted = {name: replace(spec, kv_source="ragged") for name, spec in model.attention_specs(dtype).items()}
        self.pooling = read_pooling(folder.path, causal=all(spec.causal for spec in wanted.values()))
        self.model = model
        self._max_num_seqs, self._max_tokens = config.max_num_seqs, config.batched_tokens
        limit = min(model.max_position, self.pooling.max_tokens or model.max_position)
        self.max_model_len = min(_max_len(config.max_model_len, limit), self._max_tokens)
        self.selection: AttentionSelection = provider.select(wanted, config.device, config.block_size)
        for line in (summary(model), *self.selection.summary()):
            logger.info("%s", line)
        self.inputs = inputs
        size = self.selection.block_size
        specs = {name: replace(spec, block_size=size) for name, spec in wanted.items()}
        limits = Limits(
            max_num_reqs=config.max_num_seqs,
            max_num_tokens=self._max_tokens,
            max_model_len=self.max_model_len,
            max_blocks_per_req=-(-self.max_model_len // size),
        )
        loaded = load_model(model, folder, dtype, config.device.torch_device, specs)
        self._embedder = Embedder(loaded, self.selection, self.pooling, config.device, limits)

    def tokenize(self, prompts: Sequence[Prompt]) -> list[tuple[int, ...]]:
        """Token ids of `prompts`. Raises `InvalidInput` for tokens that the model does not have, and texts too long."""
        texts = [self.inputs.tokenize(self._spelled(prompt)) for prompt in prompts]
        for index, text in enumerate(texts):
            if not text:
                raise InvalidInput("prompt", f"prompt {index} has no tokens")
            if len(text) > self.max_model_len:
                raise InvalidInput("prompt", f"prompt {index} has {len(text)} tokens, and {self._most()}")
        return texts

    def _spelled(self, prompt: Prompt) -> Prompt:
        """`prompt` as the model is used to."""
        if not self.pooling.lower_case or prompt.text is None:
            return prompt
        return replace(prompt, text=prompt.text.lower())

    def _most(self) -> str:
        if self.max_model_len == self._max_tokens:
            return f"a step computes {self._max_tokens} at most; raise max_num_batched_tokens where the model allows it"
        return f"the model takes {self.max_model_len} at most"

    def embed(self, prompts: Sequence[Prompt]) -> Iterator[list[EmbeddingRequestOutput]]:
        """The vectors of `prompts`, in order, a step at a time. All are checked before the first is computed."""
        texts = self.tokenize(prompts)
        for first, end in self._steps([len(text) for text in texts]):
            vectors = self._embedder.embed(texts[first:end]).tolist()
            yield [
                EmbeddingRequestOutput(
                    request_id=str(index),
                    prompt_token_ids=texts[index],
                    outputs=EmbeddingOutput(embedding=tuple(vector)),
                )
                for index, vector in enumerate(vectors, first)
            ]

    def _steps(self, lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Ranges of texts that fill a step each: within the limits on tokens and on requests."""
        first, tokens = 0, 0
        for index, length in enumerate(lengths):
            if index > first and (tokens + length > self._max_tokens or index - first == self._max_num_seqs):
                yield first, index
                first, tokens = index, 0
            tokens += length
        if lengths:
            yield first, len(lengths)


def _max_len(asked: int | None, limit: int) -> int:
    if asked is not None and asked > limit:
        raise InvalidInput("max_model_len", f"{asked} is more than the model's own limit of {limit}")
    return asked or limit
