"""`LayerCaches`: the memory of all layers' keys and values, and what is done to blocks that change hands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ..attention import AttentionSelection, AttentionSpec, Device, KVCache, Plane
from ..errors import BackendError, CapacityError
from ..kv import FULL_RETENTION, KVCacheConfig, KVGroupSpec, KVLayer, places, window_retention
from ..scheduler.output import SchedulerOutput


class LayerCaches:
    """A cache a layer, zeroed, shared by layers of different KV groups, which own different blocks of it.

    Equal planes of all layers lie in one piece of memory, so that a block is zeroed in all of them by one launch. That
    is done to blocks that a request takes over, in KV groups with a backend that reads behind a row's last key and
    relies on finite values there (`Capabilities.needs_zeroed_cache`): whoever had the block may have left NaN in it.
    vLLM zeroes them too.
    """

    def __init__(
        self, selection: AttentionSelection, specs: Mapping[str, AttentionSpec], kv: KVCacheConfig, device: Device
    ) -> None:
        """Raises `CapacityError` where a backend cannot address a cache that large, and `BackendError` for a layout
        whose planes do not count blocks that are runs of memory."""
        _require_addressable(selection, specs, kv.num_blocks, device)
        self._device = device.torch_device
        where = places([group.layer_names for group in kv.groups], kv_layers(selection, specs))
        first = {place: name for name, place in reversed(where.items())}
        planes = {place: selection.layout.planes(specs[name], kv.num_blocks) for place, name in first.items()}
        alike: dict[Plane, list[tuple[object, str]]] = {}
        for place, named in planes.items():
            for name, plane in named.items():
                _require_blocks(selection.layout.name, name, plane, kv.num_blocks)
                alike.setdefault(plane, []).append((place, name))
        self._alike = [_Alike(plane, len(users), self._device) for plane, users in alike.items()]
        tensors = {
            user: tensor
            for made, users in zip(self._alike, alike.values(), strict=True)
            for user, tensor in zip(users, made.tensors, strict=True)
        }
        caches = {
            place: KVCache(
                layout=selection.layout,
                planes={name: tensors[place, name] for name in named},
                block_size=specs[first[place]].block_size,
            )
            for place, named in planes.items()
        }
        self.by_layer: dict[str, KVCache] = {name: caches[place] for name, place in where.items()}
        needing = {name for name in specs if selection.choices[name].cls.capabilities(device).needs_zeroed_cache}
        self._zeroed = [
            (index, group) for index, group in enumerate(kv.groups) if not needing.isdisjoint(group.layer_names)
        ]

    def zero_fresh(self, output: SchedulerOutput) -> None:
        """Zero the blocks that requests take over in this step, where a kernel needs that, before anything is written.

        Blocks of a cached prefix are what they are.
        """
        blocks = [block for index, group in self._zeroed for block in fresh_blocks(output, index, group)]
        if blocks:
            # The host's memory is not pinned: nothing waits for the copy, and nothing can change under it.
            there = torch.tensor(blocks).to(self._device, non_blocking=True)
            for planes in self._alike:
                planes.zero(there)


class _Alike:
    """Equal planes in one piece of memory, of which a block is a row in each.

    So one launch fills rows wherever they lie. Over the planes as they are it would be one for each two gigabytes, as
    torch's kernels count in 32 bits what lies between the elements of one launch.
    """

    def __init__(self, plane: Plane, count: int, device: str) -> None:
        stack = plane.stack(count, device)
        self.tensors = stack.unbind()
        apart, block = stack.stride()[:2]
        numbers = stack.view(torch.uint8) if stack.element_size() == 1 else stack  # what torch fills by index
        self._rows = numbers.as_strided((count * (apart // block), block), (block, 1))
        self._first = torch.arange(count, device=device)[:, None] * (apart // block)

    def zero(self, blocks: Tensor) -> None:
        """`blocks`: int64 (n,)."""
        self._rows.index_fill_(0, (self._first + blocks).flatten(), 0)


def _require_blocks(layout: str, name: str, plane: Plane, num_blocks: int) -> None:
    """Raise `BackendError` for a plane that does not count blocks, each of them one run of memory."""
    if plane.shape[0] != num_blocks:
        found = f"the first dimension of plane {name} is {plane.shape[0]}, not the {num_blocks} blocks"
        raise BackendError(f"KV layout {layout}: {found}; put blocks first")
    if plane.strides is not None and replace(plane, shape=(1, *plane.shape[1:])).elements > plane.strides[0]:
        found = f"a block of plane {name} is longer than the {plane.strides[0]} elements to the next"
        raise BackendError(f"KV layout {layout}: {found}; let a block be one run of memory")


def fresh_blocks(output: SchedulerOutput, index: int, group: KVGroupSpec) -> list[int]:
    """Blocks that `output` gives to requests of KV group number `index`, those with a cached prefix left out."""
    # A prefix ends where a block does, in every group.
    fresh = [
        i for new in output.new_requests for i in new.block_ids[index][new.num_computed_tokens // group.block_size :]
    ]
    return fresh + [i for known in output.cached_requests for i in known.new_block_ids[index]]


def _require_addressable(
    selection: AttentionSelection, specs: Mapping[str, AttentionSpec], num_blocks: int, device: Device
) -> None:
    for name, spec in specs.items():
        choice = selection.choices[name]
        limit = choice.cls.capabilities(device).max_cache_elements
        for plane_name, plane in selection.layout.planes(spec, num_blocks).items():
            if plane.elements > limit:
                most = num_blocks * limit // plane.elements
                raise CapacityError(
                    f"backend {choice.backend} addresses at most {limit} elements of a KV plane; with {num_blocks} "
                    f"blocks, {plane_name} of {name} has {plane.elements}. Use at most {most}, or another backend."
                )


def kv_layers(selection: AttentionSelection, specs: Mapping[str, AttentionSpec]) -> dict[str, KVLayer]:
    """What each layer's cache costs and keeps. Layers with equal planes can take turns in the same memory."""
    layers: dict[str, KVLayer] = {}
    for name, spec in specs.items():
        planes = selection.layout.planes(spec, 1)
        left = spec.window[0] if spec.window is not None and spec.causal else -1
        layers[name] = KVLayer(
            form=tuple(planes.items()),
            bytes_per_block=sum(plane.elements * plane.dtype.itemsize for plane in planes.values()),
            retention=window_retention(left + 1) if left >= 0 else FULL_RETENTION,
        )
    return layers
