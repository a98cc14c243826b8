"""What the kernels take of a card, found by compiling for it without one: registers, stack, shared memory.

``python -m headstock.backends.triton.resources`` prints the table of docs/triton.md. The backend's own code launches,
as in a step; only what it launches is compiled and not run, for a card that a stand-in for Triton's driver reports.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ...core.attention import (
    LAYOUTS,
    AttentionBatch,
    AttentionSpec,
    Device,
    LayerParams,
    Limits,
    RowCounts,
    Workspace,
)
from .backend import TritonBackend
from .environment import VARIABLE, interpreting
from .formats import formats_on

CONTEXT = 4096
PROMPT = 512
ROWS = (1, PROMPT)
LENGTHS = (CONTEXT, PROMPT)
BEGIN, END = "<!-- resources: begin -->", "<!-- resources: end -->"


def _card(name: str, arch: str, units: int) -> Device:
    if arch.startswith("gfx"):
        return Device(platform="rocm", name=name, arch=arch, units=units, assumed=True)
    number = int(arch.removeprefix("sm_"))
    capability = (number // 10, number % 10)
    return Device(platform="cuda", name=name, arch=arch, capability=capability, units=units, assumed=True)


TARGETS: Mapping[str, Device] = {
    device.arch: device
    for device in (
        _card("A100", "sm_80", 108),
        _card("H100", "sm_90", 132),
        _card("B200", "sm_100", 148),
        _card("RTX 5090", "sm_120", 170),
        _card("MI250X", "gfx90a", 110),
        _card("MI300X", "gfx942", 304),
        _card("MI355X", "gfx950", 256),
        _card("RX 9070 XT", "gfx1201", 64),
    )
}
"""A card of each architecture that is compiled for."""


def layers_for(device: Device) -> Mapping[str, AttentionSpec]:
    """Layers as models have them, by a short name; with 8-bit floats where the card has them."""

    def spec(**changes: Any) -> AttentionSpec:
        return AttentionSpec(**{"num_heads": 32, "num_kv_heads": 8, "head_size": 128, "dtype": "bfloat16", **changes})

    layers = {
        "bf16": spec(),
        "fp16, MHA, 64": spec(dtype="float16", num_kv_heads=32, head_size=64),
        "bf16, 256, softcap": spec(num_heads=8, num_kv_heads=4, head_size=256, softcap=50.0),
        "bf16, 64, sinks, window": spec(num_heads=64, head_size=64, sinks=True, window=(127, 0)),
        "bf16, int8, ALiBi, LSE": spec(kv_format="int8_per_head", kv_scales="head", alibi=True, lse=True),
        "fp32": spec(dtype="float32"),
        "fp32, 256": spec(dtype="float32", num_heads=16, head_size=256),
    }
    eight_bit = sorted(name for name in formats_on(device) if name.startswith("fp8_e4m3"))
    return layers | {f"bf16, {name}": spec(kv_format=name, kv_scales="tensor") for name in eight_bit}


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one compiled kernel takes."""

    target: str
    layer: str
    kernel: str
    """``decode``, ``prefill``, ``merge`` or ``write``."""
    registers: int
    """A thread (NVIDIA) or lane (AMD, vector registers)."""
    stack_bytes: int
    """Memory a thread has for what registers do not hold: spills go there."""
    shared_bytes: int
    """Shared memory, or LDS, of a program."""
    warps: int


class _Driver:
    """Stands in for Triton's driver: a card of a given target, that nothing is run on."""

    def __init__(self, device: Device) -> None:
        from triton.backends.compiler import GPUTarget

        if device.platform == "cuda":
            major, minor = device.capability or (0, 0)
            self._target = GPUTarget("cuda", major * 10 + minor, 32)
        else:
            self._target = GPUTarget("hip", device.arch, 64 if device.arch.startswith("gfx9") else 32)

    def get_current_device(self) -> str:
        """Compiled kernels are kept by this: one of their own for each architecture."""
        return str(self._target.arch)

    def get_current_stream(self, device: object) -> int:
        return 0

    def get_current_target(self) -> Any:
        return self._target


@contextmanager
def _pretending(device: Device) -> Generator[None]:
    from triton.runtime import driver

    before = driver._active
    driver.set_active(_Driver(device))  # pyright: ignore[reportArgumentType] - the part of one that compiling asks
    try:
        yield
    finally:
        driver._active = before


def compiled(
    device: Device, spec: AttentionSpec, options: Mapping[str, object], layout: str
) -> Iterator[tuple[str, Any]]:
    """Every kernel of a step with a long decode and a prompt, by name, as Triton compiled it for `device`; `options`
    are the backend's."""
    found: list[tuple[str, Any]] = []

    def compile_only(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
        name = kernel.fn.__name__.removesuffix("_kernel")
        if name == "attend":
            name = "decode" if constants["TILE_IS_ROW"] else "prefill"
        found.append((name, kernel.warmup(*args, grid=grid, **constants)))

    backend = TritonBackend.derive("Compiled", launch=staticmethod(compile_only))
    limits = Limits(max_num_reqs=2, max_num_tokens=sum(ROWS), max_model_len=CONTEXT, max_blocks_per_req=CONTEXT)
    with _pretending(device):
        instance = backend(spec, device, limits, Workspace("cpu"), TritonBackend.parse_options(options))
        layer, cache, batch = _layer(spec), LAYOUTS[layout].allocate(spec, 1, "cpu"), _batch(spec)
        dtype, tokens = getattr(torch, spec.dtype), batch.num_tokens
        query = torch.empty(tokens, spec.num_heads, spec.head_size, dtype=dtype)
        key = torch.empty(tokens, spec.num_kv_heads, spec.head_size, dtype=dtype)
        assert batch.slot_mapping is not None
        instance.write_kv(layer, key, key, cache, batch.slot_mapping)
        instance.forward(
            layer,
            query,
            key=key,
            value=key,
            kv_cache=cache,
            plan=instance.plan(batch),
            out=torch.empty_like(query),
            lse_out=torch.empty(query.shape[:2]) if spec.lse else None,
        )
    yield from found


def _layer(spec: AttentionSpec) -> LayerParams:
    scale = {"none": None, "tensor": torch.ones(()), "head": torch.ones(spec.num_kv_heads)}[spec.kv_scales]
    return LayerParams(
        name="layer",
        spec=spec,
        sinks=torch.zeros(spec.num_heads) if spec.sinks else None,
        alibi_slopes=torch.ones(spec.num_heads) if spec.alibi else None,
        k_scale=scale,
        v_scale=scale,
    )


def _batch(spec: AttentionSpec) -> AttentionBatch:
    starts = torch.tensor([0, *torch.tensor(ROWS).cumsum(0)], dtype=torch.int32)
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    return AttentionBatch(
        num_reqs=len(ROWS),
        num_tokens=sum(ROWS),
        counts=RowCounts(decodes=1, decode_tokens=1, prefills=1, prefill_tokens=PROMPT),
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        max_query_len=PROMPT,
        seq_lens=lengths,
        seq_lens_cpu=lengths,
        seq_lens_cpu_upper_bound=lengths,
        max_seq_len=CONTEXT,
        block_table=torch.zeros(len(ROWS), CONTEXT // spec.block_size, dtype=torch.int32),
        slot_mapping=torch.zeros(sum(ROWS), dtype=torch.int64),
    )


def usages(
    targets: Iterable[str],
    layers: Collection[str] = (),
    options: Mapping[str, object] | None = None,
    layout: str = "nhd",
) -> Iterator[Usage]:
    """Compile for `targets` and read what the compilers say; `layers` by name, or all; `options` are the backend's."""
    for target in targets:
        device = TARGETS[target]
        for layer, spec in layers_for(device).items():
            if layers and layer not in layers:
                continue
            for name, kernel in compiled(device, spec, options or {}, layout):
                registers, stack = (_nvidia if device.platform == "cuda" else _amd)(kernel)
                yield Usage(
                    target=target,
                    layer=layer,
                    kernel=name,
                    registers=registers,
                    stack_bytes=stack,
                    shared_bytes=kernel.metadata.shared,
                    warps=kernel.metadata.num_warps,
                )


def _nvidia(kernel: Any) -> tuple[int, int]:
    """Registers and stack bytes of a thread, from the tool that comes with Triton."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(kernel.asm["cubin"])
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return _number(r"REG:(\d+)", text), _number(r"STACK:(\d+)", text)


def _amd(kernel: Any) -> tuple[int, int]:
    """Vector registers and scratch bytes of a lane, from the metadata in the assembly."""
    text = kernel.asm["amdgcn"]
    return _number(r"\.vgpr_count:\s+(\d+)", text), _number(r"\.private_segment_fixed_size:\s+(\d+)", text)


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f"no {pattern} in the compiler's output")
    return int(found.group(1))


def table(found: Iterable[Usage]) -> str:
    """Markdown: a row a layer and kernel, a column a target: registers, shared memory, and the stack where there is
    one."""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    targets: dict[str, None] = {}
    for usage in found:
        targets[usage.target] = None
        layer = re.sub(r"fp8_e4m3\w*", "fp8", usage.layer)
        text = f"{usage.registers} / {usage.shared_bytes / 1024:.0f}"
        stack = f" / **{usage.stack_bytes}**" if usage.stack_bytes else ""
        cells.setdefault((layer, usage.kernel), {})[usage.target] = text + stack
    lines = [f"| layer | kernel | {' | '.join(targets)} |", "|---|---|" + "---|" * len(targets)]
    for (layer, kernel), row in cells.items():
        lines.append(f"| {layer} | {kernel} | {' | '.join(row.get(t, '-') for t in targets)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m headstock.backends.triton.resources",
        description="Compile the kernels for cards that need not be here, and tell what they take of them.",
        epilog="A cell is: registers of a thread / KiB of shared memory / bytes of stack, where there are any.",
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"some of {', '.join(TARGETS)}; all by default")
    parser.add_argument("--layer", action="append", default=[], help="only this layer, by the name in the table")
    parser.add_argument("--options", type=json.loads, default={}, metavar="JSON", help="of the backend, as for a model")
    parser.add_argument(
        "--layout", choices=("nhd", "hnd", "x_packed"), default="nhd", help="of the cache (%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="a list of objects instead of a table")
    parser.add_argument("--page", type=Path, help="put the table into this page, between its markers")
    asked = parser.parse_args()
    known = {layer for device in TARGETS.values() for layer in layers_for(device)}
    for what, names, all_of_them in (("target", asked.targets, TARGETS.keys()), ("layer", asked.layer, known)):
        if unknown := sorted(set(names) - all_of_them):
            parser.error(f"unknown {what} {', '.join(unknown)}; known are {', '.join(sorted(all_of_them))}")
    if interpreting():
        parser.error(f"{VARIABLE} is set, so nothing is compiled: unset it")
    if asked.page and (not asked.page.is_file() or not {BEGIN, END} <= set(asked.page.read_text("utf-8").splitlines())):
        parser.error(f"{asked.page} is no page with a place for the table (lines {BEGIN} and {END})")
    found = list(usages(asked.targets or TARGETS, asked.layer, asked.options, asked.layout))
    if asked.page:
        before, rest = asked.page.read_text("utf-8").split(BEGIN)
        asked.page.write_text(f"{before}{BEGIN}\n{table(found)}\n{END}{rest.split(END)[1]}", "utf-8")
    else:
        print(json.dumps([asdict(usage) for usage in found], indent=1) if asked.json else table(found))


if __name__ == "__main__":
    main()
