"""The worker: one device with its part of the model, in stages that can be called and tested one by one."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from ..attention import Attention, AttentionSelection, AttentionSpec, Device, GraphSupport, Limits
from ..kv import KVCacheConfig, KVGroupSpec, group_layers
from ..model import ModelDescription, ModelFolder, load_model
from ..params import SamplingParams
from ..scheduler.output import ModelRunnerOutput, NewRequestData, SchedulerOutput
from .attention import AttentionGroups
from .caches import LayerCaches, kv_layers
from .graphs import Recorder, graph_sizes, recorder_for
from .memory import HOST_MEMORY, KVBudget, cpu_budget, device_budget, given_budget, taking_memory
from .runner import ModelRunner, RunnerLimits

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """What a worker must be told, apart from the model."""

    device: Device
    dtype: str
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    kv_cache_memory_bytes: int | None
    """None: find out."""
    memory_utilization: float
    """Share of an accelerator's memory that may be used in all."""
    enforce_eager: bool = False
    """No device graphs, though device and backends have them."""


class Worker:
    """`load_model`, `determine_available_memory`, `initialize_kv_cache`, then `execute_model` once a step."""

    def __init__(
        self,
        config: WorkerConfig,
        model_config: ModelDescription,
        folder: ModelFolder,
        specs: Mapping[str, AttentionSpec],
        selection: AttentionSelection,
    ) -> None:
        self.config = config
        self._model_config = model_config
        self._folder = folder
        self._specs = specs
        self._selection = selection

    def load_model(self) -> None:
        """Read the weights onto the device."""
        config, model = self.config, self._model_config
        with taking_memory(f"the weights ({model.weight_bytes(config.dtype) / 2**30:.1f} GiB in {config.dtype})"):
            self._model = load_model(
                model, self._folder, dtype=config.dtype, device=config.device.torch_device, specs=self._specs
            )

    def kv_groups(self) -> tuple[KVGroupSpec, ...]:
        """Which layers share a block table; one group, unless windows save memory in some layers."""
        layers = kv_layers(self._selection, self._specs)
        return group_layers(layers, self._selection.block_size, self.config.max_model_len)

    def determine_available_memory(self) -> KVBudget:
        """Bytes for the KV cache: given, or what is left beside the weights and the largest step."""
        if self.config.kv_cache_memory_bytes is not None:
            return given_budget(self.config.kv_cache_memory_bytes)
        if self.config.device.platform in HOST_MEMORY:
            return cpu_budget(self.config.device)
        self.profile_run()
        return device_budget(self.config.device, self.config.memory_utilization)

    def profile_run(self) -> None:
        """Compute the largest step once, over a cache that just holds it, so that its peak can be read off."""
        config, size = self.config, self._selection.block_size
        count = min(config.max_num_batched_tokens, config.max_model_len - 1)
        blocks = -(-count // size)
        groups = self.kv_groups()
        runner = self._runner(KVCacheConfig(num_blocks=blocks + 1, groups=groups))
        request = NewRequestData(
            request_id="profile",
            token_ids=(0,) * count,
            num_prompt_tokens=count,
            params=SamplingParams(max_tokens=1),
            eos_token_ids=(),
            block_ids=(tuple(range(1, blocks + 1)),) * len(groups),  # nobody reads what this computes
            num_computed_tokens=0,
        )
        runner.execute(SchedulerOutput(new_requests=(request,), num_scheduled_tokens={"profile": count}))

    def initialize_kv_cache(self, kv: KVCacheConfig) -> None:
        """Allocate the cache, bind the layers to it and to their backends, and size the runner."""
        config, size = self.config, kv.bytes_per_block * kv.num_blocks
        what = (
            f"a KV cache of {size / 2**30:.1f} GiB and the buffers of a step "
            f"(max_num_seqs {config.max_num_seqs}, max_num_batched_tokens {config.max_num_batched_tokens})"
        )
        with taking_memory(what):
            self.runner = self._runner(kv, self._recorder())
            self.runner.capture()

    def _recorder(self) -> Recorder | None:
        """What records device graphs; None, with the reason in the log, where none can be used."""
        recorder = None if self.config.enforce_eager else recorder_for(self.config.device)
        if recorder is None:
            return None
        support = {
            choice.backend: choice.cls.capabilities(self.config.device).graph
            for choice in self._selection.choices.values()
        }
        unable = [name for name, graph in support.items() if graph < GraphSupport.SINGLE_TOKEN]
        if unable:
            logger.info("no device graphs: backend %s cannot be captured", ", ".join(unable))
            return None
        return recorder

    def _runner(self, kv: KVCacheConfig, recorder: Recorder | None = None) -> ModelRunner:
        config = self.config
        rows = min(config.max_num_seqs, config.max_num_batched_tokens)
        sizes = () if recorder is None else graph_sizes(rows)
        limits = Limits(
            max_num_reqs=config.max_num_seqs,
            max_num_tokens=config.max_num_batched_tokens,
            max_model_len=config.max_model_len,
            max_blocks_per_req=-(-config.max_model_len // self._selection.block_size),
            capture_sizes=sizes,
        )
        caches = LayerCaches(self._selection, self._specs, kv, config.device)
        attention = AttentionGroups(self._selection, config.device, limits)
        attention.bind(self._layers(), caches.by_layer, kv.groups)
        runner_limits = RunnerLimits(
            max_num_seqs=config.max_num_seqs,
            max_num_tokens=config.max_num_batched_tokens,
            max_model_len=config.max_model_len,
            vocab_size=self._model_config.vocab_size,
            groups=kv.groups,
            graph_sizes=sizes,
        )
        return ModelRunner(self._model, attention, caches, runner_limits, config.device.torch_device, recorder)

    def use(self, specs: Mapping[str, AttentionSpec], selection: AttentionSelection) -> None:
        """Other backends for the layers of the loaded model; a cache for them is allocated next."""
        self._specs, self._selection = specs, selection
        for layer in self._layers().values():
            layer.spec = specs[layer.name]

    def _layers(self) -> dict[str, Attention]:
        return {m.name: m for m in self._model.modules() if isinstance(m, Attention)}

    def release(self, *, weights: bool) -> None:
        """Give back the KV cache's memory and, if wanted, the weights'; nothing where that is done already."""
        for name in ("runner", "_model") if weights else ("runner",):
            vars(self).pop(name, None)

    def restore(self, kv: KVCacheConfig) -> None:
        """Undo `release`; the cache's contents are gone."""
        if not hasattr(self, "_model"):
            self.load_model()
        self.initialize_kv_cache(kv)

    def forget_requests(self) -> None:
        """Drop whatever is held of requests, as after a step that was broken off; the cache's contents stay."""
        self.runner.forget_requests()

    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """One step."""
        return self.runner.execute(output)
