"""Generators: determinism, independence of streams, the distributions asked for, sessions, closed loops."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from pydantic import ValidationError

from hisearch.specs.workloads.workload import ArrivalSpec, GeneratorSpec, LengthSpec, ThinkSpec
from hisearch.traces.compiler import compile_trace
from hisearch.traces.generate import generate_trace
from hisearch.traces.sampling import arrival_times_s, draw_lengths, draw_think_s, stream, unit_gaps, weibull_shape
from hisearch.traces.stats import fano_factor

BASE = {
    "requests": 500,
    "arrivals": {"rate_rps": 2.0},
    "first_input": {"distribution": "lognormal", "mean_log": 6.0, "sigma_log": 1.0, "max_tokens": 4000},
    "output": {"distribution": "lognormal", "mean_log": 5.0, "sigma_log": 0.5, "max_tokens": 800},
    "sessions": {"continue_probability": [0.5, 0.7], "think": {"p50_s": 20.0, "p90_s": 60.0}},
    "shared_prefixes": [{"name": "a", "tokens": 300, "share": 0.5}, {"name": "b", "tokens": 90, "share": 0.2}],
}


def generate(seed=0, **changes):
    return generate_trace(GeneratorSpec(**(BASE | changes)), seed=seed)


def test_same_seed_same_trace_other_seed_other_trace():  # law L6
    first, second = compile_trace(generate(), "t"), compile_trace(generate(), "t")
    assert first.digest == second.digest
    assert compile_trace(generate(seed=1), "t").digest != first.digest
    assert compile_trace(generate(**{"seed": 0}), "t").digest == first.digest
    other_spec_seed = generate_trace(GeneratorSpec(**BASE, seed=5))
    assert compile_trace(other_spec_seed, "t").digest != first.digest


def test_each_subsystem_has_its_own_stream():  # law L6
    plain = generate()
    longer_outputs = generate(output={"distribution": "constant", "scale_tokens": 50})
    np.testing.assert_array_equal(plain.arrival_s, longer_outputs.arrival_s)
    np.testing.assert_array_equal(plain.previous, longer_outputs.previous)
    first = plain.previous < 0
    np.testing.assert_array_equal(plain.input_tokens[first], longer_outputs.input_tokens[first])


def test_requests_bound_is_exact_and_a_longer_trace_contains_the_shorter():
    short, long = generate(requests=300), generate(requests=301)
    assert (len(short), len(long)) == (300, 301)
    assert sorted(short.arrival_s) == sorted(long.arrival_s)[:300]


def test_duration_bound():
    trace = generate(requests=None, duration_s=200.0)
    assert trace.arrival_s.max() < 200.0
    assert (trace.arrival_s >= 0).all()
    first = int((trace.previous < 0).sum())
    assert abs(first - 400) < 5 * 20  # Poisson of mean 400
    with pytest.raises(ValueError, match="made no request"):
        generate(requests=None, duration_s=1e-9)


def test_turns_hold_all_that_was_said():
    trace = generate(requests=2000)
    follow = np.flatnonzero(trace.previous >= 0)
    assert len(follow) > 500
    before = trace.previous[follow]
    said = trace.input_tokens[before] + trace.output_tokens[before]
    np.testing.assert_array_equal(trace.shares_with[follow], before)
    np.testing.assert_array_equal(trace.shared_tokens[follow], said)
    assert (trace.input_tokens[follow] > said).all()
    assert (trace.session[follow] == trace.session[before]).all()
    np.testing.assert_allclose(trace.arrival_s[follow], trace.arrival_s[before] + trace.think_s[follow])
    assert not trace.open_loop


def test_shared_prefixes():
    trace = generate(requests=4000, sessions={})
    lengths, counts = np.unique(trace.shared_tokens, return_counts=True)
    assert lengths.tolist() == [0, 90, 300]
    np.testing.assert_allclose(counts / 4000, [0.3, 0.2, 0.5], atol=0.03)
    assert len(np.unique(trace.shares_with[trace.shared_tokens == 300])) == 1


def test_context_and_prompt_limits_end_sessions():
    limited = generate(requests=3000, max_input_tokens=2000, max_context_tokens=2200, max_output_tokens=500)
    assert limited.input_tokens.max() <= 2000
    assert (limited.input_tokens + limited.output_tokens).max() <= 2200
    assert (limited.previous >= 0).mean() < (generate(requests=3000).previous >= 0).mean()
    assert (limited.max_output_tokens == np.maximum(500, limited.output_tokens)).all()


def test_warm_up_begins_in_the_middle_of_conversations():
    changes = {"requests": None, "duration_s": 100.0}
    cold, warm = generate(**changes), generate(**changes, warm_up_s=600.0)
    assert len(warm) > 1.2 * len(cold)
    assert warm.arrival_s.min() >= 0
    # Some of its conversations' heads came before the trace: their follow-ups hold more than a first turn can.
    heads = warm.previous < 0
    assert warm.input_tokens[heads].max() > 4300
    assert cold.input_tokens[cold.previous < 0].max() <= 4300
    # From the first minute on the rate is that of the whole: 2 sessions of 1 + 0.5 / (1 - 0.7) turns a second.
    expected = 2.0 * (1 + 0.5 / 0.3) * 30
    assert abs((warm.arrival_s < 30).sum() - expected) < 5 * np.sqrt(expected)


def test_closed_loop_keeps_users_in_flight():
    trace = generate(requests=1000, arrivals={"process": "closed_loop", "users": 8})
    assert len(trace) == 1000
    assert (trace.previous < 0).sum() == 8
    assert trace.arrival_s[trace.previous < 0].tolist() == [0.0] * 8
    assert np.isnan(trace.arrival_s[trace.previous >= 0]).all()
    # Every request but the users' last is followed by exactly one: eight chains.
    followers = np.bincount(trace.previous[trace.previous >= 0], minlength=1000)
    assert followers.max() == 1
    assert (followers == 0).sum() == 8
    # A new conversation starts at once and shares no history.
    switch = (trace.previous >= 0) & (trace.session != trace.session[np.maximum(trace.previous, 0)])
    assert switch.sum() > 100
    assert (trace.think_s[switch] == 0).all()
    assert (trace.shared_tokens[switch] <= 300).all()
    chain = np.zeros(1000, dtype=int)
    for i in range(1000):
        chain[i] = chain[trace.previous[i]] + 1 if trace.previous[i] >= 0 else 1
    assert np.ptp([chain[i] for i in range(1000) if followers[i] == 0]) <= 1


@pytest.mark.parametrize("process", ["poisson", "gamma", "weibull"])
@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_gaps_have_the_asked_mean_and_variation(process, cv):
    gaps = unit_gaps(ArrivalSpec(process=process, rate_rps=1.0, cv=cv), 200_000, stream("t", 3))
    assert gaps.mean() == pytest.approx(1.0, abs=0.03 * max(1.0, cv))
    assert gaps.std() / gaps.mean() == pytest.approx(1.0 if process == "poisson" else cv, rel=0.04)


def test_weibull_shape_is_inverse_of_its_variation():
    assert weibull_shape(1.0) == pytest.approx(1.0, abs=1e-9)
    assert weibull_shape(np.sqrt(5.0)) == pytest.approx(0.5, abs=1e-9)  # Gamma(5) / Gamma(3)^2 - 1 = 5
    with pytest.raises(ValueError, match="out of a Weibull distribution's range"):
        weibull_shape(1e9)


def test_diurnal_rate():
    spec = ArrivalSpec(rate_rps=20.0, diurnal_amplitude=0.8, diurnal_period_s=400.0)
    times = arrival_times_s(spec, 40_000, 0.0, stream("t", 1))
    assert (np.diff(times) >= 0).all()
    full_periods = times[times < 1600]
    assert len(full_periods) == pytest.approx(32_000, rel=0.02)
    counts, _ = np.histogram(full_periods % 400, bins=8, range=(0, 400))
    middle = np.arange(25, 400, 50)
    expected = 4000 * (1 + 0.8 * np.sin(2 * np.pi * middle / 400) * np.sinc(1 / 8))
    np.testing.assert_allclose(counts, expected, rtol=0.08)


def test_poisson_counts_have_a_fano_factor_of_one():
    times = arrival_times_s(ArrivalSpec(rate_rps=10.0), 50_000, 0.0, stream("t", 2))
    assert fano_factor(times, 10.0) == pytest.approx(1.0, abs=0.2)
    assert fano_factor(times[:3], 10.0) is None
    assert fano_factor(times[:0], 10.0) is None


def test_length_distributions():
    rng = stream("t", 4)
    lognormal = draw_lengths(LengthSpec(distribution="lognormal", mean_log=6.0, sigma_log=0.8), 100_000, rng)
    assert np.log(lognormal).mean() == pytest.approx(6.0, abs=0.02)
    assert np.log(lognormal).std() == pytest.approx(0.8, abs=0.02)
    pareto = draw_lengths(LengthSpec(distribution="pareto", scale_tokens=100, shape=2.0), 100_000, rng)
    assert pareto.min() == 100
    assert np.median(pareto) == pytest.approx(100 * 2**0.5, rel=0.02)
    constant = draw_lengths(LengthSpec(distribution="constant", scale_tokens=7), 10, rng)
    assert constant.tolist() == [7] * 10
    quantiles = [(0.0, 10.0), (0.5, 20.0), (1.0, 100.0)]
    empirical = draw_lengths(LengthSpec(distribution="empirical", quantiles=quantiles), 100_000, rng)
    assert np.quantile(empirical, [0.25, 0.5, 0.75]) == pytest.approx([15, 20, 60], rel=0.03)
    clipped = draw_lengths(
        LengthSpec(distribution="lognormal", mean_log=6.0, sigma_log=2.0, min_tokens=50, max_tokens=500), 1000, rng
    )
    assert (clipped.min(), clipped.max()) == (50, 500)


def test_think_times():
    think = draw_think_s(ThinkSpec(p50_s=110.0, p90_s=720.0, max_s=5000.0), 200_000, stream("t", 5))
    assert np.percentile(think, [50, 90]) == pytest.approx([110, 720], rel=0.03)
    assert think.max() == 5000.0
    assert (draw_think_s(ThinkSpec(p50_s=9.0, p90_s=9.0), 10, stream("t", 5)) == 9.0).all()
    assert draw_think_s(None, 3, stream("t", 5)).tolist() == [0.0] * 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"duration_s": 10.0}, "exactly one of requests and duration_s"),
        ({"arrivals": {"process": "closed_loop"}}, "closed_loop needs users"),
        ({"arrivals": {"process": "poisson"}}, "poisson needs rate_rps"),
        (
            {"requests": None, "duration_s": 9.0, "arrivals": {"process": "closed_loop", "users": 2}},
            "bound it by requests",
        ),
        ({"warm_up_s": 9.0, "arrivals": {"process": "closed_loop", "users": 2}}, "warm_up_s and diurnal_amplitude"),
        ({"shared_prefixes": [{"name": "a", "tokens": 5, "share": 0.9}] * 2}, "add up to more than 1"),
        ({"max_context_tokens": 301}, "leaves no room in max_context_tokens"),
        ({"max_input_tokens": 300}, "leaves no room in max_input_tokens"),
        ({"output": {"distribution": "pareto", "scale_tokens": 5}}, "pareto needs shape"),
        ({"output": {"distribution": "empirical", "quantiles": [[0, 9], [1, 3]]}}, "tokens must not fall"),
    ],
)
def test_impossible_generators_are_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        GeneratorSpec(**(BASE | changes))


def test_single_turn_sessions_and_one_request():
    trace = generate(requests=1, sessions={})
    assert len(trace) == 1
    assert dataclasses.replace(trace, warnings=("x",)).warnings == ("x",)
    assert (generate(sessions={}).previous < 0).all()
    endless = generate(requests=200, sessions={"continue_probability": [1.0], "max_turns": 4})
    assert np.bincount(endless.session).max() == 4
