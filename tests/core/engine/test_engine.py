"""The engine over a small random model: however a request is served, its tokens are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from headstock.backends.reference import ReferenceBackend
from headstock.backends.sdpa import SdpaBackend
from headstock.core.attention import by_phase
from headstock.core.engine import LLMEngine, Prompt
from headstock.core.errors import BackendError, CapacityError, InvalidInput
from headstock.core.kv import KVCacheManager
from headstock.core.model import ModelFolder
from headstock.core.params import SamplingParams
from headstock.core.scheduler import Scheduler
from headstock.core.scheduler.step import Step
from headstock.core.text import Tokenizer as TextTokenizer
from headstock.core.worker.states import RequestStates
from support.engine import FixedProvider
from support.serving import answers, finish, tokens
from support.tiny import tiny_engine, tiny_folder

PROMPTS = [[5, 9, 13], [7] * 20, list(range(30, 63)), [1], list(range(100, 117)), [5, 9, 13, 200, 201]]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def alone(folder: ModelFolder) -> list[tuple[int, ...]]:
    """Each prompt by itself, over the float64 reference."""
    engine = tiny_engine(folder, FixedProvider(ReferenceBackend), enable_prefix_caching=False)
    return [tokens(answers(engine, [prompt], GREEDY))[0] for prompt in PROMPTS]


@pytest.mark.parametrize("block_size", [1, 3, 16, 64])
@pytest.mark.parametrize("layout", ["nhd", "hnd"])
def test_block_size_and_layout_change_nothing(
    folder: ModelFolder, alone: list[tuple[int, ...]], block_size: int, layout: str
) -> None:
    engine = tiny_engine(folder, FixedProvider(SdpaBackend, layout), block_size=block_size)
    assert tokens(answers(engine, PROMPTS, GREEDY)) == alone
    assert engine.core.stats().kv_usage == 0


def test_chunks_of_seven_tokens_change_nothing(folder: ModelFolder, alone: list[tuple[int, ...]]) -> None:
    engine = tiny_engine(folder, max_num_batched_tokens=7, max_num_seqs=4)
    assert tokens(answers(engine, PROMPTS, GREEDY)) == alone
    assert engine.core.stats().num_mixed_steps > 0


def test_preemption_changes_nothing(folder: ModelFolder, alone: list[tuple[int, ...]]) -> None:
    block = tiny_engine(folder, block_size=4).core.kv_config.bytes_per_block
    engine = tiny_engine(folder, block_size=4, kv_cache_memory_bytes=26 * block, enable_prefix_caching=False)
    outputs = answers(engine, PROMPTS, GREEDY)
    assert tokens(outputs) == alone
    assert engine.core.stats().num_preemptions > 0
    preempted = [output.metrics.num_preemptions for output in outputs if output.metrics]
    assert sum(preempted) == engine.core.stats().num_preemptions


def test_a_warm_cache_changes_nothing_but_the_work(folder: ModelFolder, alone: list[tuple[int, ...]]) -> None:
    engine = tiny_engine(folder, block_size=4)
    cold = answers(engine, PROMPTS, GREEDY)
    warm = answers(engine, PROMPTS, GREEDY)
    assert tokens(cold) == tokens(warm) == alone
    # The last token of a prompt is always computed, so a prompt of 20 in blocks of 4 has 16 cached tokens.
    assert [o.num_cached_tokens for o in warm] == [0, 16, 32, 0, 16, 4]


@pytest.mark.parametrize(
    "pick",
    [
        lambda name: ReferenceBackend if ".0." in name or ".3." in name else SdpaBackend,
        lambda name: by_phase(SdpaBackend, ReferenceBackend),
        lambda name: by_phase(ReferenceBackend, SdpaBackend) if ".1." in name else SdpaBackend,
    ],
    ids=["by layer", "by phase", "both"],
)
def test_backends_can_be_mixed(folder: ModelFolder, alone: list[tuple[int, ...]], pick: Any) -> None:
    engine = tiny_engine(folder, FixedProvider(pick), max_num_batched_tokens=16)
    assert tokens(answers(engine, PROMPTS, GREEDY)) == alone
    assert engine.core.stats().num_mixed_steps > 0


def test_seeded_sampling_depends_on_nothing_but_the_request(folder: ModelFolder) -> None:
    params = [SamplingParams(temperature=1.0, top_p=0.95, seed=s, max_tokens=12, ignore_eos=True) for s in range(6)]
    block = tiny_engine(folder, block_size=4).core.kv_config.bytes_per_block
    engines = [
        tiny_engine(folder),
        tiny_engine(folder, max_num_batched_tokens=7, max_num_seqs=4),
        tiny_engine(folder, block_size=4, kv_cache_memory_bytes=26 * block),
    ]
    together = [tokens(answers(engine, PROMPTS, params)) for engine in engines]
    alone = [tokens(answers(tiny_engine(folder), [p], [s]))[0] for p, s in zip(PROMPTS, params, strict=True)]
    assert together == [alone] * 3
    assert engines[2].core.stats().num_preemptions > 0


def test_without_a_seed_an_engine_repeats_itself_and_requests_differ(folder: ModelFolder) -> None:
    params = SamplingParams(temperature=1.5, max_tokens=12, ignore_eos=True)
    first, second = (tokens(answers(tiny_engine(folder, seed=3), [PROMPTS[0]] * 4, params)) for _ in range(2))
    assert first == second
    assert len(set(first)) == 4
    assert tokens(answers(tiny_engine(folder, seed=4), [PROMPTS[0]] * 4, params)) != first


def test_several_completions_share_a_prompt_and_differ(folder: ModelFolder) -> None:
    params = SamplingParams(temperature=1.5, n=3, seed=11, max_tokens=8, ignore_eos=True)
    (output,) = answers(tiny_engine(folder), [PROMPTS[1]], params)
    assert [c.index for c in output.outputs] == [0, 1, 2]
    assert len({c.token_ids for c in output.outputs}) == 3
    (single,) = answers(
        tiny_engine(folder), [PROMPTS[1]], SamplingParams(temperature=1.5, seed=11, max_tokens=8, ignore_eos=True)
    )
    assert single.outputs[0].token_ids == output.outputs[0].token_ids


def test_stop_token_eos_and_length_end_a_request_with_their_reasons(
    folder: ModelFolder, alone: list[tuple[int, ...]]
) -> None:
    engine = tiny_engine(folder)
    third = alone[0][2]
    stop, length = answers(
        engine,
        [PROMPTS[0]] * 2,
        [
            SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop_token_ids=[third]),
            SamplingParams(temperature=0, max_tokens=2, ignore_eos=True),
        ],
    )
    first = alone[0].index(third) + 1
    assert (stop.outputs[0].finish_reason, stop.outputs[0].stop_reason) == ("stop", third)
    assert stop.outputs[0].token_ids == alone[0][:first]
    assert (length.outputs[0].finish_reason, length.outputs[0].token_ids) == ("length", alone[0][:2])


def test_a_stop_string_ends_the_request_in_the_engine_too(folder: ModelFolder) -> None:
    engine = tiny_engine(folder)
    (whole,) = answers(engine, [PROMPTS[2]], GREEDY)
    text = whole.outputs[0].text
    stop = text[3:5]
    (cut,) = answers(engine, [PROMPTS[2]], SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop=[stop]))
    assert cut.outputs[0].text == text[: text.index(stop)]
    assert (cut.outputs[0].finish_reason, cut.outputs[0].stop_reason) == ("stop", stop)
    assert len(cut.outputs[0].token_ids) <= len(whole.outputs[0].token_ids)
    assert engine.core.stats().kv_usage == 0
    assert not engine.has_unfinished_requests()


def test_logprobs_are_those_of_the_tokens_and_do_not_change_them(
    folder: ModelFolder, alone: list[tuple[int, ...]]
) -> None:
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=3)
    for output, expected in zip(answers(tiny_engine(folder), PROMPTS, params), alone, strict=True):
        completion = output.outputs[0]
        assert completion.token_ids == expected
        assert completion.logprobs is not None
        for token, entry in zip(completion.token_ids, completion.logprobs, strict=True):
            assert next(iter(entry)) == token
            assert entry[token].rank == 1
            assert len(entry) == 3
        assert completion.cumulative_logprob == pytest.approx(
            sum(e[t].logprob for t, e in zip(completion.token_ids, completion.logprobs, strict=True))
        )


@pytest.mark.parametrize("budget", [2048, 8])
def test_prompt_logprobs_do_not_depend_on_chunks_and_continue_into_the_answer(folder: ModelFolder, budget: int) -> None:
    prompt = PROMPTS[2]
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, logprobs=1, prompt_logprobs=2)
    engine = tiny_engine(folder, max_num_batched_tokens=budget)
    (whole,) = answers(engine, [prompt], params)
    assert whole.prompt_logprobs is not None
    assert whole.prompt_logprobs[0] is None
    assert len(whole.prompt_logprobs) == len(prompt)
    # The logprob of a prompt's last token is that of the same token generated after the rest.
    longer = [*prompt, whole.outputs[0].token_ids[0]]
    (scored,) = answers(engine, [longer], params)
    assert scored.prompt_logprobs is not None
    assert whole.outputs[0].logprobs is not None
    last, generated = scored.prompt_logprobs[-1], whole.outputs[0].logprobs[0]
    assert last is not None
    assert last[longer[-1]].logprob == pytest.approx(generated[longer[-1]].logprob, abs=1e-4)


def test_abort_ends_a_request_and_leaves_its_neighbours(folder: ModelFolder, alone: list[tuple[int, ...]]) -> None:
    engine = tiny_engine(folder)
    ids = [engine.add_request(Prompt(token_ids=tuple(p)), GREEDY) for p in PROMPTS]
    engine.step()
    (aborted,) = engine.abort_request([ids[1]])
    assert aborted.outputs[0].finish_reason == "abort"
    assert engine.abort_request([ids[1], "nonsense"]) == []
    done = finish(engine)
    assert [done[i].outputs[0].token_ids for i in ids if i != ids[1]] == [a for n, a in enumerate(alone) if n != 1]
    assert engine.core.stats().kv_usage == 0


def test_a_salt_keeps_prefixes_apart(folder: ModelFolder) -> None:
    engine = tiny_engine(folder, block_size=4)
    cached = []
    for salt in (None, "a", "b", "a", None):
        engine.add_request(Prompt(token_ids=tuple(PROMPTS[1]), cache_salt=salt), GREEDY)
        cached += [output.num_cached_tokens for output in finish(engine).values()]
    assert cached == [0, 0, 0, 16, 16]


def test_a_prompt_that_leaves_no_room_is_refused_and_the_next_is_served(folder: ModelFolder) -> None:
    engine = tiny_engine(folder, max_model_len=16)
    one = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    for length, fits in ((15, True), (16, False), (17, False)):
        if fits:
            (output,) = answers(engine, [[3] * length], one)
            assert output.outputs[0].finish_reason == "length"
        else:
            with pytest.raises(InvalidInput, match="max_model_len"):
                engine.add_request(Prompt(token_ids=(3,) * length), one)
            assert not engine.has_unfinished_requests()
    assert answers(engine, [[3] * 4], one)[0].finished


def test_a_prompt_larger_than_the_cache_is_refused_and_the_next_is_served(
    folder: ModelFolder, caplog: pytest.LogCaptureFixture
) -> None:
    block = tiny_engine(folder, block_size=4).core.kv_config.bytes_per_block
    engine = tiny_engine(folder, block_size=4, kv_cache_memory_bytes=(1 + 2 * 8) * block)  # 8 for each of two groups
    assert engine.core.max_model_len == 32
    assert "requests can have 32 tokens at most, as the KV cache holds no more; the model takes 256" in caplog.text
    with pytest.raises((CapacityError, InvalidInput)):
        engine.add_request(Prompt(token_ids=(3,) * 40), GREEDY)
    (output,) = answers(engine, [[3] * 20], SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
    assert output.outputs[0].finish_reason == "length"
    assert len(output.outputs[0].token_ids) == 12


def test_an_explicit_length_that_the_cache_cannot_hold_is_an_error(folder: ModelFolder) -> None:
    with pytest.raises(CapacityError, match="max_model_len"):
        tiny_engine(folder, max_model_len=200, block_size=4, kv_cache_memory_bytes=2**14)


@pytest.mark.parametrize(
    ("prompt", "params", "field"),
    [
        ([-1], {}, "prompt_token_ids"),
        ([100000], {}, "prompt_token_ids"),
        ([1], {"stop_token_ids": [100000]}, "stop_token_ids"),
        ([1], {"allowed_token_ids": [-1]}, "allowed_token_ids"),
        ([1], {"logit_bias": {100000: 1.0}}, "logit_bias"),
        ([1], {"logprobs": 10**6}, "logprobs"),
    ],
)
def test_what_lies_outside_the_vocabulary_is_refused_by_name(
    folder: ModelFolder, prompt: list[int], params: dict[str, Any], field: str
) -> None:
    engine: LLMEngine = tiny_engine(folder)
    with pytest.raises(InvalidInput) as refused:
        engine.add_request(Prompt(token_ids=tuple(prompt)), SamplingParams(**params))
    assert refused.value.field == field
    assert answers(engine, [[1]], SamplingParams(temperature=0, max_tokens=1))[0].finished


class Interrupted(SdpaBackend):
    """Raises once, in the middle of a step."""

    pending: list[BaseException] = []  # noqa: RUF012 - shared on purpose

    def forward(self, layer: Any, query: Any, **rest: Any) -> None:
        super().forward(layer, query, **rest)
        if Interrupted.pending and ".1." in layer.name:
            raise Interrupted.pending.pop()


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), RuntimeError("kernel launch failed")], ids=lambda e: type(e).__name__
)
def test_a_step_that_raises_ends_its_requests_and_leaves_no_prefix(
    folder: ModelFolder, alone: list[tuple[int, ...]], error: BaseException
) -> None:
    engine = tiny_engine(folder, FixedProvider(Interrupted), block_size=4)
    ids = [engine.add_request(Prompt(token_ids=tuple(p)), GREEDY) for p in PROMPTS[1:3]]
    Interrupted.pending.append(error)
    with pytest.raises(type(error)):
        engine.step()
    done = finish(engine)
    assert [done[i].outputs[0].finish_reason for i in ids] == ["error"] * 2
    assert all(type(error).__name__ in (done[i].outputs[0].error or "") for i in ids)
    assert engine.core.stats().kv_usage == 0
    again = answers(engine, PROMPTS, GREEDY)
    assert tokens(again) == alone
    assert [o.num_cached_tokens for o in again[1:3]] == [0, 0]


def test_a_backend_that_ends_the_program_is_an_error_of_its_own(folder: ModelFolder) -> None:
    engine = tiny_engine(folder, FixedProvider(Interrupted), block_size=4)
    engine.add_request(Prompt(token_ids=(1, 2)), GREEDY)
    Interrupted.pending.append(SystemExit(0))
    with pytest.raises(BackendError, match="ended in SystemExit while it computed"):
        engine.step()


def raise_once(monkeypatch: pytest.MonkeyPatch, target: Any, name: str, error: BaseException, *, after: bool) -> None:
    """Let a method raise at its next call, before or after it did its work."""
    original, pending = getattr(target, name), [error]

    def method(*args: Any, **rest: Any) -> Any:
        if pending and not after:
            raise pending.pop()
        result = original(*args, **rest)
        if pending:
            raise pending.pop()
        return result

    monkeypatch.setattr(target, name, method)


PLACES = [
    (Step, "output"),
    (KVCacheManager, "admit"),
    (KVCacheManager, "cache_blocks"),
    (Scheduler, "schedule"),
    (Scheduler, "update_from_output"),
    (Scheduler, "_finish"),
    (KVCacheManager, "free"),
    (RequestStates, "add"),
    (RequestStates, "append"),
    (RequestStates, "remove"),
]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("target", "name"), PLACES, ids=[f"{t.__name__}.{n}" for t, n in PLACES])
def test_an_interrupt_anywhere_in_a_step_leaves_the_engine_whole(
    folder: ModelFolder,
    alone: list[tuple[int, ...]],
    monkeypatch: pytest.MonkeyPatch,
    target: Any,
    name: str,
    after: bool,
) -> None:
    engine = tiny_engine(folder, block_size=4, max_num_seqs=3)
    ids = [engine.add_request(Prompt(token_ids=tuple(p)), GREEDY) for p in PROMPTS]
    raise_once(monkeypatch, target, name, KeyboardInterrupt(), after=after)
    with pytest.raises(KeyboardInterrupt):
        finish(engine)
    done = finish(engine)
    assert all(output.finished for output in done.values())
    assert engine.core.stats().kv_usage == 0
    assert engine.abort_request(ids) == []
    again = answers(engine, PROMPTS, GREEDY)
    assert tokens(again) == alone
    assert engine.core.stats().kv_usage == 0


def test_the_prompt_is_scored_once_for_all_completions(folder: ModelFolder) -> None:
    prompt = list(range(100, 146))
    engine = tiny_engine(folder, max_num_batched_tokens=64, long_prefill_token_threshold=5)
    (output,) = answers(engine, [prompt], SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, n=3))
    assert output.prompt_logprobs is not None
    assert [next(iter(entry)) for entry in output.prompt_logprobs[1:] if entry] == prompt[1:]


def test_text_beyond_the_models_vocabulary_is_refused_and_its_neighbours_are_served(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path)
    engine = tiny_engine(folder)
    tokenizer = Tokenizer.from_file(str(folder.path / "tokenizer.json"))
    tokenizer.add_tokens(["<pad-of-a-fine-tune>"])
    tokenizer.save(str(folder.path / "tokenizer.json"))
    engine.inputs.tokenizer = TextTokenizer.from_folder(folder.path)
    with pytest.raises(InvalidInput, match="not in the vocabulary") as refused:
        engine.add_request(Prompt(text="a<pad-of-a-fine-tune>"), GREEDY)
    assert refused.value.field == "prompt"
    assert answers(engine, [[1]], SamplingParams(temperature=0, max_tokens=1))[0].finished
