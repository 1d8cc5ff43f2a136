"""What adapters draw: read and computed with in steps, moved over the host link, read from host memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hisearch.hardware.power import memory_power_share, worker_dynamic_w
from hisearch.latency.step_cost import step_seconds
from hisearch.score.energy import energy_parts, energy_use
from hisearch.simulate import Result, WorkerPlan, plan_worker, simulate
from hisearch.simulate.plans.agent_memory import adapter_elements
from hisearch.specs.deployments.agent_memory import AdaptersSpec
from hisearch.specs.deployments.deployment import PoolSpec
from hisearch.specs.documents.catalogue import Catalogue
from tests.kernels.agent_systems import population

CATALOGUE = Catalogue()
MODEL = CATALOGUE.get("Model", "qwen2.5-7b").spec
CARD = CATALOGUE.get("Accelerator", "h100-sxm").spec
MEDIUM = CATALOGUE.get("Medium", "ddr5").spec
DISK = CATALOGUE.get("Medium", "nvme-gen4").spec
RANK = AdaptersSpec(rank=64)


def worker(*, ranks: int = 1, dram_gib: float = 0.0, nvme_gib: float = 0.0, **agents: object) -> WorkerPlan:
    fields: dict[str, object] = {"accelerator": "h100-sxm", "engine": {"name": "sglang"}, "tensor_parallel": ranks}
    if agents:
        fields["agents"] = agents
    if dram_gib:
        fields["tiers"] = [{"medium": "ddr5", "gib": dram_gib}]
    if nvme_gib:
        fields["tiers"] = [{"medium": "ddr5", "gib": dram_gib}, {"medium": "nvme-gen4", "gib": nvme_gib}]
    link = CARD.host_link.model_copy(update={"energy_j_per_byte": 2e-11})
    return plan_worker(
        PoolSpec.model_validate(fields),
        model=MODEL,
        accelerator=CARD.model_copy(update={"host_link": link}),
        host=CATALOGUE.get("Host", CARD.host).spec,
        media={"ddr5": MEDIUM, "nvme-gen4": DISK},
        profile=CATALOGUE.get("LatencyProfile", "roofline").spec,
        profile_name="roofline",
    )


def adapter_bytes(ranks: int = 1) -> int:
    return ranks * 2 * adapter_elements(MODEL, RANK, ranks)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_step_draws_each_sequence_s_adapter_once_and_its_arithmetic_for_every_token(ranks: int) -> None:
    plain, adapted = worker(ranks=ranks), worker(ranks=ranks, adapters=RANK, slots=8)
    dynamic_w = worker_dynamic_w(CARD, ranks)
    elements = adapter_elements(MODEL, RANK, ranks)
    # At the assumed shares of bandwidth and arithmetic.
    read_j = 2 * elements / (0.7 * CARD.memory_bandwidth_bytes_per_s) * dynamic_w * memory_power_share(CARD)
    compute_j = 2 * elements / (0.3 * CARD.peak_flops["bf16"]) * dynamic_w
    for chunks, decodes in (([(512, 0), (100, 30)], []), ([], [800, 10, 90]), ([(64, 0)], [200])):
        joules = step_seconds(adapted.costs.joules, chunks, decodes) - step_seconds(plain.costs.joules, chunks, decodes)
        tokens = sum(new for new, _ in chunks) + len(decodes)
        assert joules == pytest.approx(read_j * (len(chunks) + len(decodes)) + compute_j * tokens)


def ran(**settings: object) -> Result:
    trace = population(agents=30, calls=300, active_rate=0.2)
    return simulate(worker(adapters=RANK, slots=6, **settings), trace)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", ["lru", "by_slot", "queued", "distance"])
def test_loads_move_the_bytes_of_what_they_load(policy: str) -> None:
    (use,) = ran(policy=policy).objects
    assert use.loads > 30
    assert use.loaded_bytes == pytest.approx(use.loads * adapter_bytes())


def test_an_interrupted_load_has_moved_less_than_an_adapter() -> None:
    trace = population("interaction", agents=16, calls=300, pacing="free", action={"p50_s": 20.0, "p90_s": 60.0})
    plan = worker(adapters=RANK, slots=5, policy="distance", ahead_s=9.0, ahead_budget=1.0)
    assert plan.agents is not None
    slow = replace(
        plan.agents,
        tested=False,
        noise=2.0,
        kinds=(replace(plan.agents.kinds[0], load_s=0.3),),
        link_latency_s=0.0,
        link_bytes_per_s=adapter_bytes() / 0.3,
    )
    (use,) = simulate(replace(plan, agents=slow), trace).objects
    assert use.preempted > 0
    assert 0 < use.lost_bytes < use.preempted * adapter_bytes()
    assert use.loaded_bytes == pytest.approx(use.loads * adapter_bytes())


def test_what_is_moved_draws_on_the_link_and_on_host_memory() -> None:
    """With tiers, the link's tokens include adapter loads, in whole pages."""
    result = ran(policy="distance")
    (use,) = result.objects
    assert energy_use(result).links_j == pytest.approx((use.loaded_bytes + use.lost_bytes) * 2e-11)
    with_host = ran(policy="distance", dram_gib=80.0)
    (use,) = with_host.objects
    silent = replace(with_host, objects=())
    host_j = energy_parts(with_host).dram_j - energy_parts(silent).dram_j
    assert host_j == pytest.approx((use.loaded_bytes + use.lost_bytes) * MEDIUM.energy_j_per_byte)
    assert energy_use(with_host).links_j - energy_use(silent).links_j == pytest.approx(use.lost_bytes * 2e-11)
    carried = sum(link.tokens for link in with_host.links if not link.write) * with_host.pools[0].tier_energy[0].bytes
    assert carried >= 0.999 * use.loaded_bytes
    parts = energy_parts(with_host)
    assert parts.total_j == pytest.approx(energy_use(with_host).total_j)
    assert np.isfinite(parts.total_j)


@pytest.mark.parametrize("policy", ["lru", "distance"])
def test_what_is_read_from_a_disk_goes_through_it_and_through_host_memory(policy: str) -> None:
    result = ran(policy=policy, dram_gib=80.0, nvme_gib=2000.0, host="tier", host_gib=2.0)
    (use,) = result.objects
    assert use.disk_reads > 30
    assert use.disk_bytes == pytest.approx(use.disk_reads * adapter_bytes())
    assert use.host_bytes == pytest.approx(2 * 2**30, rel=0.01)
    assert use.on_disk_bytes == 30 * adapter_bytes()
    parts, silent = energy_parts(result), energy_parts(replace(result, objects=()))
    read, moved = use.disk_bytes + use.disk_lost_bytes, use.loaded_bytes + use.lost_bytes
    assert parts.dram_j - silent.dram_j == pytest.approx((read + moved) * MEDIUM.energy_j_per_byte)
    assert parts.storage_j - silent.storage_j == pytest.approx(read * DISK.energy_j_per_byte)
