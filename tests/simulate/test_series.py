"""Workers over time: by hand, and the laws that tie the series to the requests and to the totals of the workers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from hisearch.simulate import Result
from hisearch.simulate.engine import simulate_fleet
from hisearch.simulate.plans.fleet import FleetPlan, PoolPlan, TransferPlan
from hisearch.simulate.results.gaps import LogMissing
from hisearch.simulate.results.residence import residences
from hisearch.simulate.results.series import TooManyRows, regular_series, step_tokens, worker_series
from hisearch.specs.deployments.deployment import EngineSpec
from tests.kernels.systems import ENGINES, System, compiled, crowded, examples, plan, systems, vllm_engines
from tests.reference.random_traces import TraceShape, random_trace
from tests.simulate.logged import LoggedStep, logged_result
from tests.simulate.test_engine import system
from tests.simulate.test_gaps import logged

#: A request that arrives at 0.5 s, waits for a place, and is preempted; another that decodes all the time.
STEPS = [
    LoggedStep(0.0, 0.0, 1.0, [(0, 0, 4)]),
    LoggedStep(1.0, 1.0, 2.0, [(0, 4, 1), (1, 0, 3)]),
    LoggedStep(2.0, 2.0, 2.5, [(0, 5, 1), (1, 3, 1)]),
    LoggedStep(2.5, 2.5, 3.0, [(0, 6, 1)], lost=[1]),
    LoggedStep(3.0, 3.0, 4.0, [(1, 0, 5)]),
    LoggedStep(4.0, 4.0, 4.5, [(1, 5, 1)]),
]
BY_HAND = logged_result(
    STEPS,
    [4, 3],
    [4, 4],
    arrival_s=[0.0, 0.5],
    scheduled_s=[0.0, 1.0],
    first_token_s=[1.0, 2.0],
    finish_s=[3.0, 4.5],
)


def totals(result: Result, column: str) -> np.ndarray:
    frame = worker_series(result)
    return np.bincount(frame["worker"], weights=frame[column], minlength=len(result.workers.steps))


def test_a_row_per_step_by_hand() -> None:
    frame = worker_series(BY_HAND)
    assert frame["time_s"].tolist() == [0.0, 1.0, 2.0, 2.5, 3.0, 4.0]
    assert frame["kind"].tolist() == ["prefill", "mixed", "decode", "decode", "prefill", "decode"]
    assert frame["running"].tolist() == [1, 2, 2, 1, 1, 1]
    assert frame["waiting"].tolist() == [0, 0, 0, 1, 0, 0]
    assert frame["prefill_tokens"].tolist() == [4, 3, 0, 0, 5, 0]
    assert frame["decode_tokens"].tolist() == [0, 1, 2, 1, 0, 1]
    assert frame["batch_tokens"].tolist() == [4, 4, 2, 1, 5, 1]
    assert frame["preempted"].tolist() == [0, 0, 0, 1, 0, 0]


def test_time_in_steps_counts_once_where_steps_of_groups_overlap() -> None:
    """Attention groups of a worker step together, and stages of a pipeline one behind the other."""
    steps = [
        LoggedStep(0.0, 0.0, 1.0, [(0, 0, 4)]),
        LoggedStep(0.0, 0.0, 1.0, [(1, 0, 3)]),
        LoggedStep(2.0, 2.0, 3.0, [(0, 4, 1)]),
        LoggedStep(2.5, 2.5, 3.5, [(1, 3, 1)]),
    ]
    result = logged_result(
        steps, [4, 3], [2, 2], arrival_s=[0.0, 0.0], scheduled_s=[0.0, 0.0], first_token_s=[1.0, 1.0],
        finish_s=[3.0, 3.5],
    )  # fmt: skip
    assert regular_series(result, 0.5)["busy_s"].tolist() == pytest.approx([0.0, 0.5, 0.5, 0.0, 0.0, 0.5, 0.5, 0.5])


def test_a_row_per_interval_by_hand() -> None:
    frame = worker_series(BY_HAND, 0.75)
    assert frame["time_s"].tolist() == [0.0, 0.75, 1.5, 2.25, 3.0, 3.75, 4.5]
    assert frame["running"].tolist() == [1, 1, 2, 2, 1, 1, 0]
    assert frame["waiting"].tolist() == [0, 1, 0, 0, 0, 0, 0]
    assert frame["steps"].tolist() == [0, 0, 1, 1, 2, 0, 2]
    assert frame["prefill_tokens"].tolist() == [0, 0, 4, 3, 0, 0, 5]
    assert frame["decode_tokens"].tolist() == [0, 0, 0, 1, 3, 0, 1]
    assert frame["preempted"].tolist() == [0, 0, 0, 0, 1, 0, 0]
    assert frame["kv_tokens_used"].tolist() == [1000] * 6 + [0]
    np.testing.assert_allclose(frame["busy_s"], [0.0] + [0.75] * 6)


def test_times_of_running_by_hand() -> None:
    times = residences(BY_HAND)
    assert times.request.tolist() == [0, 1, 1]
    assert times.admitted_s.tolist() == [0.0, 1.0, 3.0]
    assert times.left_s.tolist() == [3.0, 2.5, 4.5]
    assert times.lost.tolist() == [False, True, False]
    assert times.first_entry.tolist() == [0, 2, 6]


def test_a_loss_without_a_batch_is_dated_to_the_next_step_of_its_worker() -> None:
    steps = [
        LoggedStep(0.0, 0.0, 1.0, [(0, 0, 3)]),
        LoggedStep(0.0, 0.0, 5.0, [(1, 0, 3)], worker=1),
        LoggedStep(1.5, 1.5, 2.0, [(2, 0, 3)], worker=1),
        LoggedStep(2.0, 2.0, 3.0, [(0, 0, 4)]),
    ]
    result = logged_result(
        steps, [3, 3, 3], [2, 1, 1], lost_between=[(2, 0)], worker=[0, 1, 1], finish_s=[3.0, 5.0, 2.0]
    )
    times = residences(result)
    assert times.request.tolist() == [0, 0, 1, 2]
    assert times.left_s.tolist() == [2.0, 3.0, 5.0, 2.0]
    assert times.admitted_s.tolist() == [0.0, 2.0, 0.0, 1.5]
    assert times.lost.tolist() == [True, False, False, False]


def assert_lawful(result: Result, most_running: int, *, one_token_contexts: bool = False) -> None:
    """``one_token_contexts``: TensorRT-LLM's context of a resumed request may be one token long, like a decode."""
    table, workers = result.requests, result.workers
    frame = worker_series(result)
    assert len(frame) == workers.steps.sum()
    assert (frame["running"] >= 0).all()
    assert (frame["running"] <= most_running).all()
    assert (frame["waiting"] >= 0).all()
    for w, mine in frame.groupby("worker"):
        assert mine["start_s"].is_monotonic_increasing
        assert (mine["start_s"].to_numpy()[1:] >= mine["end_s"].to_numpy()[:-1]).all()
        time_s = mine["time_s"].to_numpy()[:, None]
        there = (table.worker == w) & (table.arrival_s <= time_s) & ~(table.finish_s <= time_s)
        np.testing.assert_array_equal(mine["running"] + mine["waiting"], there.sum(axis=1))
        assert mine["kv_tokens_used"].max() == workers.peak_kv_tokens[w]
    assert (frame["kv_tokens_used"] >= 0).all()
    assert (frame["kv_tokens_used"] <= result.kv_capacity_tokens).all()
    prefill, decode = totals(result, "prefill_tokens"), totals(result, "decode_tokens")
    np.testing.assert_array_equal(prefill + decode, workers.prefill_tokens + workers.decode_tokens)
    if not one_token_contexts:
        np.testing.assert_array_equal(decode, workers.decode_tokens)
    times = residences(result)
    assert times.lost.sum() == workers.preemptions.sum()
    np.testing.assert_array_equal(
        np.bincount(times.request[times.lost], minlength=len(table.outcome)), table.preemptions
    )
    assert (times.left_s >= times.admitted_s).all()
    first = np.flatnonzero(np.diff(times.request, prepend=-1))
    np.testing.assert_array_equal(times.admitted_s[first], table.scheduled_s[times.request[first]])
    same = np.diff(times.request) == 0
    assert (times.admitted_s[1:][same] >= times.left_s[:-1][same]).all()


def assert_intervals_add_up(result: Result, interval_s: float) -> None:
    frame, steps = worker_series(result, interval_s), worker_series(result)
    workers = len(result.workers.steps)
    for name in ("prefill_tokens", "decode_tokens", "batch_tokens", "preempted"):
        sums = np.bincount(frame["worker"], weights=frame[name], minlength=workers)
        np.testing.assert_array_equal(sums, totals(result, name))
    np.testing.assert_array_equal(np.bincount(frame["worker"], weights=frame["steps"]), result.workers.steps)
    np.testing.assert_allclose(np.bincount(frame["worker"], weights=frame["busy_s"]), result.workers.busy_s, atol=1e-9)
    assert (frame["busy_s"] <= interval_s * (1 + 1e-9)).all()
    last = frame.groupby("worker").tail(1)
    assert not last[["running", "waiting", "kv_tokens_used"]].to_numpy().any()
    assert (last["time_s"] >= steps["end_s"].max()).all()


@examples(150)
@given(tried=systems(vllm_engines(), repeats=True))
def test_laws_of_vllm_s_series(tried: System) -> None:
    result = logged(tried)
    assert_lawful(result, tried.engine.max_running_requests)
    if result.workers.steps.any():
        assert_intervals_add_up(result, 0.3)


@pytest.mark.parametrize("name", ENGINES)
def test_laws_where_kv_is_lost(name: str) -> None:
    @examples(60)
    @given(tried=crowded(name))
    def check(tried: System) -> None:
        result = logged(tried)
        assert_lawful(result, tried.engine.max_running_requests, one_token_contexts=name == "trtllm")
        assert_intervals_add_up(result, 0.01)

    check()


def test_sglang_s_decodes_are_known_by_the_kind_of_the_step() -> None:
    """One token of a prompt is no decode; a decode beyond the end is one; a mixed step needs the prompt's length."""
    steps = [
        LoggedStep(0.0, 0.0, 1.0, [(0, 0, 1), (1, 0, 3)], kind="prefill"),
        LoggedStep(1.0, 1.0, 2.0, [(2, 0, 1), (0, 1, 1), (1, 3, 1)], kind="mixed"),
        LoggedStep(2.0, 2.0, 3.0, [(0, 2, 1), (1, 4, 1)], kind="decode"),
    ]
    result = logged_result(steps, [1, 3, 1], [2, 3, 1])
    prefill, decode = step_tokens(result)
    assert prefill.tolist() == [4, 1, 0]
    assert decode.tolist() == [0, 2, 2]


def test_an_idle_worker_has_rows_of_zeros() -> None:
    result = system(workers=3).simulate(log=True)
    single = logged_result([LoggedStep(0.0, 0.0, 1.0, [(0, 0, 3)], worker=1)], [3], [1], worker=[1], finish_s=[1.0])
    frame = worker_series(single, 0.5)
    assert not frame[frame["worker"] == 0].drop(columns=["worker", "time_s"]).to_numpy().any()
    assert set(worker_series(result, 1.0)["worker"]) == {0, 1, 2}


def test_the_last_row_is_not_before_the_last_event() -> None:
    """Also where the quotient of both is rounded down to a whole number."""
    end_s = float(np.nextafter(3 * 0.1, 1.0))
    result = logged_result([LoggedStep(0.0, 0.0, end_s, [(0, 0, 3)])], [3], [1], finish_s=[end_s])
    assert worker_series(result, 0.1)["time_s"].iloc[-1] >= end_s


@pytest.mark.parametrize("interval_s", [0.0, -1.0, float("nan"), float("inf")])
def test_an_interval_must_be_positive(interval_s: float) -> None:
    with pytest.raises(ValueError, match="interval_s must be a positive number"):
        worker_series(BY_HAND, interval_s)


@pytest.mark.parametrize("interval_s", [1e-7, 5e-324])
def test_too_many_rows_are_refused(interval_s: float) -> None:
    with pytest.raises(TooManyRows, match=r"the interval must be longer, 9\.09e-07 s or more"):
        worker_series(BY_HAND, interval_s)
    assert len(worker_series(BY_HAND, 1e-5)) == 450_001


def test_a_series_needs_the_log() -> None:
    with pytest.raises(LogMissing, match="simulate with log=True"):
        worker_series(system().simulate())


@pytest.mark.parametrize("name", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("reserve_first", [False, True])
def test_requests_are_at_their_prefill_worker_until_their_kv_transfer(name: str, reserve_first: bool) -> None:
    """Counted by walking through the requests; where prompts are held, the KV in use says so too."""
    engine = EngineSpec.model_validate({"name": name, "max_running_requests": 16, "chunk_tokens": 128})
    worker = plan(engine, 20_000)
    pools = (PoolPlan(worker, 2, "prefill", "prefill"), PoolPlan(worker, 1, "decode", "decode"))
    transfer = TransferPlan(
        reserve_first=reserve_first, base_s=0.05, bytes_per_token=1e3, bytes_per_s=1e6, reserved_tokens=8
    )
    trace = compiled(random_trace(5, TraceShape(requests=40, rate_rps=8.0)))
    result = simulate_fleet(FleetPlan(pools, transfer=transfer), trace, log=True)
    table, frame = result.requests, worker_series(result, 0.01)
    handed = table.worker != table.prefill_worker
    assert handed.any()
    assert table.kv_arrived_s is not None
    assert (table.kv_arrived_s[handed] > table.scheduled_s[handed]).all()
    assert (table.kv_arrived_s[handed] <= table.first_token_s[handed]).all()
    assert np.isnan(table.kv_arrived_s[~handed]).all()
    left_s = np.where(handed, table.kv_arrived_s, table.finish_s)
    for w in range(2):
        mine = frame[frame["worker"] == w]
        time_s = mine["time_s"].to_numpy()[:, None]
        at_worker = (table.prefill_worker == w) & (table.arrival_s <= time_s) & ~(left_s <= time_s)
        runs = at_worker & (table.scheduled_s <= time_s)
        np.testing.assert_array_equal(mine["running"], runs.sum(axis=1))
        np.testing.assert_array_equal(mine["running"] + mine["waiting"], at_worker.sum(axis=1))
        assert mine["running"].max() > 0
    decoding = frame[frame["worker"] == 2]
    time_s = decoding["time_s"].to_numpy()[:, None]
    there = handed & (table.kv_arrived_s <= time_s) & ~(table.finish_s <= time_s)
    np.testing.assert_array_equal(decoding["running"] + decoding["waiting"], there.sum(axis=1))
    assert (decoding["waiting"] >= 0).all()
