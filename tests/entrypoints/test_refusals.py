"""What cannot be done as asked: exit code 2, one message that names what is wrong, nothing on stdout, no traceback."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from headstock.core.worker.worker import Worker
from support.cli import run_cli
from support.plugins import BACKEND, write_distribution

CRIPPLED = (
    BACKEND.replace("class Fast", "from headstock.core.attention import Requirement, one_of\n\nclass Crippled")
    .replace("head_sizes=ANY", "head_sizes=one_of(64, 128)")
    .replace('frozenset({"float32"}), kv', 'frozenset({"bfloat16"}), kv')
)
UNINSTALLED = BACKEND.replace("class Fast", "from headstock.core.attention import Requirement\n\nclass Fast").replace(
    "    @classmethod",
    '    requires = (Requirement(package="no-such-kernels"), Requirement(package="torch", versions=">=99"))\n\n'
    "    @classmethod",
    1,
)


def refuse(*arguments, **world):
    """The message of a refusal, without the program's name before it."""
    result = run_cli(*arguments, **world)
    assert (result.code, result.out) == (2, ""), result
    assert "Traceback" not in result.err
    _, found, message = result.err.partition("headstock: ")
    assert found, result.err
    return message.rstrip("\n")


BEYOND_32, BEYOND_64 = str(2**31), str(2**63)
NUMBERS = [
    ("--max-tokens", ["0", "-1", "1000000000000", BEYOND_32], "must be from 1 to 2147483647"),
    ("--temperature", ["-1", "-0.001"], "must be at least 0"),
    ("--temperature", ["nan", "inf"], "must be finite"),
    ("--top-p", ["0", "-0.1", "1.1"], "must be above 0 and at most 1"),
    ("--top-p", ["nan"], "must be finite"),
    ("--top-k", ["-2", BEYOND_32], "must be from 0 to 2147483647"),
    ("--min-p", ["-0.1", "1.1"], "must be at least 0 and at most 1"),
    ("--min-p", ["nan"], "must be finite"),
    ("--repetition-penalty", ["0", "-1", "1e7"], "must be at least 1e-06 and at most 1000000.0"),
    ("--repetition-penalty", ["nan", "inf"], "must be finite"),
    ("--logprobs", ["-2", BEYOND_32], "must be from -1 to 2147483647"),
    ("--logprobs", ["1000000"], "is more than the vocabulary's"),
    ("--n", ["0", "-1", "1025", "100000"], "must be from 1 to 1024"),
    ("--block-size", ["0", "-1", BEYOND_32], "must be from 1 to 2147483647"),
    ("--max-num-batched-tokens", ["0", "-1", "99999999999999"], "must be from 1 to 2147483647"),
    ("--max-num-seqs", ["0", "-1", "99999999999"], "must be from 1 to 2147483647"),
    ("--max-model-len", ["0", "1", "-1", BEYOND_32], "must be from 2 to 2147483647"),
    ("--max-model-len", ["257", "1000000"], "is more than the model's own limit of 256"),
    ("--kv-cache-memory", ["0", "-5", "", "x", "1e400", "nan", "inf", "1X", "M"], "is not a size such as 512M or 4GiB"),
    ("--kv-cache-memory", ["999999999T"], "must be from 1 to"),
    ("--seed", [BEYOND_64, str(-(2**63) - 1)], "must be from -9223372036854775808 to 9223372036854775807"),
]


@pytest.mark.parametrize(
    ("option", "value", "problem"), [(o, v, problem) for o, values, problem in NUMBERS for v in values]
)
def test_a_number_out_of_range_is_refused_by_its_name(tiny, option, value, problem):
    message = refuse("generate", tiny, "x", option, value)
    field = option.removeprefix("--").replace("-", "_")
    assert re.match(rf"{field}(_bytes)?: ", message), message
    assert problem in message


def test_every_numeric_option_is_in_the_table():
    from headstock.entrypoints.cli import options

    groups = (options.SamplingOptions, options.EngineOptions)
    kinds = {field.name: str(field.type) for group in groups for field in fields(group)}
    numeric = {name for name, kind in kinds.items() if re.search(r"Annotated\[\s*(int|float)", kind)}
    assert numeric | {"kv_cache_memory"} == {option.removeprefix("--").replace("-", "_") for option, _, _ in NUMBERS}


@pytest.mark.parametrize("option", ["--max-tokens", "--temperature", "--block-size", "--seed"])
def test_what_is_no_number_is_refused_by_its_name(tiny, option):
    result = run_cli("generate", tiny, "x", option, "many")
    assert (result.code, result.out) == (2, "")
    assert f"Invalid value for '{option}'" in result.err
    assert "Traceback" not in result.err


class TestPrompts:
    @pytest.mark.parametrize("prompts", [("",), ("the fox", "")])
    def test_an_empty_one_is_refused_before_a_model_is_looked_for(self, prompts):
        assert refuse("generate", "no-such-model", *prompts) == "prompt: is empty; give at least one token"

    def test_an_empty_stdin_too(self, tiny):
        assert refuse("generate", tiny, "-") == "prompt: is empty; give at least one token"

    def test_stdin_that_is_no_text(self, tiny):
        message = refuse("generate", tiny, "-", stdin=b"abc\xff")
        assert message == "prompt: stdin is not utf-8: invalid start byte at byte 3"

    @pytest.mark.parametrize("length", [256, 257, 5000])
    def test_one_over_the_limit_is_told_its_length_and_the_limit(self, tiny, length):
        assert refuse("generate", tiny, "x" * length) == (
            f"prompt: has {length} tokens, and max_model_len=256 counts prompt and answer; give at most 255 tokens"
        )

    def test_one_at_the_limit_is_answered(self, tiny):
        assert run_cli("generate", tiny, "x" * 255, "--ignore-eos").code == 0

    def test_bytes_that_are_no_unicode(self, tiny):
        assert "character 1 is the lone surrogate U+DCFF, not valid Unicode" in refuse("generate", tiny, "x\udcff")

    def test_a_conversation_with_a_model_without_a_template(self, tiny):
        assert refuse("generate", tiny, "x", "--chat").startswith(f"{tiny} has no chat template")

    def test_none_at_all(self, tiny):
        result = run_cli("generate", tiny)
        assert result.code == 2
        assert "Missing argument 'PROMPT'" in result.err


def test_an_empty_stop_string(tiny):
    assert refuse("generate", tiny, "x", "--stop", "") == "stop: an empty string would end every answer at once"


def test_an_unknown_dtype(tiny):
    message = "dtype: 'int4' is not one of auto, float64, float32, bfloat16, float16"
    assert refuse("generate", tiny, "x", "--dtype", "int4") == message
    assert refuse("explain", tiny, "--dtype", "int4") == message


class TestBackends:
    NAMES = ("--attention-backend", "--decode-attention-backend", "--prefill-attention-backend")

    @pytest.mark.parametrize("command", [("generate", "x"), ("explain",)])
    @pytest.mark.parametrize("option", NAMES)
    def test_an_unknown_one_gets_a_suggestion_and_the_list(self, tiny, command, option):
        command, *prompt = command
        lines = refuse(command, tiny, *prompt, option, "sdpaa").splitlines()
        assert lines[0] == 'attention backend "sdpaa" is not known: no installed package offers it.'
        assert lines[1] == "  did you mean: sdpa"
        assert re.match(r"  known here: .*reference.*sdpa", lines[2])
        assert lines[3] == "  list them with: headstock backends"

    @pytest.mark.parametrize("command", [("generate", "x"), ("explain",)])
    def test_an_unknown_one_in_the_environment_or_a_policy_too(self, tiny, command):
        command, *prompt = command
        ways = (
            ((), {"HEADSTOCK_ATTENTION_BACKEND": "nope"}),
            (("--attention-policy", '{"0": "nope"}'), {}),
            (("--attention-backend-config", '{"nope": {}}'), {}),
        )
        for options, environ in ways:
            message = refuse(command, tiny, *prompt, *options, environ=environ)
            assert message.startswith('attention backend "nope" is not known'), message

    def test_a_name_known_elsewhere_is_told_its_name_here(self, tiny):
        message = refuse("generate", tiny, "x", "--attention-backend", "rocm_aiter_unified_attn")
        assert message.startswith('attention backend "rocm_aiter_unified", chosen by flag (rocm_aiter_unified_attn)')

    def test_one_that_does_not_fit_is_refused_with_all_reasons_and_what_would_fit(self, tiny, site):
        write_distribution(site, "kernels", backends={"crippled": "crippled:Crippled"}, modules={"crippled": CRIPPLED})
        lines = refuse("generate", tiny, "x", "--attention-backend", "crippled").splitlines()
        assert lines[0].startswith(
            'attention backend "crippled", chosen by flag (crippled), cannot serve model.layers.0.self_attn.attn'
        )
        reasons = [line.strip() for line in lines]
        assert "dtype: asked float32, offered bfloat16" in reasons
        assert "head_size: asked 8, offered 64, 128" in reasons
        assert any(line.startswith("window: asked") for line in reasons)
        assert any(re.match(r"these can: .*sdpa", line) for line in reasons)

    def test_one_whose_packages_are_missing_is_refused_with_all_of_them(self, tiny, site):
        write_distribution(site, "kernels", backends={"fast": "fast_module:Fast"}, modules={"fast_module": UNINSTALLED})
        message = refuse("generate", tiny, "x", "--attention-backend", "fast")
        assert "package no-such-kernels is not installed" in message
        assert re.search(r"package torch is [\d.a-z+]+, needed is >=99", message)

    def test_one_that_cannot_be_imported_is_refused_with_what_it_raised(self, tiny, site):
        modules = {"stale": "import no_such_module"}
        write_distribution(site, "kernels", "0.9", backends={"stale": "stale:Fast"}, modules=modules)
        message = refuse("generate", tiny, "x", "--attention-backend", "stale")
        assert "failed to load: ModuleNotFoundError: No module named 'no_such_module'" in message

    def test_options_it_does_not_have_are_refused_by_their_name(self, tiny):
        options = ("--attention-backend", "sdpa", "--attention-backend-config", '{"sdpa": {"speed": 9}}')
        message = refuse("generate", tiny, "x", *options)
        assert message.startswith("attention_backend_config['sdpa']: option 'speed': is not known")


POLICIES = [
    ('{"window"', "attention_policy: is not JSON: "),
    ("[]", "attention_policy: must be a JSON object, not []"),
    ('{"window": 3}', "attention_policy['window']: must be the name of a backend, not 3"),
    ('{"window": {"prefil": "sdpa"}}', "attention_policy['window']: takes decode, prefill and masked, not prefil"),
    ('{"window": "sdpa", "window": "sdpa"}', "attention_policy: has 'window' twice"),
    ('{"windw": "sdpa"}', "'windw' is no kind or phase, and matches no layer. did you mean window? Kinds here: "),
    ('{"model.layer.*": "sdpa"}', "'model.layer.*' is no kind or phase, and matches no layer."),
    ('{"99": "sdpa"}', "'99' is no kind or phase, and matches no layer."),
    ('{"cross": "sdpa"}', "'cross' is a kind that no layer has. Kinds here: decoder, full, window; layers: "),
    ("missing.json", "attention_policy: is neither JSON nor a readable file: [Errno 2] No such file or directory"),
]


@pytest.mark.parametrize("command", [("generate", "x"), ("explain",)])
@pytest.mark.parametrize(("policy", "problem"), POLICIES, ids=[policy for policy, _ in POLICIES])
def test_a_wrong_policy_is_refused_where_it_is_wrong(tiny, command, policy, problem):
    command, *prompt = command
    assert problem in refuse(command, tiny, *prompt, "--attention-policy", policy)


def test_options_of_backends_that_are_no_json(tiny):
    assert refuse("generate", tiny, "x", "--attention-backend-config", "{").startswith(
        "attention_backend_config: is not JSON: "
    )


class TestCapacity:
    def test_a_cache_without_room_for_a_block_says_what_a_block_takes(self, tiny):
        # 16 tokens in 2 layers, K and V of 2 heads and 8 channels in float32: 4 KiB a block, for layers with a window
        # and for those without.
        message = refuse("generate", tiny, "x", "--kv-cache-memory", "6K")
        assert "budget of 6144 bytes holds 1 blocks of 4096 bytes" in message
        assert "Give it 8192 bytes or more" in message

    def test_a_cache_without_room_for_a_token_says_how_much_a_request_takes(self, tiny):
        message = refuse("generate", tiny, "x", "--kv-cache-memory", "8K")
        assert message == "a request needs 2 KV blocks at least, and the cache has 1. Give it 12288 bytes or more."

    def test_a_length_that_the_cache_cannot_hold_says_what_it_can(self, tiny):
        options = ("--kv-cache-memory", "64K", "--max-model-len", "200")
        message = refuse("generate", tiny, "x", *options)
        assert message.startswith("max_model_len=200 needs 26 KV blocks, and the cache has 15 (112 tokens)")

    def test_a_prompt_that_the_cache_cannot_hold_says_what_it_can(self, tiny):
        assert "give at most 111 tokens" in refuse("generate", tiny, "x" * 120, "--kv-cache-memory", "64K")

    def test_more_memory_than_there_is(self, tiny, monkeypatch):
        monkeypatch.setattr(Worker, "load_model", lambda self: np.zeros(2**62, dtype=np.int8))
        assert refuse("generate", tiny, "x") == (
            "not enough memory: Unable to allocate 4.00 EiB for an array with shape (4611686018427387904,) and data "
            "type int8"
        )


class TestModels:
    @pytest.mark.parametrize("command", [("generate", "x"), ("explain",)])
    def test_an_unknown_one_gets_a_suggestion_and_where_it_was_looked_for(self, command, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        command, *prompt = command
        message = refuse(command, "smollm", *prompt)
        assert message.startswith("model 'smollm' is not known.\n  did you mean: smollm2\n  looked for: ")
        assert str(tmp_path / "smollm") in message

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            ("{", "config.json: is not valid JSON"),
            ("[]", "config.json: holds list, not an object"),
            ({"hidden_size": None}, "config.json: field 'hidden_size' is missing"),
            (
                {"num_attention_heads": 0},
                "field 'num_attention_heads' must be a whole number from 1 to ",
            ),
            ({"num_key_value_heads": 3}, "field 'num_key_value_heads' is 3, which does not divide"),
            ({"architectures": ["MambaForCausalLM"]}, "architecture MambaForCausalLM is not supported"),
            (
                {"architectures": ["Qwen3NextForCausalLM"], "layer_types": ["linear_attention"] * 4},
                "layer 0 of Qwen3NextForCausalLM is of kind 'linear_attention', which is not supported yet",
            ),
        ],
        ids=["json", "list", "missing", "zero", "heads", "architecture", "layers"],
    )
    @pytest.mark.parametrize("command", [("generate", "x"), ("explain",)])
    def test_a_broken_config_is_refused_with_file_and_field(self, tiny, tmp_path, command, content, problem):
        folder = Path(shutil.copytree(tiny, tmp_path / "model"))
        if isinstance(content, dict):
            content = json.dumps(json.loads((folder / "config.json").read_text()) | content)
        (folder / "config.json").write_text(content)
        command, *prompt = command
        message = refuse(command, str(folder), *prompt)
        assert str(folder) in message
        assert problem in message

    @pytest.mark.parametrize("damage", ["cut", "garbage", "missing", "pickle"])
    def test_broken_weights_are_refused_with_the_file(self, tiny, tmp_path, damage):
        folder = Path(shutil.copytree(tiny, tmp_path / "model"))
        file = folder / "model.safetensors"
        match damage:
            case "cut":
                file.write_bytes(file.read_bytes()[:-1000])
            case "garbage":
                file.write_bytes(b"\xff" * 5000)
            case "missing":
                file.unlink()
            case "pickle":
                file.rename(folder / "pytorch_model.bin")
        message = refuse("generate", str(folder), "x")
        assert str(folder) in message
        assert run_cli("explain", str(folder)).code == 0, "explain reads no weights"

    def test_weights_of_another_shape_are_refused_with_the_tensor(self, tiny, tmp_path):
        folder = Path(shutil.copytree(tiny, tmp_path / "model"))
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 72}))
        assert "mlp" in refuse("generate", str(folder), "x")

    def test_a_folder_that_is_no_model_tells_what_it_holds(self, tmp_path):
        (tmp_path / "notes.txt").touch()
        message = refuse("generate", str(tmp_path), "x")
        assert message == (
            f"{tmp_path}: no config.json in this folder, so it is no Hugging Face model (it holds: notes.txt)"
        )

    def test_a_broken_tokenizer_is_refused_with_the_file(self, tiny, tmp_path):
        folder = Path(shutil.copytree(tiny, tmp_path / "model"))
        (folder / "tokenizer.json").write_text("{}")
        assert str(folder / "tokenizer.json") in refuse("generate", str(folder), "x")


@pytest.mark.parametrize(
    ("op", "problem"),
    [
        ("paged_attention", "aiter_ops: 'paged_attention' is not OP=package.module:function, which --aiter-op takes"),
        ("paged=a:b", "aiter_ops: 'paged' is no op; known are "),
        ("paged_attention=a.b", "aiter_ops: paged_attention is 'a.b', not package.module:function; --aiter-op takes"),
        ("paged_attention=a:b", "a:b, asked for in the place of paged_attention by flag (--aiter-op), would never be"),
    ],
)
@pytest.mark.parametrize("command", [("generate", "x"), ("serve", "--port", "0")], ids=lambda words: words[0])
def test_a_function_in_the_place_of_an_op_that_cannot_be_called(tiny, command, op, problem):
    name, *prompt = command
    assert refuse(name, tiny, *prompt, "--attention-backend", "sdpa", "--aiter-op", op).startswith(problem)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("results", "list", "--db", "~nosuchuser/x"), "HEADSTOCK_DB: there is no file ~nosuchuser/x"),
        (("replay", "~nosuchuser/x"), "recording: ~nosuchuser/x cannot be read"),
        (("generate", "TINY", "x", "--record-attention", "~nosuchuser/x"), "record_attention: ~nosuchuser/x cannot be"),
        (("bench", "throughput", "TINY", "--dataset", "~nosuchuser/x"), "dataset: ~nosuchuser/x cannot be read"),
        (("chat", "TINY", "--chat-template", "~nosuchuser/x"), "chat_template: cannot be read"),
    ],
    ids=lambda words: words[0] if isinstance(words, tuple) else "",
)
def test_a_home_directory_that_nobody_has_is_no_traceback(tiny, words, problem):
    assert refuse(*(tiny if word == "TINY" else word for word in words)).startswith(problem)


def test_an_unknown_device_gets_a_suggestion(tiny):
    message = refuse("explain", tiny, "--device", "mi300")
    assert message.startswith("device: 'mi300' is no known device. did you mean mi300x? Known are ")
    assert refuse("backends", "--device", "mi300") == message
    assert "'cuda:7' is not on this machine" in refuse("backends", "--device", "cuda:7")


def test_a_variable_of_ours_that_nothing_reads_is_refused_in_strict_mode():
    environ = {"HEADSTOCK_ATTENTION_BACKND": "sdpa", "HEADSTOCK_ENV_STRICT": "1"}
    message = refuse("backends", environ=environ)
    assert message.startswith("HEADSTOCK_ATTENTION_BACKND: is set, but nothing reads it; did you mean")


def test_a_switch_that_is_neither_on_nor_off():
    message = refuse("backends", environ={"HEADSTOCK_PLUGINS_STRICT": "maybe"})
    assert message == "HEADSTOCK_PLUGINS_STRICT: is 'maybe', neither 1 nor 0"
