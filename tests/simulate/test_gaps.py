"""Token times and gaps from the log: by hand, against a walk through the log, against the requests' own times."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given

from hisearch.simulate import Result
from hisearch.simulate.engine import EngineOutOfMemory
from hisearch.simulate.results.gaps import LogMissing, exact_gaps, itl_percentiles, token_times
from tests.kernels.systems import ENGINES, System, crowded, examples, systems, vllm_engines
from tests.reference.cluster import Cluster
from tests.reference.random_traces import TraceShape, random_trace
from tests.reference.recorded import recorded_law
from tests.reference.restatement.recording import Request
from tests.reference.restatement.sglang import SglangWorker
from tests.reference.restatement.sglang_state import SglangConfig
from tests.reference.router import RouterConfig
from tests.simulate.logged import LoggedStep, assert_first_visible, logged_result, slow_token_times
from tests.simulate.test_engine import system


def logged(tried: System) -> Result:
    try:
        return tried.simulate(log=True)
    except EngineOutOfMemory:
        assume(False)
        raise


def assert_accounts_for_all_tokens(result: Result) -> None:
    table = result.requests
    first, times = token_times(result)
    ended = table.finished
    np.testing.assert_array_equal(np.diff(first), table.output_tokens)
    np.testing.assert_array_equal(times[first[:-1]][ended], table.first_token_s[ended])
    np.testing.assert_array_equal(times[first[1:] - 1][ended], table.finish_s[ended])
    expected = slow_token_times(result)
    for k in np.flatnonzero(ended).tolist():
        assert times[first[k] : first[k + 1]].tolist() == expected[k], f"request {k}"
    gaps = [np.diff(expected[k]) for k in np.flatnonzero(ended).tolist()]
    np.testing.assert_array_equal(exact_gaps(result), np.concatenate([np.empty(0), *gaps]))
    assert_first_visible(result, dict(enumerate(expected)))


@examples(200)
@given(tried=systems(vllm_engines(), repeats=True))
def test_vllm_s_tokens_are_all_there(tried: System) -> None:
    assert_accounts_for_all_tokens(logged(tried))


@pytest.mark.parametrize(("count", "least"), [(25, 25), pytest.param(100, 100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ENGINES)
def test_tokens_are_all_there_where_kv_is_lost(name: str, count: int, least: int) -> None:
    lost = 0

    @examples(count, always=True)
    @given(tried=crowded(name))
    def check(tried: System) -> None:
        nonlocal lost
        result = logged(tried)
        lost += int(result.workers.preemptions.sum())
        assert_accounts_for_all_tokens(result)

    check()
    assert lost > least


class _Counting(SglangWorker):
    """Notes how many tokens it throws away."""

    def __init__(self, config: SglangConfig) -> None:
        super().__init__(config, recorded_law)
        self.thrown_away = 0

    def process(self) -> list[Request]:
        done = self.outstanding[0]
        self.thrown_away += sum(live.retracted for live in done.requests)
        return super().process()


def run_reference(seed: int, config: SglangConfig) -> tuple[Result, _Counting]:
    shape = TraceShape(requests=40, rate_rps=200.0, prompt_tokens=20, output_tokens=60, repeat=0.0)
    arrays = random_trace(seed, shape)
    worker = _Counting(config)
    outcome = Cluster(arrays, lambda: worker, 1, RouterConfig()).run()
    steps = [
        LoggedStep(
            step.scheduled_s,
            step.start_s,
            step.end_s,
            [(int(str(entry.id)), entry.computed, entry.new) for entry in step.batch],
            step.preempted,
            step.kind,
        )
        for step in outcome.workers[0].steps
    ]
    rows = [outcome.requests[k] for k in range(len(arrays.arrival_s))]
    columns = {
        name: np.array([np.nan if getattr(row, name) is None else getattr(row, name) for row in rows])
        for name in ("arrival_s", "scheduled_s", "first_token_s", "finish_s")
    }
    numbers = {
        name: np.array([getattr(row, name) for row in rows], np.int32) for name in ("outcome", "worker", "preemptions")
    }
    result = logged_result(steps, arrays.input_tokens.tolist(), arrays.output_tokens.tolist(), **columns, **numbers)
    return result, worker


@pytest.mark.parametrize("overlap", [False, True])
def test_sglang_s_reference_under_pressure(overlap: bool) -> None:
    """With overlap it throws tokens away: they are made again, and count once."""
    config = SglangConfig(
        max_running_requests=16,
        max_total_tokens=240,
        chunked_prefill_size=32,
        schedule_conservativeness=0.02,
        disable_overlap_schedule=not overlap,
    )
    thrown_away = 0
    for seed in range(8):
        result, worker = run_reference(seed, config)
        assert_accounts_for_all_tokens(result)
        first, times = token_times(result)
        for k, expected in worker.token_s.items():
            assert times[first[k] : first[k + 1]].tolist() == expected
        thrown_away += worker.thrown_away
    assert (thrown_away > 10) == overlap


def test_gaps_by_hand() -> None:
    """Request 0 is preempted after two of four tokens and computed again in two chunks; request 1 makes one token."""
    steps = [
        LoggedStep(0.0, 0.0, 1.0, [(0, 0, 3)]),
        LoggedStep(1.0, 1.0, 3.0, [(0, 3, 1), (1, 0, 2)]),
        LoggedStep(3.0, 3.0, 4.0, [(1, 2, 2)], lost=[0]),
        LoggedStep(4.0, 4.0, 5.0, [(0, 0, 4)]),  # ends where a token exists already
        LoggedStep(5.0, 5.0, 6.5, [(0, 4, 1)]),
        LoggedStep(6.5, 6.5, 7.5, [(0, 5, 1)]),
    ]
    result = logged_result(steps, [3, 4], [4, 1])
    first, times = token_times(result)
    assert first.tolist() == [0, 4, 5]
    assert times.tolist() == [1.0, 3.0, 6.5, 7.5, 4.0]
    assert exact_gaps(result).tolist() == [2.0, 3.5, 1.0]
    np.testing.assert_allclose(itl_percentiles(result, [0, 50, 75, 100]), [1.0, 2.0, 2.75, 3.5])


def test_a_decode_beyond_the_end_makes_no_token() -> None:
    steps = [
        LoggedStep(0.0, 0.0, 1.0, [(0, 0, 3)], kind="prefill"),
        LoggedStep(0.0, 1.0, 2.0, [(0, 3, 1)], kind="decode"),
        LoggedStep(1.0, 2.0, 3.0, [(0, 4, 1)], kind="decode"),
    ]
    assert exact_gaps(logged_result(steps, [3], [2])).tolist() == [1.0]


def test_a_token_in_flight_is_thrown_away_by_sglang() -> None:
    """The step from 2 to 3 makes a token of request 0, which is retracted at 2, when the next batch is formed."""
    steps = [
        LoggedStep(0.0, 0.0, 1.0, [(0, 0, 3), (1, 0, 3)], kind="prefill"),
        LoggedStep(0.0, 1.0, 2.0, [(0, 3, 1), (1, 3, 1)], kind="decode"),
        LoggedStep(1.0, 2.0, 3.0, [(0, 4, 1), (1, 4, 1)], kind="decode"),
        LoggedStep(2.0, 3.0, 4.0, [(1, 5, 1)], lost=[0], kind="decode"),
        LoggedStep(3.0, 4.0, 5.0, [(0, 0, 5)], kind="prefill"),
    ]
    assert exact_gaps(logged_result(steps, [3, 3], [3, 4])).tolist() == [1.0, 3.0, 1.0, 1.0, 1.0]


def test_a_token_in_flight_is_kept_by_vllm() -> None:
    """Request 0 is preempted while its second token is made, and finishes with the third one."""
    steps = [
        LoggedStep(0.0, 0.0, 1.0, [(0, 0, 3), (1, 0, 3)]),
        LoggedStep(0.0, 1.0, 2.0, [(0, 3, 1), (1, 3, 1)]),
        LoggedStep(1.0, 2.0, 3.0, [(1, 4, 1)], lost=[0]),
        LoggedStep(2.0, 3.0, 4.0, [(0, 0, 5), (1, 5, 1)]),
    ]
    assert exact_gaps(logged_result(steps, [3, 3], [3, 4])).tolist() == [1.0, 2.0, 1.0, 1.0, 1.0]


def test_percentiles_weigh_each_gap_once() -> None:
    result = system(capacity_tokens=4000).simulate(log=True)
    gaps = exact_gaps(result)
    assert len(gaps) == (result.requests.output_tokens - 1)[result.requests.finished].sum()
    np.testing.assert_array_equal(itl_percentiles(result, [50, 99]), np.percentile(gaps, [50, 99]))
    several = result.requests.finished & (result.requests.output_tokens > 1)
    total = (result.requests.finish_s - result.requests.first_token_s)[several].sum()
    assert gaps.sum() == pytest.approx(total)


def test_requests_cut_off_by_a_horizon_have_no_gaps() -> None:
    tried = system(capacity_tokens=4000)
    horizon_s = float(np.nanmedian(tried.simulate().requests.finish_s))
    result = tried.simulate(log=True, horizon_s=horizon_s)
    assert result.horizon_reached
    assert 0 < result.requests.finished.sum() < len(result.requests.outcome)
    assert len(exact_gaps(result)) == (result.requests.output_tokens - 1)[result.requests.finished].sum()


def test_without_gaps_there_are_no_percentiles() -> None:
    result = logged_result([LoggedStep(0.0, 0.0, 1.0, [(0, 0, 3)])], [3], [1])
    assert np.isnan(itl_percentiles(result, 99)).all()


@pytest.mark.parametrize("percent", [-1.0, 100.1, float("nan")])
def test_a_percentile_out_of_range_is_refused(percent: float) -> None:
    with pytest.raises(ValueError, match="within 0 to 100"):
        itl_percentiles(logged_result([LoggedStep(0.0, 0.0, 1.0, [(0, 0, 3)])], [3], [1]), [percent])


def test_a_result_without_a_log_says_so() -> None:
    with pytest.raises(LogMissing, match="simulate with log=True"):
        itl_percentiles(system().simulate(), [50])


def test_a_log_that_lacks_a_token_is_noticed() -> None:
    steps = [LoggedStep(0.0, 0.0, 1.0, [(0, 0, 3), (1, 0, 4)]), LoggedStep(1.0, 1.0, 2.0, [(1, 4, 1)])]
    with pytest.raises(LogMissing, match="output token 2 of request 1"):
        exact_gaps(logged_result(steps, [3, 4], [1, 3]))
