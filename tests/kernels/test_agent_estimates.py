"""Estimates of agents' next calls from past gaps, against lists of gaps; what predictions turn out to be worth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hisearch.kernels.layout import agents as al
from hisearch.kernels.layout import sim as la
from hisearch.simulate.plans.agent_plan import AgentPlan
from hisearch.specs.deployments.agent_memory import DistanceSourceName
from tests.kernels.agent_systems import FREE, Population, adapters, population

BASE = AgentPlan(policy="distance", kinds=(adapters(60, 0.03),), pool_pages=60 * 10, budget_pages=300, ahead_s=0.5)


def _gaps(sim: la.Sim, agent_of: np.ndarray, finish_s: np.ndarray) -> dict[int, list[float]]:
    """Times between the end of an agent's call and its next call, oldest first."""
    ended: dict[int, float] = {}
    gaps: dict[int, list[float]] = {}
    arrival_s = np.asarray(sim.requests.arrival_s)
    for call in np.argsort(arrival_s, kind="stable").tolist():
        agent = int(agent_of[call])
        if agent in ended:
            gaps.setdefault(agent, []).append(float(arrival_s[call]) - ended[agent])
        ended[agent] = float(finish_s[call])
    return gaps


@pytest.mark.parametrize("source", ["past", "last", "ewma", "survival"])
def test_estimates_are_what_lists_of_past_gaps_give(source: DistanceSourceName) -> None:  # law L5
    trace = population(calls=300, **FREE)
    case = Population(trace, replace(BASE, source=source), capacity_tokens=4000)
    assert trace.agents is not None
    sim = case.run()
    gaps = _gaps(sim, trace.agents.agent, case.simulate().requests.finish_s)
    assert sum(map(len, gaps.values())) > 250
    for agent, own in gaps.items():
        average = own[0]
        for gap_s in own[1:]:
            average += 0.25 * (gap_s - average)
        expected = {"last": own[-1], "ewma": average}.get(source, float(np.mean(own)))
        assert sim.agents.agents[agent].gap_s == pytest.approx(expected, rel=1e-6)
    every = np.array([gap_s for own in gaps.values() for gap_s in own])
    octaves = np.log2(np.maximum(every, al.GAP_LEAST_S) / al.GAP_LEAST_S)
    bins = np.minimum((octaves * al.GAPS_PER_OCTAVE).astype(int), al.GAP_BINS - 1)
    counted = np.bincount(bins, minlength=al.GAP_BINS)
    if source != "survival":
        assert not sim.agents.gap_counts.any()
        return
    assert np.abs(counted - sim.agents.gap_counts).sum() <= 2  # rounding at a bin's edge
    assert sim.agents.gap_sums_s.sum() == pytest.approx(every.sum())


def test_exact_hints_are_found_exact_and_noise_useless() -> None:
    """The same on every run: the worth of predictions is measured with draws of its own."""
    trace = population(agents=40, calls=2000, active_rate=0.15)
    exact, useless = (
        Population(trace, replace(BASE, noise=noise), capacity_tokens=4000).simulate().hints for noise in (0.0, 9.0)
    )
    assert exact is not None
    assert useless is not None
    assert exact.unit == "frames"
    assert exact.compared > 500
    assert exact.ordered == exact.compared
    assert exact.said == pytest.approx(exact.came)
    assert exact.said_near == exact.near_as_said == exact.came_near > 0
    assert 0.4 < useless.ordered / useless.compared < 0.7
    assert useless.near_as_said < 0.8 * useless.said_near


def test_exact_hints_are_exact_where_most_frames_are_empty() -> None:
    """A frame in which nobody calls is no step: neither of the clock nor of a hint."""
    trace = population(agents=4, calls=300, active_rate=0.05)
    hints = Population(trace, BASE, capacity_tokens=4000).simulate().hints
    assert hints is not None
    assert hints.ordered == hints.compared > 50
    assert hints.said == pytest.approx(hints.came)
    assert hints.said_near == hints.near_as_said == hints.came_near > 0


@pytest.mark.parametrize("policy", ["lru", "queued"])
def test_policies_without_predictions_report_none(policy: str) -> None:
    assert Population(population(), replace(BASE, policy=policy), capacity_tokens=4000).simulate().hints is None


def test_loads_ahead_that_are_not_used_are_bounded() -> None:
    """With useless distances each is a transfer more; tested, one at a time is tried."""
    trace = population(agents=120, calls=3000, active_rate=0.15)
    base = replace(BASE, kinds=(adapters(60, 0.005),), pool_pages=60 * 20, budget_pages=60 * 10, noise=6.0)

    def unused(*, tested: bool) -> tuple[int, int]:
        (use,) = Population(trace, replace(base, tested=tested), capacity_tokens=4000).simulate().objects
        return use.loads_ahead - use.used_ahead, use.loads

    tested, always = unused(tested=True), unused(tested=False)
    assert tested[0] < 0.5 * always[0]
    assert tested[1] < 0.95 * always[1]
