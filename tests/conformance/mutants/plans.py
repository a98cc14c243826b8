"""Backends that mix up batches, instances and layers, and such whose word does not hold."""

from __future__ import annotations

from dataclasses import replace

import torch

from headstock.core.attention import ANY, Capabilities, Sizes
from headstock.core.attention.cache import slots_of

from .base import EVERYTHING, Plain, breaks


@breaks("plans")
class PlanOfTheFirstBatch(Plain):
    """Keeps the plan of the first batch of a shape for all that have as many rows and tokens."""

    def plan(self, batch):
        self.kept = getattr(self, "kept", {})
        return self.kept.setdefault((batch.num_reqs, batch.num_tokens), batch)


@breaks("plans")
class OneBuffer(Plain):
    """Has one buffer for plans, whatever `plans_in_flight` says."""

    def forward(self, layer, query, *, plan, **rest):
        super().forward(layer, query, plan=self.latest, **rest)

    def plan(self, batch):
        self.latest = batch
        return batch


@breaks("plans")
class StateOfTheModule(Plain):
    """Keeps the current batch where all instances see it."""

    current: list = []  # noqa: RUF012

    def plan(self, batch):
        self.current[:] = [batch]
        return batch

    def forward(self, layer, query, *, plan, **rest):
        super().forward(layer, query, plan=self.current[0], **rest)


@breaks("layers")
class LastLayersSinks(Plain):
    """Takes sinks and scales from the layer that was bound last."""

    def bind(self, layer):
        self.layer = layer

    def forward(self, layer, query, **rest):
        super().forward(self.layer, query, **rest)


@breaks("plans")
class KeepsWorkspace(Plain):
    """Keeps the lengths in the workspace from `plan` to `forward`."""

    def plan(self, batch):
        self.scratch = self.workspace.get(4 * len(batch.seq_lens)).view(torch.int32)
        self.scratch.copy_(batch.seq_lens)
        return batch

    def num_keys(self, plan, row):
        return min(int(self.scratch[row]) % 2**31, plan.max_seq_len)


@breaks("layers")
class ScaleOfTheLastInstance(Plain):
    """Keeps the scale in the class: all instances use that of the one made last."""

    def __init__(self, spec, *rest):
        super().__init__(spec, *rest)
        type(self).scale = spec.scale

    def scaled(self, logits):
        return logits * self.scale


@breaks("graph")
class NewTensorsEachPlan(Plain):
    """Makes new tensors for each plan, though it says that its plans can be replayed."""

    def plan(self, batch):
        return replace(batch, seq_lens=batch.seq_lens.clone(), block_table=clone(batch.block_table))


@breaks("graph")
class PlansByRealRows(Plain):
    """Finds the buffers of a graph's plan by its real rows: a padded batch fills others than the graph reads."""

    def plan(self, batch):
        if batch.graph is None:
            return batch
        self.kept = getattr(self, "kept", {})
        lengths = self.kept.setdefault(batch.num_reqs, batch.seq_lens.clone())
        return replace(batch, seq_lens=lengths.copy_(batch.seq_lens))


@breaks("neighbours")
class PaddedToTheLongest(Plain):
    """Adds in another order where the batch has a longer row, and declares batch invariance all the same."""

    def forward(self, layer, query, *, plan, **rest):
        self.longest = plan.max_seq_len
        super().forward(layer, query, plan=plan, **rest)

    def sum(self, weights, values):
        out = super().sum(weights, values)
        return out if len(values) == self.longest else out * (1 + 4 * torch.finfo(self.dtype).eps)


@breaks("neighbours")
class RowsOf16(Plain):
    """Looks up the block table by the last four bits of the row."""

    def slots(self, plan, row):
        return slots_of(plan.block_table[row % 16], self.num_keys(plan, row), self.spec.block_size)


@breaks("placement")
class InOrderOfMemory(Plain):
    """Adds up a decode row's keys in the order in which they lie in memory."""

    def slots(self, plan, row):
        slots = super().slots(plan, row)
        single = int(plan.query_start_loc[row + 1] - plan.query_start_loc[row]) == 1
        return slots.sort().values if single and self.spec.window is None and not self.spec.alibi else slots


@breaks("chunks")
class StaleBlocks(Plain):
    """Keeps a copy of each block it has read, in layers without a window: what is written later it does not see."""

    def read(self, cache, layer, slots):
        if self.spec.window is not None:
            return super().read(cache, layer, slots)
        self.copies = getattr(self, "copies", {})
        size = cache.block_size
        rows = [self.copy(cache, layer, int(block)) for block in slots[::size] // size]
        keys, values = zip(*rows, strict=True) if rows else ([slots[:, None, None]], [slots[:, None, None]])
        return torch.cat(keys)[: len(slots)], torch.cat(values)[: len(slots)]

    def copy(self, cache, layer, block):
        size = cache.block_size
        slots = torch.arange(block * size, (block + 1) * size)
        fresh = cache, cache.layout.gather(cache, layer, slots, self.dtype)
        return self.copies.setdefault((id(cache), block), fresh)[1]


@breaks("mixed")
class ForgetsInCombination(Plain):
    """Forgets the window of a layer with sinks that is not causal."""

    def window(self):
        return (-1, -1) if self.spec.sinks and not self.spec.causal else super().window()


@breaks("declared")
class SizesOfItsOwn(Plain):
    """States head sizes up to 256 and takes any."""

    @classmethod
    def capabilities(cls, device):
        return Capabilities(**EVERYTHING | {"head_sizes": Everything(high=256)})


class Everything(Sizes):
    def __contains__(self, n):
        return True


@breaks("declared")
class CrossRaises(Plain):
    """Declares cross attention and raises where it is asked for."""

    raises = True

    def forward(self, layer, query, **rest):
        if self.spec.kind == "cross":
            raise NotImplementedError("cross attention")
        super().forward(layer, query, **rest)


@breaks("declared")
class LearnsFromUse(Plain):
    """Finds out what it can do by being used."""

    tried = False

    @classmethod
    def capabilities(cls, device):
        return Capabilities(**EVERYTHING | {"head_sizes": ANY if cls.tried else Sizes(high=256)})

    def forward(self, layer, query, **rest):
        type(self).tried = True
        super().forward(layer, query, **rest)


@breaks("contract")
class KnowsOneDevice(Plain):
    """Raises for a device that is not here."""

    raises = True

    @classmethod
    def capabilities(cls, device):
        if device.assumed:
            raise RuntimeError(f"no {device.platform} here")
        return super().capabilities(device)


def clone(x):
    return None if x is None else x.clone()
