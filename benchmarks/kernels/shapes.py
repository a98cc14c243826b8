"""Which attention is measured: `Shape`, the default grid, and both ways between a shape and its label."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from ...core.attention import DTYPE_FORMATS, AttentionSpec
from ...core.errors import InvalidInput

PHASES = ("decode", "prefill", "chunk")
SMALL, LARGE = (9, 3, 64), (32, 8, 128)
"""Heads of SmolLM2-135M (30 layers) and of Llama 3 8B (32 layers)."""
LAYERS = 30
"""Layers that share a plan, for the overhead a layer call."""
_LABEL = re.compile(
    r"(?P<phase>decode|prefill|chunk):(?P<q>\d+)/(?P<kv>\d+)/(?P<d>\d+):(?:(?P<n>\d+)[x+])?(?P<length>\d+k?)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Equal sequences: `batch` of them, each with `queries` new tokens at the end of `length` tokens in all."""

    phase: str
    """One of `PHASES`."""
    num_heads: int
    num_kv_heads: int
    head_size: int
    batch: int = 1
    queries: int = 1
    length: int
    """Keys of a sequence, those of the new tokens included."""
    layer: AttentionSpec | None = None
    """The layer it stands for, with these heads; None is a causal decoder without further features."""
    rows: tuple[tuple[int, int], ...] = ()
    """New tokens and keys of each sequence, where they are not alike; `batch`, `queries` and `length` are then how many
    there are and the most of each."""
    name: str = ""
    """Label of such sequences."""

    def __post_init__(self) -> None:
        sizes = (self.num_heads, self.num_kv_heads, self.head_size, self.batch, self.queries, self.length)
        if min(sizes) < 1 or self.num_heads % self.num_kv_heads:
            raise InvalidInput("shapes", f"{self.label}: sizes are at least 1, query heads a multiple of KV heads")

    @property
    def heads(self) -> tuple[int, int, int]:
        """Query heads, KV heads, head size."""
        return self.num_heads, self.num_kv_heads, self.head_size

    @property
    def sequences(self) -> tuple[tuple[int, int], ...]:
        """New tokens and keys of each sequence."""
        return self.rows or ((self.queries, self.length),) * self.batch

    @property
    def label(self) -> str:
        """``decode:9/3/64:16x4k`` (batch × context), ``prefill:9/3/64:2k``, ``chunk:9/3/64:256+4k`` (new + cached)."""
        if self.rows:
            return f"{self.name}{self._features}"
        size = {
            "decode": f"{self.batch}x{_short(self.length)}",
            "prefill": _short(self.length),
            "chunk": f"{self.queries}+{_short(self.length - self.queries)}",
        }[self.phase]
        return f"{self.phase}:{'/'.join(map(str, self.heads))}:{size}{self._features}"

    @property
    def _features(self) -> str:
        """``+window=512+sinks``: what sets the layer apart from a plain one."""
        layer = self.layer
        if layer is None:
            return ""
        plain = AttentionSpec(num_heads=1, num_kv_heads=1, head_size=self.head_size, dtype=layer.dtype)
        own = {"window": layer.window and layer.window[0] + 1, "softcap": layer.softcap}
        own |= {"scale": layer.scale if layer.scale != plain.scale else None}
        named = [f"+{name}={value:g}" for name, value in own.items() if value is not None]
        return "".join(named + [f"+{name}" for name in ("alibi", "sinks") if getattr(layer, name)])

    @property
    def tokens(self) -> int:
        """Query tokens in all."""
        return sum(queries for queries, _ in self.sequences)

    @property
    def flops(self) -> int:
        """Floating-point operations of q·k and p·v over the keys that each query sees."""
        pairs = sum(self._pairs(queries, length) for queries, length in self.sequences)
        return 4 * self.num_heads * self.head_size * pairs

    def _pairs(self, queries: int, length: int) -> int:
        if self._left is None:
            return queries * (length - queries) + queries * (queries + 1) // 2
        return sum(min(n, self._left + 1) for n in range(length - queries + 1, length + 1))

    def kv_bytes(self, dtype: str) -> int:
        """Bytes of all keys and values that are seen, each counted once."""
        seen = sum(length if self._left is None else min(length, self._left + q) for q, length in self.sequences)
        return seen * self.spec(dtype).bytes_per_token

    @property
    def _left(self) -> int | None:
        """Keys before its own that a new token sees; None is all."""
        window = self.layer.window if self.layer else None
        return None if window is None or window[0] < 0 else window[0]

    def spec(self, dtype: str, block_size: int = 16) -> AttentionSpec:
        """The layer it stands for, in `dtype` and with K and V stored in it."""
        if self.layer is not None:
            return replace(self.layer, dtype=dtype, kv_format="auto", kv_scales="none", block_size=block_size)
        return AttentionSpec(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_size=self.head_size,
            dtype=dtype,
            block_size=block_size,
        )


def default_grid() -> tuple[Shape, ...]:
    """What is measured where nothing is asked for."""
    grid: list[Shape] = []
    for heads in (SMALL, LARGE):
        grid += [shape("decode", heads, batch=b, length=c * 1024) for c in (1, 4, 16) for b in (1, 16, 64)]
        grid += [shape("prefill", heads, queries=n, length=n) for n in (512, 2048)]
        grid += [shape("chunk", heads, queries=256, length=4096 + 256)]
    return tuple(grid)


def quick_grid(heads: tuple[int, int, int] = SMALL) -> tuple[Shape, ...]:
    """A look in seconds: a shape a phase, at most some 30 MiB of K and V."""
    return (
        shape("decode", heads, batch=1, length=1024),
        shape("decode", heads, batch=16, length=1024),
        shape("prefill", heads, queries=512, length=512),
        shape("chunk", heads, queries=256, length=1024 + 256),
    )


def model_grid(specs: Iterable[AttentionSpec]) -> tuple[Shape, ...]:
    """The quick grid for each of these layers, with its heads, window, softcap, sinks and so on."""
    layers = dict.fromkeys(replace(spec, block_size=16) for spec in specs)
    grids = [(spec, quick_grid((spec.num_heads, spec.num_kv_heads, spec.head_size))) for spec in layers]
    return tuple(replace(shape, layer=spec) for spec, grid in grids for shape in grid)


def shape(phase: str, heads: tuple[int, int, int], *, batch: int = 1, queries: int = 1, length: int) -> Shape:
    """A `Shape` from its heads as a tuple."""
    return Shape(
        phase=phase,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        head_size=heads[2],
        batch=batch,
        queries=queries,
        length=length,
    )


def words_of(text: str) -> tuple[str, ...]:
    """Those between commas, each once."""
    return tuple(dict.fromkeys(word.strip() for word in text.split(",")))


def choose_dtypes(words: str) -> tuple[str, ...]:
    """Raises `InvalidInput` for what is no compute dtype."""
    found = words_of(words)
    for name in found:
        if name not in DTYPE_FORMATS:
            raise InvalidInput("dtype", f"{name!r} is not one of {', '.join(DTYPE_FORMATS)}")
    return found


def choose(words: str | None, phase: str, grid: Sequence[Shape]) -> tuple[Shape, ...]:
    """Shapes of `phase` (or ``"all"``) in `grid`, or those that `words` names: labels or patterns, commas between.

    Raises `InvalidInput` for what is neither a label nor a pattern that fits something in `grid`, or if nothing is
    left.
    """
    if phase not in (*PHASES, "all"):
        raise InvalidInput("phase", f"{phase!r} is not one of {', '.join(PHASES)}, all")
    chosen = grid if words is None else [s for word in words.split(",") for s in _named(word.strip(), grid)]
    kept = tuple(dict.fromkeys(s for s in chosen if phase in (s.phase, "all")))
    if not kept:
        raise InvalidInput("shapes", f"none is left of phase {phase}")
    return kept


def overhead_shapes(shapes: Iterable[Shape]) -> tuple[Shape, ...]:
    """For each head count one sequence of one token: a call in which there is next to nothing to do but the call."""
    return tuple(shape("decode", heads, length=1) for heads in dict.fromkeys(s.heads for s in shapes))


def _named(word: str, grid: Sequence[Shape]) -> list[Shape]:
    if any(c in word for c in "*?["):
        if found := [s for s in grid if fnmatchcase(s.label, word)]:
            return found
        raise InvalidInput("shapes", f"no shape of the grid fits {word!r}; they are {', '.join(s.label for s in grid)}")
    match = _LABEL.fullmatch(word)
    if match is None:
        example = "decode:9/3/64:16x4k, prefill:9/3/64:2k, chunk:9/3/64:256+4k"
        raise InvalidInput("shapes", f"{word!r} is neither a pattern nor a shape such as {example}")
    phase, number, length = match["phase"], match["n"] and int(match["n"]), _long(match["length"])
    if (number is None) != (phase == "prefill"):
        raise InvalidInput("shapes", f"{word!r}: decode is BATCHxCONTEXT, prefill TOKENS, chunk NEW+CACHED")
    heads = (int(match["q"]), int(match["kv"]), int(match["d"]))
    if phase == "decode":
        return [shape(phase, heads, batch=number or 0, length=length)]
    queries = number or length
    return [shape(phase, heads, queries=queries, length=length + (queries if phase == "chunk" else 0))]


def _short(n: int) -> str:
    return f"{n // 1024}k" if n % 1024 == 0 else str(n)


def _long(text: str) -> int:
    return int(text.removesuffix("k")) * (1024 if text.endswith("k") else 1)
