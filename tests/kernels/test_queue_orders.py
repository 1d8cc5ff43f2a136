"""Orders of the waiting queue that no engine's release has: against their references, and what they promise."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.base.policies import QUEUE_ORDERS
from hisearch.latency.device_memory.kv_groups import kv_groups_of
from hisearch.latency.sharding import InvalidParallelism
from hisearch.simulate import Result
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.deployments.pool import PoolSpec
from hisearch.specs.deployments.tier_checks import tier_problems
from hisearch.specs.documents.catalogue import Catalogue
from tests.kernels.systems import (
    TARGETS_S,
    System,
    compiled,
    crowded,
    engine_of,
    examples,
    settled,
    sglang_engines,
    systems,
    vllm_engines,
)
from tests.kernels.test_against_reference import _assert_equal, _assert_same_without_log, _simulated_rows
from tests.reference.random_traces import TraceShape

FAIR = [name for name, order in QUEUE_ORDERS.items() if order.counts_service]


def ordered_by(engine: EngineSpec, schedule: str) -> EngineSpec:
    return engine_of(**engine.model_dump(exclude_unset=True, exclude={"ttft_targets_s"}) | {"schedule": schedule})


@pytest.mark.parametrize("engines", [vllm_engines(), sglang_engines(version=None)], ids=["vllm", "sglang"])
@pytest.mark.parametrize("schedule", ["edf", *FAIR])
def test_an_order_equals_its_reference(schedule: str, engines: st.SearchStrategy[EngineSpec]) -> None:
    @examples(150)
    @given(system=systems(engines, repeats=True), workers=st.integers(1, 2))
    def check(system: System, workers: int) -> None:
        system = replace(system, engine=ordered_by(system.engine, schedule), workers=workers)
        _assert_same_without_log(system, _assert_equal(system))

    check()


@pytest.mark.parametrize("name", ["vllm", "sglang"])
@pytest.mark.parametrize("schedule", ["edf", *FAIR])
def test_an_order_equals_its_reference_where_requests_are_preempted(schedule: str, name: str) -> None:
    @examples(100)
    @given(system=crowded(name))
    def check(system: System) -> None:
        _assert_equal(replace(system, engine=ordered_by(system.engine, schedule)))

    check()


#: Many requests at once, of three tenants that ask for different amounts.
FLOOD = TraceShape(
    requests=60, rate_rps=200.0, prompt_tokens=60, output_tokens=30, follow_up=0.0, repeat=0.0, slack=1.0
)


def flooded(schedule: str) -> st.SearchStrategy[System]:
    """One of the tenants (0) has most of the requests."""
    return st.builds(
        System,
        seed=st.integers(0, 1 << 20),
        engine=st.builds(
            engine_of,
            name=st.sampled_from(["vllm", "sglang"]),
            schedule=st.just(schedule),
            page_tokens=st.sampled_from([1, 4]),
            max_running_requests=st.sampled_from([1, 4, 16]),
            chunk_tokens=st.sampled_from([16, 64, 256]),
            overlap=st.booleans(),
        ),
        capacity_tokens=st.sampled_from([300, 1000]),
        shape=st.just(FLOOD),
    )


def service_by_step(system: System, result: Result) -> tuple[np.ndarray, np.ndarray]:
    """Service of each tenant after each step, and whether it has requests waiting then; shape (steps, tenants) each.

    1 per prompt token at a request's first admission, 2 for each token that a prefill samples or a decode makes.
    """
    log, trace = result.log, system.trace.arrays
    assert log is not None
    tenants = np.unique(trace.tenant)
    steps = len(log.steps)
    service, waiting = np.zeros((steps, len(tenants)), np.int64), np.zeros((steps, len(tenants)), bool)
    total = np.zeros(len(tenants), np.int64)
    came, scheduled = np.zeros(len(trace.arrival_s), bool), np.zeros(len(trace.arrival_s), bool)
    for k in range(steps):
        came |= result.requests.arrival_s <= log.steps[k]["scheduled_s"]
        for r, computed in log.batch(k)[["request", "computed"]].tolist():
            place = int(np.searchsorted(tenants, trace.tenant[r]))
            if not scheduled[r]:
                scheduled[r] = True
                total[place] += int(trace.input_tokens[r]) + 2
            elif computed >= trace.input_tokens[r]:
                total[place] += 2
        service[k] = total
        for place, tenant in enumerate(tenants.tolist()):
            waiting[k, place] = (came & ~scheduled & (trace.tenant == tenant)).any()
    return service, waiting


def largest_difference(service: np.ndarray, waiting: np.ndarray) -> int:
    """Of any two tenants over any run of steps after all of which both have requests waiting."""
    largest = 0
    for a, b in combinations(range(service.shape[1]), 2):
        both = waiting[:, a] & waiting[:, b]
        gap = service[:, a] - service[:, b]
        starts = np.flatnonzero(np.diff(np.concatenate(([0], both.astype(int), [0]))) != 0).reshape(-1, 2)
        for begin, end in starts.tolist():
            largest = max(largest, int(np.ptp(gap[begin:end])))
    return largest


def bound_of(system: System) -> int:
    """Twice what a counter rises by from when it is the least: a charge, and outputs of all that runs.

    Of virtual counters that is within the paper's theorem 4.4: 2 w_q M, where M is the tokens of a running batch,
    prompts included. Deficits go by rounds, which adds a quantum.
    """
    trace, engine = system.trace.arrays, system.engine
    outputs = 2 * min(system.capacity_tokens, engine.max_running_requests * int(trace.output_tokens.max()))
    quantum = engine.chunk_tokens if engine.schedule == "deficit" else 0
    return 2 * (int(trace.input_tokens.max()) + 2 + outputs + quantum)


@pytest.mark.parametrize("schedule", FAIR)
def test_tenants_that_both_wait_get_service_within_a_bound(schedule: str) -> None:
    @examples(200)
    @given(system=flooded(schedule))
    def check(system: System) -> None:
        service, waiting = service_by_step(system, settled(system, log=True))
        assert largest_difference(service, waiting) <= bound_of(system)

    check()


def test_arrival_keeps_no_such_bound() -> None:
    """So that the law above is none of any order."""
    engine = EngineSpec(name="sglang", version="0.5.23", max_running_requests=1, chunk_tokens=64)
    system = System(5, engine, capacity_tokens=1000, shape=FLOOD)
    service, waiting = service_by_step(system, system.simulate(log=True))
    assert largest_difference(service, waiting) > 2 * bound_of(system)


@pytest.mark.parametrize("engines", [vllm_engines(), sglang_engines(version=None)], ids=["vllm", "sglang"])
@pytest.mark.parametrize("schedule", FAIR)
def test_a_tenant_by_itself_is_served_by_arrival(schedule: str, engines: st.SearchStrategy[EngineSpec]) -> None:
    @examples(60)
    @given(system=systems(engines, repeats=True))
    def check(system: System) -> None:
        arrays = system.trace.arrays
        rows = []
        for order in (schedule, "fcfs"):
            by_order = replace(system, engine=ordered_by(system.engine, order))
            object.__setattr__(by_order, "trace", compiled(arrays._replace(tenant=np.full_like(arrays.tenant, 3))))
            rows.append(_simulated_rows(settled(by_order)))
        np.testing.assert_array_equal(rows[0], rows[1])

    check()


@pytest.mark.parametrize("engines", [vllm_engines(), sglang_engines()], ids=["vllm", "sglang"])
def test_nobody_with_a_later_deadline_is_scheduled_first(engines: st.SearchStrategy[EngineSpec]) -> None:
    """Of requests that wait at the same time, as long as none is preempted and all are received at once."""

    @examples(100)
    @given(system=systems(engines, repeats=False))
    def check(system: System) -> None:
        engine = ordered_by(system.engine, "edf").model_copy(update={"receive_interval": 1})
        system = replace(system, engine=engine, capacity_tokens=20_000, workers=1)
        table = settled(system).requests
        served = np.isfinite(table.scheduled_s)
        assert table.preemptions.sum() == 0
        targets = [np.inf if target_s is None else target_s for target_s in TARGETS_S]
        deadline_s = table.arrival_s + np.array(targets)[system.trace.arrays.priority]
        for r in np.flatnonzero(served):
            passed_over = served & (table.arrival_s < table.scheduled_s[r]) & (table.scheduled_s > table.scheduled_s[r])
            assert not (deadline_s[passed_over] < deadline_s[r] - 1e-9).any()

    check()


def test_a_tenant_with_few_requests_hardly_waits_for_one_that_floods() -> None:
    engine = EngineSpec(name="sglang", version="0.5.23", max_running_requests=2, chunk_tokens=64)
    ttft_s = {}
    for order in ("fcfs", *FAIR):
        system = System(5, ordered_by(engine, order), capacity_tokens=1000, shape=FLOOD)
        arrays = system.trace.arrays
        few = np.arange(len(arrays.arrival_s)) % 10 == 9
        object.__setattr__(system, "trace", compiled(arrays._replace(tenant=np.where(few, 7, 0).astype(np.int32))))
        ttft_s[order] = float(system.simulate().requests.ttft_s[few].mean())
    assert max(ttft_s[order] for order in FAIR) < 0.3 * ttft_s["fcfs"]


def test_what_an_order_needs_is_asked_for() -> None:
    sglang, vllm = {"name": "sglang"}, {"name": "vllm"}
    with pytest.raises(ValueError, match="schedule edf and ttft_targets_s need each other"):
        EngineSpec(**sglang, schedule="edf")
    with pytest.raises(ValueError, match="schedule edf and ttft_targets_s need each other"):
        EngineSpec(**vllm, ttft_targets_s=[1.0])
    with pytest.raises(ValueError, match="no priority has a target"):
        EngineSpec(**vllm, schedule="edf", ttft_targets_s=[None])
    with pytest.raises(ValueError, match="trtllm has no schedule vtc; known: fcfs"):
        EngineSpec(name="trtllm", schedule="vtc")
    with pytest.raises(ValueError, match="counts a worker's own service; simulated without pipeline_parallel"):
        PoolSpec.model_validate(
            {"accelerator": "h100-sxm", "pipeline_parallel": 2, "engine": {"name": "sglang", "schedule": "vtc"}}
        )
    tiered = PoolSpec.model_validate(
        {
            "accelerator": "h100-sxm",
            "engine": {"name": "vllm", "schedule": "deficit"},
            "tiers": [{"medium": "ddr5", "gib": 100}],
        }
    )
    problems = tier_problems(tiered, {"ddr5": Catalogue().get("Medium", "ddr5").spec}, None, None)
    assert [problem.key for problem in problems] == ["engine.schedule"]
    windows = Catalogue().get("Model", "gpt-oss-20b").spec
    with pytest.raises(InvalidParallelism, match="not simulated under vLLM for models with several groups"):
        kv_groups_of(
            PoolSpec.model_validate({"accelerator": "h100-sxm", "engine": {"name": "vllm", "schedule": "vtc"}}),
            windows,
            Catalogue().get("Accelerator", "h100-sxm").spec,
        )
