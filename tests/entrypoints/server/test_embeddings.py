"""A server over a model that gives vectors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from headstock.backends.reference import ReferenceBackend
from headstock.core.engine import EmbeddingEngine, EngineConfig, InputProcessor, Prompt
from headstock.core.model import describe_model
from headstock.core.text import Tokenizer
from headstock.entrypoints.server.app import build_app
from headstock.entrypoints.server.embeddings import TextEmbedder
from headstock.entrypoints.server.metrics import Metrics
from headstock.entrypoints.server.serve import vector_state
from headstock.entrypoints.server.settings import ServerSettings
from support.architectures import random_encoder
from support.attention import CPU
from support.engine import FixedProvider
from support.http_server import Served, running
from support.vocabularies import byte_level, write_folder

TEXTS = [[5, 9, 13], [7] * 20, [1]]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> EmbeddingEngine:
    folder = random_encoder("bert", tmp_path_factory.mktemp("bert")).folder
    if not (folder.path / "tokenizer.json").exists():
        write_folder(folder.path, byte_level())
    model = describe_model(folder.path, "auto", "pooling")
    inputs = InputProcessor(
        Tokenizer.from_folder(folder.path), vocab_size=model.vocab_size, eos_token_ids=model.eos_token_ids
    )
    config = EngineConfig(device=CPU, max_num_seqs=2)
    return EmbeddingEngine(config, folder, model, FixedProvider(ReferenceBackend), inputs)


@pytest.fixture(scope="module")
def vectors(engine: EmbeddingEngine) -> Iterator[Served]:
    embedder = TextEmbedder(engine)
    state = vector_state(engine, ServerSettings(model_names=("tiny",), max_queued_requests=8))
    with running(build_app(state, Metrics("vllm", "tiny"), embedder), state) as server:
        yield server
    embedder.close()


@pytest.fixture
def expected(engine: EmbeddingEngine) -> list[Any]:
    found = [output for step in engine.embed([Prompt(token_ids=tuple(t)) for t in TEXTS]) for output in step]
    return [pytest.approx(output.outputs.embedding, abs=1e-6) for output in found]


@pytest.mark.parametrize("form", [{}, {"encoding_format": "float"}], ids=["base64", "float"])
def test_the_official_client_gets_the_engines_vectors(vectors: Served, expected: list[Any], form: Any) -> None:
    """It asks for base64 by itself."""
    with openai.OpenAI(base_url=vectors.url, api_key="none", max_retries=0) as client:
        answer = client.embeddings.create(model="tiny", input=TEXTS, **form)
    assert [entry.embedding for entry in answer.data] == expected
    assert [entry.index for entry in answer.data] == [0, 1, 2]
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (24, 24)


def test_many_at_a_time_get_their_own(vectors: Served, expected: list[Any]) -> None:
    found: dict[int, Any] = {}

    def ask(number: int) -> None:
        reply = vectors.post("/v1/embeddings", input=TEXTS[number % 3])
        found[number] = reply.json["data"][0]["embedding"]

    clients = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert found == {number: expected[number % 3] for number in range(6)}


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("input", {}),
        ("input", {"input": ""}),
        ("input", {"input": []}),
        ("input[1]", {"input": ["a", 1]}),
        ("input", {"input": [-1]}),
        ("input", {"input": [10**6]}),
        ("input", {"input": [1] * 5000}),
        ("input", {"input": "\ud800"}),
        ("input", {"input": [[1]] * 9}),
        ("encoding_format", {"input": "a", "encoding_format": "hex"}),
        ("dimensions", {"input": "a", "dimensions": 3}),
        ("model", {"input": "a", "model": 3}),
    ],
)
def test_what_is_wrong_is_named(vectors: Served, field: str, body: Any) -> None:
    reply = vectors.post("/v1/embeddings", **body)
    assert (reply.status, reply.error["param"]) == (400, field)
    assert vectors.post("/v1/embeddings", input=[5]).status == 200


def test_it_has_the_other_endpoints_and_gives_no_text(vectors: Served, engine: EmbeddingEngine) -> None:
    assert vectors.send("GET", "/health").status == 200
    assert vectors.send("GET", "/v1/models").json["data"][0]["max_model_len"] == engine.max_model_len
    assert vectors.send("GET", "/metrics").status == 200
    assert vectors.post("/tokenize", prompt="a").json["count"] >= 1
    for path in ("/v1/completions", "/v1/chat/completions"):
        reply = vectors.post(path, prompt="a")
        assert (reply.status, "gives vectors and no text" in reply.error["message"]) == (404, True)
    assert "there is no /v1/nothing" in vectors.post("/v1/nothing").error["message"]


def test_a_model_that_gives_text_gives_no_vectors(server: Served) -> None:
    reply = server.post("/v1/embeddings", input="a")
    assert (reply.status, "--runner pooling" in reply.error["message"]) == (404, True)


def test_a_request_that_takes_too_long_is_ended(engine: EmbeddingEngine) -> None:
    embedder, let = TextEmbedder(engine), threading.Event()
    embedder._thread.submit(let.wait)  # somebody else's step, which does not end
    settings = ServerSettings(model_names=("tiny",), request_timeout=0.05)
    state = vector_state(engine, settings)
    with running(build_app(state, Metrics("vllm", "tiny"), embedder), state) as server:
        reply = server.post("/v1/embeddings", input=[5])
        assert (reply.status, reply.error["code"]) == (504, "timeout")
        assert "its deadline of 0.05 s" in reply.error["message"]
        assert (embedder.queued, state.running) == (0, {})
        let.set()
    embedder.close()


def test_a_client_that_leaves_ends_the_work_after_the_running_step(engine: EmbeddingEngine) -> None:
    """Twenty texts are ten steps of two."""

    async def main() -> tuple[int, int]:
        embedder = TextEmbedder(engine)
        work = asyncio.create_task(embedder.embed([Prompt(token_ids=(5,))] * 20))
        while not embedder.queued:
            await asyncio.sleep(0)
        before = embedder.queued
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        assert len(await embedder.embed([Prompt(token_ids=(5,))])) == 1
        embedder.close()
        return before, embedder.queued

    assert asyncio.run(main()) == (20, 0)
