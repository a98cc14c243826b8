"""Everything a machine with a card can tell of our backends in one command: ``python -m headstock.benchmarks.gpu``.

For each backend that runs on the card: the conformance kit, in a process of its own, since a kernel that reads where
nothing is ends its process; then how long `plan` and `forward` take on usual shapes, by the device's own clock, over a
cache that earlier calls may have left in its L2. The result is one JSON document.
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
from time import perf_counter
from typing import Any

import torch

from ..core.attention import AttentionSpec, Device
from ..core.errors import HeadstockError
from ..core.version import __version__
from ..entrypoints.compose import installed_plugins
from ..plugins import Offer
from ..plugins.conformance import Problem, Subject
from ..plugins.conformance.rig import Rig
from ..selector import Selector, find_device
from ..selector.judge import Judge, Terms
from .clock import seconds_of

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
    subject = Subject(
        name=offer.label, cls=cls, device=device, options=judge.options(offer), layouts=dict(judge.layouts)
    )
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
        problem = Problem(spec=spec, rows=SHAPES[shape], layout=layout, poison="zero")
        plan_s, forward_s = measure(subject, problem)
        read = sum(keys for _, keys in problem.rows) * spec.bytes_per_token
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


def measure(subject: Subject, problem: Problem) -> tuple[float, float]:
    """Median seconds of a plan on the host and of a forward on the device."""
    rig = Rig(subject, problem)
    scene = rig.scene(problem)
    plan, plans = rig.plan(scene.batch), list[float]()
    for _ in range(CALLS):
        started = perf_counter()
        plan = rig.backend.plan(scene.batch)
        rig.backend.prepare(plan)
        plans.append(perf_counter() - started)
    shape = (*scene.query.shape[:2], problem.spec.head_size_v)
    out = torch.empty(shape, dtype=scene.query.dtype, device=scene.query.device)

    def forward() -> None:
        rig.backend.forward(
            scene.layer, scene.query, key=scene.key, value=scene.value, kv_cache=scene.cache, plan=plan, out=out
        )

    forward()  # what is compiled at the first call
    return median(plans), median(seconds_of(forward, scene.query.device) for _ in range(CALLS))


def document(device: Device, names: Sequence[str], shapes: Sequence[str], *, with_kit: bool) -> dict[str, Any]:
    """Everything, for these backends, or for all that run on the device."""
    plugins = installed_plugins()
    judge = Selector(plugins).judge(device)
    offers = [plugins.backends.find(name) for name in names] or [
        offer for offer in plugins.backends.offers if not judge.standing(offer)[0]
    ]
    found: dict[str, Any] = {
        "schema": SCHEMA, "headstock": __version__, "device": {**asdict(device), "features": sorted(device.features)},
        "kit": [], "timings": [], "errors": {},
    }  # fmt: skip
    for offer in offers:
        print(f"{offer.label} …", file=sys.stderr, flush=True)
        if reasons := judge.standing(offer)[0]:
            found["errors"][offer.label] = "; ".join(reasons)
            continue
        if with_kit:
            found["kit"].append(kit(offer, device))
        try:
            found["timings"] += [asdict(timing) for timing in timings(offer, judge, shapes)]
        except Exception as error:  # of the backend: it is part of the result, and the others go on
            found["errors"][offer.label] = f"{type(error).__name__}: {error}"
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
        device = find_device(given.device)
        if device.assumed:
            parser.error(f"{device.name} is a profile, and no device of this machine")
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
