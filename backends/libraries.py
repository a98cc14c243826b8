"""What adapters of kernel libraries ask in the same words."""

from __future__ import annotations

from collections.abc import Iterable

from packaging.specifiers import SpecifierSet

from ..core.attention import DTYPE_FORMATS, AttentionSpec, Device, Mismatch, Requirement


def has_versions(device: Device, requirements: Iterable[Requirement]) -> bool:
    """Whether none of the libraries on `device` is of a version that is not wanted; one it does not name may be."""
    return all(
        SpecifierSet(r.versions, prereleases=True).contains(device.libraries[r.package])
        for r in requirements
        if r.package in device.libraries
    )


def stored_as_computed(spec: AttentionSpec) -> tuple[Mismatch, ...]:
    """The objection of kernels that read K and V in nothing but the query's dtype."""
    own = DTYPE_FORMATS[spec.dtype]
    if spec.kv_format == own:
        return ()
    return (Mismatch(field="kv_format", asked=spec.kv_format, offered=f"{own} with {spec.dtype}"),)
