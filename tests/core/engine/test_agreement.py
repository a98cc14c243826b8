"""Every engine computes with the backends that were chosen where it was asked for, or says what differs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from headstock.backends.reference import ReferenceBackend
from headstock.backends.sdpa import SdpaBackend
from headstock.core.engine import AgreedProvider, AttentionRecord, EngineConfig, wanted_attention
from headstock.core.errors import BackendError
from headstock.core.model import ModelFolder, read_config
from support.attention import CPU
from support.engine import FixedProvider
from support.serving import answers, tokens
from support.tiny import tiny_engine, tiny_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


def mixed(name: str) -> type:
    return SdpaBackend if ".0." in name or ".1." in name else ReferenceBackend


def record(folder: ModelFolder, provider: FixedProvider, **config: object) -> AttentionRecord:
    asked = EngineConfig(device=CPU, **config)
    specs = wanted_attention(asked, read_config(folder.path))
    return AttentionRecord.of(provider.select(specs, CPU, asked.block_size), specs)


def test_a_mixed_model_agrees_with_itself_across_the_wire(folder: ModelFolder) -> None:
    sent = msgspec.msgpack.encode(record(folder, FixedProvider(mixed), dtype="float32"))
    there = msgspec.msgpack.decode(sent, type=AttentionRecord)
    engine = tiny_engine(folder, AgreedProvider(FixedProvider(mixed), there, rank=1))
    plain = tiny_engine(folder, FixedProvider(ReferenceBackend))
    assert tokens(answers(engine, [[5, 9, 13]])) == tokens(answers(plain, [[5, 9, 13]]))


@pytest.mark.parametrize(
    ("provider", "config", "words"),
    [
        (FixedProvider(ReferenceBackend), {}, r"(?s)engine 3 .*layers\.0.*SdpaBackend \(test\).* there, Ref.* here"),
        (FixedProvider(mixed), {"block_size": 32}, "block size: 32 there, 16 here"),
        (FixedProvider(mixed, "hnd"), {}, "layout: nhd there, hnd here"),
        (FixedProvider(mixed), {"dtype": "bfloat16"}, r"(?s)bfloat16.* there, .*float32.* here.*HEADSTOCK_"),
    ],
    ids=["backend", "block size", "layout", "dtype"],
)
def test_what_differs_is_told_with_both_sides_before_weights_load(
    folder: ModelFolder, tmp_path: Path, provider: FixedProvider, config: dict[str, object], words: str
) -> None:
    there = record(folder, FixedProvider(mixed), **config)
    with pytest.raises(BackendError, match=words):
        tiny_engine(folder, AgreedProvider(provider, there, rank=3), dtype="float32")
