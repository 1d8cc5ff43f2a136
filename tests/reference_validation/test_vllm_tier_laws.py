"""Conservation on all tiers, completeness, causality, limits and determinism of random vLLM workers with tiers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisearch.specs.deployments.engine_rules import rules_of
from tests.reference import lmcache, lmcache_store, vllm_offload
from tests.reference.cluster import tree_path
from tests.reference.random_traces import random_trace
from tests.reference.recorded import recorded_law
from tests.reference.restatement import vllm
from tests.reference.restatement.content import PathContent
from tests.reference.restatement.recording import Recording, Request, Step
from tests.reference.restatement.transfers import CopyLaw
from tests.reference.vllm_offload_store import OffloadConfig
from tests.reference_validation.test_laws import VLLM

#: From transfers that take no time to such that hardly end before the run does.
LAWS = st.builds(CopyLaw, st.sampled_from([0.0, 1e-4, 0.003]), st.sampled_from([0.0, 4e-6, 1e-3]))
WORKERS = st.builds(replace, VLLM, async_scheduling=st.booleans())
OFFLOAD = st.builds(
    OffloadConfig,
    capacity_tokens=st.sampled_from([0, 20, 100, 400, 10_000]),
    to_host=LAWS,
    to_device=LAWS,
    block_size_factor=st.sampled_from([1, 1, 2, 3]),
    eviction=st.sampled_from(["lru", "arc"]),
    store_threshold=st.sampled_from([0, 2, 3]),
)
LMCACHE = st.builds(
    lmcache.LmcacheConfig,
    to_host=LAWS,
    to_device=LAWS,
    tiers=st.lists(
        st.builds(
            lmcache.LmcacheTier,
            st.sampled_from([0, 32, 100, 400, 10_000]),
            LAWS,
            LAWS,
            st.sampled_from(["lru", "lfu", "fifo", "mru"]),
        ),
        min_size=1,
        max_size=3,
    ).map(tuple),
    chunk_tokens=st.sampled_from([16, 32]),
    save_decode=st.booleans(),
)
SEEDS = st.integers(0, 1000)
FREE = CopyLaw(0.0, 0.0)


class CheckedOffload(vllm_offload.OffloadWorker):
    """Checks its pool and its host memory around every step, and that no block behind a missing one is a hit.

    Host memory may hold such blocks: no law of parents holds there. ``behind``: how many look-ups came by some.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.behind = 0
        self._look_up_in_store = self.store.lookup
        self.store.lookup = self._watched  # type: ignore[method-assign]

    def _watched(self, keys: Sequence[Hashable]) -> int:
        blocks = [self.store.policy.get(key) for key in keys]
        ready = [block is not None and block.ready for block in blocks]
        hits = self._look_up_in_store(keys)
        assert hits == sum(1 for _ in takewhile(bool, ready))
        self.behind += sum(ready) > hits
        return hits

    def form(self, now: float) -> Step | None:
        step = super().form(now)
        self.check()
        return step

    def process(self) -> list[Request]:
        finished = super().process()
        self.check()
        return finished

    def check(self) -> None:
        self.store.check()
        self.pool.check()
        owners = [*self.running, *self.waiting, *self.skipped, *self.holding]
        held = [block for live in owners for block in live.blocks]
        assert {block for block, count in self.pool.holders.items() if count} == set(held)
        assert sum(self.pool.holders.values()) == len(held)


class CheckedLmcache(lmcache.LmcacheWorker):
    """Checks its tiers around every step, and that no chunk behind a missing one is a hit (as ``CheckedOffload``).

    A tier is asked for what follows the hits of the one before it.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.behind = 0
        self._look_up_in_store = self.store.lookup
        self.store.lookup = self._watched  # type: ignore[method-assign]

    def _watched(self, keys: Sequence[Hashable], now: float) -> lmcache_store.Find:
        find = self._look_up_in_store(keys, now)
        assert [key for tier in find.tiers for key in tier] == list(keys[: find.chunks])
        held = [
            {key for key in keys if key in tier.held and tier.held[key].ready_s <= now} for tier in self.store.stores
        ]
        assert all(set(hits) <= ready for hits, ready in zip(find.tiers, held, strict=True))
        assert find.chunks == len(keys) or keys[find.chunks] not in held[-1]
        self.behind += any(key in ready for ready in held for key in keys[find.chunks + 1 :])
        return find

    def form(self, now: float) -> Step | None:
        step = super().form(now)
        self.store.check()
        self.pool.check()
        return step


def _requests(seed: int, config: vllm.VllmConfig, spread: float = 1.0) -> list[Request]:
    """A random trace's requests that the worker accepts, follow-ups at their predecessor's arrival."""
    trace = random_trace(seed)
    arrival_s = spread * np.maximum.accumulate(np.where(trace.previous < 0, trace.arrival_s, 0.0))
    requests = [
        Request(
            id=index,
            arrival_s=float(arrival_s[index]),
            input_tokens=int(trace.input_tokens[index]),
            output_tokens=int(trace.output_tokens[index]),
            max_output_tokens=int(trace.max_output_tokens[index]),
            content=PathContent(index, tree_path(trace, int(trace.output_node[index]))),
            priority=int(trace.priority[index]),
        )
        for index in range(len(arrival_s))
    ]
    worker = vllm.VllmWorker(config, recorded_law)
    return [request for request in requests if worker.rejection(request) is None]


def _check(worker: Any, recording: Recording, requests: list[Request]) -> None:
    """Every request ends once, every token is computed once per attempt, steps follow one another, links suffice."""
    assert set(recording.finish_s) == {request.id for request in requests}
    computed: dict[Any, int] = defaultdict(int)
    made: dict[Any, int] = defaultdict(int)
    end_s = 0.0
    for step in recording.steps:
        assert step.start_s >= max(end_s, step.scheduled_s)
        end_s = step.end_s
        for entry in step.batch:
            if entry.id not in worker.preemptions:
                # behind what was found, token by token
                expected = computed[entry.id] or recording.reused_tokens[entry.id]
                assert entry.computed == expected
            computed[entry.id] = entry.computed + entry.new
            made[entry.id] += entry.samples
    for request in requests:
        # One more where the engine cannot know that the answer has ended.
        extra = made[request.id] - request.output_tokens
        assert extra in ((0, 1) if request.max_output_tokens > request.output_tokens else (0,))
        assert computed[request.id] == request.input_tokens + request.output_tokens - 1 + extra
        assert 0 <= worker.loaded_tokens[request.id] <= recording.reused_tokens[request.id] < request.input_tokens
        assert request.arrival_s <= recording.first_token_s[request.id] <= recording.finish_s[request.id]
    for link in (worker.to_host, worker.to_device):
        rounding = 1 + 1e-9
        assert link.busy_s * rounding >= link.law.per_token_s * link.tokens
        assert link.free_s * rounding >= link.busy_s


@given(seed=SEEDS, config=WORKERS, offload=OFFLOAD)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_offload_conserves(seed: int, config: vllm.VllmConfig, offload: OffloadConfig) -> None:
    requests = _requests(seed, config)
    worker = CheckedOffload(config, offload, recorded_law)
    try:
        recording = vllm.drive(worker, requests)
    except vllm.StuckError as stuck:
        # The engine does not see this coming either; that requests preempt each other for ever happens without tiers.
        preempting = "preempt" in str(stuck)
        assert preempting or any(live.computed and live not in worker.running for live in worker.skipped)
        return
    _check(worker, recording, requests)
    assert worker.to_device.tokens >= sum(worker.loaded_tokens.values())
    assert worker.to_host.tokens == worker.store.stored * worker.block_tokens
    again = vllm_offload.replay(config, offload, requests, recorded_law)
    assert (again.steps, again.finish_s) == (recording.steps, recording.finish_s)


@given(seed=SEEDS, config=WORKERS, settings_=LMCACHE)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_lmcache_conserves(seed: int, config: vllm.VllmConfig, settings_: lmcache.LmcacheConfig) -> None:
    requests = _requests(seed, config)
    worker = CheckedLmcache(config, settings_, recorded_law)
    recording = vllm.drive(worker, requests)
    _check(worker, recording, requests)
    again = lmcache.replay(config, settings_, requests, recorded_law)
    assert (again.steps, again.finish_s) == (recording.steps, recording.finish_s)


@pytest.mark.parametrize("kv_connector", ["offload", "lmcache"])
def test_look_ups_do_come_by_what_lies_behind_a_hole(kv_connector: str) -> None:
    """Else what the checked workers say of hits would say little."""
    law = CopyLaw(1e-4, 4e-6)
    behind = 0
    for seed in range(20):
        block_size, num_blocks = (1, 200) if kv_connector == "offload" else (16, 30)
        config = vllm.VllmConfig(max_num_seqs=4, max_tokens=64, block_size=block_size, num_blocks=num_blocks)
        requests = _requests(seed, config)
        worker: Any
        if kv_connector == "offload":
            worker = CheckedOffload(config, OffloadConfig(60, law, law, eviction="arc"), recorded_law)
        else:
            tiers = (lmcache.LmcacheTier(64, eviction="mru"), lmcache.LmcacheTier(96, law, law, "mru"))
            worker = CheckedLmcache(config, lmcache.LmcacheConfig(law, law, tiers, chunk_tokens=16), recorded_law)
        vllm.drive(worker, requests)
        behind += worker.behind
    assert behind > 0


@given(seed=SEEDS, config=WORKERS)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_tier_of_no_size_is_no_tier(seed: int, config: vllm.VllmConfig) -> None:
    # With a connector releases from 0.30 on free blocks later, whatever its size.
    config = replace(config, rules=rules_of("vllm", "0.19.1"))
    requests = _requests(seed, config)
    slow = CopyLaw(1.0, 1.0)
    plain = vllm.replay(config, requests, recorded_law)
    none_offloaded = vllm_offload.replay(config, OffloadConfig(0, slow, slow), requests, recorded_law)
    assert none_offloaded == plain
    assert lmcache.replay(config, _lmcache(0, slow), requests, recorded_law) == plain


def _lmcache(host_tokens: int, law: CopyLaw) -> lmcache.LmcacheConfig:
    return lmcache.LmcacheConfig(law, law, (lmcache.LmcacheTier(host_tokens),), chunk_tokens=16)


def _longest_seen(requests: list[Request], tokens: dict[Any, int], unit: int) -> dict[Any, int]:
    """Per request, tokens of whole leading units of its prompt that earlier ones had, ``tokens`` of each."""
    seen: set[Any] = set()
    reused = {}
    for request in requests:
        count = 0
        while (count + 1) * unit <= request.input_tokens and request.content.token((count + 1) * unit - 1) in seen:
            count += 1
        reused[request.id] = min(count * unit, request.input_tokens - 1)
        seen |= {request.content.token((k + 1) * unit - 1) for k in range(tokens[request.id] // unit)}
    return reused


@pytest.mark.parametrize("device_tokens", [300, 100_000])
@pytest.mark.parametrize("eviction", ["lru", "arc"])
@pytest.mark.parametrize("seed", range(4))
def test_endless_free_host_memory_recalls_all_that_was_computed(device_tokens: int, eviction: Any, seed: int) -> None:
    # one at a time; a short request between any two makes the engine register its stores. Of a prompt fully on the
    # device, the last block is loaded all the same: the device leaves a whole block of a full hit to compute
    # of a release that copies outputs too
    config = vllm.VllmConfig(4, 4096, device_tokens // 4 + 1, 4, rules=rules_of("vllm", "0.19.1"))
    requests = [replace(request, arrival_s=10.0 * k) for k, request in enumerate(_requests(seed, config))]
    triggers = [Request(-k, 10.0 * k + 9.0, 1, 1, 1, PathContent(-k, [])) for k in range(1, len(requests))]
    offload = OffloadConfig(1 << 40, FREE, FREE, eviction=eviction)
    recording = vllm_offload.replay(config, offload, [*requests, *triggers], recorded_law)
    made = {request.id: request.input_tokens + request.output_tokens - 1 for request in requests}
    expected = _longest_seen(requests, made, 4)
    reused = {request.id: recording.reused_tokens[request.id] for request in requests}
    assert reused == expected
    assert sum(reused.values()) > 0


@pytest.mark.parametrize("save_decode", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_endless_free_lmcache_recalls_whole_chunks(save_decode: bool, seed: int) -> None:
    config = vllm.VllmConfig(4, 4096, 1000, 4, prefix=False)
    requests = [replace(request, arrival_s=10.0 * k) for k, request in enumerate(_requests(seed, config))]
    endless = replace(_lmcache(1 << 40, FREE), save_decode=save_decode)
    recording = lmcache.replay(config, endless, requests, recorded_law)
    kept = {request.id: request.input_tokens + (request.output_tokens - 1) * save_decode for request in requests}
    assert recording.reused_tokens == _longest_seen(requests, kept, 16)
    assert sum(recording.reused_tokens.values()) > 0


def test_disk_behind_endless_host_memory_changes_nothing() -> None:
    config = vllm.VllmConfig(4, 64, 60, 4)
    requests = _requests(3, config)
    law = CopyLaw(1e-3, 1e-5)
    without = _lmcache(1 << 40, law)
    with_disk = replace(without, tiers=(*without.tiers, *[lmcache.LmcacheTier(1 << 40, law, law)] * 2))
    assert lmcache.replay(config, with_disk, requests, recorded_law) == lmcache.replay(
        config, without, requests, recorded_law
    )
