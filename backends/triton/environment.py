"""Whether Triton is here, new enough, and compiling or interpreting; and the kernels, imported when they are needed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from packaging.version import InvalidVersion, Version

from ...core.attention import Device
from ...core.errors import BackendError

VARIABLE = "TRITON_INTERPRET"
OLDEST = "3.2"
"""What comes with the oldest torch that Headstock takes."""


def interpreting() -> bool:
    """Whether Triton was told to interpret kernels with numpy instead of compiling them."""
    return os.environ.get(VARIABLE, "").casefold() in ("1", "true", "on", "yes", "y")


def obstacle() -> str:
    """Why the kernels cannot run on this machine; ``""`` where they can."""
    import torch

    try:
        import triton
    except ImportError as error:
        return f"module triton cannot be imported ({error}); it comes with a torch for CUDA on Linux, or for ROCm"
    if _older(found := str(getattr(triton, "__version__", "0"))):
        return f"triton is {found}, needed is {OLDEST} or newer"
    if not torch.cuda.is_available() and not interpreting():
        return f"no CUDA or ROCm device is here; on a CPU the kernels are only interpreted, slowly: set {VARIABLE}=1"
    return ""


def offered_instead(device: Device) -> str:
    """What there is in place of `device`, where kernels compile and it cannot run them, or the other way round."""
    if device.platform == "cpu":
        return "" if interpreting() else f"cuda and rocm; the cpu where {VARIABLE}=1 is set (interpreted, slowly)"
    return f"the cpu: kernels are interpreted while {VARIABLE} is set (unset it)" if interpreting() else ""


def _older(version: str) -> bool:
    try:
        return Version(version).release < Version(OLDEST).release
    except InvalidVersion:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """The kernels, and Triton's names of the dtypes they compute in."""

    attend: Any
    merge: Any
    write: Any
    dtypes: dict[str, Any]
    interpreted: bool


def load_kernels() -> Kernels:
    """Import them; raises `BackendError` where a part of Triton compiles and another interprets."""
    import triton
    import triton.language as tl

    from .kernels import attend_kernel, merge_kernel
    from .writing import write_kernel

    interpreted = not isinstance(attend_kernel, triton.JITFunction)
    if interpreted == isinstance(tl.sum, triton.JITFunction):
        raise BackendError(f"{VARIABLE} was changed after triton had been imported; set it before Python starts")
    return Kernels(
        attend=attend_kernel,
        merge=merge_kernel,
        write=write_kernel,
        dtypes={"float32": tl.float32, "bfloat16": tl.bfloat16, "float16": tl.float16},
        interpreted=interpreted,
    )
