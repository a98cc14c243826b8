"""The runner puts the components in sequence: states, caches, inputs, attention plans, model, sampler. It owns nothing
else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..attention import forward_context
from ..kv import KVGroupSpec
from ..live import Tape, current_tape
from ..model import Model
from ..sampling import Sampler, SamplingStates, prompt_logprobs
from ..scheduler.output import ModelRunnerOutput, SchedulerOutput, TokenLogprobs
from ..trace import span
from .attention import AttentionGroups
from .block_tables import BlockTable
from .caches import LayerCaches
from .graphs import Recorder, StepGraphs
from .inputs import BufferSizes, InputBuilder, StepInputs
from .states import Ints, RequestStates

LOGITS_ROWS = 256
"""Prompt positions whose logits are computed at once: a row is as wide as the vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerLimits:
    """Sizes of the runner's arrays."""

    max_num_seqs: int
    max_num_tokens: int
    max_model_len: int
    vocab_size: int
    groups: tuple[KVGroupSpec, ...]
    """The KV groups."""
    graph_sizes: tuple[int, ...] = ()
    """Sizes of decode steps that are captured into device graphs, ascending."""


class ModelRunner:
    """Executes one `SchedulerOutput` after the other. It keeps a mirror of the requests, never a reference to them."""

    def __init__(
        self,
        model: Model,
        attention: AttentionGroups,
        caches: LayerCaches,
        limits: RunnerLimits,
        device: str,
        recorder: Recorder | None = None,
    ) -> None:
        """With a `recorder`, `capture` is to be called before the first step."""
        self._model = model
        self._attention = attention
        self._caches = caches
        self._limits = limits
        self._device = device
        self.forget_requests()
        self._inputs = InputBuilder(
            BufferSizes(
                max_num_seqs=limits.max_num_seqs,
                max_num_tokens=limits.max_num_tokens,
                max_model_len=limits.max_model_len,
                widths=tuple(table.width for table in self._tables),
                graph_sizes=limits.graph_sizes,
            ),
            device,
            decode_query_len=attention.decode_query_len,
            padded_seq_len=attention.padded_seq_len,
        )
        self._graphs = None if recorder is None else StepGraphs(recorder, attention, model)

    @torch.inference_mode()
    def capture(self) -> None:
        """Capture a graph for each size, the largest first, whose memory the others use again."""
        if self._graphs is not None:
            for size in reversed(self._limits.graph_sizes):
                self._graphs.capture(self._inputs.blank(size))

    def forget_requests(self) -> None:
        """Begin with empty arrays; every request that goes on has to be sent as new."""
        limits, device = self._limits, self._device
        self._states = RequestStates(limits.max_num_seqs, limits.max_model_len)
        self._tables = [
            BlockTable(limits.max_num_seqs, limits.max_model_len, group.block_size, group.reach)
            for group in limits.groups
        ]
        self._sampling = SamplingStates(limits.max_num_seqs, limits.vocab_size, device)
        self._sampler = Sampler(self._sampling)
        self._prompt_logprobs: dict[str, int] = {}

    @torch.inference_mode()
    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Compute one step: every scheduled token's KV, and a new token for each request that is complete after it."""
        with span("inputs"):
            self._update(output)
            if not output.num_scheduled_tokens:
                return ModelRunnerOutput()
            self._caches.zero_fresh(output)
            inputs = self._inputs.build(self._states, self._tables, output.num_scheduled_tokens)
        hidden = self._forward(inputs)
        with span("sample"):
            prompts = {i: self._score_prompt(i, row, hidden, inputs) for row, i in self._scored(inputs)}
            self._states.num_computed_tokens[inputs.slots] += inputs.query_lens
            return self._sample(hidden, inputs, prompts)

    def _forward(self, inputs: StepInputs) -> Tensor:
        """Hidden states of the step's tokens; rows of padding follow where there is a graph of its size."""
        rows, tape = inputs.batches[0].counts, self._record(inputs)
        if self._graphs is not None and inputs.graph is not None and tape is None:
            with span("model", rows=rows, graph=len(inputs.positions)):
                return self._graphs.replay(inputs)
        with span("plan"):
            context = self._attention.plan(inputs.batches)
            self._attention.prepare(context)
        if tape is not None:
            context = self._attention.taped(context, inputs.batches, tape)
        with forward_context(self._attention.traced(context)), span("model", rows=rows):
            return self._model(inputs.input_ids, inputs.positions)

    def _record(self, inputs: StepInputs) -> Tape | None:
        """The tape, where it has kept this step and wants its vectors, too: no graph tells it of them."""
        tape = current_tape()
        if tape is None:
            return None
        with span("record"):
            kept = tape.step(self._attention.taped_groups, inputs.batches, inputs.block_tables)
        return tape if kept and tape.tensors else None

    def _update(self, output: SchedulerOutput) -> None:
        """Take over what changed since the last step."""
        for request_id in (*output.finished_request_ids, *output.preempted_request_ids):
            slot = self._states.remove(request_id)
            if slot is not None:
                self._sampling.remove(slot)
                self._prompt_logprobs.pop(request_id, None)
                for table in self._tables:
                    table.clear(slot)
        for new in output.new_requests:
            slot = self._states.add(new)
            prompt, answer = new.token_ids[: new.num_prompt_tokens], new.token_ids[new.num_prompt_tokens :]
            self._sampling.add(slot, new.params, new.params.seed or 0, new.eos_token_ids, prompt)
            if answer:
                self._sampling.append(slot, answer)
            if new.params.prompt_logprobs is not None:
                self._prompt_logprobs[new.request_id] = new.params.prompt_logprobs
            self._append_blocks(slot, new.block_ids)
        for known in output.cached_requests:
            slot = self._states.slot(known.request_id)
            self._states.num_computed_tokens[slot] = known.num_computed_tokens
            self._append_blocks(slot, known.new_block_ids)

    def _append_blocks(self, slot: int, block_ids: Sequence[Sequence[int]]) -> None:
        for table, ids in zip(self._tables, block_ids, strict=True):
            table.append(slot, ids)

    def _sample(
        self, hidden: Tensor, inputs: StepInputs, prompts: dict[str, tuple[TokenLogprobs, ...]]
    ) -> ModelRunnerOutput:
        complete = inputs.complete
        if not len(complete):
            return ModelRunnerOutput(prompt_logprobs=prompts)
        rows = torch.from_numpy(inputs.logits_rows[complete]).to(hidden.device)
        slots = inputs.slots[complete]
        positions = self._states.num_tokens[slots] - self._states.num_prompt_tokens[slots]
        sampled = self._sampler(self._model.compute_logits(hidden[rows]).float(), slots, positions)
        tokens: Ints = sampled.token_ids.cpu().numpy()
        # A failed row holds no token, but the step after it may have been scheduled already: it gets one that exists.
        self._states.append(slots, np.maximum(tokens, 0))
        self._sampling.append_sampled(slots, tokens)
        ids = [inputs.request_ids[i] for i in complete.tolist()]
        return ModelRunnerOutput(
            sampled_token_ids={
                i: (token,)
                for row, (i, token) in enumerate(zip(ids, tokens.tolist(), strict=True))
                if row not in sampled.failures
            },
            logprobs={ids[row]: (logprobs,) for row, logprobs in sampled.logprobs.items()},
            prompt_logprobs=prompts,
            failures={ids[row]: reason for row, reason in sampled.failures.items()},
        )

    def _scored(self, inputs: StepInputs) -> list[tuple[int, str]]:
        """Rows whose prompt is to be scored, with their ids."""
        if not self._prompt_logprobs:
            return []
        return [(row, i) for row, i in enumerate(inputs.request_ids) if i in self._prompt_logprobs]

    def _score_prompt(self, request_id: str, row: int, hidden: Tensor, inputs: StepInputs) -> tuple[TokenLogprobs, ...]:
        """Log probabilities of the prompt tokens that follow this step's tokens of one request."""
        slot, states = inputs.slots[row], self._states
        first = int(states.num_computed_tokens[slot])
        end = min(first + int(inputs.query_lens[row]), int(states.num_prompt_tokens[slot]) - 1)
        start = int(inputs.logits_rows[row]) + 1 - int(inputs.query_lens[row])
        found: list[TokenLogprobs] = []
        for low in range(first, end, LOGITS_ROWS):
            high = min(low + LOGITS_ROWS, end)
            logits = self._model.compute_logits(hidden[start + low - first : start + high - first]).float()
            targets = torch.from_numpy(states.token_ids[slot, low + 1 : high + 1].astype(np.int64))
            found.extend(prompt_logprobs(logits, targets.to(logits.device), self._prompt_logprobs[request_id]))
        return tuple(found)
