"""`Order`: one comparison as it was asked for, which runs the same on this machine and on a node of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...core.errors import InvalidInput
from ...core.model import ModelConfig, read_config, resolve_dtype, resolve_model
from ...core.text import Tokenizer
from ...entrypoints.compose import installed_plugins
from ...selector import Selector, find_device
from ..engine.workload import Lengths, Workload, random_workload, sharegpt_workload
from ..progress import progress
from . import engine_level, kernel_level, verdicts
from .arms import Arm, read_arms
from .options import KernelOptions, VerdictOptions, WorkloadOptions, changed
from .report import AbReport

LARGEST_BLOCK = 256
"""Tokens; backends choose smaller ones, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Plain values: it can be sent."""

    arms: tuple[str, ...]
    """As they were written, the baseline first."""
    kernel: KernelOptions
    workload: WorkloadOptions
    verdict: VerdictOptions
    command: str
    """What the user called, for the report."""

    def check(self, *, elsewhere: bool) -> None:
        """Raise `InvalidInput` for arms that cannot be read, and for a device that nothing runs on; environments are
        looked for where it runs."""
        read_arms(self.arms, elsewhere=elsewhere)
        self.workload.check()
        if self.workload.engine is not None and (given := changed(self.kernel)):
            raise InvalidInput(given[0], "says how kernels are measured alone; leave it out with --engine")

    def run(self) -> AbReport:
        """Compare. Raises `InvalidInput` or `BackendError` before anything is measured."""
        arms = read_arms(self.arms)
        return self._kernels(arms) if self.workload.engine is None else self._engines(arms, self.workload.engine)

    def _kernels(self, arms: Sequence[Arm]) -> AbReport:
        plugins = installed_plugins()
        device = find_device(self.kernel.device, plugins.hooks, profiles=False)
        settings = self.kernel.settings(self.verdict.rounds or verdicts.ROUNDS, device)
        judge = Selector(plugins).judge(device)
        checks = 0 if self.verdict.no_check else len(arms)
        with progress("starting the arms", len(settings.tasks()) + checks) as bar:
            return kernel_level.compare_kernels(
                arms,
                settings,
                judge,
                plugins.guard,
                bar,
                check=bool(checks),
                seconds=self.verdict.time_limit or kernel_level.ANSWER_SECONDS,
                command=self.command,
            )

    def _engines(self, arms: Sequence[Arm], model: str) -> AbReport:
        plugins = installed_plugins()
        for arm in filter(lambda arm: arm.here, arms):
            plugins.backends.find(arm.backend)  # a name that nobody offers is told of before weights are read
        folder = resolve_model(model)
        config = read_config(folder.path)
        device = find_device(hooks=plugins.hooks)
        asked = self._workload(Tokenizer.from_folder(folder.path), config.vocab_size, config.max_position)
        room = cache_bytes(config, resolve_dtype(self.workload.engine_dtype, config, device), asked)
        plan = engine_level.EnginePlan(
            arms=tuple(arms),
            folder=folder,
            device=device,
            workload=asked,
            settings={"dtype": self.workload.engine_dtype, "kv_cache_memory_bytes": room},
            rounds=self.verdict.rounds or engine_level.ROUNDS,
            max_kl=self.workload.max_kl,
            command=self.command,
            seconds=self.verdict.time_limit or engine_level.ANSWER_SECONDS,
        )
        checks = 0 if self.verdict.no_check else len(arms)
        with progress("starting the arms", len(arms) * (plan.rounds + 1) + checks) as bar:
            return engine_level.compare_engines(plan, find_device("cpu", plugins.hooks), bar, check=bool(checks))

    def _workload(self, tokenizer: Tokenizer, vocab_size: int, limit: int) -> Workload:
        asked = self.workload
        if asked.dataset is not None:
            return sharegpt_workload(
                asked.dataset, asked.num_prompts, tokenizer=tokenizer, output_len=asked.output_len, limit=limit, seed=0
            )
        lengths = Lengths(input_len=asked.input_len, output_len=asked.output_len)
        lengths.check(limit)
        return random_workload(lengths, asked.num_prompts, tokenizer=tokenizer, vocab_size=vocab_size, seed=0)


def cache_bytes(config: ModelConfig, dtype: str, workload: Workload) -> int:
    """KV cache for twice the workload's tokens, in blocks of any size: equal for all arms, and the second engine on a
    card finds room beside the first."""
    lengths = [len(request.token_ids) + request.output_len for request in workload.requests]
    tokens = sum(-(-length // LARGEST_BLOCK) * LARGEST_BLOCK for length in lengths)
    return 2 * tokens * sum(spec.bytes_per_token for spec in config.attention_specs(dtype).values())
