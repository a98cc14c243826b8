"""The one layer over AITER, AMD's kernel library: what is there, what it runs on, and each of its functions by name.

Three questions are kept apart. `found`: is the library here, in a version that was read? `unsupported`: does it run on
this card? Whether it is *switched on* is nobody's business here: that decides about the automatic choice alone
(`headstock.selector.ranking`), and a backend that was named runs with the switch off.

A backend asks `bind` for an op. What it gets is AITER's own function, or the one that the user or a plugin put in its
place; either has to take the arguments that backends give, by keyword, and is held to that before a step is run. The
distribution is ``amd-aiter``; ``aiter`` on PyPI is something else. AITER is imported by `bind` and nowhere else.
torch.compile never sees an op: it keeps attention as one operator, whose fake is in `core.attention.op`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module, metadata
from operator import attrgetter
from typing import Any, cast

from packaging.version import Version

from ..core.attention import Availability, Device, Mismatch, Requirement
from ..core.attention.requirements import check_requirements
from ..core.errors import BackendError, InvalidInput
from .libraries import has_versions

FIRST, BEFORE = "0.1.7", "0.2"
AITER = Requirement(package="amd-aiter", versions=f">={FIRST},<{BEFORE}")
"""Releases whose signatures the ops were read from."""
COMPOSABLE_KERNEL = frozenset({"gfx942", "gfx950"})
"""Architectures that AITER's compiled kernels are built for: CDNA 3 and 4."""
TRITON = COMPOSABLE_KERNEL | {"gfx1200", "gfx1201"}
"""Those that its Triton kernels are tuned for: RDNA 4 as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """A function of AITER's that backends call."""

    homes: Mapping[str, str]
    """Where it lies, ``"module:function"``, by the release that put it there."""
    arguments: tuple[str, ...]
    """What backends give, all of it at every call, by keyword."""
    architectures: frozenset[str]

    @property
    def since(self) -> str:
        """The first release that has it."""
        return min(self.homes, key=Version)

    def home(self, version: str) -> str:
        """Where it lies in this release; raises `BackendError` where it came later."""
        past = [release for release in self.homes if Version(release) <= Version(version)]
        if not past:
            raise BackendError(f"is new in {AITER.package} {self.since}, and {version} is installed")
        return self.homes[max(past, key=Version)]


OPS: Mapping[str, Op] = {
    "flash_attn_varlen_func": Op(
        homes={"0.1.7": "aiter.ops.mha:flash_attn_varlen_func"},
        arguments=(
            "q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "softmax_scale",
            "logits_soft_cap", "causal", "window_size", "alibi_slopes", "return_lse", "out",
        ),
        architectures=COMPOSABLE_KERNEL,
    ),
    "paged_attention": Op(
        homes={"0.1.7": "aiter.ops.attention:paged_attention_v1"},
        arguments=(
            "out", "workspace_buffer", "query", "key_cache", "value_cache", "scale", "block_tables", "cu_query_lens",
            "context_lens", "max_context_len", "alibi_slopes", "kv_cache_dtype", "kv_cache_layout", "logits_soft_cap",
            "k_scale", "v_scale",
        ),
        architectures=COMPOSABLE_KERNEL,
    ),
    "paged_attention_rocm": Op(
        homes={"0.1.7": "aiter.ops.attention:paged_attention_rocm"},
        arguments=(
            "out", "exp_sums", "max_logits", "tmp_out", "query", "key_cache", "value_cache", "num_kv_heads", "scale",
            "block_tables", "context_lens", "block_size", "max_context_len", "alibi_slopes", "kv_cache_dtype",
            "k_scale", "v_scale",
        ),
        architectures=COMPOSABLE_KERNEL,
    ),
    "paged_attention_common": Op(
        homes={"0.1.10.post3": "aiter.ops.attention:paged_attention_common"},
        arguments=(
            "Q", "K", "V", "exp_sums", "max_logits", "tmp_out", "block_tables", "context_lens", "block_tables_stride0",
            "scale", "max_qlen", "max_seq_len", "K_QScale_hip", "V_QScale_hip", "out_", "kv_cache_dtype",
        ),
        architectures=COMPOSABLE_KERNEL,
    ),
    "unified_attention": Op(
        homes={
            "0.1.7": "aiter.ops.triton.unified_attention:unified_attention",
            "0.1.10": "aiter.ops.triton.attention.unified_attention:unified_attention",
        },
        arguments=(
            "q", "k", "v", "out", "cu_seqlens_q", "max_seqlen_q", "seqused_k", "max_seqlen_k", "softmax_scale",
            "causal", "window_size", "block_table", "softcap", "q_descale", "k_descale", "v_descale", "alibi_slopes",
            "sinks",
        ),
        architectures=TRITON,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class AiterOptions:
    """Options of the backends over AITER."""

    aiter_ops: Mapping[str, str] | tuple[tuple[str, str], ...] = ()
    """Functions in place of AITER's own: op → ``"module:function"``. Kept as sorted pairs, so that equal ones
    hash alike and go to other processes."""

    def __post_init__(self) -> None:
        given: object = self.aiter_ops
        if not isinstance(given, Mapping | tuple):
            raise InvalidInput("aiter_ops", f"must map ops to functions, not be {given!r}")
        pairs = dict(cast("Mapping[object, object]", given))
        for name, target in pairs.items():
            if name not in OPS:
                raise InvalidInput("aiter_ops", f"{name!r} is no op; known are {', '.join(sorted(OPS))}")
            if not isinstance(target, str) or not all(part.strip() for part in _halves(target)):
                raise InvalidInput("aiter_ops", f"{name} is {target!r}, not package.module:function")
        object.__setattr__(self, "aiter_ops", tuple(sorted(cast("dict[str, str]", pairs).items())))


def needed(*ops: str) -> Requirement:
    """AITER in a version that has these ops, and whose signatures are known."""
    since = max([FIRST, *(OPS[name].since for name in ops)], key=Version)
    return Requirement(package=AITER.package, versions=f">={since},<{BEFORE}")


def found(*ops: str) -> Availability:
    """Whether AITER is on this machine, in a version that has these ops."""
    missing = check_requirements((needed(*ops),))
    if missing.available or not _installed("aiter") or _installed(AITER.package):
        return missing
    stranger = f"the package aiter that is here is another project; AMD's is {AITER.package}"
    return Availability(reasons=(*missing.reasons, stranger))


def unsupported(device: Device, *ops: str) -> tuple[Mismatch, ...]:
    """Why AITER does not compute these ops on `device`; empty where it does."""
    if device.platform != "rocm":
        return (Mismatch(field="device", asked=device.platform, offered="rocm"),)
    known = frozenset[str].intersection(*(OPS[name].architectures for name in ops))
    if device.arch not in known:
        return (Mismatch(field="device", asked=device.arch, offered=known),)
    wanted = needed(*ops)
    if not has_versions(device, (wanted,)):
        version = f"{AITER.package} {device.libraries[AITER.package]}"
        return (Mismatch(field="device", asked=version, offered=wanted.versions),)
    return ()


def bind(name: str, options: AiterOptions) -> Callable[..., Any]:
    """The function that computes op `name`: what `options` put in its place, else AITER's own.

    Raises `BackendError` where it cannot be imported or does not take the arguments of the op.
    """
    op, replaced = OPS[name], dict(options.aiter_ops)
    target = replaced.get(name, "")
    try:
        target = target or op.home(metadata.version(AITER.package))
        function = load(target)
    except metadata.PackageNotFoundError:
        raise BackendError(f"AITER op {name}: {'; '.join(found().reasons)}") from None
    except (ImportError, OSError, AttributeError, BackendError) as error:
        whose = f"{target}, put in its place, cannot be loaded" if name in replaced else "AITER's cannot be loaded"
        advice = "; install it, or put its folder on PYTHONPATH" if isinstance(error, ModuleNotFoundError) else ""
        raise BackendError(f"AITER op {name}: {whose}: {error}{advice}") from error
    if problem := _unfit(function, op):
        raise BackendError(f"AITER op {name}: {target} {problem}; it is called with {', '.join(op.arguments)}")
    return function


def check_op(name: str, target: str) -> None:
    """Raise `BackendError` where this function cannot take the place of op `name`."""
    bind(name, AiterOptions(aiter_ops={name: target}))


def load(target: str) -> Any:
    """What ``"package.module:function"`` names. Raises what its import raises."""
    module, function = _halves(target)
    return attrgetter(function)(import_module(module))


def _unfit(function: Any, op: Op) -> str:
    """Why a function cannot be called as the op is; ``""`` where it can, or does not tell."""
    if not callable(function):
        return "is no function"
    try:
        signature = inspect.signature(function)
    except ValueError:  # compiled ones may not say what they take
        return ""
    try:
        signature.bind(**dict.fromkeys(op.arguments))
    except TypeError as error:
        return f"does not fit: {error}"
    return ""


def _halves(target: str) -> tuple[str, str]:
    module, _, function = target.partition(":")
    return module, function


def _installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True
