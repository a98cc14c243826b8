"""`headstock explain`: which backend a model gets on a device, why, and what the device's figures allow. Nothing is run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .console import note, print_json, show_log

if TYPE_CHECKING:
    from ...core.attention import Device
    from ...selector import Estimate, Explanation, LayerGroup

EXIT_NOTHING_FITS = 1


def explain(
    model: options.ModelArgument,
    device: Annotated[
        str | None,
        typer.Option(help="A device here (cpu, cuda:1) or a profile such as mi300x [default: the best here]."),
    ] = None,
    attention_backend: options.AttentionBackend = "auto",
    decode_attention_backend: options.DecodeAttentionBackend = None,
    prefill_attention_backend: options.PrefillAttentionBackend = None,
    attention_policy: options.AttentionPolicy = None,
    attention_backend_config: options.AttentionBackendConfig = None,
    block_size: options.BlockSize = None,
    dtype: options.Dtype = "auto",
    context: Annotated[int, typer.Option(min=1, help="Tokens of context that the speed bounds are for.")] = 1024,
    json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Explain which backend each layer of MODEL gets, and every reason against every other.

    Only the model's configuration is read, no weights. Also says what fits into the device's memory and how fast its
    bandwidth and arithmetic allow the model to be.

    Exit codes: 0 every layer gets a backend; 1 none fits; 2 refused, with the reason.
    """
    show_log(verbose)
    explanation = _explanation(
        model, device, dtype, block_size, context, attention_backend=attention_backend,
        decode_attention_backend=decode_attention_backend, prefill_attention_backend=prefill_attention_backend,
        attention_policy=attention_policy, attention_backend_config=attention_backend_config,
    )  # fmt: skip
    if json:
        print_json({"model": model} | explanation.to_dict())
    else:
        _print(model, explanation)
    if not explanation.fits:
        raise typer.Exit(EXIT_NOTHING_FITS)


def _explanation(
    name: str, device_name: str | None, dtype: str, block_size: int | None, context: int, **wishes: str | None
) -> Explanation:
    from ...core.errors import InvalidInput
    from ...core.model import read_config, resolve_dtype, resolve_model
    from ...selector import ModelFigures, Selector, find_device, read_policy
    from ...selector import explain as explain_selection
    from ..compose import installed_plugins

    if block_size is not None and block_size < 1:
        raise InvalidInput("block_size", f"must be an integer of at least 1, not {block_size}")
    plugins = installed_plugins()
    policy = read_policy(**{name: value for name, value in wishes.items() if value is not None})
    device = find_device(device_name, plugins.hooks)
    config = read_config(resolve_model(name, weights=False).path)
    dtype = resolve_dtype(dtype, config, device)
    weight_bytes = config.weight_bytes(dtype)
    figures = ModelFigures(
        weight_bytes=weight_bytes,
        bytes_per_step=weight_bytes - config.lookup_bytes(dtype),
        flops_per_token=config.flops_per_token(),
        dtype=dtype,
    )
    specs = config.attention_specs(dtype)
    return explain_selection(
        Selector(plugins, policy), specs, device, block_size=block_size, model=figures, context=context
    )


def _print(model: str, explanation: Explanation) -> None:
    from rich.console import Console

    console = Console()
    console.print(f"[bold]{model}[/bold] on {_describe(explanation.device)}", highlight=False)
    for group in explanation.groups:
        console.print()
        _print_group(console, group)
    console.print()
    if explanation.error:
        console.print(explanation.error, highlight=False, markup=False)
    else:
        console.print(f"block size {explanation.block_size}, layout {explanation.layout}", highlight=False)
    for line in explanation.notes:
        console.print(line, highlight=False, markup=False)
    if explanation.estimate:
        console.print(_figures(explanation.estimate), highlight=False, markup=False)
    if explanation.device.assumed:
        note(f"{explanation.device.name} is a profile: its library versions are assumed ({_libraries(explanation)})")


def _print_group(console: object, group: LayerGroup) -> None:
    from rich.table import Table

    spec = group.spec
    title = f"{len(group.layers)} layers ({group.layers[0]}{' …' if len(group.layers) > 1 else ''})"
    shape = f"heads {spec.num_heads}/{spec.num_kv_heads}/{spec.head_size}, {spec.dtype}, KV {spec.kv_format}"
    window = f", window {spec.window[0] + 1}" if spec.window else ""
    table = Table(title=f"{title}: {shape}{window}", title_justify="left", box=None, pad_edge=False)
    for column in ("rank", "backend", "verdict", "package", "why"):
        table.add_column(column, overflow="fold")
    for candidate in group.candidates:
        why = "; ".join(candidate.reasons) or (group.origin or "" if candidate.verdict == "chosen" else "")
        rank = "" if candidate.rank is None else str(candidate.rank)
        table.add_row(rank, candidate.backend, candidate.verdict, candidate.distribution, why)
    console.print(table)  # pyright: ignore[reportAttributeAccessIssue]


def _describe(device: Device) -> str:
    memory = f", {device.memory_bytes / 2**30:.0f} GiB" if device.memory_bytes else ""
    bandwidth = f", {device.bandwidth / 1e9:.0f} GB/s" if device.bandwidth else ""
    return f"{device.name} ({device.platform}, {device.arch}{memory}{bandwidth})"


def _libraries(explanation: Explanation) -> str:
    return ", ".join(f"{name} {version}" for name, version in explanation.device.libraries.items()) or "none"


def _figures(estimate: Estimate) -> str:
    lines = [
        f"weights {estimate.weight_bytes / 2**20:,.0f} MiB, KV {estimate.kv_bytes_per_token / 2**10:,.1f} KiB a token",
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
