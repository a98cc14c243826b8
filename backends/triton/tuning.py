"""How large tiles are and into how many parts keys are split: by architecture, or as the user says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from ...core.attention import AttentionSpec, Device, kv_format
from ...core.errors import InvalidInput

MOST_SPLITS = 128
MOST_HEADS = 64
"""Most query heads that share a tile of a decode; groups larger than that take several."""
WIDE = 128
"""Channels of V from which tiles have at most 64 rows: their output has to fit into registers."""
WHOLE_WAVES = 0.85
"""Share of the best use of a card's units from which fewer splits are preferred."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonOptions:
    """What can be tuned; 0 leaves it to the table of the architecture."""

    prefill_rows: int = 0
    """Query tokens times heads of a KV head in a tile, for rows that are no decodes."""
    prefill_keys: int = 0
    """Keys that a tile takes at a time."""
    prefill_warps: int = 0
    prefill_stages: int = 0
    """Loads in flight: the depth of the software pipeline."""
    decode_keys: int = 0
    decode_warps: int = 0
    decode_stages: int = 0
    splits: int = 0
    """Parts of the keys, each with programs of its own, where there are fewer tiles than the card has units."""

    def __post_init__(self) -> None:
        least = {"prefill_rows": 16, "prefill_keys": 16, "decode_keys": 16}
        for name in (f.name for f in fields(self)):
            value, low = getattr(self, name), least.get(name, 1)
            if type(value) is not int or value < 0:
                raise InvalidInput(name, f"must be a whole number, 0 for the table's, not {value!r}")
            if value and value < low:
                raise InvalidInput(name, f"must be at least {low}, not {value}")
            if value & (value - 1) and not name.endswith(("stages", "splits")):
                raise InvalidInput(name, f"must be a power of two, not {value}")
        if self.splits > MOST_SPLITS:
            raise InvalidInput("splits", f"must be at most {MOST_SPLITS}, not {self.splits}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """What one program works on."""

    rows: int
    """Query tokens times heads of the group."""
    keys: int
    """Keys at a time."""
    warps: int
    stages: int

    def share(self, group: int) -> int:
        """Query heads of a KV head that share a tile: all `group`, where there is room."""
        return min(group, self.rows)

    def tokens(self, group: int) -> int:
        """Query tokens of a tile."""
        return self.rows // self.share(group)

    def parts(self, group: int) -> int:
        """Tiles that the heads of a KV head take."""
        return -(-group // self.share(group))


_FLOAT32 = Tile(rows=16, keys=32, warps=8, stages=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Cards that are tuned alike."""

    prefill: Tile
    decode: Tile
    shared_bytes: int
    """Shared memory (LDS) that one program can have."""
    float32: Tile | None = _FLOAT32
    """For both in float32, whose products go through no tensor core: larger tiles do not fit into registers."""
    split_keys: int = 256
    """Fewest keys that are worth a program of their own."""
    units: int = 0
    """Programs that run at a time, where that is not the device's own number."""


_AMPERE = Tile(rows=64, keys=64, warps=8, stages=2)
_CDNA = Tile(rows=64, keys=64, warps=4, stages=1)
_NARROW = Tile(rows=16, keys=64, warps=4, stages=2)
FAMILIES: Mapping[str, Family] = {
    "sm_80": Family(prefill=_AMPERE, decode=_NARROW, shared_bytes=163 << 10),
    "sm_8": Family(prefill=_AMPERE, decode=_NARROW, shared_bytes=99 << 10),
    "sm_9": Family(prefill=replace(_AMPERE, rows=128), decode=_NARROW, shared_bytes=227 << 10),
    "sm_10": Family(prefill=replace(_AMPERE, rows=128), decode=_NARROW, shared_bytes=227 << 10),
    "sm_12": Family(prefill=_AMPERE, decode=_NARROW, shared_bytes=99 << 10),
    "gfx90a": Family(prefill=_CDNA, decode=replace(_NARROW, stages=1), shared_bytes=64 << 10),
    "gfx942": Family(prefill=_CDNA, decode=replace(_NARROW, stages=1), shared_bytes=64 << 10),
    "gfx950": Family(prefill=replace(_CDNA, stages=2), decode=_NARROW, shared_bytes=160 << 10),
    "gfx12": Family(
        prefill=_CDNA,
        decode=replace(_NARROW, stages=1),
        shared_bytes=64 << 10,
        float32=replace(_FLOAT32, keys=16),
    ),
    "interpreter": Family(
        prefill=Tile(rows=64, keys=64, warps=1, stages=1),
        decode=Tile(rows=16, keys=64, warps=1, stages=1),
        shared_bytes=1 << 30,
        float32=None,
        split_keys=64,
        units=16,
    ),
}
"""By the beginning of the architecture's name, the longest that fits. Nothing in it was measured: no card was there."""


def family_of(device: Device) -> Family | None:
    """The entry for `device`; None where the kernels are not made for it."""
    if device.platform == "cpu":
        return FAMILIES["interpreter"]
    known = {"cuda": "sm_", "rocm": "gfx"}.get(device.platform)
    fits = [name for name in FAMILIES if known and name.startswith(known) and device.arch.startswith(name)]
    return FAMILIES[max(fits, key=len)] if fits else None


def power_of_two(n: int, least: int = 16) -> int:
    """The smallest power of two that is neither below `n` nor below `least`."""
    return max(least, 1 << (n - 1).bit_length())


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What an instance works with."""

    prefill: Tile
    decode: Tile
    units: int
    split_keys: int
    splits: int
    """Fixed number of splits; 0 is by `num_splits`."""

    @classmethod
    def of(cls, spec: AttentionSpec, device: Device, options: TritonOptions) -> Tuning:
        """The table's values and the user's, small enough for the card's shared memory.

        Raises `InvalidInput` where a tile of the user's does not fit.
        """
        family = family_of(device)
        assert family is not None, "capabilities declare nothing on such a device"
        if spec.dtype == "float32" and family.float32 is not None:
            family = replace(family, prefill=family.float32, decode=family.float32)
        if spec.head_size_v > WIDE:
            family = replace(family, prefill=replace(family.prefill, rows=min(family.prefill.rows, 64)))
        heads = min(power_of_two(spec.group_size), MOST_HEADS)
        prefill = replace(family.prefill, rows=max(heads, options.prefill_rows or family.prefill.rows))
        decode = replace(family.decode, rows=heads)
        return cls(
            prefill=_fitted(prefill, "prefill", spec, family, options),
            decode=_fitted(decode, "decode", spec, family, options),
            units=family.units or device.units,
            split_keys=family.split_keys,
            splits=options.splits,
        )

    def num_splits(self, programs: int, keys: int) -> int:
        """Parts for rows of at most `keys` keys when there are `programs` programs without splits.

        FlashAttention's heuristic: the fewest that use the card nearly as well as the best number does.
        """
        if programs >= self.units or programs == 0:
            return 1
        if self.splits:
            return self.splits
        most = min(MOST_SPLITS, keys // self.split_keys, -(-2 * self.units // programs))
        use = [_use(programs * n, self.units) for n in range(1, most + 1)]
        return next((n for n, share in enumerate(use, 1) if share >= WHOLE_WAVES * max(use)), 1)


def _use(programs: int, units: int) -> float:
    """Share of the units' time that is used, when programs run in waves."""
    return programs / (-(-programs // units) * units)


def _fitted(tile: Tile, phase: str, spec: AttentionSpec, family: Family, options: TritonOptions) -> Tile:
    keys, warps, stages = (getattr(options, f"{phase}_{name}") for name in ("keys", "warps", "stages"))
    tile = replace(tile, keys=keys or tile.keys, warps=warps or tile.warps, stages=stages or tile.stages)
    while shared_bytes(tile, spec) > family.shared_bytes:
        if not stages and tile.stages > 1:
            tile = replace(tile, stages=tile.stages - 1)
        elif not keys and tile.keys > 16:
            tile = replace(tile, keys=tile.keys // 2)
        elif not options.prefill_rows and tile.rows > 16:
            tile = replace(tile, rows=tile.rows // 2)
        else:
            need = shared_bytes(tile, spec)
            raise InvalidInput(
                f"{phase}_keys", f"tiles of this size need {need} bytes of shared memory, of {family.shared_bytes}"
            )
    return tile


def shared_bytes(tile: Tile, spec: AttentionSpec) -> int:
    """Upper estimate of a program's shared memory: tiles of K and V in flight, the query's, and the weights'."""
    size = {"float32": 4}.get(spec.dtype, 2)
    k, v = power_of_two(spec.head_size), power_of_two(spec.head_size_v)
    moving = tile.keys * (k + v) * max(size, kv_format(spec.kv_format).element_bytes) * tile.stages
    return moving + tile.rows * (k + tile.keys) * size
