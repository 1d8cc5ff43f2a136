"""Tiny cases of HiCache's host and storage tiers worked out by hand; no shared data needed."""

from __future__ import annotations

from typing import Any

import pytest

from hisearch.validate.hicache_settings import CopyLaw, HostTierConfig, StorageConfig
from tests.reference.restatement import sglang
from tests.reference.restatement.content import PathContent
from tests.reference.restatement.recording import Recording, Request
from tests.reference.restatement.sglang_copies import Clock
from tests.reference.restatement.sglang_host_tree import HostTree
from tests.reference.restatement.sglang_state import SglangConfig
from tests.reference.restatement.sglang_storage import Prefetch, StorageTier
from tests.reference.restatement.sglang_tree import RadixNode

#: A copy of 12 tokens to the host takes 1.7 s, to the device 3.25 s; of 16 tokens to the host 2.1 s.
TO_HOST, TO_DEVICE = CopyLaw(0.5, 0.1), CopyLaw(0.25, 0.25)
STORAGE = StorageConfig(0.5, CopyLaw(0.1, 0.001), CopyLaw(1.0, 0.01), "wait_complete", prefetch_threshold=8)


def _unit(chunks: list[tuple[int, int]], decodes: list[int], sampling: int) -> float:
    return 1.0


def _request(name: str, runs: list[tuple[int, int, int]], at: float) -> Request:
    """A prompt of exactly these runs, and one output token."""
    return Request(name, at, runs[-1][2], 1, 1, PathContent(name, runs))


def _replay(host: HostTierConfig, requests: list[Request]) -> Recording:
    """A pool of 6 pages of 4 tokens, and 13 host pages at ratio 2; a step takes 1 s."""
    config = SglangConfig(max_running_requests=4, max_total_tokens=24, page_size=4, hicache=host)
    return sglang.replay(config, requests, _unit)


def _host(write_policy: str, storage: StorageConfig | None = None) -> HostTierConfig:
    return HostTierConfig(2.0, write_policy, TO_HOST, TO_DEVICE, storage)


def _starts(recording: Recording) -> list[tuple[Any, float]]:
    return [(step.batch[0].id, step.start_s) for step in recording.steps]


FIRST, OTHER, AGAIN = [(1, 0, 12)], [(2, 0, 16)], [(1, 0, 12), (3, 12, 16)]


def test_evicted_prompt_is_loaded_back() -> None:
    # "b" evicts "a" from the device at 3, after the copy that ended at 2.7; "c" evicts "b" likewise and loads "a" back
    requests = [_request("a", FIRST, 0.0), _request("b", OTHER, 3.0), _request("c", AGAIN, 7.0)]
    recording = _replay(_host("write_through"), requests)
    assert recording.reused_tokens == {"a": 0, "b": 0, "c": 12}
    last = recording.steps[-1]
    assert [(entry.id, entry.computed, entry.new) for entry in last.batch] == [("c", 12, 4)]
    assert last.load_back == (12, 10.25)
    # the step would have ended at 8
    assert recording.finish_s == {"a": 1.0, "b": 4.0, "c": 10.25}


def test_copy_locks_its_node_until_done() -> None:
    # at 2 "a" is being copied: 12 free tokens do not take "b", which is tried again when the copy is done
    recording = _replay(_host("write_through"), [_request("a", FIRST, 0.0), _request("b", OTHER, 2.0)])
    assert _starts(recording) == [("a", 0.0), ("b", 2.7)]


@pytest.mark.parametrize(("visits", "reused"), [(1, 0), (2, 12)])
def test_selective_copies_at_the_second_insertion(visits: int, reused: int) -> None:
    firsts = [_request(f"a{k}", FIRST, 10.0 * k) for k in range(visits)]
    requests = [*firsts, _request("b", OTHER, 30.0), _request("c", AGAIN, 40.0)]
    assert _replay(_host("write_through_selective"), requests).reused_tokens["c"] == reused


def test_write_back_copies_on_eviction_and_waits() -> None:
    requests = [_request("a", FIRST, 0.0), _request("b", OTHER, 3.0), _request("c", AGAIN, 10.0)]
    recording = _replay(_host("write_back"), requests)
    # 1.7 s for the 12 tokens of "a"; then 2.1 s for the 16 of "b", after which "a" is loaded back in 3.25 s
    assert _starts(recording) == [("a", 0.0), ("b", pytest.approx(4.7)), ("c", pytest.approx(12.1))]
    assert recording.finish_s["c"] == pytest.approx(15.35)


def test_fewer_than_ten_tokens_are_computed_again() -> None:
    short, again = [(1, 0, 8)], [(1, 0, 8), (3, 8, 12)]
    requests = [_request("a", short, 0.0), _request("b", OTHER, 5.0), _request("c", again, 20.0)]
    recording = _replay(_host("write_through"), requests)
    assert recording.reused_tokens["c"] == 0
    assert recording.steps[-1].load_back is None


def test_request_waits_for_the_answer_of_an_empty_store() -> None:
    recording = _replay(_host("write_through", STORAGE), [_request("a", FIRST, 0.0)])
    assert recording.storage_log == [(0.5, "a", "revoked", 0)]
    assert _starts(recording) == [("a", 0.5)]


def test_short_prompt_is_not_prefetched() -> None:
    recording = _replay(_host("write_through", STORAGE), [_request("a", [(1, 0, 7)], 0.0)])
    assert recording.storage_log == []
    assert _starts(recording) == [("a", 0.0)]


def _node(tokens: int) -> RadixNode:
    return RadixNode(list(range(tokens)), None, 0, 0, 0)


def test_batch_of_pages_is_found_as_soon_as_written() -> None:
    # 200 pages of one token: batches of 128 and 72 are written by 2.28 and 4.0; the query at 2.5 finds the first
    clock = Clock()
    tier = StorageTier(STORAGE, 1, clock)
    tier.begin_write(_node(200))
    clock.now_s = 2.0
    prefetch = Prefetch("a", _node(0), 0, list(range(200)), 2.0)
    tier.begin_prefetch(prefetch)
    clock.now_s = 2.6
    tier.advance()
    assert (prefetch.hit_pages, prefetch.read_pages, tier.released_tokens, tier.written) == (128, 0, 72, [])
    assert not tier.may_stop(prefetch)
    assert tier.next_event_s() == pytest.approx(2.728)
    clock.now_s = 4.0
    tier.advance()
    assert tier.may_stop(prefetch)
    assert tier.stop_prefetch(prefetch) == 128
    assert (tier.held_tokens, len(tier.written)) == (0, 1)
    assert [entry[1:] for entry in tier.log] == [("a", "reading", 128), ("a", "read", 128)]
    assert [entry[0] for entry in tier.log] == pytest.approx([2.5, 2.728])


def test_stopped_prefetch_reads_its_first_batch_in_vain() -> None:
    # 200 pages are found at 0.5; stopped before, one batch of 128 is read until 0.728 and does not count
    clock = Clock()
    tier = StorageTier(STORAGE, 1, clock)
    tier.store.keys.update(range(200))
    prefetch = Prefetch("a", _node(0), 0, list(range(200)), 0.0)
    tier.begin_prefetch(prefetch)
    assert tier.stop_prefetch(prefetch) == 0
    clock.now_s = 9.0
    tier.advance()
    assert (tier.released_tokens, tier.held_tokens) == (200, 0)
    assert [entry[1:] for entry in tier.log] == [("a", "reading", 200), ("a", "read", 0)]
    assert [entry[0] for entry in tier.log] == pytest.approx([0.5, 0.728])


def test_timeout_depends_on_what_was_found() -> None:
    rate = (("prefetch_timeout_s_per_ki_token", 10.24),)
    config = StorageConfig(0.5, CopyLaw(0.0, 0.1), STORAGE.write, "timeout", 8, rate)
    clock = Clock()
    tier = StorageTier(config, 1, clock)
    tier.store.keys.update(range(100))
    prefetch = Prefetch("a", _node(0), 0, list(range(200)), 0.0)
    tier.begin_prefetch(prefetch)
    # 1 s + 10.24 s for each 1024 of the 100 found
    for now, expected in ((0.9, False), (1.9, False), (2.1, True)):
        clock.now_s = now
        tier.advance()
        assert tier.may_stop(prefetch) is expected
    assert prefetch.read_pages == 0


def by_no_later_rule(rule: str) -> bool:
    """The rules of 0.5.9."""
    del rule
    return False


def test_host_nodes_below_a_dropped_one_keep_their_memory() -> None:
    # ten host tokens: the first run of 12 does not fit, the 5 below it do
    content = PathContent("a", [(1, 0, 17)])
    tree = HostTree(1, "lru", _host("write_through"), 10, Clock(1.0), by_no_later_rule)
    tree.insert(content, 12, 0)
    tree.insert(content, 17, 0)
    assert tree.host_free_tokens == 5
    tree.clock.now_s = 5.0
    tree.take_written()
    assert tree.evict(17) == 17
    assert [tree.tokens_of(node) for node in tree.cut_off] == [5]
    assert tree.match_tiers(content, 17).host_tokens == 0
    assert (tree.host_free_tokens, tree.host_held_tokens) == (5, 5)
    tree.evict_host(1)
    assert (tree.host_free_tokens, tree.cut_off) == (10, [])


def test_chunk_counts_no_hit_and_computing_again_neither() -> None:
    content = PathContent("a", [(1, 0, 8)])
    tree = HostTree(1, "lru", _host("write_through"), 100, Clock(), by_no_later_rule)
    tree.insert(content, 8, 0, counted_from=None)
    (node,) = tree.nodes()
    assert (node.hits, node.on_host) == (0, False)
    tree.insert(content, 8, 0)
    assert (node.hits, node.on_host, node.locks) == (1, True, 1)
    tree.clock.now_s = 9.0
    tree.take_written()
    tree.evict(8)
    assert (node.on_device, tree.insert(content, 8, 0)) == (False, 0)
    assert (node.on_device, node.hits) == (True, 1)


SETTINGS = {
    "hicache_ratio": 2.0, "hicache_write_policy": "write_through", "d2h_base_s": 0.0, "d2h_per_token_s": 0.0,
    "h2d_base_s": 0.0, "h2d_per_token_s": 0.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"hicache_write_policy": "write_around"}, "hicache.hicache_write_policy: expected one of write_through, "),
        ({"hicache_ratio": None}, "hicache.hicache_ratio: required, and missing"),
        ({"d2h_base_s": -1.0}, "hicache.d2h_base_s: expected a finite number >= 0, got -1.0"),
        ({"hicache_size": 8}, "hicache.hicache_size: not simulated"),
        ({"storage": {"query_s": 0.0, "read_base_s": 0.0}}, "hicache.storage.read_per_token_s: required, and missing"),
        ({"storage": 3}, "hicache.storage: expected settings, got 3"),
        ({"hicache_storage_prefetch_policy": "never"}, "hicache.hicache_storage_prefetch_policy: expected one of"),
    ],
)
def test_settings_that_are_not_understood_are_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match="hicache") as caught:
        HostTierConfig.from_recording(SETTINGS | changes)
    assert str(caught.value).startswith(expected)


def test_host_tier_needs_the_radix_cache() -> None:
    with pytest.raises(ValueError, match="needs the radix cache"):
        SglangConfig(4, 24, disable_radix_cache=True, hicache=_host("write_through"))
