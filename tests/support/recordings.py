"""Recordings of a real engine: prompts in chunks, layers with a window, and prefixes that are there already."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from headstock.core.live import Recording, Tape, read_recording, taping
from headstock.core.params import SamplingParams

from .serving import answers
from .tiny import tiny_engine, tiny_folder

SHARED = list(range(10, 50))
"""Tokens that two prompts begin with: of five blocks."""
BLOCK, CHUNK = 8, 24
"""Tokens a block, and a step at most."""


def record(path: Path, *, changes: dict[str, Any] | None = None, **options: Any) -> Recording:
    """A prompt in two chunks beside a short one, then one that begins alike; `changes` are of the model's config."""
    with tempfile.TemporaryDirectory() as folder:
        engine = tiny_engine(
            tiny_folder(Path(folder), **(changes or {})), block_size=BLOCK, max_num_batched_tokens=CHUNK
        )
        with taping(Tape(path, **options)):
            greedy = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
            answers(engine, [SHARED, [1, 2, 3]], greedy)
            answers(engine, [[*SHARED, 5, 6, 7]], greedy)
    return read_recording(path)


def tiny_tape(folder: Path) -> Path:
    """A file with all vectors."""
    path = folder / "attention.tape"
    record(path, tensors=True)
    return path
