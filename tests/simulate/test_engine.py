"""``simulate``: what it refuses, what it leaves alone, what its results say."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hisearch.kernels.engine import engine_calls
from hisearch.kernels.fleet import cluster, compilation
from hisearch.kernels.layout import fleet as fl
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import pools
from hisearch.simulate import Outcome, engine, simulate
from hisearch.simulate.plans.tier_plan import TransferLaw
from hisearch.specs.deployments.deployment import EngineSpec
from tests.kernels.systems import ENGINES, System, compiled, plan
from tests.reference.random_traces import random_trace


def system(name: str = "vllm", **changes: object) -> System:
    spec = EngineSpec.model_validate({"name": name, "page_tokens": 4, "max_running_requests": 8, "chunk_tokens": 64})
    return replace(System(seed=11, engine=spec, capacity_tokens=1200, workers=2), **changes)  # type: ignore[arg-type]


def test_outcomes_have_the_kernels_numbers() -> None:
    assert {outcome.name: outcome.value for outcome in Outcome} == {
        "IN_FLIGHT": la.IN_FLIGHT,
        "FINISHED": la.FINISHED,
        "TOO_LARGE": la.TOO_LARGE,
        "UNREACHED": la.UNREACHED,
        "SHED": la.SHED,
        "LOST": la.LOST,
    }


@pytest.mark.parametrize(
    ("option", "value"), [("replicas", 0), ("load", 0.0), ("load", -1.0), ("load", math.inf), ("load", math.nan)]
)
def test_impossible_options_are_refused(option: str, value: float) -> None:
    tried = system()
    with pytest.raises(ValueError, match=option):
        simulate(tried.plan, tried.trace, **{option: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ENGINES)
def test_trace_is_never_written(name: str) -> None:
    tried = system(name)
    before = [array.copy() for array in tried.trace.arrays]
    for array in tried.trace.arrays:
        array.flags.writeable = False
    tried.simulate()
    for array, copy in zip(tried.trace.arrays, before, strict=True):
        np.testing.assert_array_equal(array, copy)


@pytest.mark.parametrize("name", ENGINES)
def test_run_is_repeated_with_more_nodes_where_there_were_too_few(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = system(name, host_tokens=2000)
    expected = tried.simulate()
    allocate, rooms = engine.allocate, []

    def stingy(*arguments: Any, **options: Any) -> tuple[fl.Fleet, list[la.Sim]]:
        rooms.append(arguments[2][0])
        return allocate(*arguments[:2], [len(rooms) * 7], **options)

    monkeypatch.setattr(engine, "allocate", stingy)
    result = tried.simulate()
    assert len(rooms) > 2
    assert rooms == [rooms[0] << k for k in range(len(rooms))]
    np.testing.assert_array_equal(result.requests.finish_s, expected.requests.finish_s)
    np.testing.assert_array_equal(result.workers.evicted_tokens, expected.workers.evicted_tokens)


@pytest.mark.slow
@pytest.mark.parametrize("host_tokens", [0, 2000])
@pytest.mark.parametrize("name", ENGINES)
def test_run_with_too_few_nodes_ends_and_says_so(name: str, host_tokens: int) -> None:
    """With every number of nodes, up to the one that suffices; the kernels are compiled before the clock runs."""
    system(name, host_tokens=host_tokens).simulate()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.simulate.starved", name, str(host_tokens)],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
    except subprocess.TimeoutExpired as expired:
        last = (expired.stderr or b"").decode().split("\n")[-2]
        pytest.fail(f"engine, host tokens, spare nodes {last}: the run never ends")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10


def test_load_scales_first_arrivals_and_not_think_times() -> None:
    tried = system(workers=1)
    trace = tried.trace.arrays
    table = tried.simulate(load=4.0).requests
    first = trace.previous < 0
    np.testing.assert_array_equal(table.arrival_s[first], trace.arrival_s[first] / 4.0)
    later = np.flatnonzero(~first)
    assert len(later) > 3
    ended = np.where(table.finished, table.finish_s, table.arrival_s)[trace.previous[later]]
    np.testing.assert_array_equal(table.arrival_s[later], ended + trace.think_s[later])


def test_result_adds_up() -> None:
    tried = system(capacity_tokens=500)
    result = tried.simulate()
    table = result.requests
    assert 0 < table.finished.sum() < len(table.outcome)
    assert result.prompt_tokens == table.input_tokens[table.finished].sum()
    assert result.hit_rate == table.hit_tokens.sum() / result.prompt_tokens
    assert 0 < result.hit_rate < 1
    assert result.makespan_s == table.finish_s[table.finished].max() - np.nanmin(table.arrival_s)
    assert result.kv_capacity_tokens == 500
    frame = table.to_pandas()
    assert set(frame["outcome"]) == {"finished", "too_large"}
    np.testing.assert_array_equal(frame["ttft_s"], table.first_token_s - table.arrival_s)
    single_token = table.finished & (table.output_tokens == 1)
    many = table.finished & (table.output_tokens > 1)
    assert (table.tpot_s[single_token] == 0).all()
    np.testing.assert_allclose((table.tpot_s * (table.output_tokens - 1) + table.ttft_s)[many], table.e2e_s[many])


def test_nothing_reaches_the_workers_before_a_horizon_of_zero() -> None:
    arrays = random_trace(1)
    arrays = arrays._replace(arrival_s=arrays.arrival_s + 1.0)
    result = simulate(plan(EngineSpec(name="vllm"), 4000), compiled(arrays), horizon_s=0.0)
    assert result.horizon_reached
    assert (result.requests.outcome == Outcome.UNREACHED).all()
    assert result.makespan_s == 0.0
    assert result.prompt_tokens == result.hit_rate == 0
    for name, column in result.workers.columns().items():
        if name != "gone_s":
            assert not column.any()


@pytest.mark.parametrize("name", ENGINES)
def test_host_link_settings_reach_the_kernel(name: str) -> None:
    tried = system(name, host_tokens=4000, capacity_tokens=700, workers=1)
    assert tried.plan.movement is not None
    slow = replace(tried.plan, movement=replace(tried.plan.movement, host_read=TransferLaw(5.0)))
    fast_s = tried.simulate().makespan_s
    assert tried.simulate().workers.host_hit_tokens.sum() > 0
    assert simulate(slow, tried.trace).makespan_s > fast_s + 5.0


def test_each_engine_entry_is_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[int] = []
    monkeypatch.setattr(compilation, "prepare", prepared.extend)
    monkeypatch.setattr(engine, "_prepared", set())
    engine.prepare(
        [
            ("vllm", "", "lmcache"), ("sglang", "", None), ("sglang", "0.5.9", "hicache"), ("vllm", "", None),
            ("trtllm", "", "offload"), ("vllm", "", "offload"), ("vllm", "0.33.0", "offload"),
            ("vllm", "0.19.1", "offload"),
        ]
    )  # fmt: skip
    assert prepared == [
        la.VLLM_LMCACHE, la.SGLANG, la.VLLM, la.TRTLLM, la.VLLM_CHUNK_OFFLOAD, la.VLLM_OFFLOAD
    ]  # fmt: skip


def test_every_engine_entry_has_a_name() -> None:
    assert set(engine_calls.NAMES) == set(engine_calls.ENGINES)


@pytest.mark.parametrize("name", ENGINES)
def test_requests_beyond_the_model_s_window_are_refused(name: str) -> None:
    tried = system(name, capacity_tokens=1 << 20)
    trace = tried.trace.arrays
    declared = trace.input_tokens + trace.max_output_tokens
    window = int(np.median(declared))
    table = simulate(replace(tried.plan, max_request_tokens=window), tried.trace).requests
    np.testing.assert_array_equal(table.outcome == Outcome.TOO_LARGE, declared > window)
    np.testing.assert_array_equal(table.finished, declared <= window)


def test_engine_that_would_die_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """No random system is known to get there: the kernel's verdict is made up."""

    def out_of_memory(fleet: fl.Fleet) -> tuple[float, int, int]:
        pools.at(fleet, 0).counters[la.FAULT] = la.OUT_OF_MEMORY
        return 1.25, 0, 0

    monkeypatch.setattr(cluster, "run", out_of_memory)
    tried = system("sglang")
    with pytest.raises(engine.EngineOutOfMemory, match=r"sglang would stop for want of memory at 1\.250 s"):
        tried.simulate()
