"""`EngineCore`: schedule, execute, take the results in. Plain and synchronous; token ids in, token ids out."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import get_args

from ..attention import AttentionProvider, AttentionSelection, AttentionSpec
from ..errors import BackendError, HeadstockError, InvalidInput
from ..kv import KVCacheConfig, KVCacheManager, num_blocks_for
from ..model import ModelDescription, ModelFolder, resolve_dtype, summary
from ..scheduler import Scheduler, SchedulerConfig, SchedulerStats
from ..scheduler.output import EngineCoreOutput, EngineRequest, ModelRunnerOutput, SchedulerOutput
from ..trace import span
from ..version import __version__
from ..worker.memory import out_of_memory
from ..worker.worker import Worker, WorkerConfig
from .client import PauseMode
from .config import EngineConfig
from .info import EngineInfo

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """A step that is computed in the worker's thread, and the result to come."""

    output: SchedulerOutput
    result: Future[ModelRunnerOutput]


class EngineCore:
    """Owner of scheduler and worker. Everything that can be refused is refused before the weights are loaded."""

    def __init__(
        self, config: EngineConfig, folder: ModelFolder, model: ModelDescription, provider: AttentionProvider
    ) -> None:
        dtype = resolve_dtype(config.dtype, model, config.device)
        length = _model_len(config.max_model_len, model)
        wanted = wanted_attention(config, model)
        self.selection: AttentionSelection = provider.select(wanted, config.device, config.block_size)
        logger.info("%s", summary(model))
        specs = _specs(wanted, self.selection)
        tokens = min(config.batched_tokens, config.max_num_seqs * length)  # buffers are made for the largest step
        worker_config = WorkerConfig(
            device=config.device,
            dtype=dtype,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=tokens,
            max_model_len=length,
            kv_cache_memory_bytes=config.kv_cache_memory_bytes,
            memory_utilization=config.memory_utilization,
            enforce_eager=config.enforce_eager,
        )
        scheduler_config = SchedulerConfig(
            max_model_len=length,
            max_num_batched_tokens=tokens,
            max_num_seqs=config.max_num_seqs,
            policy=config.scheduling_policy,
            long_prefill_token_threshold=config.long_prefill_token_threshold,
        )
        self.worker = Worker(worker_config, model, folder, specs, self.selection)
        self.worker.load_model()
        self._config = config
        self._wanted = wanted
        self._scheduler_config = scheduler_config
        self._budget = self.worker.determine_available_memory()
        self._allocate(length)
        self._failed: list[EngineCoreOutput] = []
        """Last news of requests whose step raised, or that a pause ended."""
        self._held: dict[str, EngineRequest] = {}
        """Requests that came while a pause lets others finish."""
        self._paused: PauseMode | None = None
        self._asleep = False
        self._computing: tuple[SchedulerOutput, ...] = ()
        """Steps that are scheduled and whose results are to come, while they are computed."""
        self._flight: Flight | None = None
        self._pilot = ThreadPoolExecutor(1, thread_name_prefix="headstock-worker")
        self.info = EngineInfo(
            version=__version__,
            model=folder.name,
            architecture=model.architecture,
            implementation=model.implementation,
            dtype=dtype,
            block_size=self.selection.block_size,
            num_blocks=self.kv_config.num_blocks,
            max_model_len=self.max_model_len,
            max_num_seqs=config.max_num_seqs,
            vocab_size=model.vocab_size,
            eos_token_ids=model.eos_token_ids,
            attention=self.selection.summary(),
        )

    def _allocate(self, length: int) -> None:
        """Size the cache for the chosen backends and requests of up to `length` tokens; begin with empty books."""
        self.kv_config = self._size_cache(length)
        if self._config.max_model_len is None:
            self.max_model_len = self.kv_config.fit(length)
            if self.max_model_len < length:
                logger.warning(
                    "requests can have %d tokens at most, as the KV cache holds no more; the model takes %d",
                    self.max_model_len,
                    length,
                )
        else:
            self.kv_config.require(length)
            self.max_model_len = length
        self._scheduler_config = replace(self._scheduler_config, max_model_len=self.max_model_len)
        self.worker.initialize_kv_cache(self.kv_config)
        self.scheduler = self._new_scheduler()

    def set_attention(self, provider: AttentionProvider) -> None:
        """Choose backends anew, over the weights that are loaded.

        The KV cache begins empty, as its layout may be another, and as nothing that another backend has computed shall
        show in what these compute. Raises `HeadstockError` while requests live, and `BackendError` or `CapacityError`
        where the choice does not fit: then the former backends go on.
        """
        if self._asleep or self.has_unfinished_requests():
            raise HeadstockError("backends are chosen anew for an engine that is awake and has no requests")
        self._land()
        before, length = self.selection, self.worker.config.max_model_len
        selection = provider.select(self._wanted, self._config.device, self._config.block_size)
        try:
            self._use(selection, length)
        except BaseException:
            self._use(before, length)
            raise

    def _use(self, selection: AttentionSelection, length: int) -> None:
        self.selection = selection
        self.worker.release(weights=False)
        self.worker.use(_specs(self._wanted, selection), selection)
        self._allocate(length)
        self.info = replace(
            self.info,
            block_size=selection.block_size,
            num_blocks=self.kv_config.num_blocks,
            max_model_len=self.max_model_len,
            attention=selection.summary(),
        )

    def _new_scheduler(self) -> Scheduler:
        kv = KVCacheManager(self.kv_config, enable_prefix_caching=self._config.enable_prefix_caching)
        return Scheduler(self._scheduler_config, kv)

    def _size_cache(self, length: int) -> KVCacheConfig:
        """As many blocks as the budget holds, and never more than all requests can use."""
        groups, budget = self.worker.kv_groups(), self._budget
        config = KVCacheConfig(
            num_blocks=num_blocks_for(budget.nbytes, groups),
            groups=groups,
            max_step_tokens=self._scheduler_config.max_step_tokens,
        )
        most = 1 + self._config.max_num_seqs * config.blocks_for(length)
        config = replace(config, num_blocks=min(config.num_blocks, most))
        logger.info(
            "KV cache: %d blocks of %d tokens%s, %.1f MiB (budget %.1f MiB, %s)",
            config.num_blocks,
            self.selection.block_size,
            f" for {len(groups)} groups of layers" if len(groups) > 1 else "",
            config.num_blocks * config.bytes_per_block / 2**20,
            budget.nbytes / 2**20,
            budget.reason,
        )
        if len(groups) > 1:
            for index, group in enumerate(groups):
                logger.info("KV group %d: %s", index, group)
        return config

    def add_request(self, request: EngineRequest) -> None:
        """Queue a request; raises `InvalidInput` or `CapacityError` with nothing kept of it."""
        if self._paused != "wait":
            self.scheduler.add(request)
            return
        self.scheduler.check(request)
        if request.request_id in self._held:
            raise InvalidInput("request_id", f"{request.request_id!r} is the id of a request that waits")
        self._held[request.request_id] = request

    def abort_requests(self, request_ids: Iterable[str]) -> list[EngineCoreOutput]:
        """End these requests in whatever state they are; their last news. Unknown ids are ignored."""
        ids = dict.fromkeys(request_ids)
        last = [output for output in self._failed if output.request_id in ids]
        self._failed = [output for output in self._failed if output.request_id not in ids]
        held = [i for i in ids if self._held.pop(i, None) is not None]
        last += [EngineCoreOutput(request_id=i, finish_reason="abort") for i in held]
        return last + self.scheduler.abort(ids)

    def step(self) -> list[EngineCoreOutput]:
        """Compute one step and return what became of its requests; with `async_scheduling`, of the step before.

        Where memory is refused meanwhile, it is tried again with half the tokens. Whatever else is raised, an interrupt
        included, passes on. The requests of that step have ended then, or all where it was raised outside of computing;
        the next call says so.
        """
        if self._failed:
            failed, self._failed = self._failed, []
            return failed
        if not self.can_step:
            return []
        self._computing = ()
        try:
            with span("step"):
                return self._step_ahead() if self._config.async_scheduling else self._step()
        except BaseException as error:
            computing, reason = self._computing, f"{type(error).__name__}: {error}"
            self._land()
            if not (computing and out_of_memory(error)):
                self._recover(reason, computing)
                if isinstance(error, SystemExit):  # somebody's kernel does not decide that the program has succeeded
                    raise BackendError("a model or attention backend ended in SystemExit while it computed") from error
                raise
        return self._try_again(reason, computing[0])  # out of the handler: its error holds on to memory

    def _step(self) -> list[EngineCoreOutput]:
        with span("schedule"):
            output = self.scheduler.schedule()
        self._computing = (output,)
        result = self.worker.execute_model(output)
        self._computing = ()
        with span("update"):
            return self.scheduler.update_from_output(output, result)

    def _step_ahead(self) -> list[EngineCoreOutput]:
        """Schedule the next step while one is computed; then let it be computed while the results are taken in."""
        with span("schedule"):
            output = self.scheduler.schedule() if self._may_schedule else SchedulerOutput()
        flight = self._flight
        result = ModelRunnerOutput()
        if flight is not None:
            self._computing = (flight.output, output)
            result = flight.result.result()
            self._computing = ()
        self._flight = self._start(output)
        if flight is None:
            return []
        with span("update"):
            return self.scheduler.update_from_output(flight.output, result)

    def _start(self, output: SchedulerOutput) -> Flight | None:
        """Have a step computed; None where it holds nothing that the worker has to know."""
        if not (output.num_scheduled_tokens or output.finished_request_ids or output.preempted_request_ids):
            return None
        return Flight(output=output, result=self._pilot.submit(self.worker.execute_model, output))

    def _land(self) -> None:
        """Wait until nothing is computed; what it gave is nobody's any more."""
        if self._flight is not None:
            wait((self._flight.result,))
            self._flight = None

    def _try_again(self, reason: str, failed: SchedulerOutput) -> list[EngineCoreOutput]:
        """Memory was refused: begin all requests again from their tokens, with half as many as `failed` had.

        Where it is refused again, the requests of that step end, and the others go on.
        """
        logger.warning("%s; the step is tried again with half the tokens", reason)
        self.worker.forget_requests()
        self.scheduler.preempt_all()
        output = self.scheduler.schedule(max(1, failed.total_num_scheduled_tokens // 2))
        try:
            result = self.worker.execute_model(output)
        except BaseException as error:
            self._recover(f"{type(error).__name__}: {error}", (output,))
            if not out_of_memory(error):
                raise
        else:
            return self.scheduler.update_from_output(output, result)
        ended, self._failed = self._failed, []
        return ended

    def _recover(self, reason: str, computing: tuple[SchedulerOutput, ...]) -> None:
        """Make the engine whole after a step that raised.

        Blocks of the steps `computing` can be found already and were not computed: their requests end and leave
        nothing. Without any, the books themselves may be half written: all requests end, and nothing cached is kept.
        """
        self.worker.forget_requests()
        if computing:
            for output in computing:
                failures = dict.fromkeys(output.num_scheduled_tokens, reason)
                self._failed += self.scheduler.update_from_output(output, ModelRunnerOutput(failures=failures))
            if len(computing) > 1:
                # While the first was on its way, its blocks may have gone from their requests: by a preemption, an
                # abort, or as they left a window. Nobody knows which they were.
                self.scheduler.forget_prefixes()
            return
        ended, self.scheduler = self.scheduler.request_ids, self._new_scheduler()
        self._failed = [EngineCoreOutput(request_id=i, finish_reason="error", error=reason) for i in ended]

    @property
    def can_step(self) -> bool:
        """Whether `step` has something to compute or to tell."""
        return bool(self._failed) or self._flight is not None or self._may_schedule

    @property
    def _may_schedule(self) -> bool:
        return self.scheduler.has_unfinished and self._paused in (None, "wait") and not self._asleep

    def has_unfinished_requests(self) -> bool:
        """Whether any request has not had its last news, be it paused or not."""
        return self.scheduler.has_unfinished or bool(self._failed) or bool(self._held)

    def stats(self) -> SchedulerStats:
        return self.scheduler.stats()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False, with nothing done, while requests hold blocks."""
        return self.scheduler.reset_prefix_cache()

    def pause(self, mode: PauseMode = "abort") -> None:
        """Begin a pause; it is reached when `can_step` is false. Raises `InvalidInput` for an unknown mode."""
        if mode not in get_args(PauseMode):
            raise InvalidInput("mode", f"must be one of {', '.join(get_args(PauseMode))}, not {mode!r}")
        self._paused = mode
        if mode == "abort":
            self._failed += self.abort_requests([*self.scheduler.request_ids, *self._held])

    def resume(self) -> None:
        """End a pause; nothing where there is none."""
        self._paused = None
        held, self._held = self._held, {}
        for request in held.values():
            self.scheduler.add(request)

    def sleep(self, level: int = 1) -> None:
        """Give back the memory of the KV cache and, at level 2, of the weights; asleep, only what is left of it.

        Raises `HeadstockError` while requests live, and `InvalidInput` for another level.
        """
        if isinstance(level, bool) or level not in (1, 2):
            raise InvalidInput("level", f"must be 1 (KV cache) or 2 (KV cache and weights), not {level!r}")
        if self._asleep:
            self.worker.release(weights=level == 2)
            return
        if self.has_unfinished_requests():
            raise HeadstockError("the engine cannot sleep while requests live; pause it first (abort or wait)")
        self._land()
        self.scheduler.reset_prefix_cache()
        self.worker.release(weights=level == 2)
        self._asleep = True

    def wake_up(self) -> None:
        """Take memory again and go on; nothing where awake."""
        if self._asleep:
            self.worker.restore(self.kv_config)
            self._asleep = False

    def close(self) -> None:
        """Give back all memory; the engine is of no use afterwards."""
        self._asleep = True
        self._land()
        self._pilot.shutdown()
        self.worker.release(weights=True)


def _specs(wanted: Mapping[str, AttentionSpec], selection: AttentionSelection) -> dict[str, AttentionSpec]:
    """`wanted` with the block size that was chosen, and a word on it in the log."""
    for line in selection.summary():
        logger.info("%s", line)
    return {name: replace(spec, block_size=selection.block_size) for name, spec in wanted.items()}


def wanted_attention(config: EngineConfig, model: ModelDescription) -> dict[str, AttentionSpec]:
    """What an engine asks its `AttentionProvider` for."""
    return dict(model.attention_specs(resolve_dtype(config.dtype, model, config.device)))


def _model_len(asked: int | None, model: ModelDescription) -> int:
    """The longest request: as asked, within what the model was trained for."""
    if asked is None:
        return model.max_position
    if asked > model.max_position:
        raise InvalidInput("max_model_len", f"{asked} is more than the model's own limit of {model.max_position}")
    return asked
