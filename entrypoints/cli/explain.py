"""`headstock explain`: which backend a model gets on a device, why, and what the device allows. Nothing is run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Exit, Option

from . import options
from .console import note, print_json, print_table, show_log
from .groups import grouped

if TYPE_CHECKING:
    from ...core.attention import Device
    from ...core.model import ModelDescription
    from ...selector import Estimate, Explanation, LayerGroup, ModelFigures, Policy

EXIT_NOTHING_FITS = 1
COUNT = 2**31 - 1
"""Positions and block ids are 32-bit."""


@grouped
def explain(
    model: options.Model,
    attention: options.AttentionOptions,
    device: Annotated[
        str | None,
        Option(help="A device here (cpu, cuda:1) or a profile such as mi300x; else the best here.", metavar="NAME"),
    ] = None,
    block_size: Annotated[
        int | None, Option(min=1, max=COUNT, help="Tokens a KV block (16, or what the backends take).")
    ] = None,
    dtype: Annotated[str, Option(help="auto, float32, bfloat16, float16, float64.")] = "auto",
    model_impl: options.ModelImpl = "auto",
    context: Annotated[int, Option(min=1, max=COUNT, help="Tokens of context that the speed bounds are for.")] = 1024,
    json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Explain which backend each layer of MODEL gets, and what speaks against others.

    Only the model's configuration is read, no weights. Also says what fits
    into the device's memory, and how fast its bandwidth and arithmetic allow
    the model to be.

    Exit codes: 0 every layer gets a backend and the model fits; 1 one of them
    does not hold; 2 refused, with the reason.
    """
    show_log(verbose)
    from ...core.model import describe_model, resolve_dtype, resolve_model
    from ...selector import explain as explain_selection
    from ...selector import find_device, read_policy
    from ..compose import installed_plugins, make_selector

    plugins = installed_plugins()
    policy = read_policy(**attention.wishes())
    for name in _named(policy):
        plugins.backends.find(name)  # that one does not fit is an answer; that nobody offers it is wrong input
    selector = make_selector(policy)
    target = find_device(device, plugins.hooks)
    config = describe_model(resolve_model(model, weights=False).path, model_impl, "auto")
    dtype = resolve_dtype(dtype, config, target)
    explanation = explain_selection(
        selector,
        config.attention_specs(dtype),
        target,
        block_size=block_size,
        model=_model_figures(config, dtype),
        context=context,
    )
    if json:
        print_json({"model": model} | explanation.to_dict())
    else:
        _print(model, explanation)
    if not explanation.fits:
        raise Exit(EXIT_NOTHING_FITS)


def _named(policy: Policy) -> list[str]:
    """The backends that are asked for."""
    from ...plugins.names import AUTO, key

    everywhere = policy.environment if key(policy.flag) == AUTO else policy.flag
    names = [everywhere, *(name for rule in policy.rules for name in rule.backends.values())]
    return [name for name in names if name and key(name) != AUTO]


def _model_figures(config: ModelDescription, dtype: str) -> ModelFigures:
    from ...selector import ModelFigures

    weight_bytes = config.weight_bytes(dtype)
    return ModelFigures(
        weight_bytes=weight_bytes,
        bytes_per_step=weight_bytes - config.lookup_bytes(dtype),
        flops_per_token=config.flops_per_token(),
        dtype=dtype,
    )


def _print(model: str, explanation: Explanation) -> None:
    print(f"{model} on {_describe(explanation.device)}")
    for group in explanation.groups:
        _print_group(group)
    size = f"block size {explanation.block_size}, layout {explanation.layout}"
    print("", explanation.error or size, *explanation.notes, sep="\n")
    if explanation.estimate:
        print(_figures(explanation.estimate))
    if explanation.device.assumed:
        note(f"{explanation.device.name} is a profile: its library versions are assumed ({_libraries(explanation)})")


def _print_group(group: LayerGroup) -> None:
    spec = group.spec
    window = f", window {spec.window[0] + 1}" if spec.window else ""
    print(
        f"\n{len(group.layers)} layers ({group.layers[0]}{' …' if len(group.layers) > 1 else ''}): "
        f"heads {spec.num_heads}/{spec.num_kv_heads}/{spec.head_size}, {spec.dtype}, KV {spec.kv_format}{window}"
    )
    rows = [
        (
            "" if candidate.rank is None else str(candidate.rank),
            candidate.backend,
            candidate.verdict,
            candidate.distribution,
            "; ".join(candidate.reasons) or (group.origin or "" if candidate.verdict == "chosen" else candidate.note),
        )
        for candidate in group.candidates
    ]
    print_table(("rank", "backend", "verdict", "package", "why"), rows)


def _describe(device: Device) -> str:
    memory = f", {device.memory_bytes / 2**30:.0f} GiB" if device.memory_bytes else ""
    bandwidth = f", {device.bandwidth / 1e9:.0f} GB/s" if device.bandwidth else ""
    return f"{device.name} ({device.platform}, {device.arch}{memory}{bandwidth})"


def _libraries(explanation: Explanation) -> str:
    return ", ".join(f"{name} {version}" for name, version in explanation.device.libraries.items()) or "none"


def _figures(estimate: Estimate) -> str:
    short = "" if estimate.fits else "; they do not fit into this device's memory together with a KV cache"
    lines = [
        f"weights {estimate.weight_bytes / 2**20:,.0f} MiB, KV {estimate.kv_bytes_per_token / 2**10:,.1f} KiB a token"
        + short,
        f"KV cache: {estimate.num_blocks:,} blocks of {estimate.block_size}, {estimate.num_tokens:,} tokens "
        f"in {estimate.budget_bytes / 2**30:,.1f} GiB beside the weights",
    ]
    bounds = {
        "decode, one sequence, by bandwidth": estimate.decode_tokens_per_s,
        "prefill, by arithmetic": estimate.prefill_tokens_per_s,
    }
    for what, rate in bounds.items():
        known = "not known for this device" if rate is None else f"at most {rate:,.0f} tokens/s"
        lines.append(f"{what}, at {estimate.context:,} tokens of context: {known}")
    return "\n".join(lines)
