"""The command for machines with a card, as far as one without can run it."""

from __future__ import annotations

import json

import pytest

from headstock.benchmarks import gpu


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(gpu, "SHAPES", {"decode": ((1, 40), (1, 9)), "prefill": ((8, 8),)})
    monkeypatch.setattr(gpu, "CALLS", 2)


def run(capsys, *arguments):
    code = gpu.main(["--device", "cpu", *arguments])
    captured = capsys.readouterr()
    return code, json.loads(captured.out) if captured.out else None


def test_it_measures_what_it_is_asked_for(capsys):
    code, found = run(capsys, "--backends", "sdpa,flex_attention", "--no-kit", "--shapes", "decode,prefill")
    assert code == 0
    assert found["device"]["platform"] == "cpu"
    assert [(t["backend"], t["shape"]) for t in found["timings"]] == [
        (name, shape) for name in ("sdpa", "flex_attention") for shape in ("decode", "prefill")
    ]
    assert all(t["forward_ms"] > 0 and t["plan_ms"] > 0 and t["bytes_per_s"] > 0 for t in found["timings"])
    assert (found["kit"], found["errors"]) == ([], {})


def test_a_backend_that_cannot_run_here_is_said_to(capsys):
    code, found = run(capsys, "--backends", "flashinfer", "--no-kit", "--shapes", "decode")
    assert code == 1
    assert "flashinfer-python" in found["errors"]["flashinfer"]


def test_one_that_fails_does_not_keep_the_others_from_being_measured(capsys, monkeypatch):
    from headstock.backends.sdpa import SdpaBackend

    def broken(self, batch):
        raise RuntimeError("no plan")

    monkeypatch.setattr(SdpaBackend, "plan", broken)
    code, found = run(capsys, "--backends", "sdpa,reference", "--no-kit", "--shapes", "prefill")
    assert code == 1
    assert found["errors"].keys() == {"sdpa"}
    assert "RuntimeError: no plan" in found["errors"]["sdpa"]
    assert [t["backend"] for t in found["timings"]] == ["reference"]


def test_the_kit_is_asked_in_a_process_of_its_own(capsys, monkeypatch):
    asked = []

    def answer(command, **_):
        asked.append(command)
        return type("Done", (), {"stdout": json.dumps({"backend": "sdpa", "conforms": False}), "stderr": ""})()

    monkeypatch.setattr(gpu.subprocess, "run", answer)
    code, found = run(capsys, "--backends", "sdpa", "--shapes", "prefill")
    assert code == 1
    assert asked[0][1:] == ["-m", "headstock", "check", "sdpa", "--json", "--device", "cpu:0"]
    assert found["kit"][0]["conforms"] is False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shapes", "decoding"], "no shape is called 'decoding'"),
        (["--backends", "spda"], "is not known"),
        (["--device", "h100"], "is a profile"),
        (["--device", "h99"], "is no known device"),
        (["--no-such"], "unrecognized"),
    ],
)
def test_wrong_use_ends_with_2_and_without_a_traceback(arguments, message, capsys):
    with pytest.raises(SystemExit) as end:
        gpu.main(["--shapes", "decode", *arguments])
    assert end.value.code == 2
    assert message in capsys.readouterr().err
