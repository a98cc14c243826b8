"""`headstock replay`: recorded batches under another backend, right and wrong, and `ab` on them."""

from __future__ import annotations

import pytest

from support.cli import run_cli
from support.plugins import write_distribution
from support.tiny import tiny_folder

WRONG = """
from headstock.backends.sdpa import SdpaBackend

class Fast(SdpaBackend):
    def forward(self, layer, query, *, out, **rest):
        super().forward(layer, query, out=out, **rest)
        out[-1] = 0
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(tiny_folder(tmp_path_factory.mktemp("tiny")).path)


@pytest.fixture(scope="module")
def tapes(model, tmp_path_factory) -> dict[bool, str]:
    """A recording without, and one with vectors."""
    folder = tmp_path_factory.mktemp("tapes")
    found: dict[bool, str] = {}
    for tensors in (False, True):
        found[tensors] = str(folder / f"{tensors}.tape")
        options = ["--record-attention", found[tensors], *(["--record-tensors"] if tensors else [])]
        done = run_cli(
            "generate", model, "the fox and the hound", "a", "--max-tokens", "4", "--ignore-eos",
            "--attention-backend", "sdpa", *options,
        )  # fmt: skip
        assert done.code == 0, done.err
    return found


@pytest.mark.parametrize("tensors", [False, True], ids=["random", "recorded"])
def test_right_backends_pass(tapes, tensors):
    document = run_cli("replay", tapes[tensors], "--attention-backend", "reference", "--json").json
    assert (document["right"], document["backend"], document["cut_short"]) == (True, "reference", False)
    assert {step["step"] for step in document["steps"]} == {1, 2, 3, 4}
    assert {step["recorded_backend"] for step in document["steps"]} == {"sdpa"}
    assert {step["vectors"] for step in document["steps"]} == {"recorded" if tensors else "random"}
    assert all(step["error"] < 1e-5 for step in document["steps"])


def test_a_wrong_backend_fails(tapes, site):
    write_distribution(site, "kernels", backends={"fast": "wrong_kernels:Fast"}, modules={"wrong_kernels": WRONG})
    done = run_cli("replay", tapes[True], "--attention-backend", "fast")
    assert done.code == 1
    assert ": wrong: wrong: error" in done.out


def test_steps_can_be_fewer_and_the_backend_is_the_first_of_the_ranking(tapes):
    document = run_cli("replay", tapes[False], "--limit", "2", "--json").json
    assert {step["step"] for step in document["steps"]} == {1, 4}
    assert document["backend"] in ("cpu", "sdpa")


def test_kernels_are_compared_on_recorded_batches(tapes):
    done = run_cli("ab", "sdpa", "reference", "--trace", tapes[False], "--no-check", "--rounds", "6", "--json")
    assert done.code == 0
    names = [line["name"] for line in done.json["lines"]]
    assert 2 <= len(names) <= 8
    assert any("2 rows, 2 new of" in name for name in names)
    assert all(line["errors"]["reference"] < 1e-5 for line in done.json["lines"])
    refused = run_cli("ab", "sdpa", "reference", "--trace", tapes[False], "--model", "smollm2")
    assert (refused.code, "trace: chooses the shapes, as --model does" in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("replay", "/no/such/file"), "recording: /no/such/file cannot be read"),
        (("replay", __file__), "is no recording of attention"),
        (("replay", "TAPE", "--attention-backend", "sdqa"), "did you mean: sdpa"),
        (("replay", "TAPE", "--attention-backend-config", "{"), "is not JSON"),
        (
            ("replay", "TAPE", "--attention-backend", "sdpa", "--attention-backend-config", '{"sdpa": {"x": 1}}'),
            "option 'x': is not known",
        ),
        (("ab", "sdpa", "cpu", "--trace", "/no/such/file"), "recording: /no/such/file cannot be read"),
        (("generate", "MODEL", "x", "--record-attention", "/no/such/folder/x"), "record_attention: /no/such/folder/x"),
        (("generate", "MODEL", "x", "--record-tensors"), "record_tensors: is about a recording"),
        (("generate", "MODEL", "x", "--record-attention", "/tmp/x", "--record-limit", "lots"), "record_limit: 'lots'"),
        (
            ("generate", "MODEL", "x", "--record-attention", "/tmp/x", "--engine", "process"),
            "record_attention: takes the engine in this process",
        ),
    ],
)
def test_what_cannot_be_is_refused(model, tapes, arguments, problem):
    words = [{"MODEL": model, "TAPE": tapes[False]}.get(word, word) for word in arguments]
    done = run_cli(*words)
    assert (done.code, done.out) == (2, "")
    assert problem in " ".join(done.err.split()), done.err
    assert "Traceback" not in done.err
