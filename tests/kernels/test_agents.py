"""Agents' objects: laws on random populations wherever a run stops, and slow references of the policies."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.kernels.layout import agents as al
from hisearch.kernels.layout import sim as la
from hisearch.simulate import Outcome, Result, simulate
from hisearch.simulate.engine import EngineOutOfMemory
from hisearch.simulate.plans.agent_plan import AgentPlan, KindPlan
from hisearch.specs.base import EngineName
from tests.kernels.agent_systems import FREE, POLICIES, Population, adapters, check, on_disk, population, populations
from tests.kernels.systems import examples


@examples(150)
@given(case=populations(), stop=st.floats(0.0, 1.0))
def test_everything_adds_up_wherever_a_run_stops(case: Population, stop: float) -> None:  # laws L1, L3, L4
    finished = case.run()
    assert set(finished.requests["outcome"].tolist()) <= {la.FINISHED, la.TOO_LARGE}
    check(finished)
    assert not finished.agents.holds.any()
    assert all(int(loader.object) < 0 or loader.fresh_pages for loader in finished.agents.loaders)
    check(case.run(stop * float(np.nanmax(finished.requests["finish_s"]))))


@examples(100)
@given(case=populations(tiered=True), stop=st.floats(0.0, 1.0))
def test_everything_adds_up_with_kv_in_host_memory(case: Population, stop: float) -> None:  # laws L1, L3, L4
    finished = case.run()
    assert set(finished.requests["outcome"].tolist()) <= {la.FINISHED, la.TOO_LARGE}
    check(finished)
    check(case.run(stop * float(np.nanmax(finished.requests["finish_s"]))))


@examples(100)
@given(case=populations(tiered=True, stored=True), stop=st.floats(0.0, 1.0))
def test_everything_adds_up_with_kv_on_disks(case: Population, stop: float) -> None:  # laws L1, L3, L4
    finished = case.run()
    assert set(finished.requests["outcome"].tolist()) <= {la.FINISHED, la.TOO_LARGE}
    check(finished)
    check(case.run(stop * float(np.nanmax(finished.requests["finish_s"]))))


@examples(60)
@given(case=populations(engine="vllm"), stop=st.floats(0.0, 1.0))
def test_everything_adds_up_under_vllm(case: Population, stop: float) -> None:  # laws L1, L3, L4
    finished = case.run()
    assert set(finished.requests["outcome"].tolist()) <= {la.FINISHED, la.TOO_LARGE}
    check(finished)
    assert not finished.agents.holds.any()
    check(case.run(stop * float(np.nanmax(finished.requests["finish_s"]))))


@examples(40)
@given(case=populations())
def test_same_population_same_bytes(case: Population) -> None:  # law L6
    first, second = case.simulate(), case.simulate()
    np.testing.assert_array_equal(first.requests.finish_s, second.requests.finish_s)


def one_running(policy: str, slots: int, engine: EngineName = "sglang", **settings) -> Population:
    """Calls come one by one, and nothing is loaded ahead: how many loads is the policy's doing alone."""
    trace = population(calls=200, agents=10, pacing="free", action={"p50_s": 20.0, "p90_s": 60.0})
    plan = AgentPlan(
        policy=policy, kinds=(adapters(),), pool_pages=60 * slots, ahead_s=0.0, ahead_steps=-1.0, **settings
    )
    return Population(trace, plan, engine, capacity_tokens=4000, max_running=1, overlap=False)


def loads_of(case: Population) -> int:
    return int(case.run().agents.loaders[0].loads)


def served_agents(case: Population) -> list[int]:
    """Agents in the order in which their calls were admitted."""
    result = case.simulate()
    order = np.lexsort((np.arange(len(result.requests.scheduled_s)), result.requests.scheduled_s))
    assert case.trace.agents is not None
    return case.trace.agents.agent[order].tolist()


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize("slots", [1, 2, 4, 7, 10])
def test_lru_loads_what_a_list_by_last_use_misses(slots: int, engine: EngineName) -> None:
    case = one_running("lru", slots, engine)
    recent: OrderedDict[int, None] = OrderedDict()
    misses = 0
    for agent in served_agents(case):
        if agent not in recent:
            misses += 1
            if len(recent) == slots:
                recent.popitem(last=False)
        recent[agent] = None
        recent.move_to_end(agent)
    assert loads_of(case) == misses


def slots_by_steps(case: Population, result: Result) -> tuple[int, list[int]]:
    """Loads, and what lies in each slot at the end, by what each step ran."""
    assert case.trace.agents is not None
    assert result.log is not None
    of_agent, agent = case.trace.agents.adapter, case.trace.agents.agent
    slots: list[int] = []
    most = case.agents.pool_pages // case.agents.kinds[0].pages
    loads = 0
    for step in range(len(result.log)):
        batch = [int(of_agent[agent[r]]) for r in result.log.batch(step)["request"].tolist()]
        before = loads
        for adapter in batch:
            if adapter in slots:
                continue
            loads += 1
            if len(slots) < most:
                slots.append(adapter)
            else:
                slots[next(k for k, held in enumerate(slots) if held not in batch)] = adapter
        took = result.log.steps[step]
        assert took["end_s"] - took["start_s"] > (loads - before) * case.agents.kinds[0].load_s
    return loads, slots


@pytest.mark.parametrize("mixed_chunk", [False, True])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("slots", [3, 6, 8])
@pytest.mark.parametrize("adapters_", [None, 6])
def test_by_slot_a_step_takes_the_first_slots_that_its_batch_can_do_without(
    slots: int, overlap: bool, mixed_chunk: bool, adapters_: int | None
) -> None:
    """Those of calls that run on are among them, which is what makes it load more than lru."""
    trace = population(agents=20, calls=400, active_rate=0.4, adapters=adapters_)
    plan = AgentPlan(policy="by_slot", kinds=(adapters(),), pool_pages=60 * slots)
    case = Population(trace, plan, capacity_tokens=4000, max_running=12, overlap=overlap, mixed_chunk=mixed_chunk)
    result = case.simulate(log=True)
    final = case.run()
    loads, held = slots_by_steps(case, result)
    assert result.objects[0].loads == loads == final.agents.loaders[0].loads
    assert final.agents.slots[0][: len(held)].tolist() == held
    if adapters_ is None and slots > 3 and not mixed_chunk:
        assert loads > 1.05 * loads_of(replace(case, agents=replace(plan, policy="lru")))


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize("slots", [2, 4, 7])
def test_perfect_distances_come_near_the_fewest_loads_that_there_can_be(slots: int, engine: EngineName) -> None:
    """Of a line of calls, evicting whoever is called last is the best (Belady); the trace's order is nearly theirs."""
    case = one_running("distance", slots, engine, source="oracle")
    calls = served_agents(case)
    after: list[float] = [np.inf] * len(calls)
    seen: dict[int, int] = {}
    for k in range(len(calls) - 1, -1, -1):
        after[k] = seen.get(calls[k], np.inf)
        seen[calls[k]] = k
    kept: dict[int, float] = {}
    fewest = 0
    for k, agent in enumerate(calls):
        if agent not in kept:
            fewest += 1
            if len(kept) == slots:
                del kept[max(kept, key=lambda candidate: kept[candidate])]
        kept[agent] = after[k]
    assert fewest <= loads_of(case) <= 1.05 * fewest
    assert loads_of(case) < loads_of(one_running("lru", slots, engine))


def mean_ttft_s(case: Population) -> float:
    table = case.simulate().requests
    return float(np.mean(table.first_token_s - table.arrival_s))


def test_a_load_for_a_call_interrupts_one_ahead_of_its_call() -> None:
    """Loads take longer than the gaps between calls; the moved share of interrupted ones is wasted."""
    trace = population("interaction", agents=16, calls=300, pacing="free", action={"p50_s": 20.0, "p90_s": 60.0})
    plan = AgentPlan(
        policy="distance", kinds=(adapters(60, 0.3),), pool_pages=60 * 5, budget_pages=10_000, ahead_s=9.0,
        tested=False, noise=2.0,
    )  # fmt: skip
    case = Population(trace, plan, capacity_tokens=4000, max_running=6)
    patient = replace(case, agents=replace(plan, preempt=False))
    loader = case.run().agents.loaders[0]
    assert loader.preempted > 20
    assert 0 < loader.wasted_s < loader.preempted * 0.3
    assert patient.run().agents.loaders[0].preempted == 0
    assert mean_ttft_s(case) < mean_ttft_s(patient)


def with_host(policy: str, kind: str = "independent", *, share: float = 0.5, pacing=None, **settings) -> Population:
    """KV of a few agents in HBM, of all in host memory, behind a link that a history takes some milliseconds on."""
    trace = population(kind, agents=40, calls=600, active_rate=0.15, **(pacing or {}))
    plan = AgentPlan(
        policy=policy, kinds=(adapters(60, 0.002),), pool_pages=60 * 10, budget_pages=300, kv_share=share, ahead_s=0.5,
        **settings,
    )  # fmt: skip
    return Population(trace, plan, capacity_tokens=1500, max_running=8, host_tokens=20_000, host_s_per_token=1e-4)


@pytest.mark.parametrize("policy", ["steps", "distance"])
@pytest.mark.parametrize("kind", ["independent", "interaction", "diffusion"])
def test_kv_that_is_loaded_ahead_is_found_in_device_memory(kind: str, policy: str) -> None:
    late, ahead = with_host(policy, kind, share=0.0), with_host(policy, kind)
    finished = ahead.run()
    loader = finished.agents.loaders[0]
    assert loader.kv_used_pages > 0.4 * loader.kv_loaded_pages > 0
    assert finished.workers[0].host_hit_tokens < late.run().workers[0].host_hit_tokens
    early_run, other = ahead.simulate(), late.simulate()
    assert early_run.requests.hit_tokens.sum() > other.requests.hit_tokens.sum()
    assert early_run.makespan_s <= 1.005 * other.makespan_s


def test_kv_that_a_step_loads_back_interrupts_kv_ahead_of_its_call() -> None:
    """Without objects nothing but a load-back is urgent; what was moved of the interrupted was moved for nothing."""
    trace = population("interaction", agents=40, calls=600, active_rate=0.15)
    plan = AgentPlan(policy="distance", kinds=(), kv_share=1.0, ahead_steps=3.0, tested=False, noise=1.0)
    case = Population(trace, plan, capacity_tokens=1500, max_running=8, host_tokens=20_000, host_s_per_token=2e-4)
    patient = replace(case, agents=replace(plan, preempt=False))
    loader = case.run().agents.loaders[0]
    assert loader.preempted > 20
    assert loader.wasted_s > 0
    assert patient.run().agents.loaders[0].preempted == 0
    assert mean_ttft_s(case) < 0.95 * mean_ttft_s(patient)


def with_disk(policy: str, kind: str = "independent", *, share: float = 0.5, pacing=None, **settings) -> Population:
    """Histories that grow: of a few agents in HBM, of a few more in host memory, of all on a disk."""
    endless = {"history_cap_tokens": None} | (pacing or {})
    return replace(
        with_host(policy, kind, share=share, pacing=endless, **settings),
        capacity_tokens=4000,
        host_tokens=8000,
        host_s_per_token=1e-6,
        store_tokens=40_000,
        prefetch="wait_complete",
    )


@pytest.mark.parametrize("policy", ["steps", "distance"])
@pytest.mark.parametrize("kind", ["independent", "interaction", "diffusion"])
def test_kv_on_a_disk_is_in_host_memory_before_its_call(kind: str, policy: str) -> None:
    late, ahead = with_disk(policy, kind, share=0.0), with_disk(policy, kind)
    finished, reactive = ahead.run(), late.run()
    loader = finished.agents.loaders[0]
    assert loader.fetches > 30
    assert loader.fetched_pages > 0
    assert reactive.agents.loaders[0].fetches == reactive.agents.loaders[0].fetched_pages == 0
    # What requests fetched themselves.
    fetched = [int(sim.requests["fetched_tokens"].sum()) for sim in (finished, reactive)]
    assert fetched[0] < 0.8 * fetched[1]
    assert finished.hosts[0].fetched_tokens >= fetched[0] + loader.fetched_pages
    assert mean_ttft_s(ahead) < mean_ttft_s(late)


def test_a_call_takes_the_fetch_ahead_of_it_over() -> None:
    """It is done sooner than one that begins with the call."""
    late, ahead = (replace(with_disk("distance", share=share), store_s_per_token=3e-4) for share in (0.0, 0.5))
    assert ahead.run().agents.loaders[0].fetches_called > 10
    assert mean_ttft_s(ahead) < 0.95 * mean_ttft_s(late)


def test_a_call_that_fetches_for_itself_stops_a_long_fetch_for_another() -> None:
    """A batch is 128 pages; what has come is kept."""
    trace = population("interaction", agents=20, calls=300, history_cap_tokens=None, system_prompt_tokens=400)
    plan = AgentPlan(policy="distance", kinds=(), kv_share=1.0, ahead_steps=4.0, tested=False)
    case = Population(
        trace, plan, capacity_tokens=6000, max_running=3, host_tokens=9000, store_tokens=40_000, store_s_per_token=1e-4
    )
    patient = replace(case, agents=replace(plan, preempt=False))
    assert case.run().agents.loaders[0].fetches_stopped > 0
    assert patient.run().agents.loaders[0].fetches_stopped == 0


@pytest.mark.parametrize("pacing", [{}, FREE])
def test_useless_distances_cost_no_more_with_kv_fetched_ahead(pacing: dict) -> None:
    useless, reactive = with_disk("distance", pacing=pacing, noise=8.0), with_disk("lru", pacing=pacing)
    assert useless.simulate().makespan_s <= 1.02 * reactive.simulate().makespan_s


def in_tier(policy: str, tokens: int, *, shared: bool) -> Population:
    """KV and adapters in host memory: in separate pools, or in one."""
    case = with_host(policy)
    return replace(case, agents=replace(case.agents, in_tier=shared), host_tokens=tokens)


@pytest.mark.parametrize("policy", POLICIES)
def test_objects_in_a_tier_leave_kv_the_rest_of_it(policy: str) -> None:  # law L3
    """40 adapters of 60 pages take 2,400 tokens: as a tier that is so much smaller, whatever else happens."""
    shared_run, other = in_tier(policy, 6400, shared=True).simulate(), in_tier(policy, 4000, shared=False).simulate()
    np.testing.assert_array_equal(shared_run.requests.finish_s, other.requests.finish_s)
    assert shared_run.stores == other.stores
    assert shared_run.objects == other.objects


def test_objects_that_leave_a_tier_too_little_are_refused() -> None:
    with pytest.raises(EngineOutOfMemory, match=r"objects take .* of the first tier"):
        in_tier("lru", 3900, shared=True).simulate()
    in_tier("lru", 3901, shared=True).simulate()


def sparse_calls(policy: str, slots: int, share: float) -> Population:
    """Calls that hardly ever overlap; of ten adapters, host memory has the slots' and some more, a disk has all."""
    trace = population(calls=200, agents=10, pacing="free", action={"p50_s": 500.0, "p90_s": 2000.0})
    plan = AgentPlan(policy=policy, kinds=(adapters(60, 0.004),), pool_pages=60 * slots, ahead_s=0.0, kv_share=0.0)
    case = Population(
        trace, plan, capacity_tokens=4000, max_running=1, overlap=False, host_tokens=8000, store_tokens=40_000
    )
    return on_disk(case, share, 0.05)


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("policy", ["lru", "by_slot", "queued"])
def test_calls_wait_for_the_disk_as_two_lists_by_last_use_say(policy: str, slots: int, share: float) -> None:
    """What neither device nor host memory has is read, then loaded; what host memory has is loaded."""
    case = sparse_calls(policy, slots, share)
    result = case.simulate(log=True)
    final = case.run()
    capacity = case.agents.host_pages // 60
    device: list[int] = []
    host = list(range(capacity))
    order = np.argsort(result.requests.scheduled_s, kind="stable")
    assert case.trace.agents is not None
    reads, waits = 0, np.zeros(len(order))
    for r in order.tolist():
        agent = int(case.trace.agents.agent[r])
        missing = agent not in device
        waits[r] = 0.004 * missing + 0.05 * (missing and agent not in host)
        if missing and agent not in host:
            reads += 1
            host = [*host[1:], agent]
        elif agent in host:
            host = [*(kept for kept in host if kept != agent), agent]
        if policy != "by_slot":
            device = [*(kept for kept in device if kept != agent), agent][-slots:]
        elif missing and len(device) < slots:
            device.append(agent)
        elif missing:
            device[0] = agent
    assert final.agents.loaders[0].reads == reads == result.objects[0].disk_reads > 20
    if policy == "queued":
        waited = result.requests.scheduled_s - result.requests.arrival_s
        alone = result.requests.arrival_s[order][1:] > np.maximum.accumulate(result.requests.finish_s[order])[:-1]
        first = order[1:][alone]
        assert alone.mean() > 0.9
        np.testing.assert_allclose(waited[first], waits[first], atol=1e-6)
    else:
        assert result.objects[0].stall_s == pytest.approx(waits.sum(), rel=1e-6)


@pytest.mark.parametrize("policy", ["lru", "by_slot"])
def test_a_disk_that_takes_no_time_changes_nothing(policy: str) -> None:  # law L7
    case = replace(with_host(policy), store_tokens=40_000)  # host memory has all KV: the disk is read for objects alone
    everything = replace(case.agents, in_tier=False, host_pages=0)
    bounded = replace(everything, host_pages=everything.pool_pages)
    roomy_run, other = (replace(case, agents=agents).simulate() for agents in (everything, bounded))
    np.testing.assert_array_equal(roomy_run.requests.finish_s, other.requests.finish_s)
    assert roomy_run.objects[0].disk_reads == 0 < other.objects[0].disk_reads


@pytest.mark.parametrize("policy", POLICIES)
def test_host_memory_that_holds_all_objects_needs_no_disk(policy: str) -> None:  # law L7
    case = in_tier(policy, 6400, shared=True)
    roomy = replace(case, agents=replace(case.agents, host_pages=2400), store_tokens=40_000)
    disk_run, other = roomy.simulate(), replace(roomy, agents=case.agents).simulate()
    np.testing.assert_array_equal(disk_run.requests.finish_s, other.requests.finish_s)
    assert (disk_run.stores, disk_run.objects) == (other.stores, other.objects)


def test_loads_of_what_host_memory_has_go_past_reads_from_the_disk() -> None:
    trace = population("interaction", agents=30, calls=300, pacing="free", action={"p50_s": 30.0, "p90_s": 60.0})
    plan = AgentPlan(policy="queued", kinds=(adapters(60, 0.002),), pool_pages=60 * 10)
    case = Population(trace, plan, capacity_tokens=6000, max_running=8, host_tokens=9000, store_tokens=40_000)
    result = on_disk(case, 0.5, 1.0).simulate()
    (use,) = result.objects
    waited = result.requests.scheduled_s - result.requests.arrival_s
    assert 30 < use.disk_reads < 200
    assert (waited < 0.3).sum() > 0.9 * (use.calls - use.disk_reads)
    assert np.quantile(waited, 0.95) > 1.0


@pytest.mark.parametrize("kind", ["independent", "diffusion"])
def test_objects_are_read_from_the_disk_ahead_of_their_calls(kind: str) -> None:
    late, ahead = (on_disk(with_disk(policy, kind), 0.2, 0.02) for policy in ("queued", "distance"))
    (use,) = ahead.simulate().objects
    assert use.disk_reads_ahead > 50
    assert use.disk_reads_ahead <= use.disk_reads
    assert mean_ttft_s(ahead) < 0.9 * mean_ttft_s(late)


def test_a_call_that_waits_for_the_disk_interrupts_a_read_ahead_of_another() -> None:
    trace = population("interaction", agents=16, calls=300, pacing="free", action={"p50_s": 20.0, "p90_s": 60.0})
    plan = AgentPlan(
        policy="distance", kinds=(adapters(60, 0.01),), pool_pages=60 * 4, budget_pages=10_000, ahead_s=9.0,
        tested=False, noise=2.0,
    )  # fmt: skip
    case = on_disk(Population(trace, plan, capacity_tokens=4000, host_tokens=8000, store_tokens=40_000), 0.3, 0.3)
    patient = replace(case, agents=replace(case.agents, preempt=False))
    loader = case.run().agents.loaders[0]
    assert loader.reads_preempted > 5
    assert 0 < loader.read_wasted_s < loader.reads_preempted * 0.3
    assert patient.run().agents.loaders[0].reads_preempted == 0
    assert mean_ttft_s(case) < mean_ttft_s(patient)


@pytest.mark.parametrize("pacing", [{}, FREE])
def test_useless_distances_cost_no_more_with_objects_on_a_disk(pacing: dict) -> None:
    useless, reactive = (
        on_disk(with_disk(policy, pacing=pacing, **noise), 0.3, 0.02)
        for policy, noise in (("distance", {"noise": 8.0}), ("lru", {}))
    )
    assert useless.simulate().makespan_s <= 1.02 * reactive.simulate().makespan_s


def test_a_second_tier_too_small_for_all_objects_is_refused() -> None:
    case = replace(on_disk(with_disk("lru"), 0.1, 0.02), store_tokens=2400)
    with pytest.raises(EngineOutOfMemory, match=r"of the second tier's .* no KV has room"):
        case.simulate()


@pytest.mark.parametrize("policy", ["lru", "queued", "duration"])
def test_other_policies_load_no_kv_ahead(policy: str) -> None:
    assert with_host(policy).run().agents.loaders[0].kv_loads == 0


@pytest.mark.parametrize("pacing", [{}, FREE])
def test_useless_distances_cost_no_more_with_kv_loaded_ahead(pacing: dict) -> None:
    useless, reactive = with_host("distance", pacing=pacing, noise=8.0), with_host("lru", pacing=pacing)
    assert useless.simulate().makespan_s <= 1.02 * reactive.simulate().makespan_s


def test_shared_objects_take_the_earliest_predicted_call() -> None:
    """A shared index stays while any agent's predicted call precedes those of agents with resident adapters."""
    trace = population(agents=10, calls=120)
    kinds = (adapters(), KindPlan("index", "all", 60, 0.05, 1e6))
    plan = AgentPlan(policy="distance", kinds=kinds, pool_pages=60 * 5)
    final = Population(trace, plan, capacity_tokens=4000).run()
    index = int(final.agents.things.shape[0]) - 1
    assert final.agents.things[index].owner == -1
    assert final.agents.objects[0, index].where == al.RESIDENT
    assert final.agents.loaders[0].loads < 400
    load_s = float(final.agents.loaders[0].load_s)
    assert load_s < float(final.agents.loaders[0].loads) * 0.004 + 0.05


def test_what_nobody_s_newest_call_leads_through_goes_first() -> None:
    """Histories that were summarised are worth nothing: shared memory then holds more than under last use."""
    trace = population(agents=8, calls=300, history_cap_tokens=60, adapters=0)
    far = AgentPlan(policy="distance", kinds=(), tested=False)

    def hits(plan: AgentPlan) -> int:
        return int(Population(trace, plan, capacity_tokens=700).simulate().requests.hit_tokens.sum())

    assert hits(far) > hits(AgentPlan(policy="lru", kinds=()))


def makespan(trace, plan: AgentPlan, **settings) -> float:
    result = Population(trace, plan, **({"capacity_tokens": 4000, "max_running": 8} | settings)).simulate()
    assert set(result.requests.outcome.tolist()) == {int(Outcome.FINISHED)}
    return result.makespan_s


@pytest.mark.parametrize("kind", ["independent", "interaction", "diffusion"])
def test_distances_are_worth_time(kind: str) -> None:
    trace = population(kind, agents=40, calls=600, active_rate=0.15)
    base = AgentPlan(policy="lru", kinds=(adapters(60, 0.03),), pool_pages=60 * 10, budget_pages=300)
    times = {policy: makespan(trace, replace(base, policy=policy)) for policy in POLICIES}
    assert times["distance"] <= 1.02 * min(times.values())
    assert times["distance"] < 0.95 * times["lru"]


@pytest.mark.parametrize("kind", ["independent", "interaction", "diffusion"])
@pytest.mark.parametrize("pacing", [{}, FREE])
def test_useless_distances_cost_no_more_than_two_percent(kind: str, pacing: dict) -> None:
    trace = population(kind, agents=40, calls=1500, active_rate=0.15, **pacing)
    base = AgentPlan(policy="lru", kinds=(adapters(60, 0.03),), pool_pages=60 * 10, budget_pages=300)
    useless = replace(base, policy="distance", noise=8.0)
    assert makespan(trace, useless) <= 1.02 * makespan(trace, base)


def test_useless_distances_are_found_out() -> None:
    trace = population(agents=40, calls=3000, active_rate=0.15)
    base = AgentPlan(policy="distance", kinds=(adapters(60, 0.03),), pool_pages=60 * 10, budget_pages=300)
    exact, useless = (
        Population(trace, replace(base, noise=noise), capacity_tokens=4000).run().agents.population
        for noise in (0.0, 9.0)
    )
    assert exact.trusted == 1
    assert exact.right > 0.9
    assert useless.right < 0.75


@pytest.mark.parametrize("policy", POLICIES)
def test_agents_with_nothing_but_kv_and_endless_memory_are_as_without_the_section(policy: str) -> None:  # law L7
    trace = population(calls=150)
    case = Population(trace, AgentPlan(policy=policy, kinds=()), capacity_tokens=100_000)
    plain = replace(case.plan, agents=None)
    np.testing.assert_array_equal(simulate(plain, trace).requests.finish_s, case.simulate().requests.finish_s)


def test_a_call_whose_objects_never_fit_is_refused() -> None:
    trace = population(calls=20)
    plan = AgentPlan(policy="queued", kinds=(adapters(500),), pool_pages=400)
    outcomes = Population(trace, plan).simulate().requests.outcome
    assert set(outcomes.tolist()) == {int(Outcome.TOO_LARGE)}


@pytest.mark.parametrize("kind", ["independent", "interaction"])
def test_a_frame_begins_when_the_last_call_of_the_one_before_it_has_ended(kind: str) -> None:  # law L4
    """Whether or not the worker knows of agents."""
    trace = population(kind, calls=100, frame_s=0.25)
    case = Population(trace, AgentPlan(policy="distance", kinds=(adapters(),)))
    agents = trace.agents
    assert agents is not None
    for plan in (case.plan, replace(case.plan, agents=None)):
        table = simulate(plan, trace).requests
        behind = np.flatnonzero(agents.behind >= 0)
        assert len(behind) > 80
        for r in behind.tolist():
            waited_for = np.flatnonzero(agents.gate == agents.behind[r])
            assert table.arrival_s[r] == table.finish_s[waited_for].max() + trace.arrays.think_s[r]
