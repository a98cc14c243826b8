"""The contract between attention kernels and the engine, version 1."""

from .backend import API_VERSION, AttentionBackend, Backend, NoOptions
from .batch import AttentionBatch, AttentionMask, GraphKey, RowCounts, count_rows
from .cache import KVCache, KVLayout, Plane, slots_of
from .capabilities import ANY, Capabilities, GraphSupport, Mismatch, Sizes, common, mismatches, one_of
from .composite import PhaseSplit, by_phase
from .context import BoundLayer, ForwardContext, current_context, forward_context
from .device import Device
from .formats import DTYPE_FORMATS, KV_FORMATS, KVFormat, kv_format
from .layer import Attention
from .layouts import LAYOUTS
from .params import LayerParams, Limits, Workspace
from .provider import AttentionChoice, AttentionProvider, AttentionSelection, Rejection
from .requirements import Availability, Requirement
from .spec import AttentionSpec, model_window, read_spec, spec_document
from .subdivided import kernel_block, subdivided

__all__ = [
    "ANY",
    "API_VERSION",
    "DTYPE_FORMATS",
    "KV_FORMATS",
    "LAYOUTS",
    "Attention",
    "AttentionBackend",
    "AttentionBatch",
    "AttentionChoice",
    "AttentionMask",
    "AttentionProvider",
    "AttentionSelection",
    "AttentionSpec",
    "Availability",
    "Backend",
    "BoundLayer",
    "Capabilities",
    "Device",
    "ForwardContext",
    "GraphKey",
    "GraphSupport",
    "KVCache",
    "KVFormat",
    "KVLayout",
    "LayerParams",
    "Limits",
    "Mismatch",
    "NoOptions",
    "PhaseSplit",
    "Plane",
    "Rejection",
    "Requirement",
    "RowCounts",
    "Sizes",
    "Workspace",
    "by_phase",
    "common",
    "count_rows",
    "current_context",
    "forward_context",
    "kernel_block",
    "kv_format",
    "mismatches",
    "model_window",
    "one_of",
    "read_spec",
    "slots_of",
    "spec_document",
    "subdivided",
]
