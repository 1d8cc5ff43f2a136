"""The distribution of uncertain inputs, and the effect of its draws on step costs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.latency.costs import CompiledCosts, LockstepCosts
from hisearch.latency.step_cost import law_costs
from hisearch.search.confidence.uncertainty import (
    REGIMES,
    PriceRange,
    Uncertainty,
    drawn_ranges,
    factors_of,
    normal_draws,
    stated_errors,
    with_factors,
)
from tests.traces.test_bootstrap import long_trace, table_of

ERRORS = {"prefill": 0.05, "decode": 0.1}


def costs(error: float = 0.25, regime_errors: dict[str, float] | None = None) -> CompiledCosts:
    nothing = law_costs(0.0, 0.0, 0.0)
    tokens = np.arange(1025.0)
    seconds = law_costs(0.02, 4e-4, 1e-9)._replace(token_s=0.02 + np.where(tokens > 0, 4e-4 * tokens**1.1, 0.0))
    return CompiledCosts(seconds, nothing, 70.0, "law", "assumed", error, regime_errors=regime_errors or {})


def test_half_of_the_factors_lie_within_the_stated_error() -> None:
    draws = normal_draws(4096, 0)
    factors = [factors_of(costs(0.25, ERRORS), z, 0.5) for z in draws]
    for regime, error in (("prefill", 0.05), ("decode", 0.1), ("mixed", 0.25), ("host", 0.25)):
        within = np.mean([abs(math.log(by_regime[regime])) <= math.log1p(error) for by_regime in factors])
        assert within == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("correlation", [0.0, 0.3, 1.0])
def test_regimes_err_together_as_far_as_is_said_and_host_work_by_itself(correlation: float) -> None:
    logs = np.array(
        [[math.log(f) for f in factors_of(costs(), z, correlation).values()] for z in normal_draws(4096, 1)]
    )
    correlations = np.corrcoef(logs.T)
    device = [REGIMES.index(name) for name in ("prefill", "decode", "mixed")]
    for a in device:
        assert correlations[a, REGIMES.index("host")] == pytest.approx(0.0, abs=0.03)
        for b in device:
            assert correlations[a, b] == pytest.approx(1.0 if a == b else correlation, abs=0.03)


def test_no_error_and_no_draw_leave_costs_as_they_are() -> None:
    given_costs = costs()
    for scaled in (
        with_factors(given_costs, factors_of(costs(0.0), normal_draws(4, 0)[3], 0.5)),
        with_factors(given_costs, factors_of(given_costs, np.zeros(5), 0.5)),
        with_factors(given_costs, {}),
    ):
        np.testing.assert_array_equal(scaled.seconds.token_s, given_costs.seconds.token_s)
        np.testing.assert_array_equal(scaled.seconds.decode_s, given_costs.seconds.decode_s)


def test_profiles_that_state_errors_by_regime_are_taken_at_their_word() -> None:
    assert stated_errors(costs(0.25, ERRORS)) == {"prefill": 0.05, "decode": 0.1, "mixed": 0.25, "host": 0.25}


@given(st.floats(0.5, 2.0), st.floats(0.5, 2.0))
def test_a_step_of_prompts_takes_as_much_longer_as_its_parts(prefill: float, decode: float) -> None:
    plain, scaled = costs().seconds, with_factors(costs(), {"prefill": prefill, "decode": decode}).seconds
    assert scaled.token_s[1] == pytest.approx(decode * plain.token_s[1])
    for tokens in (2, 64, 512):
        expected = decode * plain.token_s[1] + prefill * (plain.token_s[tokens] - plain.token_s[1])
        assert scaled.token_s[tokens] == pytest.approx(expected)
    np.testing.assert_allclose(scaled.decode_s, decode * plain.decode_s)


@given(st.floats(0.5, 2.0), st.floats(0.5, 2.0), st.floats(0.0, 1.0))
def test_the_parts_of_a_lockstep_step_add_up_to_the_corrected_time(prefill: float, decode: float, share: float) -> None:
    plain = costs()
    token_s = plain.seconds.token_s
    lockstep = LockstepCosts(
        np.concatenate(([0.0], (1 - share) * token_s[1:])), np.concatenate(([0.0], share * token_s[1:]))
    )
    scaled = with_factors(
        CompiledCosts(plain.seconds, plain.joules, 70.0, "law", "assumed", 0.2, lockstep=lockstep),
        {"prefill": prefill, "decode": decode},
    )
    assert scaled.lockstep is not None
    np.testing.assert_allclose(scaled.lockstep.own_s[1:] + scaled.lockstep.shared_s[1:], scaled.seconds.token_s[1:])


def test_mixed_steps_have_a_factor_of_their_own_where_their_table_has() -> None:
    plain = costs()
    seconds = plain.seconds._replace(mixed_decode_s=plain.seconds.decode_s * 1.5)
    with_mixed = CompiledCosts(seconds, plain.joules, 70.0, "law", "assumed", 0.2)
    scaled = with_factors(with_mixed, {"decode": 1.1, "mixed": 1.3}).seconds
    assert scaled.mixed_decode_s is not None
    assert seconds.mixed_decode_s is not None
    np.testing.assert_allclose(scaled.mixed_decode_s, 1.3 * seconds.mixed_decode_s)
    np.testing.assert_allclose(scaled.decode_s, 1.1 * seconds.decode_s)


def test_the_interval_of_drawn_factors_holds_its_share_of_them() -> None:
    plain = costs(0.25, ERRORS)
    uncertainty = Uncertainty(long_trace(20), 3, normal_draws(256, 3))
    factors = [factors_of(plain, normal, uncertainty.correlation) for normal in uncertainty.normal]
    for regime, (low, high) in drawn_ranges(plain, uncertainty, 0.9).items():
        assert sum(low <= drawn[regime] <= high for drawn in factors) / 256 == pytest.approx(0.9, abs=0.01)
    assert set(drawn_ranges(plain, uncertainty, 0.9)) == set(REGIMES)
    assert drawn_ranges(plain, Uncertainty(long_trace(20), 3, normal_draws(0, 3)), 0.9) == {}


@given(st.integers(1, 40), st.integers(0, 5))
def test_the_first_draws_are_the_same_however_many_there_are(count: int, seed: int) -> None:
    np.testing.assert_array_equal(normal_draws(count, seed), normal_draws(64, seed)[:count])


def test_a_draw_is_the_same_whichever_are_made_before_it() -> None:
    table = table_of(long_trace(400))
    prices = (PriceRange("h200", 3.5, 3.0, 5.0),)
    fresh = Uncertainty(table.trace, 7, normal_draws(8, 7), prices, table)
    advanced = Uncertainty(table.trace, 7, normal_draws(8, 7), prices, table)
    for _ in range(3):
        advanced.draw(2)
    assert fresh.draw(5).trace.digest == advanced.draw(5).trace.digest
    assert fresh.draw(5).prices == advanced.draw(5).prices
    assert fresh.draw(5).trace.digest != fresh.draw(6).trace.digest
    assert fresh.digest == advanced.digest
    assert fresh.digest != Uncertainty(table.trace, 8, normal_draws(8, 8), prices, table).digest


def test_the_ways_to_draw_a_trace_are_even_and_do_not_go_with_the_step_times() -> None:
    table = table_of(long_trace(400))
    uncertainty = Uncertainty(table.trace, 0, normal_draws(256, 0), (), table)
    by_session = np.array([uncertainty._scheme(table, k) == "sessions" for k in range(256)])
    assert by_session.sum() == 128
    for column in uncertainty.normal.T:
        assert abs(np.corrcoef(by_session, column > 0)[0, 1]) < 0.2


@given(st.floats(0.0, 1.0), st.floats(1.0, 3.0), st.floats(3.0, 9.0))
def test_prices_stay_within_their_range(share: float, low: float, high: float) -> None:
    assert low - 1e-9 <= PriceRange("x", 3.0, low, high).draw(share) <= high + 1e-9


def test_prices_have_the_triangular_law() -> None:
    from scipy.stats import triang

    low, mode, high = 2.0, 3.0, 7.0
    law = triang((mode - low) / (high - low), loc=low, scale=high - low)
    price = PriceRange("x", mode, low, high)
    for share in (0.01, 0.1, 0.2, 0.5, 0.9, 0.99):
        assert price.draw(share) == pytest.approx(law.ppf(share))
    assert PriceRange("x", 3.0, 3.0, 3.0).draw(0.9) == 3.0
