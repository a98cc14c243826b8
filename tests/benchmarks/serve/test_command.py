"""`headstock bench serve` against a server that runs: what it sends, what it tells, what it refuses."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from headstock.benchmarks.results.documents import read_document
from headstock.core.model import ModelFolder
from support.cli import Result, run_cli
from support.http_server import Served, served
from support.tiny import tiny_folder

SIZES = ("--num-prompts", "12", "--input-len", "10", "--output-len", "6")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def server(folder: ModelFolder) -> Iterator[Served]:
    with served(folder, api_keys=("a-key",)) as running:
        yield running


@pytest.fixture
def bench(folder: ModelFolder, server: Served) -> Any:
    def run(*options: str, key: str = "a-key") -> Result:
        url = server.url.removesuffix("/v1")
        return run_cli(
            "bench", "serve", str(folder.path), "--base-url", url, *SIZES, *options, environ={"HEADSTOCK_API_KEY": key}
        )

    return run


def test_a_run_is_told_in_a_document(bench: Any) -> None:
    result = bench("--json", "-", "--goodput", "ttft:60000", "--request-rate", "200", "--prefix-len", "16")
    assert result.code == 0, result.err
    document = result.json
    assert document["schema"] == "headstock.bench.serve/1"
    assert (document["model"], document["num_answered"]) == ("tiny", 12)
    assert document["num_output_tokens"] == 12 * 6
    assert document["num_prompt_tokens"] == 12 * 26
    assert document["num_cached_tokens"] >= 11 * 16, "the prefix that all share is in the cache after the warm-up"
    assert document["arrivals"] == "200 requests/s, Poisson"
    assert document["goodput"]["value"] == pytest.approx(document["metrics"]["request_throughput"]["value"])
    for request in document["requests"]:
        assert request["times"] == sorted(request["times"])
        assert request["sent"] >= 0
    (run,) = read_document(document) or ()
    assert run.kind == "serve"
    assert {m.metric for m in run.measurements} == set(document["metrics"])


def test_concurrency_is_bounded(bench: Any) -> None:
    document = bench("--json", "-", "--max-concurrency", "3").json
    assert document["peak_concurrency"] <= 3
    assert document["num_answered"] == 12


@pytest.mark.parametrize("options", [("--chat",), ("--range-ratio", "0.5"), ("--no-ignore-eos",)])
def test_other_workloads_are_served(bench: Any, options: tuple[str, ...]) -> None:
    document = bench("--json", "-", *options).json
    assert (document["errors"], document["num_answered"]) == ({}, 12)


def test_conversations_of_a_file_are_sent(bench: Any, tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "the fox the fox"}, {"from": "gpt", "value": "the fox"}]
    file = tmp_path / "share.json"
    file.write_text(json.dumps([{"conversations": turns}] * 15))
    document = bench("--json", "-", "--dataset", str(file), "--output-len", "5").json
    assert (document["num_answered"], document["num_output_tokens"]) == (12, 60)


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_a_picture_is_drawn(bench: Any, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"run.{ending}"
    result = bench("--plot", str(path))
    assert result.code == 0
    assert path.read_bytes().startswith(b"\x89PNG" if ending == "png" else b"<?xml")
    assert "TTFT ms" in result.out


def test_markdown_is_a_table(bench: Any) -> None:
    lines = bench("--markdown").out.splitlines()
    assert "| --- | --- | --- | --- |" in lines
    assert lines[0].startswith("`headstock bench serve")


def test_a_key_that_is_wrong_is_told_before_anything_is_sent(bench: Any) -> None:
    result = bench(key="wrong")
    assert (result.code, "401" in result.err) == (2, True)


def test_no_key_is_kept(bench: Any) -> None:
    result = bench("--json", "-", "--api-key", "a-key", key="")
    assert result.code == 0
    assert "a-key" not in result.out


def test_requests_that_fail_are_counted_and_end_with_code_1(bench: Any) -> None:
    result = bench("--json", "-", "--output-len", "400")  # more than the model's length: the answers are cut
    assert result.code == 1
    assert result.json["num_answered"] == 0
    assert sum(result.json["errors"].values()) == 12
    assert "FAILED" in bench("--output-len", "400").out


class Odd(BaseHTTPRequestHandler):
    """Another server: carriage returns, comments, tokens in lumps, no usage, and an error on the way."""

    lump = b'data: {"choices": [{"index": 0, "text": "ab"}]}\r\n\r\n'
    endings = (
        b"data: [DONE]\r\n\r\n",
        b'data: {"error": {"message": "out of luck"}}\r\n\r\n',
        b"data: {broken\r\n\r\n",
        b"",
    )

    def do_GET(self) -> None:
        self.reply(b'{"data": [{"id": "odd"}]}', "application/json")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        ending = self.endings[body["prompt"][0] % 4]
        lumps = b"" if ending == b"" else self.lump * 3
        self.reply(b": a comment\r\n\r\n" + lumps + ending, "text/event-stream")

    def reply(self, data: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_another_server_is_understood_and_its_failures_are_told(folder: ModelFolder) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Odd) as odd:
        thread = threading.Thread(target=odd.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{odd.server_port}"
        options = ("--json", "-", "--no-ignore-eos", "--num-prompts", "40")
        result = run_cli("bench", "serve", str(folder.path), "--base-url", url, *options)
        odd.shutdown()
        thread.join()
    document = result.json
    assert document["model"] == "odd"
    assert {r["num_output_tokens"] for r in document["requests"]} == {3, None}
    kinds = " ".join(document["errors"])
    assert all(part in kinds for part in ("out of luck", "JSONDecodeError", "without text"))
    assert document["num_answered"] + sum(document["errors"].values()) == 40


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--base-url", "127.0.0.1:8000"), "base_url"),
        (("--base-url", "http://127.0.0.1:9"), "http://127.0.0.1:9"),
        (("--request-rate", "0"), "request_rate"),
        (("--burstiness", "-1"), "burstiness"),
        (("--goodput", "speed:1"), "goodput"),
        (("--plot", "picture.gif"), "plot"),
        (("--plot", "picture"), "plot"),
        (("--dataset", "nowhere.json"), "dataset"),
        (("--range-ratio", "2"), "range_ratio"),
        (("--timeout", "0"), "timeout"),
        (("--num-prompts", "0"), "--num-prompts"),
        (("--json", "/nowhere/x.json"), "json"),
    ],
)
def test_wrong_options_are_named_and_end_with_code_2(folder: ModelFolder, options: tuple[str, ...], named: str) -> None:
    result = run_cli("bench", "serve", str(folder.path), *options)
    assert result.code == 2
    assert named in result.err
    assert "Traceback" not in result.err
