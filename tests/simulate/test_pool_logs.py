"""Several pools' logs as one: every step keeps its entries and its losses, in the order in which all may be walked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.api.compare import mean_times
from hisearch.simulate.engine import simulate_fleet
from hisearch.simulate.plans.fleet import FleetPlan, PoolPlan
from hisearch.simulate.results.gaps import entry_steps, exact_gaps, logged_losses, token_times
from hisearch.simulate.results.pool_logs import merged_logs
from hisearch.simulate.results.series import worker_series
from hisearch.simulate.results.tables import StepLog
from tests.kernels.systems import compiled, examples
from tests.reference.random_traces import TraceShape, random_trace
from tests.simulate.logged import LoggedStep, step_log
from tests.simulate.test_engine import system


@st.composite
def pool_logs(draw: st.DrawFn) -> list[tuple[StepLog, int]]:
    """Logs of up to four pools with the number of losses that no step took; requests are numbered through."""
    logs, request = [], 0
    for pool in range(draw(st.integers(2, 4))):
        steps, loose, when = [], [], 0.0
        for k in range(draw(st.integers(0, 5))):
            when += draw(st.sampled_from([0.0, 0.5, 1.0]))
            sizes = [draw(st.integers(low, 3)) for low in (1, 0, 0)]
            batch, lost, between = (
                [*range(request + at, request + at + size)]
                for at, size in ((0, sizes[0]), (10, sizes[1]), (20, sizes[2]))
            )
            steps.append(LoggedStep(when, when, when + 1.0, [(r, 0, 1) for r in batch], lost, worker=pool))
            loose += [(k, r) for r in between]
            request += 30
        logs.append((step_log(steps, loose), len(loose)))
    return logs


@examples(200)
@given(drawn=pool_logs())
def test_every_step_keeps_what_is_its_own(drawn: list[tuple[StepLog, int]]) -> None:
    logs = [log for log, _ in drawn]
    merged = merged_logs(logs)
    expected = sorted(
        ((log.steps["scheduled_s"][k], which, k) for which, log in enumerate(logs) for k in range(len(log))),
    )
    assert [float(time) for time in merged.steps["scheduled_s"]] == [time for time, _, _ in expected]
    for at, (_, which, k) in enumerate(expected):
        assert merged.batch(at).tolist() == logs[which].batch(k).tolist()
        assert merged.lost_in(at).tolist() == logs[which].lost_in(k).tolist()
    assert sorted(merged.lost.tolist()) == sorted(r for log in logs for r in log.lost.tolist())
    # Walking the entries step after step finds them all in order, and so it does with losses.
    steps = entry_steps(merged)
    assert [entry.tolist() for at in range(len(merged)) for entry in merged.batch(at)] == [
        entry.tolist() for entry in merged.entries
    ]
    assert len(steps) == len(merged.entries)
    positions, _ = logged_losses(merged)
    assert np.all(np.diff(positions) > 0)
    assert len(merged.lost) - len(positions) == sum(loose for _, loose in drawn)


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_a_fleet_s_log_accounts_for_every_token_and_second(name: str) -> None:
    tried = system(name, capacity_tokens=600)
    fleet = FleetPlan(tuple(PoolPlan(tried.plan, count, pool) for pool, count in (("a", 1), ("b", 2), ("c", 1))))
    result = simulate_fleet(
        fleet,
        compiled(random_trace(3, TraceShape(requests=120, rate_rps=500.0, prompt_tokens=60, output_tokens=60))),
        log=True,
    )
    assert result.log is not None
    assert len(result.log.lost)
    table = result.requests
    assert table.finished.all()
    assert len(set(table.worker.tolist())) > 2
    first, times = token_times(result)
    np.testing.assert_array_equal(times[first[:-1]], table.first_token_s)
    np.testing.assert_array_equal(times[first[1:] - 1], table.finish_s)
    assert (exact_gaps(result) >= 0).all()
    assert mean_times(result).total_s == pytest.approx(float((table.finish_s - table.arrival_s).mean()))


def test_kv_memory_in_use_is_of_each_worker_s_own_pool() -> None:
    """Pools of unlike sizes, the decode pool named first: its workers come last all the same."""
    small, large = system(capacity_tokens=2000).plan, system(capacity_tokens=8000).plan
    pools = (PoolPlan(large, 2, "outputs", "decode"), PoolPlan(small, 1, "prompts", "prefill"))
    trace = compiled(random_trace(3, TraceShape(requests=60, rate_rps=50.0, prompt_tokens=60, output_tokens=60)))
    result = simulate_fleet(FleetPlan(pools), trace, log=True)
    assert result.worker_kv_tokens.tolist() == [2000, 8000, 8000]
    frame = worker_series(result)
    peaks = frame.groupby("worker")["kv_tokens_used"].max()
    assert frame["kv_tokens_used"].min() >= 0
    assert (peaks.to_numpy() > 0).all()
    assert (peaks.to_numpy() <= result.workers.peak_kv_tokens).all()
