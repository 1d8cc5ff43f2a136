"""Tiny cases of vLLM's offloading connector worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from hisearch.specs.deployments.engine_rules import rules_of
from tests.reference.restatement.content import PathContent
from tests.reference.restatement.recording import Recording, Request
from tests.reference.restatement.transfers import CopyLaw
from tests.reference.restatement.vllm import StuckError, VllmConfig, drive
from tests.reference.vllm_offload import OffloadWorker, replay
from tests.reference.vllm_offload_store import ArcPolicy, OffloadConfig, OffloadStore

#: 12 tokens take 1.7 s to the host, 8 take 2.25 s to the device.
TO_HOST, TO_DEVICE = CopyLaw(0.5, 0.1), CopyLaw(0.25, 0.25)
FIRST, OTHER, AGAIN = [(1, 0, 12)], [(2, 0, 12)], [(1, 0, 12), (3, 12, 15)]


def _unit(chunks: list[tuple[int, int]], decodes: list[int], sampling: int) -> float:
    return 1.0


def _request(name: str, runs: list[tuple[int, int, int]], at: float, output_tokens: int = 1) -> Request:
    """A prompt of exactly these runs."""
    return Request(name, at, runs[-1][2], output_tokens, output_tokens, PathContent(name, runs))


def _pool(num_blocks: int = 5, block_size: int = 4, **settings: Any) -> VllmConfig:
    return VllmConfig(max_num_seqs=4, max_tokens=64, num_blocks=num_blocks, block_size=block_size, **settings)


def _offload(capacity_tokens: int = 400, **settings: Any) -> OffloadConfig:
    return OffloadConfig(capacity_tokens, TO_HOST, TO_DEVICE, **settings)


def _steps(recording: Recording) -> list[tuple[float, float, list[tuple[Any, int, int]]]]:
    return [
        (step.start_s, step.end_s, [(entry.id, entry.computed, entry.new) for entry in step.batch])
        for step in recording.steps
    ]


def _evicted_then_requested() -> list[Request]:
    """ "a" is on the host by 2.7, all but its first block gone from the device at 3, when "b" is let in."""
    return [_request("a", FIRST, 0.0), _request("b", OTHER, 3.0), _request("c", AGAIN, 7.0)]


def test_request_waits_for_its_load() -> None:
    worker = OffloadWorker(_pool(), _offload(), _unit)
    recording = drive(worker, _evicted_then_requested())
    assert _steps(recording) == [
        (0.0, 1.0, [("a", 0, 12)]),
        (3.0, 4.0, [("b", 0, 12)]),
        # 4 tokens are on the device still, 8 come from the host until 9.25
        (9.25, 10.25, [("c", 12, 3)]),
    ]
    assert recording.reused_tokens == {"a": 0, "b": 0, "c": 12}
    assert worker.loaded_tokens == {"a": 0, "b": 0, "c": 8}
    assert (worker.to_host.tokens, worker.to_device.tokens) == (24, 8)


@pytest.mark.parametrize(
    ("output_tokens", "resumes_s"),
    # asleep from 9 on; step of 9 to 10 launched before the load's end; launched behind it, and known at its end
    [(1, 9.25), (2, 10.0), (3, 11.0)],
)
def test_load_is_known_with_the_step_launched_behind_it(output_tokens: int, resumes_s: float) -> None:
    requests = [*_evicted_then_requested(), _request("d", [(4, 0, 1)], 8.0, output_tokens)]
    recording = replay(_pool(), _offload(), requests, _unit)
    running = [(8.0 + k, 9.0 + k) for k in range(output_tokens)]
    assert [(start, end) for start, end, _ in _steps(recording)[2:]] == [*running, (resumes_s, resumes_s + 1)]


def test_request_whose_blocks_are_being_loaded_is_passed_over() -> None:
    worker = OffloadWorker(_pool(), _offload(), _unit)
    also = _request("d", [(1, 0, 12), (5, 12, 15)], 7.0)
    recording = drive(worker, [*_evicted_then_requested(), also])
    # what "c" loaded is then a hit on the device; its memory, once "c" has gone
    assert _steps(recording)[2:] == [(9.25, 10.25, [("c", 12, 3)]), (10.25, 11.25, [("d", 12, 3)])]
    assert worker.to_device.tokens == 8


def _call_engine(at: float) -> Request:
    """Has a sleeping engine look at its transfers; too short to be stored."""
    return _request(f"knock{at}", [(99, 0, 1)], at)


def test_blocks_can_be_found_when_their_request_has_finished() -> None:
    # nothing is found on the device; "b" arrives while "a" decodes, long after its prompt has been stored
    prompt = [(1, 0, 8)]
    requests = [
        _request("a", prompt, 0.0, 5),
        _request("b", prompt, 4.0),
        _call_engine(19.0),
        _request("c", prompt, 20.0),
    ]
    recording = replay(_pool(20, prefix=False), _offload(), requests, _unit)
    assert [recording.reused_tokens[name] for name in "abc"] == [0, 0, 7]
    assert _steps(recording)[-1] == (22.25, 23.25, [("c", 7, 1)])


def test_sleeping_engine_knows_of_no_transfer() -> None:
    prompt = [(1, 0, 8)]
    requests = [_request("a", prompt, 0.0), _request("c", prompt, 20.0)]
    recording = replay(_pool(20, prefix=False), _offload(), requests, _unit)
    assert recording.reused_tokens == {"a": 0, "c": 0}


def test_block_is_stored_once_it_has_been_asked_for_often_enough() -> None:
    requests = [_request(name, [(1, 0, 8)], at) for name, at in (("a", 0.0), ("b", 10.0), ("c", 20.0))]
    requests += [_call_engine(9.0), _call_engine(19.0)]
    recording = replay(_pool(20, prefix=False), _offload(store_threshold=2), requests, _unit)
    assert [recording.reused_tokens[name] for name in "abc"] == [0, 0, 7]
    recording = replay(_pool(20, prefix=False), _offload(store_threshold=3), requests, _unit)
    assert [recording.reused_tokens[name] for name in "abc"] == [0, 0, 0]


def test_preempted_stores_are_waited_for() -> None:
    requests = [_request("a", [(1, 0, 3)], 0.0, 4), _request("b", [(2, 0, 3)], 0.0, 4)]
    # Of a release that copies outputs too.
    recording = replay(_pool(5, 2, prefix=False, rules=rules_of("vllm", "0.19.1")), _offload(), requests, _unit)
    # 2 tokens take 0.7 s: a's and b's from 1 and 1.7 on, of the next step from 2.4 and 3.1 on. a's last from 5.8 on:
    # then memory is free, and 4 tokens of b are loaded in 1.25 s.
    expected = [
        (0.0, 1.0, [("a", 0, 3), ("b", 0, 3)]),
        (1.0, 2.0, [("a", 3, 1), ("b", 3, 1)]),
        (3.8, 4.8, [("a", 4, 1)]),
        (4.8, 5.8, [("a", 5, 1)]),
        (7.75, 8.75, [("b", 4, 1)]),
        (8.75, 9.75, [("b", 5, 1)]),
    ]
    for step, (start, end, batch) in zip(_steps(recording), expected, strict=True):
        assert (pytest.approx(step[0]), pytest.approx(step[1]), step[2]) == (start, end, batch)
    assert recording.reused_tokens == {"a": 0, "b": 0}


@pytest.mark.parametrize(("on_device", "loaded"), [(4, 12), (8, 0), (12, 0)])
def test_find_of_less_than_an_offloaded_block_counts_for_nothing(on_device: int, loaded: int) -> None:
    # offloaded blocks of 8: behind 4 tokens on the device 12 are found, behind 8 only if not being stored, behind 12 4
    worker = OffloadWorker(_pool(40), _offload(block_size_factor=2), _unit)
    content = PathContent("a", [(1, 0, 17)])
    keys = [content.token(7), content.token(15)]
    worker.store.begin_store(keys)
    worker.store.end_store(keys if on_device != 8 else keys[:1])
    worker.receive(Request("a", 0.0, 17, 1, 1, content))
    assert worker._find(worker.waiting[0], on_device) == loaded


def test_new_requests_store_before_running_ones() -> None:
    # at 1 "a" fills its second block and "b", new, its first, in host memory of two blocks
    worker = OffloadWorker(_pool(20), _offload(8), _unit)
    drive(worker, [_request("a", [(1, 0, 7)], 0.0, 2), _request("b", [(2, 0, 4)], 1.0)])
    assert list(worker.store.policy.blocks()) == [(1, 3), (2, 3)]
    # from 1 to 1.9, from 2 to 2.9
    assert worker.to_host.free_s == pytest.approx(2.9)


def test_loads_that_hold_each_others_room_are_stuck() -> None:
    # five blocks; both prompts of 20 tokens are found up to 12 behind nothing on the device, and each takes 3 for that
    worker = OffloadWorker(_pool(6, prefix=False, scheduler_reserve_full_isl=False), _offload(), _unit)
    requests = [_request(name, [(k, 0, 19)], 0.0) for k, name in enumerate("ab", 1)]
    for request in requests:
        keys = [request.content.token(4 * k + 3) for k in range(2)]
        worker.store.begin_store(keys)
        worker.store.end_store(keys)
    with pytest.raises(StuckError, match="wait for what never comes"):
        drive(worker, requests)


def _stored(eviction: Any, capacity: int, keys: list[int]) -> OffloadStore:
    store = OffloadStore(capacity, eviction)
    assert store.begin_store(keys) == keys
    store.end_store(keys)
    return store


def test_lru_evicts_the_end_of_what_was_touched_together() -> None:
    store = _stored("lru", 3, [1, 2, 3])
    store.touch([1, 2, 3])
    assert store.begin_store([4]) == [4]
    assert list(store.policy.blocks()) == [2, 1, 4]
    # 1 is asked for, 4 is being stored: 2 goes; then nothing can
    assert store.begin_store([1, 5]) == [5]
    assert list(store.policy.blocks()) == [1, 4, 5]
    assert store.begin_store([6, 7]) is None
    assert store.begin_store([4, 5]) == []
    assert store.lookup([1, 4]) == 1
    store.begin_load([1])
    assert store.begin_store([6]) is None
    store.end_load([1])
    assert store.begin_store([6]) == [6]
    assert (store.evicted, store.stored) == (3, 6)


def test_more_than_fits_is_not_stored_at_all() -> None:
    store = OffloadStore(2)
    assert store.begin_store([1, 2, 3]) is None
    assert len(store) == 0


def test_arc_learns_from_its_ghosts() -> None:
    store = _stored("arc", 2, [1, 2])
    policy = store.policy
    assert isinstance(policy, ArcPolicy)
    store.touch([1])
    assert (list(policy.recent), list(policy.frequent)) == ([2], [1])
    assert store.begin_store([3]) == [3]
    # one being stored does not rise
    store.touch([3])
    assert (list(policy.recent), list(policy.recent_ghosts)) == ([3], [2])
    store.touch([2])
    assert policy.target == 1
    store.touch([2])
    assert policy.target == 2
    # T1 is below its target: the frequent block goes, though it was used more
    assert store.begin_store([2]) == [2]
    assert (list(policy.recent), list(policy.frequent), list(policy.frequent_ghosts)) == ([3, 2], [], [1])
    store.touch([1])
    assert policy.target == 1
    # neither is idle
    assert store.begin_store([4]) is None
