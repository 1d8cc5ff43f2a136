"""Conservation, tokens, capacity, causality and determinism on random traces, both engines, every router."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisearch.traces.compiled import TraceArrays
from tests.reference.cluster import FINISHED, TOO_LARGE, Cluster, ClusterOutcome, Worker, tree_path
from tests.reference.random_traces import random_trace
from tests.reference.recorded import recorded_law
from tests.reference.restatement import sglang, vllm
from tests.reference.restatement.content import PathContent
from tests.reference.restatement.recording import BatchEntry, Request, Step
from tests.reference.restatement.sglang_state import SglangConfig
from tests.reference.router import RouterConfig

POLICIES = ["random", "round_robin", "power_of_two", "cache_aware"]


class CheckedVllm(vllm.VllmWorker):
    """Checks its pool around every step."""

    def form(self, now: float) -> Step | None:
        step = super().form(now)
        self.check()
        return step

    def process(self) -> list[Request]:
        finished = super().process()
        self.check()
        return finished

    def check(self) -> None:
        self.pool.check()
        held = [block for live in [*self.running, *self.waiting] for block in live.blocks]
        assert {block for block, count in self.pool.holders.items() if count} == set(held)
        assert sum(self.pool.holders.values()) == len(held)


class CheckedSglang(sglang.SglangWorker):
    """Checks its pool around every step."""

    def form(self, now: float) -> Step | None:
        step = super().form(now)
        self.check()
        return step

    def process(self) -> list[Request]:
        finished = super().process()
        self.check()
        return finished

    def check(self) -> None:
        last = self.last.requests if self.last else []
        holders = {*self.running.requests, *last, *([self.chunked] if self.chunked else [])}
        self.cache.check([live for live in holders if live.committed])


VLLM = st.builds(
    vllm.VllmConfig,
    max_num_seqs=st.integers(1, 6),
    max_tokens=st.sampled_from([16, 50, 128]),
    num_blocks=st.integers(12, 60),
    block_size=st.sampled_from([1, 4, 16]),
    prefix=st.booleans(),
    long_prefill_token_threshold=st.sampled_from([0, 10]),
    scheduler_reserve_full_isl=st.booleans(),
    policy=st.sampled_from(["fcfs", "priority"]),
)
SGLANG = st.builds(
    SglangConfig,
    max_running_requests=st.integers(1, 6),
    max_total_tokens=st.integers(60, 400),
    page_size=st.sampled_from([1, 4]),
    chunked_prefill_size=st.sampled_from([-1, 16, 48]),
    max_prefill_tokens=st.sampled_from([40, 1000]),
    schedule_policy=st.sampled_from(["fcfs", "lpm", "lof", "dfs-weight", "random"]),
    enable_priority_scheduling=st.booleans(),
    schedule_conservativeness=st.sampled_from([0.1, 1.0]),
    radix_eviction_policy=st.sampled_from(["lru", "lfu", "fifo", "mru", "filo", "slru", "priority"]),
    disable_radix_cache=st.booleans(),
    ignore_eos=st.booleans(),
)


def _maker(config: vllm.VllmConfig | SglangConfig) -> Callable[[], Worker]:
    if isinstance(config, vllm.VllmConfig):
        return lambda: CheckedVllm(config, recorded_law)
    return lambda: CheckedSglang(config, recorded_law)


def _entries(outcome: ClusterOutcome) -> dict[object, list[tuple[Step, BatchEntry, bool]]]:
    """By request: its steps, its share of each, and whether it has lost its KV since the one before."""
    entries = defaultdict(list)
    for worker in outcome.workers:
        lost: set[object] = set()
        for step in worker.steps:
            lost.update(step.preempted)
            for entry in step.batch:
                entries[entry.id].append((step, entry, entry.id in lost))
                lost.discard(entry.id)
    return entries


def _assert_tokens(trace: TraceArrays, index: int, steps: list[tuple[Step, BatchEntry, bool]], hit_tokens: int) -> None:
    """L2: every attempt covers the known tokens without a gap, and each sampled token counts once.

    One that starts again may find more than it had computed itself: another request has the same prompt.
    """
    known = int(trace.input_tokens[index])
    assert steps[0][1].computed == hit_tokens < known
    computed = hit_tokens
    for _, entry, lost in steps:
        restarted = lost or entry.computed < computed
        assert entry.computed == computed or restarted
        computed = entry.computed + entry.new
        assert computed <= known
        assert entry.samples == (computed == known)
        assert entry.decode <= (entry.new == 1)
        known += entry.samples
    assert known == trace.input_tokens[index] + trace.output_tokens[index]


def _assert_laws(trace: TraceArrays, outcome: ClusterOutcome) -> None:
    entries = _entries(outcome)
    assert sorted(outcome.requests) == list(range(len(trace.arrival_s)))  # L1
    for index, request in outcome.requests.items():
        previous = int(trace.previous[index])
        if previous < 0:
            assert request.arrival_s == trace.arrival_s[index]
        else:
            before = outcome.requests[previous]
            ended = before.arrival_s if before.finish_s is None else before.finish_s
            assert request.arrival_s == ended + trace.think_s[index]
        if request.outcome == TOO_LARGE:
            assert request.reason
            assert index not in entries
            continue
        assert request.outcome == FINISHED
        steps = entries[index]
        assert request.scheduled_s == steps[0][0].scheduled_s >= request.arrival_s  # L4
        sampled = [step.end_s for step, entry, _ in steps if entry.samples]
        assert (request.first_token_s, request.finish_s) == (sampled[0], sampled[-1])
        _assert_tokens(trace, index, steps, request.hit_tokens)
    for worker in outcome.workers:
        for step, following in zip(worker.steps, worker.steps[1:], strict=False):
            assert step.end_s <= following.start_s  # L4


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), config=VLLM | SGLANG, workers=st.integers(1, 3), policy=st.sampled_from(POLICIES))
def test_laws_hold(seed: int, config: vllm.VllmConfig | SglangConfig, workers: int, policy: str) -> None:
    trace = random_trace(seed)
    router = RouterConfig(policy, seed, balance_abs_threshold=3)  # type: ignore[arg-type]
    outcome = Cluster(trace, _maker(config), workers, router).run()
    _assert_laws(trace, outcome)
    assert Cluster(trace, _maker(config), workers, router).run() == outcome  # L6


def _ample(engine: str) -> vllm.VllmConfig | SglangConfig:
    if engine == "vllm":
        return vllm.VllmConfig(max_num_seqs=64, max_tokens=100_000, num_blocks=100_000, block_size=1)
    return SglangConfig(max_running_requests=64, max_total_tokens=100_000, chunked_prefill_size=-1)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_cluster_of_one_equals_a_replay(engine: str) -> None:
    trace = random_trace(5)
    first_turns = [index for index, previous in enumerate(trace.previous) if previous < 0]
    trace = trace._replace(**{name: getattr(trace, name)[first_turns] for name in trace._fields[:11]})
    requests = [
        Request(
            index, float(trace.arrival_s[index]), int(trace.input_tokens[index]), int(trace.output_tokens[index]),
            int(trace.max_output_tokens[index]), PathContent(index, tree_path(trace, int(trace.output_node[index]))),
        )
        for index in range(len(first_turns))
    ]  # fmt: skip
    config = _ample(engine)
    outcome = Cluster(trace, _maker(config), 1, RouterConfig()).run()
    replayed = (
        vllm.replay(config, requests, recorded_law)
        if isinstance(config, vllm.VllmConfig)
        else sglang.replay(config, requests, recorded_law)
    )
    assert outcome.workers[0].steps == replayed.steps
    assert {index: request.finish_s for index, request in outcome.requests.items()} == replayed.finish_s


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_one_request_alone_takes_the_closed_form(engine: str) -> None:
    trace = random_trace(1)
    trace = trace._replace(**{name: getattr(trace, name)[:1] for name in trace._fields[:11]})
    prompt, output = int(trace.input_tokens[0]), int(trace.output_tokens[0])
    outcome = Cluster(trace, _maker(_ample(engine)), 1, RouterConfig()).run()
    first = float(trace.arrival_s[0]) + recorded_law([(prompt, 0)], [], 1)
    last = first + sum(recorded_law([], [prompt + i], 1) for i in range(output - 1))
    assert outcome.requests[0].first_token_s == pytest.approx(first, abs=1e-12)
    assert outcome.requests[0].finish_s == pytest.approx(last, abs=1e-12)
