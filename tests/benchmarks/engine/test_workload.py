"""What engines are asked: random lengths, and conversations from a file."""

from __future__ import annotations

import json

import pytest

from headstock.benchmarks.engine.workload import Lengths, random_workload, sharegpt_workload
from headstock.core.errors import InvalidInput
from headstock.core.text import Tokenizer
from support.vocabularies import byte_level, write_folder


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    return Tokenizer.from_folder(write_folder(tmp_path_factory.mktemp("tokenizer"), byte_level()))


def made(tokenizer, count=40, seed=0, **lengths):
    sizes = Lengths(**{"input_len": 20, "output_len": 8, **lengths})
    return random_workload(sizes, count, tokenizer=tokenizer, vocab_size=tokenizer.vocab_size, seed=seed)


class TestRandom:
    def test_all_have_the_lengths_that_were_asked_for(self, tokenizer):
        work = made(tokenizer)
        assert {(len(r.token_ids), r.output_len) for r in work.requests} == {(20, 8)}
        assert (work.num_prompt_tokens, work.num_output_tokens) == (800, 320)
        assert work.name == "random 40 x 20+8, seed 0"

    def test_lengths_vary_within_the_share_and_reach_both_ends(self, tokenizer):
        work = made(tokenizer, 300, range_ratio=0.5)
        assert {len(r.token_ids) for r in work.requests} == set(range(10, 31))
        assert {r.output_len for r in work.requests} == set(range(4, 13))

    def test_a_prefix_is_shared_and_comes_on_top(self, tokenizer):
        work = made(tokenizer, prefix_len=12)
        assert len({r.token_ids[:12] for r in work.requests}) == 1
        assert len({r.token_ids[12:] for r in work.requests}) == 40
        assert {len(r.token_ids) for r in work.requests} == {32}

    def test_special_tokens_and_those_beyond_the_model_do_not_occur(self, tokenizer):
        sizes = Lengths(input_len=2000, output_len=1)
        work = random_workload(sizes, 1, tokenizer=tokenizer, vocab_size=50, seed=0)
        assert set(work.requests[0].token_ids) == set(range(50)) - tokenizer.special_token_ids

    def test_the_seed_decides(self, tokenizer):
        assert made(tokenizer).requests == made(tokenizer).requests != made(tokenizer, seed=1).requests

    @pytest.mark.parametrize("ratio", [1.0, -0.1, float("nan")])
    def test_a_wrong_range_is_refused(self, ratio):
        with pytest.raises(InvalidInput, match="range_ratio: must be at least 0 and below 1"):
            Lengths(input_len=1, output_len=1, range_ratio=ratio)

    def test_one_that_can_be_longer_than_the_model_takes_is_refused_before_it_is_made(self):
        sizes = Lengths(input_len=20, output_len=8, range_ratio=0.5, prefix_len=10)
        sizes.check(52)
        with pytest.raises(InvalidInput, match="a request of 52 tokens is more than the model's 51"):
            sizes.check(51)


def turns(*texts, key="value"):
    return {"conversations": [{"from": ("human", "gpt")[i % 2], key: text} for i, text in enumerate(texts)]}


class TestShareGpt:
    ENTRIES = (
        turns("tell me of the fox", "it is a red animal", "and then"),
        turns("tell me of the hound", "it runs after the fox", key="content"),
        turns("too short an answer", "no"),
        turns("alone"),
        turns("x" * 9000, "too long a prompt"),
        turns("too long in all", "y" * 9000),
        {"id": "without turns"},
        "no object",
    )

    @pytest.fixture
    def file(self, tmp_path):
        path = tmp_path / "share.json"
        path.write_text(json.dumps(self.ENTRIES))
        return str(path)

    def test_the_first_two_turns_are_prompt_and_length_of_the_answer(self, file, tokenizer):
        work = sharegpt_workload(file, 2, tokenizer=tokenizer, output_len=None, limit=4096, seed=0)
        asked = {(r.token_ids, r.output_len) for r in work.requests}
        pairs = (("tell me of the fox", "it is a red animal"), ("tell me of the hound", "it runs after the fox"))
        assert asked == {(tuple(tokenizer.encode(prompt)), len(tokenizer.encode(answer))) for prompt, answer in pairs}
        assert work.name == "share.json 2, seed 0"

    def test_a_length_for_all_answers(self, file, tokenizer):
        work = sharegpt_workload(file, 3, tokenizer=tokenizer, output_len=5, limit=4096, seed=0)
        assert {r.output_len for r in work.requests} == {5}
        assert work.name == "share.json 3 +5, seed 0"

    def test_the_seed_decides_which(self, file, tokenizer):
        def first(seed):
            return sharegpt_workload(file, 1, tokenizer=tokenizer, output_len=None, limit=4096, seed=seed).requests[0]

        assert len({first(seed) for seed in range(10)}) == 2
        assert first(3) == first(3)

    def test_what_the_model_cannot_hold_is_left_out(self, file, tokenizer):
        def both(limit):
            return sharegpt_workload(file, 2, tokenizer=tokenizer, output_len=None, limit=limit, seed=0)

        longest = max(r.output_len + len(r.token_ids) for r in both(4096).requests)
        assert len(both(longest).requests) == 2
        with pytest.raises(InvalidInput, match="2 are asked for"):
            both(longest - 1)

    def test_too_few_are_told(self, file, tokenizer):
        with pytest.raises(InvalidInput, match=r"num_prompts: 3 are asked for; .*share.json has 2 of ordinary length"):
            sharegpt_workload(file, 3, tokenizer=tokenizer, output_len=None, limit=4096, seed=0)

    @pytest.mark.parametrize(
        ("text", "problem"), [("{", "cannot be read as JSON"), ("{}", "must be a list"), (None, "cannot be read")]
    )
    def test_another_file_is_told(self, tmp_path, tokenizer, text, problem):
        if text is not None:
            (tmp_path / "f.json").write_text(text)
        with pytest.raises(InvalidInput, match=f"dataset: .*{problem}"):
            sharegpt_workload(str(tmp_path / "f.json"), 1, tokenizer=tokenizer, output_len=None, limit=4096, seed=0)
