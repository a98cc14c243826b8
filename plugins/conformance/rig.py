"""`Rig`: one instance of the backend and the problems it is given, with a watch on everything it may not touch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from ...core.attention import AttentionBackend, AttentionBatch, Limits, Workspace
from .broken import Broken
from .fence import Fenced
from .oracle import expected, require_close, tolerance_of
from .problem import Problem
from .scene import Scene, Written, block_table_of, scene_of
from .subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What `forward` left behind, on the host."""

    out: Tensor
    """(T, Hq, Dv), without padding."""
    lse: Tensor | None
    """float32 (T, Hq), where it was asked for."""


class Rig:
    """An instance for layers of one spec; made for the largest of the problems it will see."""

    def __init__(
        self,
        subject: Subject,
        *problems: Problem,
        plans_in_flight: int = 1,
        table_width: int = 1,
        workspace: Workspace | None = None,
    ) -> None:
        self.subject = subject
        self.workspace = workspace or Workspace(subject.torch_device)
        limits = Limits(
            max_num_reqs=max(len(p.rows) + p.padded_rows for p in problems),
            max_num_tokens=max(1, *(p.num_tokens + p.padded_tokens for p in problems)),
            max_model_len=max(k for p in problems for _, k in (*p.rows, (0, 1))) + 8,
            max_blocks_per_req=max(table_width, *(block_table_of(p).shape[1] for p in problems)),
            plans_in_flight=plans_in_flight,
        )
        self.backend: AttentionBackend[Any] = subject.make(problems[0].spec, limits, self.workspace)

    def scene(self, problem: Problem, *, written: Written = "all") -> Scene:
        """The problem in memory, its layer bound."""
        caps = self.subject.capabilities
        if problem.poison == "any" and caps.needs_zeroed_cache:
            problem = replace(problem, poison="zero")
        scene = scene_of(
            problem,
            self.subject.layout_of(problem),
            self.subject.torch_device,
            decode_query_len=caps.decode_query_len,
            padded_seq_len=caps.padded_seq_len,
            written=written,
        )
        self.bind(scene)
        return scene

    def bind(self, scene: Scene) -> None:
        """Tell the instance of the scene's layer."""
        self.subject.run("bind", lambda: self.backend.bind(scene.layer))

    def plan(self, batch: AttentionBatch) -> Any:
        """Plan and prepare a step."""
        plan = self.subject.run("plan", lambda: self.backend.plan(batch))
        self.subject.run("prepare", lambda: self.backend.prepare(plan))
        return plan

    def solve(self, problem: Problem) -> Result:
        """One step from beginning to end. The kit has put K and V into the cache."""
        scene = self.scene(problem)
        return self.forward(scene, self.plan(scene.batch))

    def forward(self, scene: Scene, plan: Any) -> Result:
        """Attend, and see to it that nothing else was done. What is not written comes out as NaN."""
        watch = _Watch(scene)
        shared = scene.problem.shared and scene.cache is not None
        out, lse = _outputs(scene)
        self.subject.run(
            "forward",
            lambda: self.backend.forward(
                scene.layer,
                scene.query,
                key=None if shared else scene.key,
                value=None if shared else scene.value,
                kv_cache=scene.cache,
                plan=plan,
                out=out.tensor,
                **({} if lse is None else {"lse_out": lse.tensor}),
            ),
        )
        watch.require_untouched()
        real = scene.problem.num_tokens
        for name, fenced in (("out", out), ("lse_out", lse)):
            if fenced is None:
                continue
            if fenced.touched() == "outside":
                raise Broken(f"forward wrote outside of {name}", "bounds")
            padding = fenced.tensor[real:]
            if bool(padding.isnan().any()) or (name == "out" and bool(padding.isinf().any())):
                raise Broken(f"{name} of a row of padding is not finite", "padding")
        return Result(out=out.tensor[:real].cpu(), lse=None if lse is None else lse.tensor[:real].cpu())

    def write(self, scene: Scene, slots: Tensor | None = None) -> None:
        """Let the backend write the scene's new rows, to `slots` if not to those of its batch."""
        cache, slots = scene.cache, scene.batch.slot_mapping if slots is None else slots
        assert cache is not None, "the scene has a cache"
        assert slots is not None
        self.subject.run("write_kv", lambda: self.backend.write_kv(scene.layer, scene.key, scene.value, cache, slots))
        for name, plane in scene.planes.items():
            if plane.touched() == "outside":
                raise Broken(f"write_kv wrote outside of plane {name} of the cache", "bounds")
            plane.seal()

    def require_right(self, problem: Problem) -> Result:
        """Solve `problem` and hold the result against the reference."""
        result = self.solve(problem)
        require_right(problem, result)
        return result


def require_right(problem: Problem, result: Result) -> None:
    """Raise `Broken` unless `result` is the reference's, within the tolerance."""
    right, bounds = expected(problem), tolerance_of(problem)
    require_close("out", result.out, right.out, bounds.out)
    if result.lse is not None:
        require_close("LSE", result.lse, right.lse, bounds.lse)


def _outputs(scene: Scene) -> tuple[Fenced, Fenced | None]:
    """`out`, and `lse_out` where the spec asks for it: real rows NaN, rows of padding 0, as one finds them."""
    spec, problem = scene.problem.spec, scene.problem
    rows, extra = len(scene.query), spec.num_heads if problem.strided else 0
    shape = (rows, spec.num_heads, spec.head_size_v)
    strides = ((spec.num_heads + extra) * spec.head_size_v, spec.head_size_v, 1)
    device = str(scene.query.device)
    out = Fenced.around(shape, scene.query.dtype, device, strides=strides)
    lse = None
    if spec.lse:
        lse = Fenced.around(shape[:2], torch.float32, device, strides=(spec.num_heads + extra, 1))
    for fenced in (out, lse):
        if fenced is not None and problem.padded_tokens:
            fenced.tensor[problem.num_tokens :] = 0
            fenced.seal()
    return out, lse


class _Watch:
    """Remembers a scene's inputs."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._kept = {name: (x, x.clone()) for name, x in _inputs(scene)}

    def require_untouched(self) -> None:
        for name, plane in self._scene.planes.items():
            where = plane.touched()
            if where == "outside":
                raise Broken(f"forward wrote outside of plane {name} of the cache", "bounds")
            if where:
                raise Broken(f"forward wrote into plane {name} of the cache", "inputs")
        for name, (x, kept) in self._kept.items():
            if not _same_bits(x, kept):
                raise Broken(f"forward wrote into {name}", "inputs")


def _inputs(scene: Scene) -> Iterator[tuple[str, Tensor]]:
    yield from (("query", scene.query), ("key", scene.key), ("value", scene.value))
    for value in (scene.layer, scene.batch):
        for field in fields(value):
            if isinstance(x := getattr(value, field.name), Tensor):
                yield field.name, x


def _same_bits(a: Tensor, b: Tensor) -> bool:
    if not a.is_floating_point():
        return torch.equal(a, b)
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())
