"""Tiny cases of LMCache under vLLM worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.reference.lmcache import LmcacheConfig, LmcacheTier, LmcacheWorker, replay
from tests.reference.restatement.content import PathContent
from tests.reference.restatement.recording import Recording, Request
from tests.reference.restatement.transfers import CopyLaw
from tests.reference.restatement.vllm import VllmConfig, drive

#: 16 tokens take 2.1 s to the host and 4.25 s to the device.
TO_HOST, TO_DEVICE = CopyLaw(0.5, 0.1), CopyLaw(0.25, 0.25)


def _unit(chunks: list[tuple[int, int]], decodes: list[int], sampling: int) -> float:
    return 1.0


def _request(name: str, runs: list[tuple[int, int, int]], at: float, output_tokens: int = 1) -> Request:
    """A prompt of exactly these runs."""
    return Request(name, at, runs[-1][2], output_tokens, output_tokens, PathContent(name, runs))


def _pool(num_blocks: int = 40, **settings: Any) -> VllmConfig:
    return VllmConfig(max_num_seqs=4, max_tokens=64, num_blocks=num_blocks, block_size=4, **settings)


def _lmcache(host_tokens: int = 400, *behind: LmcacheTier, eviction: Any = "lru", **settings: Any) -> LmcacheConfig:
    tiers = (LmcacheTier(host_tokens, eviction=eviction), *behind)
    return LmcacheConfig(TO_HOST, TO_DEVICE, tiers, chunk_tokens=8, **settings)


def _steps(recording: Recording) -> list[tuple[Any, Any, list[tuple[Any, int, int]]]]:
    return [
        (pytest.approx(step.start_s), pytest.approx(step.end_s), [(e.id, e.computed, e.new) for e in step.batch])
        for step in recording.steps
    ]


def test_step_waits_for_loads_and_saves() -> None:
    same = [(1, 0, 20)]
    requests = [_request("a", same, 0.0), _request("b", same, 10.0), _request("c", [(1, 0, 16)], 20.0)]
    recording = replay(_pool(prefix=False), _lmcache(), requests, _unit)
    assert _steps(recording) == [
        (0.0, 3.1, [("a", 0, 20)]),
        (10.0, 15.25, [("b", 16, 4)]),
        # all is found; the last token is computed again
        (20.0, 25.25, [("c", 15, 1)]),
    ]
    assert recording.reused_tokens == {"a": 0, "b": 16, "c": 15}


def test_only_chunks_behind_those_on_the_device_are_loaded() -> None:
    # "x" takes the last of a's four blocks; c finds three on the device; of the second chunk the fourth is loaded
    requests = [
        _request("a", [(1, 0, 16)], 0.0),
        _request("x", [(2, 0, 8)], 10.0),
        _request("c", [(1, 0, 16), (3, 16, 17)], 20.0),
    ]
    worker = LmcacheWorker(_pool(6), _lmcache(), _unit)
    recording = drive(worker, requests)
    assert _steps(recording)[2] == (20.0, 22.25, [("c", 16, 1)])
    assert (recording.reused_tokens["c"], worker.loaded_tokens["c"], worker.to_device.tokens) == (16, 4, 4)


@pytest.mark.parametrize(("save_decode", "finish_s"), [(False, 4.0), (True, 5.3)])
def test_outputs_are_saved_with_save_decode(save_decode: bool, finish_s: float) -> None:
    # the third step fills the chunk: 8 tokens take 1.3 s
    recording = replay(_pool(), _lmcache(save_decode=save_decode), [_request("a", [(1, 0, 6)], 0.0, 4)], _unit)
    assert recording.finish_s["a"] == pytest.approx(finish_s)


def test_chunks_are_saved_as_they_are_filled() -> None:
    # of a prompt of 20 in steps of 10, each fills a chunk of 8
    config = VllmConfig(max_num_seqs=4, max_tokens=10, num_blocks=40, block_size=4)
    recording = replay(config, _lmcache(), [_request("a", [(1, 0, 20)], 0.0)], _unit)
    assert _steps(recording) == [(0.0, 2.3, [("a", 0, 10)]), (2.3, 4.6, [("a", 10, 10)])]


DISK = LmcacheTier(80, CopyLaw(1.0, 0.0), CopyLaw(0.5, 0.0))


def test_disk_is_read_into_host_memory() -> None:
    # host memory holds two chunks: those of "x" take the place of a's, which are on disk by 5.1
    first = [(1, 0, 16)]
    requests = [
        _request("a", first, 0.0),
        _request("x", [(2, 0, 16)], 10.0),
        _request("b", [*first, (3, 16, 20)], 20.0),
    ]
    worker = LmcacheWorker(_pool(prefix=False), _lmcache(16, DISK), _unit)
    recording = drive(worker, requests)
    # read by 21, on the device by 25.25
    assert _steps(recording) == [
        (0.0, 3.1, [("a", 0, 16)]),
        (10.0, 13.1, [("x", 0, 16)]),
        (20.0, 26.25, [("b", 16, 4)]),
    ]
    assert list(worker.store.host.held) == [(1, 7), (1, 15)]
    assert list(worker.store.stores[1].held) == [(2, 7), (2, 15), (1, 7), (1, 15)]
    assert (worker.store.host.evicted, worker.store.stores[1].written) == (4, 4)


def test_chunks_being_written_hold_their_host_memory() -> None:
    slow = replace(DISK, write=CopyLaw(100.0, 0.0))
    requests = [_request("a", [(1, 0, 16)], 0.0), _request("x", [(2, 0, 16)], 10.0)]
    recording = replay(_pool(), _lmcache(16, slow), requests, _unit)
    assert recording.finish_s == {"a": pytest.approx(3.1), "x": pytest.approx(11.0)}


def test_chunk_can_be_found_on_disk_once_it_is_written() -> None:
    slow = replace(DISK, write=CopyLaw(10.0, 0.0))
    store = _lmcache(8, slow).new_stores()[0]
    taken = store.reserve(["a"], 0.0)
    store.save(taken, 1.0)
    store.advance(20.0)
    assert (store.lookup(["a"], 0.5).chunks, store.lookup(["a"], 5.0).tiers[0]) == (0, ["a"])
    find = store.lookup(["a"], 11.0)
    assert find.tiers == [["a"], []]
    assert store.reserve(["b"], 11.0) == []
    store.unpin(find)
    store.unpin(find)
    assert len(store.reserve(["b"], 11.0)) == 1
    assert (store.lookup(["a"], 10.9).chunks, store.lookup(["a"], 11.0).tiers[1]) == (0, ["a"])


def test_look_up_pins_until_the_request_is_served() -> None:
    store = _lmcache(16).new_stores()[0]
    store.save(store.reserve(["a", "b"], 0.0), 0.0)
    find = store.lookup(["a"], 1.0)
    assert [key for key, _ in store.reserve(["c", "d"], 1.0)] == ["c"]
    assert list(store.host.held) == ["a"]
    store.unpin(find)
    assert [key for key, _ in store.reserve(["d"], 1.0)] == ["d"]


def test_what_is_there_already_keeps_its_place() -> None:
    store = _lmcache(24).new_stores()[0]
    store.save(store.reserve(["a", "b"], 0.0), 0.0)
    store.save(store.reserve(["a"], 1.0), 1.0)
    assert (list(store.host.held), store.host.used) == (["a", "b"], 2)
    store.check()


@pytest.mark.parametrize(("save_decode", "saved_tokens"), [(False, 0), (True, 16)])
def test_request_that_has_decoded_saves_no_prompt_when_resumed(save_decode: bool, saved_tokens: int) -> None:
    # five blocks of 4: at 8 tokens each both need a third one, and "b" loses its two
    requests = [_request("a", [(1, 0, 7)], 0.0, 4), _request("b", [(2, 0, 7)], 0.0, 4)]
    worker = LmcacheWorker(_pool(6, prefix=False), _lmcache(save_decode=save_decode), _unit)
    recording = drive(worker, requests)
    assert [step.preempted for step in recording.steps if step.preempted] == [["b"]]
    assert worker.to_host.tokens == saved_tokens


@pytest.mark.parametrize(("eviction", "victim"), [("lru", "b"), ("fifo", "a"), ("mru", "d"), ("lfu", "c")])
def test_what_goes_first(eviction: str, victim: str) -> None:
    store = _lmcache(32, eviction=eviction).new_stores()[0]
    store.save(store.reserve(["a", "b", "c", "d"], 0.0), 0.0)
    for key in "bbbcaadd":
        store.unpin(store.lookup([key], 1.0))
    store.save(store.reserve(["e"], 2.0), 2.0)
    assert {*"abcd"} - {*store.host.held} == {victim}
    store.check()


def test_two_workers_share_a_node_s_memory_and_its_links() -> None:
    # 8 tokens take 1.3 s on a worker's own link, 2 s at the memory that both share
    slow = CopyLaw(2.0, 0.0)
    tiers = (LmcacheTier(80, slow, slow, scope="node"), LmcacheTier(80, slow, slow, scope="cluster", networked=True))
    config = LmcacheConfig(TO_HOST, TO_DEVICE, tiers, 8, network=CopyLaw(3.0, 0.0), workers_per_node=2)
    workers = [LmcacheWorker(_pool(), config, _unit, store) for store in config.new_stores(2)]
    for worker, first in zip(workers, (1, 2), strict=True):
        worker.receive(_request("r", [(first, 0, 8)], 0.0))
    steps = [worker.form(0.0) for worker in workers]
    assert [step.end_s for step in steps if step is not None] == [3.0, 5.0]
    store_a, store_b = (worker.store for worker in workers)
    assert (store_a.host is store_b.host, store_a.stores[1] is store_b.stores[1]) == (True, True)
    assert [write[0] for write in store_a.stores[1].writes] == [6.0, 9.0]
    assert (store_b.lookup([(1, 7)], 2.9).chunks, store_b.lookup([(1, 7)], 3.0).chunks) == (0, 1)
