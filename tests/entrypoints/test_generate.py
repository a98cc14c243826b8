"""`headstock generate`: what goes to stdout, what to stderr, and what the options do."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from headstock import LLM, SamplingParams
from headstock.core.text import Tokenizer
from support import automatic
from support.cli import run_cli
from support.plugins import BACKEND, write_distribution

CHOSEN = (
    rf"attention backend: {automatic.BACKEND} \(headstock [\d.]+\) for all 4 layers; why: ranked \(\d of \d+ on cpu\)"
)
PROMPT = "the fox and the hound went out"
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}{% endfor %}{{ '<|im_start|>' }}"


@pytest.fixture(scope="module")
def expected(tiny):
    """The answers of `LLM` to the prompts of this file, in twelve tokens."""
    llm = LLM(tiny)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)

    return lambda prompt: llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].text


def generate(model, *arguments, **world):
    return run_cli("generate", str(model), *arguments, "--max-tokens", "12", "--ignore-eos", **world)


def test_the_answer_goes_to_stdout_and_the_backend_and_why_to_stderr(tiny, expected):
    result = generate(tiny, PROMPT)
    assert (result.code, result.out) == (0, expected(PROMPT) + "\n")
    model, chosen, last = result.err.splitlines()
    assert model == "model: Qwen2ForCausalLM, run by Headstock's own definition"
    assert re.fullmatch(CHOSEN, chosen)
    assert re.fullmatch(r"12 tokens in [\d.]+ s \([\d.]+ tokens/s\), TTFT \d+ ms", last)


def test_the_answer_is_written_as_it_grows(tiny, expected):
    pieces = [piece for piece in generate(tiny, PROMPT).writes if piece]
    assert len(pieces) >= 8
    assert "".join(pieces) == expected(PROMPT) + "\n"


LOUD = BACKEND.replace("out.zero_()", "print('loud'); import os; os.system('echo louder'); out.zero_()")


@pytest.mark.parametrize("options", [(), ("--json",), ("-n", "2")])
def test_what_a_backend_prints_is_no_part_of_the_answer(tiny, site, options):
    write_distribution(site, "kernels", backends={"fast": "loud:Fast"}, modules={"loud": LOUD})
    policy = json.dumps({"0": "fast"})
    command = [sys.executable, "-m", "headstock", "generate", str(tiny), "x", "--attention-policy", policy, *options]
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [*command, "--max-tokens", "2"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    assert "loud" not in done.stdout
    assert "louder" in done.stderr


def test_several_prompts_are_answered_in_their_order(tiny, expected):
    result = generate(tiny, "the fox", "a hound")
    assert result.out == f"{expected('the fox')}\n{expected('a hound')}\n"
    assert [line for line in result.err.splitlines() if line.startswith("---")] == ["--- 'the fox'", "--- 'a hound'"]


def test_several_answers_are_numbered_and_the_first_is_the_one_of_a_single(tiny):
    one = generate(tiny, PROMPT, "--temperature", "1.5", "--seed", "3")
    three = generate(tiny, PROMPT, "--temperature", "1.5", "--seed", "3", "-n", "3")
    assert re.findall(r"^--- .*$", three.err, re.M) == [f"--- {PROMPT!r} [{i}]" for i in range(3)]
    assert three.out.startswith(one.out)
    assert len(three.out) > 2 * len(one.out)


def test_a_dash_reads_the_prompt_from_stdin(tiny, expected):
    assert generate(tiny, "-", stdin=PROMPT.encode()).out == expected(PROMPT) + "\n"
    both = generate(tiny, "-", "the fox", stdin=b"a hound")
    assert both.out == f"{expected('a hound')}\n{expected('the fox')}\n"


@pytest.mark.parametrize("streamed", [True, False])
def test_a_stop_string_ends_the_answer_and_is_not_printed(tiny, expected, streamed):
    whole = expected(PROMPT)
    stop = whole[4:6]
    result = generate(tiny, PROMPT, "--stop", "never", "--stop", stop, *(() if streamed else ("--json",)))
    text = result.out[:-1] if streamed else result.json["outputs"][0]["outputs"][0]["text"]
    assert text == whole[: whole.index(stop)]
    if not streamed:
        assert result.json["outputs"][0]["outputs"][0]["stop_reason"] == stop


def test_chat_puts_the_prompt_through_the_models_template(tiny, tmp_path, expected):
    folder = shutil.copytree(tiny, tmp_path / "chat")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (output,) = generate(folder, PROMPT, "--chat", "--json").json["outputs"]
    rendered = f"<|im_start|>user: {PROMPT}<|im_start|>"
    assert output["prompt"] == rendered
    assert output["prompt_token_ids"] == Tokenizer.from_folder(tiny).encode(rendered, add_special_tokens=False)
    assert generate(folder, PROMPT, "--chat").out == expected(rendered) + "\n"


def test_chat_without_a_template_is_refused_before_weights_are_read(tiny, tmp_path):
    folder = shutil.copytree(tiny, tmp_path / "plain")
    (folder / "model.safetensors").unlink()
    result = generate(folder, PROMPT, "--chat")
    assert result.code == 2
    assert "has no chat template" in result.err


class TestJson:
    def test_it_is_one_document_and_everything_else_goes_to_stderr(self, tiny, expected):
        result = generate(tiny, PROMPT, "the fox", "--json", "--verbose", "--logprobs", "2")
        document = result.json
        assert result.out.endswith("}\n")
        assert "INFO: " in result.err
        assert document["model"] == {
            "name": tiny,
            "path": tiny,
            "origin": "local folder",
            "architecture": "Qwen2ForCausalLM",
            "implementation": "headstock",
        }
        attention = document["attention"]
        assert (attention["block_size"], attention["layout"]) == (16, automatic.LAYOUT)
        (choice,) = attention["choices"]
        assert (choice["backend"], len(choice["layers"])) == (automatic.BACKEND, 4)
        assert choice["origin"].startswith("ranked (")
        assert [o["prompt"] for o in document["outputs"]] == [PROMPT, "the fox"]
        completion = document["outputs"][0]["outputs"][0]
        assert (completion["text"], completion["finish_reason"]) == (expected(PROMPT), "length")
        assert len(completion["token_ids"]) == len(completion["logprobs"]) == 12
        token = completion["token_ids"][0]
        entry = completion["logprobs"][0][str(token)]
        assert entry["rank"] == 1
        assert bytes(entry["bytes"]) == Tokenizer.from_folder(tiny).token_bytes(token)

    def test_layers_with_different_backends_are_listed_by_choice(self, tiny):
        result = generate(tiny, PROMPT, "--json", "--attention-policy", '{"window": "reference"}')
        choices = result.json["attention"]["choices"]
        assert [(c["backend"], len(c["layers"])) for c in choices] == [(automatic.BACKEND, 2), ("reference", 2)]
        assert choices[1]["origin"] == "kind (window)"

    def test_a_terminal_without_unicode_gets_escapes_and_loses_nothing(self, tiny):
        plain, ascii_only = (generate(tiny, PROMPT, "größe", "--json", encoding=e) for e in ("utf-8", "ascii"))
        assert "größe" in plain.out
        texts = [[o["outputs"][0]["text"] for o in result.json["outputs"]] for result in (plain, ascii_only)]
        assert texts[0] == texts[1]


def test_a_terminal_without_unicode_gets_question_marks(tiny, expected):
    result = generate(tiny, PROMPT, encoding="ascii")
    assert (result.code, result.out) == (0, expected(PROMPT).encode("ascii", "replace").decode() + "\n")


class TestBackends:
    @pytest.mark.parametrize(
        ("options", "environ", "line"),
        [
            (("--attention-backend", "Reference"), {}, "reference .* for all 4 layers; why: flag \\(Reference\\)"),
            (
                (),
                {"HEADSTOCK_ATTENTION_BACKEND": "reference"},
                "reference .* for all 4 layers; why: environment \\(HEADSTOCK_ATTENTION_BACKEND=reference\\)",
            ),
            (
                ("--attention-backend", "sdpa"),
                {"HEADSTOCK_ATTENTION_BACKEND": "reference"},
                "sdpa .* for all 4 layers; why: flag \\(sdpa\\)",
            ),
            (
                ("--decode-attention-backend", "reference"),
                {},
                f"decode=reference,prefill={automatic.BACKEND} .* why: decode: phase \\(decode\\); prefill: ranked .*",
            ),
            (("--attention-policy", '{"0,2-3": "reference"}'), {}, "reference .* for 3 of 4 layers; why: layer .*"),
        ],
        ids=["flag", "environment", "flag over environment", "phase", "layers"],
    )
    def test_the_choice_is_told_with_its_origin_and_the_answer_stays(self, tiny, expected, options, environ, line):
        result = generate(tiny, PROMPT, *options, environ=environ)
        assert re.search(f"^attention backend: {line}$", result.err, re.M), result.err
        assert result.out == expected(PROMPT) + "\n"

    def test_a_name_of_another_engine_is_told_by_its_true_name(self, tiny):
        result = generate(tiny, PROMPT, "--attention-backend", "TORCH_SDPA")
        assert "TORCH_SDPA is called sdpa here" in result.err.splitlines()

    def test_a_policy_can_stand_in_a_file(self, tiny, tmp_path):
        (tmp_path / "policy.json").write_text('{"full": "reference", "window": "sdpa"}')
        result = generate(tiny, PROMPT, "--attention-policy", str(tmp_path / "policy.json"))
        assert result.err.count("for 2 of 4 layers; why: kind (") == 2


class TestEngine:
    def test_verbose_logs_the_backend_once_and_the_kv_blocks_with_their_budget(self, tiny):
        result = generate(tiny, PROMPT, "-v", "--kv-cache-memory", "256K", "--block-size", "8")
        assert len(re.findall(r"attention backend: ", result.err)) == 1
        assert re.search(f"^INFO: {CHOSEN}$", result.err, re.M)
        # 8 tokens in the 2 layers of a group, K and V of 2 heads and 8 channels in float32: 2 KiB a block.
        line = "INFO: KV cache: 128 blocks of 8 tokens for 2 groups of layers, 0.2 MiB (budget 0.2 MiB, given)"
        assert line in result.err.splitlines()

    def test_verbose_keeps_the_log_of_libraries_out(self, tiny):
        lines = generate(tiny, PROMPT, "-v").err.splitlines()
        assert len(lines) == 6
        assert [line.split(":")[0] for line in lines[:3]] == ["INFO", "INFO", "INFO"]

    @pytest.mark.parametrize(
        ("option", "cached"), [((), 16), (("--enable-prefix-caching",), 16), (("--no-enable-prefix-caching",), 0)]
    )
    def test_prefixes_are_reused_unless_that_is_switched_off(self, tiny, option, cached):
        prompt = "x" * 24
        outputs = generate(tiny, prompt, prompt, "--json", *option).json["outputs"]
        assert [o["num_cached_tokens"] for o in outputs] == [0, cached]

    def test_limits_reach_the_engine(self, tiny):
        options = ("--max-model-len", "20", "--max-num-seqs", "1", "--max-num-batched-tokens", "4", "--json")
        outputs = generate(tiny, "x" * 12, "y" * 15, *options).json["outputs"]
        assert [len(o["outputs"][0]["token_ids"]) for o in outputs] == [8, 5]
        assert {o["outputs"][0]["finish_reason"] for o in outputs} == {"length"}

    def test_a_seed_repeats_an_answer_and_another_changes_it(self, tiny):
        first, again, other = (generate(tiny, PROMPT, "--temperature", "1.5", "--seed", s).out for s in ("1", "1", "2"))
        assert first == again != other

    def test_the_dtype_is_what_was_asked_for(self, tiny, expected):
        assert generate(tiny, PROMPT, "--dtype", "float64").out == expected(PROMPT) + "\n"


def test_a_request_that_fails_ends_with_exit_code_1_and_its_reason(tiny, tmp_path):
    folder = shutil.copytree(tiny, tmp_path / "broken")
    weights = load_file(Path(folder) / "model.safetensors")
    weights["model.norm.weight"][:] = float("nan")
    save_file(weights, Path(folder) / "model.safetensors")
    for options in ((), ("--json",)):
        result = generate(folder, PROMPT, *options)
        assert result.code == 1
        assert "headstock: the model's logits hold NaN or infinity" in result.err
    assert result.json["outputs"][0]["outputs"][0]["finish_reason"] == "error"
