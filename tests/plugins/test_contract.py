"""The shape of the contract that packages out there are written for. A change here is a change for all of them.

What may change without a new `API_VERSION`: keyword-only arguments that a backend need not take, fields with a default.
Anything else needs a new version, under which those of the one before still load.
"""

from __future__ import annotations

import inspect
from dataclasses import fields

from headstock.core.attention import API_VERSION, AttentionBackend, AttentionSelection, Capabilities, Device
from headstock.core.attention.spec import AttentionSpec
from headstock.plugins import hookspecs

SIGNATURES = {
    "__init__": "(self, spec, device, limits, workspace, options)",
    "availability": "()",
    "bind": "(self, layer)",
    "build": "()",
    "capabilities": "(device)",
    "check_op": "(name, target)",
    "configurations": "(spec, device, phase)",
    "derive": "(name, **attributes)",
    "forward": "(self, layer, query, *, key, value, kv_cache, plan, out, lse_out)",
    "ops": "(spec, device, options)",
    "parse_options": "(values)",
    "plan": "(self, batch)",
    "prebuild": "(folder)",
    "prepare": "(self, plan)",
    "refusals": "(spec, device)",
    "write_kv": "(self, layer, key, value, kv_cache, slot_mapping)",
}
HOOKS = {
    "headstock_aiter_ops": "(device)",
    "headstock_device_probes": "()",
    "headstock_kv_layouts": "()",
    "headstock_rank_backends": "(device)",
    "headstock_selected": "(selection, device)",
}
OLDEST_FIELDS = {
    AttentionSpec: "num_heads num_kv_heads head_size head_size_v dtype kv_format kv_scales block_size kind kv_source "
    "causal window scale softcap alibi sinks masks latent lse batch_invariant",
    Capabilities: "dtypes kv_formats kv_scales head_sizes head_sizes_v group_sizes block_sizes kinds kv_sources causal "
    "windows any_scale softcap alibi sinks masks latents lse batch_invariant layouts graph decode_query_len "
    "zero_length_rows padded_seq_len exact_seq_lens needs_zeroed_cache max_cache_elements",
    Device: "platform name arch capability index units features memory_bytes bandwidth peak_flops libraries "
    "assumed source",
    AttentionSelection: "choices block_size layout notes",
}
"""Fields of version 1. Values grow by fields with a default; none of these goes away."""


def shape(function) -> str:
    """A signature without annotations and defaults."""
    parameters = inspect.signature(function).parameters.values()
    bare = [p.replace(annotation=p.empty, default=p.empty) for p in parameters]
    return str(inspect.Signature(bare))


def test_the_methods_of_a_backend_are_those_of_version_1():
    assert API_VERSION == 1
    public = [n for n in dir(AttentionBackend) if not n.startswith("_") and callable(getattr(AttentionBackend, n))]
    public = [n for n in public if n != "Options"]
    assert {n: shape(getattr(AttentionBackend, n)) for n in (*public, "__init__")} == SIGNATURES


def test_the_hooks_are_those_of_version_1():
    names = [n for n in dir(hookspecs) if n.startswith("headstock_")]
    assert {n: shape(getattr(hookspecs, n)) for n in names} == HOOKS


def test_values_keep_the_fields_of_version_1():
    for value, names in OLDEST_FIELDS.items():
        found = {f.name: f for f in fields(value)}
        assert set(names.split()) <= set(found), value
        new = [f for name, f in found.items() if name not in names.split()]
        assert all(f.default is not f.default_factory for f in new), value
        assert all(f.kw_only for f in found.values()), value


def test_only_capabilities_and_forward_have_to_be_written():
    assert AttentionBackend.__abstractmethods__ == {"capabilities", "forward"}
