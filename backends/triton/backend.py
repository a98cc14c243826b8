"""`TritonBackend`: one kernel for prompts, chunks and decodes over paged or ragged K and V."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...core.attention import (
    ANY,
    AttentionBackend,
    AttentionBatch,
    AttentionSpec,
    Availability,
    Capabilities,
    Device,
    GraphSupport,
    KVCache,
    LayerParams,
    Limits,
    Mismatch,
    Sizes,
    Workspace,
)
from . import environment
from .configurations import configurations
from .formats import formats_on, storage_constants
from .tuning import Tile, TritonOptions, Tuning, family_of, power_of_two

FLOAT = 4
CHANNELS = 1024
"""Most channels that a program of the writing kernel takes."""
WRITTEN = 2048
"""Numbers that it writes, where there are that many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Rows that one launch attends for."""

    first_row: int
    num_rows: int
    first_token: int
    num_tokens: int
    tiles: int
    """Programs a KV head and split."""
    tile: Tile
    tile_is_row: bool
    """No row has more tokens than a tile: the n-th tile is that of the n-th row, and need not be searched."""
    splits: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """One step. The tensors are the batch's own: lengths and starts are read on the device, so that a captured step can
    be replayed for other ones."""

    launches: tuple[Launch, ...]
    num_rows: int
    padded: bool
    """There may be tokens behind the last row's; their output has to be finite."""
    query_start: Tensor
    key_start: Tensor
    seq_lens: Tensor
    table: Tensor | None


def run_kernel(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """Launch `kernel` on the device of its first argument. Sums may use fused multiply-adds."""
    device = args[0].device
    if device.type == "cpu":
        kernel[grid](*args, **constants)
    else:
        with torch.cuda.device(device):
            kernel[grid](*args, **constants)


class TritonBackend(AttentionBackend[Plan]):
    """Our own Triton kernels. K and V are read where they lie, once for all query heads of a KV head.

    Rows with few tiles have their keys split over programs that fill the card, and merged by log-sum-exp.
    """

    Options: ClassVar[type] = TritonOptions
    launch: ClassVar[Callable[..., None]] = staticmethod(run_kernel)
    """How kernels are launched: `resources` compiles instead."""

    @classmethod
    def capabilities(cls, device: Device) -> Capabilities:
        if family_of(device) is None:
            return Capabilities()
        return Capabilities(
            dtypes=frozenset({"float32", "bfloat16", "float16"}),
            kv_formats=formats_on(device),
            kv_scales=frozenset({"tensor", "head"}),
            head_sizes=Sizes(high=256),
            head_sizes_v=Sizes(high=256),
            group_sizes=ANY,
            block_sizes=ANY,
            kinds=frozenset({"decoder", "encoder", "cross"}),
            kv_sources=frozenset({"cache", "ragged"}),
            causal=frozenset({True, False}),
            windows=frozenset({"left", "right"}),
            any_scale=True,
            softcap=True,
            alibi=True,
            sinks=True,
            lse=True,
            batch_invariant=True,
            layouts=("nhd", "hnd", "x_packed") if device.platform == "rocm" else ("nhd", "hnd"),
            graph=GraphSupport.ALWAYS,
            zero_length_rows=True,
            max_cache_elements=2**62,
        )

    @classmethod
    def refusals(cls, spec: AttentionSpec, device: Device) -> tuple[Mismatch, ...]:
        offered = environment.offered_instead(device)
        return (Mismatch(field="device", asked=device.platform, offered=offered),) if offered else ()

    @classmethod
    def configurations(cls, spec: AttentionSpec, device: Device, phase: str) -> tuple[Mapping[str, object], ...]:
        return configurations(spec, device, phase)

    @classmethod
    def availability(cls) -> Availability:
        reason = environment.obstacle()
        return Availability(reasons=(reason,) if reason else ())

    def __init__(
        self, spec: AttentionSpec, device: Device, limits: Limits, workspace: Workspace, options: Any = None
    ) -> None:
        super().__init__(spec, device, limits, workspace, options)
        self._kernels = environment.load_kernels()
        self._tuning = Tuning.of(spec, device, self.options)
        left, right = spec.window or (-1, -1)
        dot = spec.dtype
        if self._kernels.interpreted and dot == "bfloat16":
            dot = "float32"
        self._constants: dict[str, Any] = {
            "HEADS": spec.num_heads,
            "GROUP": spec.group_size,
            "HEAD_SIZE": spec.head_size,
            "HEAD_SIZE_V": spec.head_size_v,
            "HEAD_PAD": power_of_two(spec.head_size),
            "HEAD_PAD_V": power_of_two(spec.head_size_v),
            "LEFT": left,
            "RIGHT": 0 if spec.causal else right,
            "SOFTCAP": spec.softcap is not None,
            "ALIBI": spec.alibi,
            "DOT": self._kernels.dtypes[dot],
            "PRECISION": "ieee",
            "BY_HAND": self._kernels.interpreted,
        }
        workspace.get(self._workspace_bytes(self._most_partials()))

    def _most_partials(self) -> int:
        """Tokens times splits of the largest step. Reserved at once, so that the workspace stays where it is: a
        captured graph keeps its address."""
        spec, tuning, limits = self.spec, self._tuning, self.limits
        most = 0
        for tile, limit in ((tuning.decode, limits.max_num_reqs), (tuning.prefill, limits.max_num_tokens)):
            tokens = 1 if tile is tuning.decode else tile.tokens(spec.group_size)
            heads = self._head_programs(tile)
            for tiles in range(1, -(-tuning.units // heads) + 1):
                splits = tuning.num_splits(tiles * heads, limits.max_model_len)
                most = max(most, splits * min(tiles * tokens, limit) if splits > 1 else 0)
        return most

    def _workspace_bytes(self, partials: int) -> int:
        return partials * self.spec.num_heads * (self.spec.head_size_v + 1) * FLOAT

    def _head_programs(self, tile: Tile) -> int:
        """Programs that a tile of tokens takes for all heads."""
        return self.spec.num_kv_heads * tile.parts(self.spec.group_size)

    def plan(self, batch: AttentionBatch) -> Plan:
        graph, decodes = batch.graph, batch.counts.decodes
        rows, tokens = (batch.num_reqs, batch.num_tokens) if graph is None else (graph.padded_reqs, graph.padded_tokens)
        table = batch.block_table
        if table is not None and table.stride(1) != 1:
            table = table.contiguous()
        if self.spec.batch_invariant:
            launches = [self._launch(batch, 0, rows, 0, tokens, self._tuning.prefill, split=False)]
        elif graph is not None:
            single = batch.max_query_len <= 1 and rows == tokens
            tile = self._tuning.decode if single else self._tuning.prefill
            launches = [self._launch(batch, 0, rows, 0, tokens, tile, tile_is_row=single)]
        else:
            first = batch.counts.decode_tokens
            launches = [
                self._launch(batch, 0, decodes, 0, first, self._tuning.decode, tile_is_row=True),
                self._rest(batch, decodes, first),
            ]
        return Plan(
            launches=tuple(launch for launch in launches if launch.num_tokens),
            num_rows=rows,
            padded=graph is not None,
            query_start=batch.query_start_loc,
            key_start=batch.query_start_loc if batch.key_start_loc is None else batch.key_start_loc,
            seq_lens=batch.seq_lens,
            table=table,
        )

    def _rest(self, batch: AttentionBatch, first_row: int, first_token: int) -> Launch:
        """The rows that are no decodes: in narrow tiles where all of them are as short as a decode."""
        rows, tokens = batch.num_reqs - first_row, batch.num_tokens - first_token
        tile = self._tuning.prefill
        if batch.max_query_len <= self._tuning.decode.tokens(self.spec.group_size):
            tile = self._tuning.decode
        whole = batch.max_query_len <= tile.tokens(self.spec.group_size)
        return self._launch(batch, first_row, rows, first_token, tokens, tile, tile_is_row=whole)

    def _launch(
        self,
        batch: AttentionBatch,
        first_row: int,
        rows: int,
        first_token: int,
        tokens: int,
        tile: Tile,
        *,
        tile_is_row: bool = False,
        split: bool = True,
    ) -> Launch:
        tiles = rows if tile_is_row else tokens // tile.tokens(self.spec.group_size) + rows
        splits = self._tuning.num_splits(tiles * self._head_programs(tile), batch.max_seq_len) if split else 1
        return Launch(
            first_row=first_row,
            num_rows=rows,
            first_token=first_token,
            num_tokens=tokens,
            tiles=tiles,
            tile=tile,
            tile_is_row=tile_is_row,
            splits=splits,
        )

    def write_kv(self, layer: LayerParams, key: Tensor, value: Tensor, kv_cache: KVCache, slot_mapping: Tensor) -> None:
        tokens, spec = len(slot_mapping), self.spec
        if tokens == 0:
            return
        channels = spec.num_kv_heads * max(spec.head_size, spec.head_size_v)
        width = min(power_of_two(channels), CHANNELS)
        height = max(1, WRITTEN // width)
        self.launch(
            self._kernels.write,
            (-(-tokens // height), -(-channels // width)),
            key, value, kv_cache.k, kv_cache.v, slot_mapping, layer.k_scale, layer.v_scale,
            *key.stride()[:2], *value.stride()[:2], *_strides(kv_cache, "k"), *_strides(kv_cache, "v"), tokens,
            HEADS=spec.num_kv_heads, HEAD_SIZE=spec.head_size, HEAD_SIZE_V=spec.head_size_v,
            BLOCK_SIZE=kv_cache.block_size, SCALES_PER_HEAD=_per_head(layer), TOKENS=height, CHANNELS=width,
            BY_HAND=self._kernels.interpreted, **_packs(kv_cache), **storage_constants(kv_cache.k.dtype),
        )  # fmt: skip

    def forward(
        self,
        layer: LayerParams,
        query: Tensor,
        *,
        key: Tensor | None,
        value: Tensor | None,
        kv_cache: KVCache | None,
        plan: Plan,
        out: Tensor,
        lse_out: Tensor | None = None,
    ) -> None:
        if kv_cache is not None:
            source = (kv_cache.k, kv_cache.v)
            strides = (*_strides(kv_cache, "k"), *_strides(kv_cache, "v"))
        elif key is not None and value is not None:
            source = (key, value)
            strides = (0, *key.stride()[:2], 0, *value.stride()[:2])
        else:
            raise ValueError("neither a cache nor this step's key and value were given")
        targets = (*out.stride()[:2], *((0, 0) if lse_out is None else lse_out.stride()))
        if plan.padded:
            out.zero_()
            if lse_out is not None:
                lse_out.zero_()
        partials = self._partials(plan)
        for launch in plan.launches:
            self.launch(
                self._kernels.attend,
                (launch.tiles, self._head_programs(launch.tile), launch.splits),
                out, lse_out, *partials, query, *source,
                plan.table, plan.query_start, plan.key_start, plan.seq_lens,
                layer.k_scale, layer.v_scale, layer.sinks, layer.alibi_slopes,
                self.spec.scale, self.spec.softcap or 0.0, *query.stride()[:2], *targets, *strides,
                0 if plan.table is None else plan.table.stride(0),
                launch.first_row, launch.num_rows, launch.splits,
                BLOCK_SIZE=0 if kv_cache is None else kv_cache.block_size, SCALES_PER_HEAD=_per_head(layer),
                SPLIT=launch.splits > 1, TILE_IS_ROW=launch.tile_is_row, ROWS=launch.tile.rows, KEYS=launch.tile.keys,
                SHARE=launch.tile.share(self.spec.group_size),
                num_warps=launch.tile.warps, num_stages=launch.tile.stages, **_packs(kv_cache), **self._constants,
            )  # fmt: skip
            if launch.splits > 1:
                self.launch(
                    self._kernels.merge,
                    (launch.num_tokens, self.spec.num_heads),
                    out, lse_out, *partials, plan.query_start, layer.sinks,
                    *targets, launch.first_token, plan.num_rows, launch.splits,
                    HEADS=self.spec.num_heads, HEAD_SIZE_V=self.spec.head_size_v,
                    HEAD_PAD_V=self._constants["HEAD_PAD_V"], BY_HAND=self._kernels.interpreted,
                )  # fmt: skip

    def _partials(self, plan: Plan) -> tuple[Tensor | None, Tensor | None]:
        """Outputs and log-sum-exps of splits, float32, where a launch has splits. Launches use them in turn."""
        most = max((launch.splits for launch in plan.launches), default=1)
        if most == 1:
            return None, None
        end = max(launch.first_token + launch.num_tokens for launch in plan.launches if launch.splits > 1)
        room = self.workspace.get(self._workspace_bytes(end * most)).view(torch.float32)
        outs = end * most * self.spec.num_heads * self.spec.head_size_v
        return room[:outs], room[outs:]


def _strides(cache: KVCache, plane: str) -> tuple[int, int, int]:
    """Of block, token and head, in elements."""
    block, second, third, *others = cache.planes[plane].stride()
    if cache.layout.name == "x_packed":
        return block, others[0], second
    return (block, third, second) if cache.layout.name == "hnd" else (block, second, third)


def _packs(cache: KVCache | None) -> dict[str, int]:
    """Channels of K and of V that lie together where they are packed; 0 where all of a token's do."""
    if cache is None or cache.layout.name != "x_packed":
        return {"KEY_PACK": 0, "VALUE_PACK": 0}
    return {"KEY_PACK": cache.k.shape[4], "VALUE_PACK": 1}


def _per_head(layer: LayerParams) -> int:
    """How far the scales of neighbouring KV heads lie apart: 0 where all share one."""
    return int(layer.k_scale is not None and layer.k_scale.numel() > 1)
