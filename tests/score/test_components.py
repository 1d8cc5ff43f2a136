"""Joules by component against the run's own total."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hisearch.api.deployments.deployment import simulate_deployment
from hisearch.score.components import component_power, step_joules
from hisearch.score.energy import energy_parts, energy_use
from hisearch.specs.documents.catalogue import shipped_root
from hisearch.traces.compiler import compile_trace
from hisearch.traces.trace import make_trace

PIM = shipped_root() / "studies" / "deployments" / "llama-3.1-8b-a6000-pim.yaml"


@pytest.fixture(scope="module")
def run():
    rng = np.random.default_rng(0)
    trace = compile_trace(
        make_trace(
            arrival_s=np.sort(rng.uniform(0, 3, 40)),
            input_tokens=rng.integers(10, 3000, 40),
            output_tokens=rng.integers(1, 60, 40),
        ),
        "batch",
    )
    return simulate_deployment(Path(PIM), trace, log=True)


def test_steps_add_up_to_the_runs_joules(run):
    parts = step_joules(run.result, run.plan.costs.components)
    assert sum(each.sum() for each in parts.values()) == pytest.approx(run.result.workers.energy_j.sum(), rel=1e-9)


def test_attached_devices_are_a_component_of_the_node(run):
    steps = step_joules(run.result, run.plan.costs.components)
    idle_j = run.plan.costs.idle_w_by_component["pim"] * run.result.makespan_s
    parts = energy_parts(run.result)
    # A fast-forward adds up by the trapezoid rule.
    assert parts.devices_j == pytest.approx(steps["pim"].sum() + idle_j, rel=1e-6)
    assert parts.devices_j > idle_j > 0
    assert parts.total_j == pytest.approx(energy_use(run.result).total_j)


def test_power_over_time_holds_all_joules(run):
    power = component_power(run.result, run.plan.costs, 0.25, constant_w={"host": 100.0})
    idle = run.plan.costs.idle_w * power.edges_s[-1]
    total = sum(power.joules().values())
    assert total == pytest.approx(run.result.workers.energy_j.sum() + idle + 100.0 * power.edges_s[-1], rel=1e-6)
    assert power.watts["accelerator"].max() <= 300.0 + 1e-6
    assert set(power.watts) == {"accelerator", "pim", "link", "host"}


def test_without_a_log_it_says_so(run):
    with pytest.raises(ValueError, match="log=True"):
        component_power(simulate_deployment(Path(PIM), run.trace).result, run.plan.costs, 1.0)
