"""Holding answers against those recorded from transformers, for the twenty prompts that were fixed beforehand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headstock.core.outputs import RequestOutput
from headstock.core.params import SamplingParams

GOLDEN = json.loads((Path(__file__).parents[1] / "e2e" / "data" / "golden.json").read_text())
RECORDS: list[dict[str, Any]] = GOLDEN["records"]
CLOSE = 1e-4
"""Lead of the likeliest token, in transformers' float64 logits, below which another choice is no fault."""


def parity_params(max_tokens: int = GOLDEN["max_tokens"]) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens)


def prompts_of(records: Sequence[dict[str, Any]]) -> list[list[int]]:
    return [record["prompt_token_ids"] for record in records]


def assert_parity(
    outputs: Sequence[RequestOutput], records: Sequence[dict[str, Any]], max_tokens: int = GOLDEN["max_tokens"]
) -> None:
    """Token ids and finish reasons are transformers'. One answer may differ from where float64 has two likeliest tokens
    within `CLOSE`; it is printed."""
    excused = 0
    for output, record in zip(outputs, records, strict=True):
        expected = record["output_token_ids"][:max_tokens]
        found = list(output.outputs[0].token_ids)
        if found == expected:
            reason = record["finish_reason"] if len(record["output_token_ids"]) <= max_tokens else "length"
            assert output.outputs[0].finish_reason == reason
            continue
        step = next(i for i, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1])
        gap = record["float64_gaps"][step]
        print(f"{record['text'][:40]!r} differs at token {step}: {found[step]}, not {expected[step]}; gap {gap:.2e}")
        assert gap <= CLOSE, f"token {step} differs where the likeliest token leads by {gap:.2e}"
        excused += 1
    assert excused <= 1
