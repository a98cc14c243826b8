"""Everything a machine with a card can tell of our backends in one command: ``python -m headstock.benchmarks.gpu``.

For each backend that runs on the card: the conformance kit, in a process of its own, since a kernel that reads where
nothing is ends its process; then how long `plan` and `forward` take on usual shapes, as `headstock ab` measures them
(`clock.py`). The result is one JSON document.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from ..core.attention import AttentionSpec, Device
from ..core.errors import HeadstockError
from ..core.version import __version__
from ..entrypoints.compose import installed_plugins
from ..plugins import Offer
from ..selector import Selector, find_device
from ..selector.judge import Judge, Terms
from .clock import clock_rate
from .kernels.contenders import BackendContender
from .kernels.data import Pool
from .kernels.shapes import Shape

SCHEMA = 1
HEADS = (32, 8, 128)
"""Query heads, KV heads and channels of the layer that is measured: Llama 3.1 8B's."""
SHAPES: dict[str, tuple[tuple[int, int], ...]] = {
    "decode 1x16k": ((1, 16384),),
    "decode 16x4k": ((1, 4096),) * 16,
    "decode 64x1k": ((1, 1024),) * 64,
    "chunk 512+4k": ((512, 4608),),
    "prefill 2k": ((2048, 2048),),
    "prefill 8k": ((8192, 8192),),
}
"""(queries, keys) of each row."""
KIT_SECONDS = 1800
CALLS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One backend on one shape."""

    backend: str
    shape: str
    dtype: str
    layout: str
    block_size: int
    plan_ms: float
    """Median of the host's time for plan and preparation."""
    forward_ms: float
    """Median of the device's time."""
    bytes_per_s: float
    """Of K and V that the step reads."""
    share_of_bandwidth: float | None
    """None where the device's peak is not known."""


def kit(offer: Offer, device: Device) -> dict[str, Any]:
    """The kit's document for a backend; or why there is none."""
    where = f"{device.platform}:{device.index}"
    command = [sys.executable, "-m", "headstock", "check", offer.label, "--json", "--device", where]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=KIT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"backend": offer.label, "conforms": False, "error": f"took more than {KIT_SECONDS} s"}
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {"backend": offer.label, "conforms": False, "error": done.stderr.strip()[-2000:]}
    return {key: found.get(key) for key in ("backend", "package", "conforms", "seconds", "conventions", "failures")}


def timings(offer: Offer, judge: Judge, shapes: Sequence[str]) -> Iterator[Timing]:
    """A backend on each shape that it takes, in its own first layout and the block size it likes."""
    cls, device = offer.load(), judge.device
    if cls is None:
        return
    layout = judge.layouts_of(offer)[0]
    heads, kv_heads, size = HEADS
    for dtype in ("bfloat16", "float16", "float32"):
        specs = (
            AttentionSpec(num_heads=heads, num_kv_heads=kv_heads, head_size=size, dtype=dtype, block_size=block)
            for block in (16, 32, 64, 128, 256)
        )
        spec = next(
            (s for s in specs if not judge.reasons(offer, s, Terms(block_size=s.block_size, layout=layout))), None
        )
        if spec is not None:
            break
    else:
        return
    for shape in shapes:
        made = _shape(shape)
        pool = Pool.of(HEADS, spec.dtype, [made])
        contender = BackendContender(
            offer.label, cls, judge.options(offer), spec, judge.layouts[layout], device, made, pool
        )
        plan_s = contender.start(torch.get_num_threads()).plan_seconds
        forward_s = median(contender.turn(CALLS, warm=True))
        contender.close()
        read = sum(keys for _, keys in made.sequences) * spec.bytes_per_token
        yield Timing(
            backend=offer.label,
            shape=shape,
            dtype=spec.dtype,
            layout=layout,
            block_size=spec.block_size,
            plan_ms=1e3 * plan_s,
            forward_ms=1e3 * forward_s,
            bytes_per_s=read / forward_s,
            share_of_bandwidth=read / forward_s / device.bandwidth if device.bandwidth else None,
        )


def _shape(name: str) -> Shape:
    """One of `SHAPES` for the kernel benchmark."""
    rows = SHAPES[name]
    return Shape(
        phase=name.partition(" ")[0],
        num_heads=HEADS[0],
        num_kv_heads=HEADS[1],
        head_size=HEADS[2],
        batch=len(rows),
        queries=max(queries for queries, _ in rows),
        length=max(keys for _, keys in rows),
        rows=rows,
    )


def document(device: Device, names: Sequence[str], shapes: Sequence[str], *, with_kit: bool) -> dict[str, Any]:
    """Everything, for these backends, or for all that run on the device."""
    plugins = installed_plugins()
    judge = Selector(plugins).judge(device)
    offers = [plugins.backends.find(name) for name in names] or [
        offer for offer in plugins.backends.offers if not judge.standing(offer)[0]
    ]
    found: dict[str, Any] = {
        "schema": SCHEMA, "headstock": __version__, "device": {**asdict(device), "features": sorted(device.features)},
        "clocks": [clock_rate(device, plugins.guard)], "kit": [], "timings": [], "errors": {},
    }  # fmt: skip
    for offer in offers:
        print(f"{offer.label} …", file=sys.stderr, flush=True)
        if reasons := judge.standing(offer)[0]:
            found["errors"][offer.label] = "; ".join(reasons)
            continue
        if with_kit:
            found["kit"].append(kit(offer, device))
        try:
            with torch.inference_mode():
                found["timings"] += [asdict(timing) for timing in timings(offer, judge, shapes)]
        except Exception as error:  # of the backend: it is part of the result, and the others go on
            found["errors"][offer.label] = f"{type(error).__name__}: {error}"
    found["clocks"].append(clock_rate(device, plugins.guard))  # MHz of the card, before and after
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where every backend that was asked conforms and was measured; 1 where not; 2 for wrong use."""
    parser = argparse.ArgumentParser(prog="python -m headstock.benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", help="cuda:0, rocm:0; the best device here unless it is said")
    parser.add_argument("--backends", default="", metavar="NAMES", help="commas between; else all that run here")
    parser.add_argument("--shapes", default=",".join(SHAPES), metavar="NAMES", help="commas between: %(default)s")
    parser.add_argument("--no-kit", action="store_true", help="measure only")
    parser.add_argument("--out", type=Path, help="write the document there; else to stdout")
    given = parser.parse_args(arguments)
    shapes = [name.strip() for name in given.shapes.split(",")]
    if unknown := [name for name in shapes if name not in SHAPES]:
        parser.error(f"no shape is called {unknown[0]!r}; known are {', '.join(SHAPES)}")
    try:
        device = find_device(given.device, profiles=False)
        names = [name for name in given.backends.split(",") if name]
        found = document(device, names, shapes, with_kit=not given.no_kit)
    except HeadstockError as error:
        parser.error(str(error))
    text = json.dumps(found, indent=1)
    if given.out is None:
        print(text)
    else:
        given.out.write_text(text + "\n", "utf-8")
    return int(bool(found["errors"]) or not all(entry["conforms"] for entry in found["kit"]))


if __name__ == "__main__":
    raise SystemExit(main())
