"""Joules by component against the run's own total."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from hisearch.api.deployments.deployment import simulate_deployment
from hisearch.score.components import component_power, step_joules
from hisearch.score.energy import energy_parts, energy_use
from hisearch.specs.documents.catalogue import Catalogue, shipped_root
from hisearch.traces.compiler import compile_trace
from hisearch.traces.trace import make_trace

CATALOGUE = Catalogue()
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


def test_bytes_between_devices_are_joules_of_links(run):
    steps = step_joules(run.result, run.plan.costs.components)
    parts, use = energy_parts(run.result), energy_use(run.result)
    links_j = parts.links_j - run.plan.power.base_parts.links_w * run.result.makespan_s
    assert links_j == pytest.approx(steps["link"].sum(), rel=1e-6)
    assert use.links_j == pytest.approx(steps["link"].sum(), rel=1e-6)
    idle_j = run.plan.costs.idle_w_by_component["accelerator"] * run.result.makespan_s
    saved_j = float(run.result.workers.standby_s.sum()) * run.plan.power.own.saving_w
    assert parts.accelerators_j == pytest.approx(steps["accelerator"].sum() + idle_j - saved_j, rel=1e-6)


def with_separate_ffn(tmp_path: Path, **of_ffn: float):
    """Six requests, 30 s apart, with the FFN on a card of its own over a link of 10 nJ a byte."""
    documents = {"Accelerator": CATALOGUE.get("Accelerator", "a6000").spec.model_dump(mode="json") | of_ffn}
    link = {"kind": "nvlink", "bandwidth_bytes_per_s": 50e9, "latency_s": 5e-6, "energy_j_per_byte": 1e-8}
    split = {"attention": 1, "ffn": 1, "ffn_accelerator": "./accelerator.yaml", "link": link}
    pool = {"accelerator": "a6000", "engine": {"name": "vllm"}, "devices": {"attention_ffn": split}}
    documents["Deployment"] = {"model": "llama-3.1-8b", "profile": "roofline", "pools": [pool]}
    for kind, spec in documents.items():
        document = {"apiVersion": "hisearch/v1", "kind": kind, "metadata": {"name": kind.lower()}, "spec": spec}
        (tmp_path / f"{kind.lower()}.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    count = np.arange(6)
    requests = make_trace(arrival_s=30.0 * count, input_tokens=200 + 0 * count, output_tokens=20 + 0 * count)
    return simulate_deployment(tmp_path / "deployment.yaml", compile_trace(requests, "apart"), log=True)


def test_ffn_accelerators_apart_sleep_and_wake(tmp_path):
    """Standby and waking of FFN accelerators count with those of attention, each by its own delay."""
    plain, slow = (
        with_separate_ffn(tmp_path),
        with_separate_ffn(tmp_path, standby_after_s=5.0, wake_s=2.0, wake_j=500.0),
    )
    later_s = slow.result.requests.first_token_s - plain.result.requests.first_token_s
    np.testing.assert_allclose(later_s, [0.0, 2.0, 2.0, 2.0, 2.0, 2.0], atol=1e-6)
    uses = [energy_use(each.result) for each in (plain, slow)]
    assert uses[1].active_j - uses[0].active_j == pytest.approx(5 * 500.0)
    slept_s = plain.result.workers.ffn_standby_s, slow.result.workers.ffn_standby_s
    # Five delays are 5 s shorter. All later steps move by the first wake, which lengthens the first gap alone.
    assert float((slept_s[1] - slept_s[0]).sum()) == pytest.approx(5 * 5.0 + 2.0, abs=1e-3)
    steps = step_joules(slow.result, slow.plan.costs.components)
    assert steps["link"].sum() > 1.0
    assert uses[1].links_j == pytest.approx(steps["link"].sum(), rel=1e-6)


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
