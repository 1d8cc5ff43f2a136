"""Attention groups with cache tiers: the kernels against ``validate.sglang_lockstep``, and what must hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from hisearch.base.engine_rules import GROUPS_CONSERVATIVENESS, MODELLED
from hisearch.latency.step_cost import step_seconds
from hisearch.simulate import Result
from hisearch.simulate.engine import EngineOutOfMemory, EngineStuck
from hisearch.simulate.plans.tier_plan import TransferLaw
from tests.kernels import tier_invariants
from tests.kernels.group_systems import GroupedSystem, grouped
from tests.kernels.invariants import run_until
from tests.kernels.systems import LAW, SHUFFLE_STREAMS, examples, settled
from tests.kernels.test_hicache_against_reference import assert_same_fetches, assert_same_requests
from tests.kernels.test_lockstep_steps import GRAPHS, shared_seconds
from tests.kernels.tier_systems import FREE, TieredSystem, limited_stores, tiered
from tests.reference.random_traces import TraceShape
from tests.reference.restatement.recording import Recording
from tests.reference.restatement.sglang import SglangWorker
from tests.reference.restatement.sglang_cache import OutOfMemoryError
from tests.reference.restatement.splitmix import SplitMix64
from tests.reference.restatement.transfers import CopyLaw
from tests.reference.restatement.vllm_lockstep import Batch
from tests.reference.sglang_lockstep import serve


def through(law: CopyLaw, memory: TransferLaw) -> CopyLaw:
    """A copy over a link, and through host memory."""
    return CopyLaw(law.base_s + memory.base_s, max(law.per_token_s, memory.s_per_token))


def restated(system: GroupedSystem) -> Recording | None:
    """The restatement's run; None where it runs out of memory or gets stuck."""

    def cost(batches: Sequence[Batch]) -> float:
        tokens = [sum(new for new, _ in chunks) + len(decodes) for chunks, decodes, _ in batches]
        if not any(chunks for chunks, _, _ in batches):
            most = max(tokens)
            tokens = [next((size for size in GRAPHS if size >= most), most)] * len(tokens)
        parts = [
            step_seconds(LAW, chunks, [context + 1 for context in decodes], sampling)
            for chunks, decodes, sampling in batches
            if chunks or decodes
        ]
        return max(parts) + shared_seconds(sum(tokens), system.groups)

    streams = SplitMix64(system.seed ^ SHUFFLE_STREAMS)
    configs = []
    for _ in range(system.groups):
        config = system.reference_config(streams.next())
        assert config.hicache is not None
        to_host, to_device = (through(law, system.memory) for law in (config.hicache.to_host, config.hicache.to_device))
        hicache = replace(config.hicache, to_host=to_host, to_device=to_device)
        conservativeness = GROUPS_CONSERVATIVENESS * config.schedule_conservativeness
        configs.append(replace(config, hicache=hicache, schedule_conservativeness=conservativeness))
    alone = SglangWorker(configs[0], lambda _chunks, _decodes, _sampling: 0.0)
    requests = [request for request in system.reference_requests() if alone.rejection(request) is None]
    law = CopyLaw(system.memory.base_s, system.memory.s_per_token)
    try:
        return serve(configs, requests, cost, (law, law))
    except (OutOfMemoryError, RuntimeError):
        return None


def simulated(system: GroupedSystem, **options: object) -> Result | None:
    """The kernels' run; None likewise."""
    try:
        return system.simulate(log=True, **options)
    except (EngineOutOfMemory, EngineStuck):
        return None


@examples(40)
@given(system=grouped(versions=MODELLED["sglang"]))
def test_the_kernels_equal_the_slow_restatement(system: GroupedSystem) -> None:
    """Steps, times, hits, losses, fetches: copies, waits of write_back and what storage brings among them."""
    recording, result = restated(system), simulated(system)
    assert (recording is None) == (result is None)
    assume(recording is not None and result is not None)
    assert recording is not None
    assert result is not None
    assert_same_requests(result, recording)
    assert_same_fetches(result, recording)
    assert_same_lockstep_steps(result, recording)


def assert_same_lockstep_steps(result: Result, recording: Recording) -> None:
    assert result.log is not None
    for k, (step, expected) in enumerate(zip(result.log.steps, recording.steps, strict=True)):
        batch = [(int(e["request"]), int(e["computed"]), int(e["tokens"])) for e in result.log.batch(k)]
        assert batch == [(entry.id, entry.computed, entry.new) for entry in expected.batch], f"step {k}"
        times = (float(step["scheduled_s"]), float(step["start_s"]), float(step["end_s"]))
        assert times == (expected.scheduled_s, expected.start_s, expected.end_s), f"step {k}"


@examples(30)
@given(system=tiered(st.none() | limited_stores(), most_workers=2))
def test_one_group_is_a_worker_without_groups(system: TieredSystem) -> None:
    """Lockstep steps of a single DP rank, which shares nothing, equal the steps that it takes alone."""
    engine = system.engine.model_copy(update={"receive_interval": 1})
    fields = {name: getattr(system, name) for name in TieredSystem.__dataclass_fields__ if name != "trace"}
    alone = settled(TieredSystem(**{**fields, "engine": engine}))
    scheduler = settled(GroupedSystem(**{**fields, "engine": engine}, groups=1))
    for name, values in alone.requests.columns().items():
        np.testing.assert_array_equal(scheduler.requests.columns()[name], values, err_msg=name)
    assert scheduler.stores == alone.stores
    assert scheduler.links == alone.links


@examples(15)
@given(
    system=grouped(st.none(), shape=TraceShape(shared_prefixes=0, follow_up=0.0, repeat=0.0)),
    write_policy=st.sampled_from(["write_through", "write_back"]),
)
def test_copies_over_instant_links_that_nobody_asks_for_cost_nothing(system: GroupedSystem, write_policy: str) -> None:
    """L7: prompts that nobody repeats take the same steps with tiers and without them."""
    movement = replace(system.movement, write_policy=write_policy, host_read=FREE, host_write=FREE)
    # All of it may be in transit to the host: its holders lock HBM until the next prompt.
    tiered_ = replace(system, movement=movement, memory=FREE, capacity_tokens=20_000)
    with_tiers, without = settled(tiered_), settled(replace(tiered_, tiers=False))
    np.testing.assert_array_equal(with_tiers.requests.first_token_s, without.requests.first_token_s)
    np.testing.assert_array_equal(with_tiers.requests.finish_s, without.requests.finish_s)


@examples(25)
@given(
    system=grouped(st.none() | limited_stores(), most_workers=3, open_loop=False),
    stop=st.none() | st.floats(0.0, 1.0),
)
def test_every_group_has_its_own_host_pages(system: GroupedSystem, stop: float | None) -> None:
    """L3, L4: trees, pools, locks, stores and links add up for each DP rank, wherever a run stops."""
    if stop is None:
        tier_invariants.check_at_rest(run_until(system))
        return
    complete = settled(system)
    first = float(complete.requests.arrival_s.min())
    tier_invariants.check(run_until(system, first + stop * complete.makespan_s))
