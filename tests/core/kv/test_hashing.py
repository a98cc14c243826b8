"""Block keys: equal for equal content, different for everything that KV depends on."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstock.core.kv import Adapter, BlockChain, BlockHasher, Item, PrefixIdentity
from headstock.core.kv.hashing import SHA256_ROOT, encode_block, sha256_block

TOKENS = list(range(12))


def keys(tokens=TOKENS, identity=None, block_size=4, hasher=None):
    chain = BlockChain(hasher or BlockHasher(), block_size, identity or PrefixIdentity())
    chain.extend(tokens)
    return chain.keys


def hashes(*args, **options):
    return [key.hash for key in keys(*args, **options)]


def test_only_full_blocks_have_keys():
    assert [len(keys(TOKENS[:n])) for n in (0, 3, 4, 7, 8, 12)] == [0, 0, 1, 1, 2, 3]


def test_growing_by_one_token_gives_the_keys_of_the_whole():
    chain = BlockChain(BlockHasher(), 4, PrefixIdentity())
    for end in range(len(TOKENS) + 1):
        chain.extend(TOKENS[:end])
    assert chain.keys == keys()


def test_a_changed_token_changes_its_block_and_all_after_it():
    changed = hashes([*TOKENS[:5], 99, *TOKENS[6:]])
    assert [a == b for a, b in zip(hashes(), changed, strict=True)] == [True, False, False]


IDENTITIES = {
    "plain": PrefixIdentity(),
    "adapter a": PrefixIdentity(adapter=Adapter(name="a", revision="1")),
    "adapter b": PrefixIdentity(adapter=Adapter(name="b", revision="1")),
    "adapter a, other weights": PrefixIdentity(adapter=Adapter(name="a", revision="2")),
    "salt 1": PrefixIdentity(cache_salt="1"),
    "salt 2": PrefixIdentity(cache_salt="2"),
    "image x": PrefixIdentity(items=(Item(identifier="x", offset=2, length=3),)),
    "image y": PrefixIdentity(items=(Item(identifier="y", offset=2, length=3),)),
    "image x, later": PrefixIdentity(items=(Item(identifier="x", offset=3, length=3),)),
}


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(IDENTITIES, 2)))
def test_whoever_may_not_share_has_no_key_in_common(one, other):
    assert not set(hashes(identity=IDENTITIES[one])) & set(hashes(identity=IDENTITIES[other]))


@pytest.mark.parametrize("name", IDENTITIES)
def test_an_exact_repeat_has_the_same_keys(name):
    assert hashes(identity=IDENTITIES[name]) == hashes(identity=IDENTITIES[name])


def test_a_salt_enters_the_first_block_only():
    assert [key.extra_keys for key in keys(identity=IDENTITIES["salt 1"])] == [(("cache_salt", "1"),), (), ()]


def test_an_image_enters_every_block_it_overlaps_relative_to_it():
    image = PrefixIdentity(items=(Item(identifier="x", offset=2, length=6),))
    assert [key.extra_keys for key in keys(identity=image)] == [(("mm", "x", 2),), (("mm", "x", -2),), ()]


def test_a_block_before_the_first_image_is_shared():
    late = PrefixIdentity(items=(Item(identifier="x", offset=5, length=2),))
    assert hashes(identity=late)[0] == hashes()[0]
    assert hashes(identity=late)[1] != hashes()[1]


def test_kinds_of_keys_cannot_be_taken_for_each_other():
    salt = PrefixIdentity(cache_salt="x")
    adapter = PrefixIdentity(adapter=Adapter(name="x", revision=""))
    assert hashes(identity=salt)[0] != hashes(identity=adapter)[0]


parts = st.one_of(st.text(max_size=3), st.integers(-5, 5))
contents = st.tuples(
    st.binary(max_size=3),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3).map(tuple),
    st.lists(st.lists(parts, max_size=3).map(tuple), max_size=3).map(tuple),
)


@given(contents, contents)
def test_different_contents_have_different_encodings(one, other):
    assert (encode_block(*one) == encode_block(*other)) == (one == other)


def test_a_text_and_a_number_that_look_alike_differ():
    assert encode_block(b"", (), (("mm", "1"),)) != encode_block(b"", (), (("mm", 1),))


def test_any_text_can_be_a_salt():
    assert hashes(identity=PrefixIdentity(cache_salt="\ud800 \N{SNOWMAN}")) != hashes()


def test_processes_agree_without_talking():
    code = (
        "from headstock.core.kv import *; c = BlockChain(BlockHasher(), 4, PrefixIdentity());"
        "c.extend(range(12)); print(*[k.hash.hex() for k in c.keys])"
    )
    other = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert other == [digest.hex() for digest in hashes()]


def weak(parent, tokens, extra):
    return bytes([sum(parent) % 256])


def test_the_root_of_a_weak_hash_cannot_be_guessed():
    assert BlockHasher().root == BlockHasher(sha256_block).root == SHA256_ROOT
    roots = {BlockHasher(weak).root for _ in range(8)}
    assert len(roots) == 8
    assert all(len(root) == 32 for root in roots)


def test_processes_that_share_a_weak_hash_are_given_its_root():
    assert hashes(hasher=BlockHasher(weak, root=b"ours")) == hashes(hasher=BlockHasher(weak, root=b"ours"))
