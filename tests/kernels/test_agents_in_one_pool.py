"""Objects of agents and KV in one pool that is hardly large enough for both."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hisearch.kernels.layout import sim as la
from hisearch.simulate.plans.agent_plan import AgentPlan
from tests.kernels.agent_systems import Population, adapters, check, population


@pytest.mark.parametrize("policy", ["queued", "duration", "steps", "distance"])
@pytest.mark.parametrize("preempt", [False, True])
def test_a_step_that_lacks_pages_takes_those_of_a_load_under_way(policy: str, preempt: bool) -> None:
    """In one pool that hardly holds two calls and a load; without, the last running call would find no page."""
    trace = population(agents=12, calls=200, active_rate=0.5)
    plan = AgentPlan(policy=policy, kinds=(adapters(60, 0.005),), preempt=preempt)
    case = Population(trace, plan, capacity_tokens=520, max_running=8)
    final = case.run()
    assert set(final.requests["outcome"].tolist()) == {la.FINISHED}
    check(final)
    loader = final.agents.loaders[0]
    assert loader.preempted > 0
    assert 0 < loader.wasted_s <= loader.preempted * 0.005
    roomy = replace(case, capacity_tokens=4000, agents=replace(plan, preempt=False)).run().agents.loaders[0]
    assert roomy.preempted == 0
