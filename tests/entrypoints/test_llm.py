"""`LLM`: prompts and parameters in all their forms, streams, and wrong input that leaves nothing behind."""

from __future__ import annotations

import math
from dataclasses import fields
from itertools import pairwise

import pytest

from headstock import LLM, SamplingParams
from headstock.core.engine import EngineConfig, Prompt
from headstock.core.errors import BackendError, CapacityError, EngineDeadError, HeadstockError, InvalidInput, ModelError
from headstock.core.text import Tokenizer

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
SHORT = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
TEXT = "the fox and the hound"


@pytest.fixture(scope="module")
def llm(tiny) -> LLM:
    return LLM(tiny, block_size=4)


def ask(llm, prompts, params=GREEDY, **options):
    return llm.generate(prompts, params, use_tqdm=False, **options)


def tokens(outputs):
    return [output.outputs[0].token_ids for output in outputs]


def assert_idle(llm):
    """Nothing runs, waits or owns a block."""
    assert not llm.engine.has_unfinished_requests()
    stats = llm.stats()
    assert (stats.num_running, stats.num_waiting, stats.kv_usage) == (0, 0, 0)


class TestPrompts:
    def test_text_token_ids_and_mappings_mean_the_same(self, llm, tiny):
        ids = Tokenizer.from_folder(tiny).encode(TEXT)
        forms = [
            TEXT,
            [TEXT],
            ids,
            tuple(ids),
            [ids],
            {"prompt": TEXT},
            {"prompt_token_ids": ids},
            [{"prompt_token_ids": tuple(ids)}],
            Prompt(text=TEXT),
        ]
        answers = [ask(llm, form) for form in forms]
        assert [len(outputs) for outputs in answers] == [1] * len(forms)
        assert len({outputs[0].outputs[0].token_ids for outputs in answers}) == 1
        assert {outputs[0].prompt_token_ids for outputs in answers} == {tuple(ids)}
        assert [outputs[0].prompt for outputs in answers] == [TEXT, TEXT, *[None] * 3, TEXT, None, None, TEXT]

    def test_forms_can_be_mixed_and_answers_keep_their_order(self, llm):
        mixed = ask(llm, ["the", [5, 9, 13], {"prompt": "fox"}, {"prompt_token_ids": [7, 7]}])
        alone = [ask(llm, prompt)[0] for prompt in ("the", [5, 9, 13], "fox", [7, 7])]
        assert tokens(mixed) == tokens(alone)

    def test_none_at_all_is_answered_by_nothing(self, llm):
        assert ask(llm, []) == []

    def test_a_salt_keeps_prefixes_apart(self, llm):
        ids = list(range(40, 60))
        cached = [
            ask(llm, {"prompt_token_ids": ids, "cache_salt": salt})[0].num_cached_tokens
            for salt in ("a", "b", "a", None)
        ]
        assert cached == [0, 0, 16, 0]

    @pytest.mark.parametrize(
        ("prompts", "field", "problem"),
        [
            ("", "prompt", "is empty"),
            (["a", ""], "prompt", "is empty"),
            ([[]], "prompt_token_ids", "is empty"),
            ({"prompt_token_ids": []}, "prompt_token_ids", "is empty"),
            ({"prompt": ""}, "prompt", "is empty"),
            ({}, "prompt", "give either prompt or prompt_token_ids"),
            ({"prompt": "a", "prompt_token_ids": [1]}, "prompt", "give either prompt or prompt_token_ids"),
            ({"promt": "a"}, "prompt", "key 'promt' is not known; known are prompt, prompt_token_ids, cache_salt"),
            ({"prompt": "a", "cache_salt": 3}, "cache_salt", "must be text, not int"),
            ({"prompt": 3}, "prompt", "must be text, not int"),
            (None, "prompts", "must be text, token ids or a list of them, not NoneType"),
            (3, "prompts", "must be text, token ids or a list of them, not int"),
            ([3.5], "prompt", "must be text or a list of token ids, not float"),
            ([["a"]], "prompt_token_ids", "must hold integers, not 'a'"),
            ([True, False], "prompt_token_ids", "must hold integers, not True"),
            ([[-1]], "prompt_token_ids", "token id -1 is not in the vocabulary (0 to 266)"),
            ([[267]], "prompt_token_ids", "token id 267 is not in the vocabulary (0 to 266)"),
            ([[2**70]], "prompt_token_ids", "is not in the vocabulary"),
            ("a\ud800", "prompt", "the lone surrogate U+D800"),
            ({"prompt": "a", "cache_salt": "\ud800"}, "cache_salt", "the lone surrogate U+D800"),
            ({"prompt": "a", "session": "\ud800"}, "session", "the lone surrogate U+D800"),
        ],
    )
    def test_a_wrong_one_is_refused_by_its_field(self, llm, prompts, field, problem):
        with pytest.raises(InvalidInput) as refused:
            ask(llm, prompts)
        assert refused.value.field == field
        assert problem in refused.value.problem
        assert_idle(llm)


class TestParameters:
    def test_one_is_for_all_and_a_list_is_one_each(self, llm):
        one = ask(llm, ["the", "fox"], SamplingParams(temperature=0, max_tokens=3, ignore_eos=True))
        assert [len(t) for t in tokens(one)] == [3, 3]
        each = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (1, 5)]
        assert [len(t) for t in tokens(ask(llm, ["the", "fox"], each))] == [1, 5]

    def test_without_any_the_defaults_hold(self, llm):
        (output,) = llm.generate([TEXT], use_tqdm=False)
        assert 1 <= len(output.outputs[0].token_ids) <= 16

    @pytest.mark.parametrize("count", [0, 1, 3])
    def test_a_list_of_another_length_is_refused(self, llm, count):
        with pytest.raises(InvalidInput, match=f"sampling_params: {count} given for 2 prompts"):
            ask(llm, ["the", "fox"], [GREEDY] * count)
        assert_idle(llm)

    @pytest.mark.parametrize("wrong", [{"temperature": 0}, 0.5, [GREEDY, None], "greedy"])
    def test_what_is_none_is_refused(self, llm, wrong):
        with pytest.raises(InvalidInput, match="sampling_params: "):
            ask(llm, ["the", "fox"], wrong)
        assert_idle(llm)


class TestPriority:
    def test_lower_goes_first(self, tiny):
        llm = LLM(tiny, scheduling_policy="priority", max_num_seqs=1)
        outputs = ask(llm, ["the", "fox", "hound"], priority=[2, 0, 1])
        started = [output.metrics.first_scheduled_time for output in outputs]
        assert sorted(range(3), key=lambda i: started[i]) == [1, 2, 0]
        assert tokens(outputs) == tokens(ask(LLM(tiny), ["the", "fox", "hound"]))

    def test_one_that_nobody_would_heed_is_refused(self, llm):
        with pytest.raises(InvalidInput, match="priority: needs scheduling_policy=priority; here it is fcfs"):
            ask(llm, ["the", "fox"], priority=[0, 1])
        assert_idle(llm)
        assert len(ask(llm, ["the", "fox"], priority=0)) == 2

    @pytest.mark.parametrize("wrong", [[1], [1, 2, 3], [1, 2.5], [True, False], "ab"])
    def test_a_wrong_one_is_refused(self, llm, wrong):
        with pytest.raises(InvalidInput, match="priority: "):
            ask(llm, ["the", "fox"], priority=wrong)
        assert_idle(llm)


class TestClose:
    def test_whatever_is_asked_afterwards_is_told_so(self, tiny):
        llm = LLM(tiny)
        stream = llm.stream("the", SamplingParams(max_tokens=50, ignore_eos=True))
        next(stream)
        llm.close()
        llm.close()
        asked = (
            lambda: next(stream),
            lambda: llm.generate("the", use_tqdm=False),
            lambda: next(llm.stream("the")),
            llm.stats,
            llm.reset_prefix_cache,
            lambda: llm.set_attention(attention_backend="sdpa"),
        )
        for ask_it in asked:
            with pytest.raises(EngineDeadError, match="the engine has been closed"):
                ask_it()

    def test_so_is_who_wants_vectors(self, tiny):
        llm = LLM(tiny, runner="pooling")
        llm.close()
        for ask_it in (lambda: llm.embed("the"), lambda: llm.generate("the"), lambda: llm.pooling):
            with pytest.raises(EngineDeadError, match="the engine has been closed"):
                ask_it()


class TestStream:
    def test_each_output_holds_everything_so_far_and_the_last_is_that_of_generate(self, llm):
        outputs = list(llm.stream(TEXT, GREEDY))
        texts = [output.outputs[0].text for output in outputs]
        assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
        assert [len(output.outputs[0].token_ids) for output in outputs] == list(range(1, 9))
        assert [output.finished for output in outputs] == [False] * 7 + [True]
        assert outputs[-1].outputs == ask(llm, TEXT)[0].outputs

    def test_several_completions_grow_side_by_side(self, llm):
        params = SamplingParams(temperature=1, seed=1, n=2, max_tokens=5, ignore_eos=True)
        *_, last = llm.stream(TEXT, params)
        assert last.finished
        assert last.outputs == ask(llm, TEXT, params)[0].outputs

    def test_closing_it_aborts_the_request(self, llm):
        for count in (1, 3):
            params = SamplingParams(temperature=1, n=count, max_tokens=100, ignore_eos=True)
            stream = llm.stream(TEXT, params)
            next(stream)
            assert llm.stats().num_running == count
            stream.close()
            assert_idle(llm)

    def test_leaving_a_loop_over_it_aborts_the_request(self, llm):
        for _ in llm.stream(TEXT, GREEDY):
            break
        assert_idle(llm)

    def test_two_of_them_can_be_read_in_turn(self, llm):
        prompts = ["the fox", "a hound ran"]
        streams = [llm.stream(prompt, GREEDY) for prompt in prompts]
        last: dict[int, object] = {}
        open_ones = dict(enumerate(streams))
        while open_ones:
            for number, stream in list(open_ones.items()):
                output = next(stream, None)
                if output is None:
                    del open_ones[number]
                else:
                    assert output.prompt == prompts[number]
                    last[number] = output
        assert tokens(last.values()) == tokens(ask(llm, prompts))

    def test_generate_can_be_called_while_one_is_open(self, llm):
        expected = tokens(ask(llm, ["the fox", "a hound ran"]))
        stream = llm.stream("the fox", GREEDY)
        next(stream)
        between = ask(llm, "a hound ran")
        *_, last = stream
        assert tokens([last, *between]) == expected
        assert_idle(llm)

    def test_it_ends_when_somebody_else_ends_the_request(self, llm):
        stream = llm.stream(TEXT, GREEDY)
        llm.engine.abort_request([next(stream).request_id])
        assert list(stream) == []
        assert_idle(llm)

    def test_a_wrong_prompt_is_refused_when_it_is_first_read(self, llm):
        with pytest.raises(InvalidInput, match="prompt: is empty"):
            next(llm.stream("", GREEDY))
        assert_idle(llm)


class TestWrongOnesAmongOthers:
    def test_one_in_the_middle_leaves_nothing_and_the_next_call_works(self, llm):
        good = ["the fox", "a hound ran"]
        expected = tokens(ask(llm, good))
        for bad in ([267], "x" * 300, {"prompt_token_ids": [-1]}):
            with pytest.raises(InvalidInput):
                ask(llm, ["the fox", bad, "a hound ran"])
            assert_idle(llm)
            assert tokens(ask(llm, good)) == expected

    def test_fifty_at_and_over_the_limit_among_valid_ones(self, tiny):
        """vllm-project/vllm#42381: the length rule is exact, and a refusal leaves the others alone."""
        llm = LLM(tiny, max_model_len=16)
        valid = [4] * 6
        (expected,) = tokens(ask(llm, [valid]))
        refusals = 0
        for number in range(50):
            length, max_tokens = (15, 16, 17)[number % 3], (1, None)[number % 2]
            params = [GREEDY, SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True), GREEDY]
            if length == 15:
                first, middle, last = ask(llm, [valid, [3] * 15, valid], params)
                assert tokens([first, last]) == [expected] * 2
                assert (len(middle.outputs[0].token_ids), middle.outputs[0].finish_reason) == (1, "length")
            else:
                refusals += 1
                with pytest.raises(InvalidInput, match=f"has {length} tokens, and max_model_len=16"):
                    ask(llm, [valid, [3] * length, valid], params)
            assert_idle(llm)
        assert refusals == 33

    def test_more_than_the_cache_holds(self, tiny):
        llm = LLM(tiny, kv_cache_memory_bytes=2**16)
        with pytest.raises(InvalidInput, match="give at most 111 tokens"):
            ask(llm, [[3] * 5, [3] * 150])
        assert_idle(llm)
        (output,) = ask(llm, [[3] * 60], SamplingParams(temperature=0, max_tokens=200, ignore_eos=True))
        assert (len(output.outputs[0].token_ids), output.outputs[0].finish_reason) == (52, "length")

    def test_an_error_in_a_step_ends_the_call_and_its_requests(self, tiny, monkeypatch):
        def fail(_):
            raise OSError("the device is gone")

        llm = LLM(tiny)
        monkeypatch.setattr(llm.engine.core.worker, "execute_model", fail)
        with pytest.raises(OSError, match="the device is gone"):
            ask(llm, ["the fox", "a hound ran"])
        assert_idle(llm)


NAN, INF, BIG = math.nan, math.inf, 10**12
WRONG = {
    "n": [0, -1, 10**5, 1.5, True, "2"],
    "temperature": [-1, -1e-9, NAN, INF, "hot", True, 10**400],
    "top_p": [0, -0.1, 1.01, NAN, "x"],
    "top_k": [-2, BIG, 0.5, True],
    "min_p": [-0.1, 1.1, NAN],
    "presence_penalty": [-2.1, 2.1, NAN],
    "frequency_penalty": [-2.1, 2.1, INF],
    "repetition_penalty": [0, -1, NAN, INF, 1e-308, 1e300],
    "seed": [2**63, -(2**63) - 1, 0.5, "x"],
    "stop": ["", ["a", ""], [3], 3, "\ud800", ["a", "b\udfff"]],
    "stop_token_ids": [[267], [-1], [2**40], ["a"], [True], 5, "a"],
    "max_tokens": [0, -1, BIG, 1.5, True],
    "min_tokens": [-1, BIG, 17, 1.5],
    "logprobs": [-2, 10**6, 268, 1.5, True],
    "prompt_logprobs": [-2, 10**6, 268, 1.5],
    "logit_bias": [
        {267: 1.0},
        {-1: 1.0},
        {"267": 1},
        {"AI": 1},
        {1: NAN},
        {1: INF},
        {1: "x"},
        [1],
        {1.5: 1},
        {True: 1},
        {"9" * 5000: 1},
    ],
    "allowed_token_ids": [[267], [-1], [], ["a"], 5],
    "include_stop_str_in_output": [1, "no"],
    "ignore_eos": [None, "false"],
    "skip_special_tokens": [0],
    "detokenize": ["yes"],
}
"""Field of `SamplingParams` → values outside of it, for a vocabulary of 267."""


@pytest.fixture(scope="module")
def undisturbed(tiny):
    """What the neighbour of a refused request answers when nobody is refused."""
    return tokens(ask(LLM(tiny, block_size=4), TEXT, SHORT))


def test_every_field_is_in_the_table():
    assert {f.name for f in fields(SamplingParams)} == WRONG.keys()


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, values in WRONG.items() for v in values])
def test_a_value_outside_is_refused_by_its_field_and_neighbours_stay_as_they_are(llm, undisturbed, field, value):
    neighbour = llm.stream(TEXT, SHORT)
    next(neighbour)
    with pytest.raises(InvalidInput) as refused:
        ask(llm, ["the fox", "a hound"], [SHORT, SamplingParams(**{field: value})])
    assert refused.value.field == field
    *_, last = neighbour
    assert tokens([last]) == undisturbed
    assert_idle(llm)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stop_token_ids", [0, 266]),
        ("allowed_token_ids", [0, 266]),
        ("logit_bias", {0: 1.0, 266: -1.0}),
        ("logit_bias", {"266": 1}),
        ("logprobs", 267),
        ("logprobs", -1),
        ("prompt_logprobs", 267),
        ("top_k", -1),
        ("top_k", 10**6),
        ("seed", -(2**63)),
        ("max_tokens", 2**31 - 1),
        ("max_tokens", None),
    ],
)
def test_a_value_on_the_edge_is_taken(llm, field, value):
    params = SamplingParams(**{"temperature": 0.7, "max_tokens": 2, "ignore_eos": True, field: value})
    (output,) = ask(llm, [[0, 266] * 125], params)
    assert output.outputs[0].finish_reason in ("length", "stop")


def test_room_for_more_tokens_a_step_than_there_can_be_costs_nothing(tiny):
    llm = LLM(tiny, max_num_batched_tokens=2**31 - 1)
    assert llm.engine.core.scheduler.config.max_num_batched_tokens == 256 * 256
    assert len(ask(llm, TEXT)) == 1


SETTINGS = {
    "dtype": ["int4", "", "float8"],
    "block_size": [0, -1, 1.5, True, 2**31],
    "max_num_batched_tokens": [0, 2**31, "many"],
    "max_num_seqs": [0, 2**31, None],
    "max_model_len": [0, 1, 257, 2**31],
    "kv_cache_memory_bytes": [0, -1, 0.5, 2**63],
    "memory_utilization": [0, -0.5, 1.1, NAN, "most"],
    "scheduling_policy": ["lifo", ""],
    "long_prefill_token_threshold": [-1, 0.5, None],
    "enforce_eager": [None, 1, "yes"],
    "async_scheduling": [None, 1, "yes"],
    "model_impl": ["vllm", "", None],
    "seed": [2**63, -(2**63) - 1, 0.5, None],
}


def test_every_setting_is_in_the_table():
    assert {f.name for f in fields(EngineConfig)} == SETTINGS.keys() | {"device", "enable_prefix_caching"}


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, values in SETTINGS.items() for v in values])
def test_a_wrong_setting_is_refused_by_its_name(tiny, field, value):
    with pytest.raises(InvalidInput) as refused:
        LLM(tiny, **{field: value})
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"model": "no-such-model"}, ModelError, "model 'no-such-model' is not known"),
        ({"attention_backend": "nope"}, BackendError, '"nope" is not known'),
        ({"attention_policy": {"99": "sdpa"}}, InvalidInput, "attention_policy: '99' is no kind"),
        (
            {"attention_backend": "sdpa", "attention_backend_config": {"sdpa": {"k": 1}}},
            InvalidInput,
            "option 'k': is not known",
        ),
        ({"kv_cache_memory_bytes": 100}, CapacityError, "holds 0 blocks"),
    ],
)
def test_what_cannot_be_built_is_an_error_of_ours(tiny, arguments, error, message):
    with pytest.raises(error, match=message) as refused:
        LLM(**{"model": tiny, **arguments})
    assert isinstance(refused.value, HeadstockError)


def test_it_tells_which_backend_computes_which_layer(tiny):
    llm = LLM(tiny, attention_policy={"window": {"decode": "reference"}}, attention_backend="sdpa")
    assert [choice.backend for choice in llm.attention.choices.values()] == [
        "sdpa",
        "sdpa",
        "decode=reference,prefill=sdpa",
        "decode=reference,prefill=sdpa",
    ]
    assert tokens(ask(llm, TEXT)) == tokens(ask(LLM(tiny), TEXT))


def test_cached_prefixes_can_be_forgotten_when_nothing_runs(tiny):
    llm = LLM(tiny, block_size=4)
    assert [ask(llm, [[5] * 9])[0].num_cached_tokens for _ in range(2)] == [0, 8]
    stream = llm.stream([5] * 9, GREEDY)
    next(stream)
    assert not llm.reset_prefix_cache()
    stream.close()
    assert llm.reset_prefix_cache()
    assert ask(llm, [[5] * 9])[0].num_cached_tokens == 0
