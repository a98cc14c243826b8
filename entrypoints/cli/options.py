"""Options that several commands share, with the words that explain them."""

from __future__ import annotations

from typing import Annotated

import typer

CHOICE = "Attention backend"
ENGINE = "Engine"
SAMPLING = "Sampling"

ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="smollm2, a Hugging Face folder, a .gguf file or a Hub name.")
]
AttentionBackend = Annotated[
    str,
    typer.Option(
        help="Backend of all layers, or auto. An explicit one is used or is an error. See: headstock backends",
        metavar="NAME",
        rich_help_panel=CHOICE,
    ),
]
DecodeAttentionBackend = Annotated[
    str | None,
    typer.Option(help="Backend of decode rows only.", metavar="NAME", rich_help_panel=CHOICE),
]
PrefillAttentionBackend = Annotated[
    str | None,
    typer.Option(help="Backend of all other rows.", metavar="NAME", rich_help_panel=CHOICE),
]
AttentionPolicy = Annotated[
    str | None,
    typer.Option(
        help='Backends by layer, kind and phase: \'{"window": "sdpa", "0,4-7": {"decode": "sdpa"}}\'; JSON or a file.',
        metavar="JSON|FILE",
        rich_help_panel=CHOICE,
    ),
]
AttentionBackendConfig = Annotated[
    str | None,
    typer.Option(
        help="Options of backends: an object of options by name; JSON or a file.",
        metavar="JSON|FILE",
        rich_help_panel=CHOICE,
    ),
]
BlockSize = Annotated[
    int | None,
    typer.Option(help="Tokens a KV block [default: 16, or what the backends take].", rich_help_panel=ENGINE),
]
MaxModelLen = Annotated[
    int | None,
    typer.Option(
        help="Longest request, prompt and answer [default: the model's, if the KV cache holds it].",
        rich_help_panel=ENGINE,
    ),
]
Dtype = Annotated[
    str,
    typer.Option(help="auto, float32, bfloat16, float16 or float64.", rich_help_panel=ENGINE),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show what the engine does, on stderr.")]
