"""Prices and power."""

from __future__ import annotations

import datetime

import numpy as np
import pytest
from pydantic import ValidationError

from hisearch.hardware.power import FfnPart, plan_power, worker_dynamic_w, worker_idle_w
from hisearch.hardware.price_book import PriceBook
from hisearch.hardware.prices import deployment_cost, mean_cost
from hisearch.latency.costs import CompiledCosts, StepCosts
from hisearch.simulate.plans.draw import WorkerHardware, idle_draw, worker_devices
from hisearch.specs.base import Price, Provenance
from hisearch.specs.checks.checks import cpu_memory_note
from hisearch.specs.deployments.deployment import DeploymentSpec, EngineSpec, PoolSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.devices import DeviceSpec
from hisearch.specs.machines.hardware import AcceleratorSpec, HostSpec, LinkSpec, MediumSpec
from hisearch.specs.machines.parallelism import Parallelism

TODAY = datetime.date(2025, 1, 1)
FACTS = Provenance(source="data sheet", as_of=TODAY)
MODEL = Catalogue().get("Model", "llama-3.1-8b").spec
#: Of steps that take nothing.
NO_COSTS = (0.0, 0.0, np.zeros(2), np.zeros(2), np.zeros((2, 2)), np.zeros((2, 2)))
LINK = LinkSpec(kind="nvlink", bandwidth_bytes_per_s=450e9, latency_s=2e-6)


def accelerator(host: str | None = None) -> AcceleratorSpec:
    return AcceleratorSpec(
        memory_bytes=80e9, memory_bandwidth_bytes_per_s=3e12, peak_flops={"bf16": 1e15}, peer_link=LINK, host_link=LINK,
        host=host, idle_w=70.0, active_w=700.0, price=Price(usd_per_hour=2.5, source="assumed", as_of=TODAY),
        provenance=FACTS,
    )  # fmt: skip


def host(usd_per_hour: float) -> HostSpec:
    return HostSpec(
        accelerators=8, dram="ddr5", dram_bytes=2e12, base_w=800.0,
        price=Price(usd_per_hour=usd_per_hour, source="assumed", as_of=TODAY), provenance=FACTS,
    )  # fmt: skip


DDR5 = MediumSpec(
    kind="dram", read_bytes_per_s=3e11, write_bytes_per_s=3e11, latency_s=1e-7, capacity_bytes=2e12,
    usd_per_gib_hour=0.004, scope="node", provenance=FACTS,
)  # fmt: skip


def deployment(**pool: object) -> DeploymentSpec:
    fields = {"accelerator": "h100", "engine": EngineSpec(name="sglang"), "tensor_parallel": 2, "replicas": 3, **pool}
    return DeploymentSpec(model="m", pools=[PoolSpec.model_validate(fields)])


def test_accelerators_alone():
    cost = deployment_cost(deployment(), {"h100": accelerator()}, {}, {})
    assert cost.accelerators == 6
    assert cost.accelerator_usd_per_hour == pytest.approx(15.0)
    assert cost.total == cost.accelerator_usd_per_hour


@pytest.mark.parametrize(
    ("pool_host", "usual_host", "expected"),
    [("hgx", None, 6.0), (None, "hgx", 6.0), (None, None, 0.0), ("free", "hgx", 0.0)],
)
def test_host_price_is_shared_by_slots(pool_host, usual_host, expected):
    hosts = {"hgx": host(8.0), "free": host(0.0)}
    cost = deployment_cost(deployment(host=pool_host), {"h100": accelerator(usual_host)}, hosts, {})
    assert cost.host_usd_per_hour == pytest.approx(expected)


@pytest.mark.parametrize(
    ("scope", "tensor_parallel", "replicas", "stores"),
    [
        ("worker", 2, 9, 9),
        ("node", 2, 9, 3),  # four workers a host: two full ones and one more
        ("node", 2, 8, 2),
        ("node", 3, 3, 2),  # two workers a host, two slots empty
        ("cluster", 2, 9, 1),
    ],
)
def test_a_tier_costs_for_each_of_its_stores(scope, tensor_parallel, replicas, stores):
    tier = {"medium": "disk", "gib": 3000.0, "scope": scope}
    tiers = [{"medium": "ddr5", "gib": 256.0, "scope": "worker"}, tier]
    bought = deployment(tiers=tiers, tensor_parallel=tensor_parallel, replicas=replicas)
    media = {"ddr5": DDR5, "disk": DDR5.model_copy(update={"usd_per_gib_hour": 0.0001})}
    cost = deployment_cost_on_hosts(bought, media)
    assert [(c.medium, c.scope, c.gib, c.stores) for c in cost.tiers] == [
        ("ddr5", "worker", 256.0, replicas),
        ("disk", scope, 3000.0, stores),
    ]
    assert cost.tiers[0].usd_per_hour == pytest.approx(256 * 0.004 * replicas)
    assert cost.tiers[1].usd_per_hour == pytest.approx(0.3 * stores)
    accelerators = tensor_parallel * replicas
    assert cost.total == pytest.approx(2.5 * accelerators + cost.tiers[0].usd_per_hour + cost.tiers[1].usd_per_hour)


def deployment_cost_on_hosts(bought, media):
    return deployment_cost(bought, {"h100": accelerator("hgx")}, {"hgx": host(0.0)}, media)


def test_a_tier_has_the_scope_of_its_medium_where_it_names_none():
    cost = deployment_cost_on_hosts(deployment(tiers=[{"medium": "ddr5", "gib": 10.0}]), {"ddr5": DDR5})
    assert (cost.tiers[0].scope, cost.tiers[0].stores) == ("node", 1)


def test_without_tiers_no_medium_is_needed():
    assert deployment_cost(deployment(), {"h100": accelerator()}, {}, {}).tiers == ()


def test_unknown_names_are_named_with_what_is_known():
    with pytest.raises(ValueError, match="no accelerator named 'h100'; known: a100"):
        deployment_cost(deployment(), {"a100": accelerator()}, {}, {})
    with pytest.raises(ValueError, match="no host named 'x'; known: none"):
        deployment_cost(deployment(host="x"), {"h100": accelerator()}, {}, {})


def test_a_worker_does_not_span_hosts():
    with pytest.raises(ValueError, match="tensor_parallel 16 exceeds the 8 accelerator slots of host hgx"):
        deployment_cost(deployment(host="hgx", tensor_parallel=16), {"h100": accelerator()}, {"hgx": host(0)}, {})


def test_power_of_a_worker_idle_and_above():
    card = accelerator()
    assert worker_idle_w(card, 4) == 280.0
    assert worker_dynamic_w(card, 4) == 2520.0
    assert worker_idle_w(card, 4, host(0.0)) == 680.0


def device(usd_per_hour: float) -> DeviceSpec:
    return DeviceSpec(
        kind="cxl", memory_bytes=5e11, memory_bandwidth_bytes_per_s=2e10, idle_w=20.0,
        price=Price(usd_per_hour=usd_per_hour, source="assumed", as_of=TODAY), provenance=FACTS,
    )  # fmt: skip


def test_devices_are_bought_for_each_accelerator():
    bought = deployment(devices={"attached": {"far": {"device": "cxl", "count": 2}}})
    cost = deployment_cost(bought, {"h100": accelerator()}, {}, {}, {"cxl": device(0.5)})
    assert cost.device_usd_per_hour == pytest.approx(2 * 3 * 2 * 0.5)
    assert cost.total == pytest.approx(15.0 + 6.0)
    with pytest.raises(ValueError, match="no device named 'cxl'"):
        deployment_cost(bought, {"h100": accelerator()}, {}, {})


@pytest.mark.parametrize(
    ("replicas", "tensor_parallel", "shared_by", "on_hosts", "without"),
    [
        (1, 1, 4, 1, 1),
        (3, 1, 4, 1, 1),
        (5, 1, 4, 2, 2),
        (9, 1, 4, 3, 3),  # two on a full host, one more on the next
        (9, 1, 8, 2, 2),
        (9, 1, 6, 3, 2),  # eight slots are more than six: two there, and one on the next
        (3, 3, 4, 3, 3),  # six accelerators on the first host, three on the next
        (2, 16, 8, 4, 4),  # four whole hosts
        (2, 16, 16, 2, 2),  # shared beyond a host
    ],
)
def test_shared_devices_are_bought_whole(replicas, tensor_parallel, shared_by, on_hosts, without):
    """No deployment pays for a part of a device, and no two hosts share one that fits into a host."""
    block = {"attached": {"far": {"device": "cxl", "count": 2, "shared_by": shared_by}}}
    pool = {"replicas": replicas, "tensor_parallel": tensor_parallel, "devices": block}
    known = {"cxl": device(0.5)}
    wide = host(0.0).model_copy(update={"peer_domain": 16})
    alone = deployment_cost(deployment(**pool), {"h100": accelerator()}, {}, {}, known)
    placed = deployment_cost(deployment(**pool), {"h100": accelerator("hgx")}, {"hgx": wide}, {}, known)
    assert alone.device_usd_per_hour == 2 * 0.5 * without
    assert placed.device_usd_per_hour == 2 * 0.5 * on_hosts


@pytest.mark.parametrize(("replicas", "cpus"), [(1, 1), (3, 1), (4, 1), (5, 2), (9, 3)])
def test_whole_devices_draw_idle_power(replicas, cpus):
    """All workers together draw what the devices that are paid for draw, attention groups or none."""
    groups = 2 if replicas == 1 else 1
    (pool,) = deployment(
        host="hgx", replicas=replicas, tensor_parallel=1, attention_data_parallel=groups,
        devices={"attached": {"cpu": {"device": "cpu", "shared_by": 4}}},
    ).pools  # fmt: skip
    card, cpu = accelerator("hgx"), device(1.0).model_copy(update={"kind": "cpu"})
    attached = worker_devices(pool, {"cpu": cpu}, None, None)
    stated = CompiledCosts(StepCosts(*NO_COSTS), StepCosts(*NO_COSTS), 0.0, "x", "assumed", 0.0)
    costs, _ = idle_draw(stated, pool, MODEL, WorkerHardware(card, host(0.0)), attached)
    assert replicas * groups * costs.idle_w_by_component["cpu"] == pytest.approx(cpus * 20.0)
    assert replicas * groups * costs.idle_w == pytest.approx(cpus * 20.0 + replicas * groups * 70.0)
    bought = DeploymentSpec(model="m", pools=[pool])
    assert deployment_cost(bought, {"h100": card}, {"hgx": host(0.0)}, {}, {"cpu": cpu}).device_usd_per_hour == cpus


def test_ffn_accelerators_of_a_group_begun_draw_power_whole():
    """Five attention workers, four to a group, have two groups of two FFN accelerators, with their part of a host."""
    (pool,) = deployment(replicas=5, tensor_parallel=1, devices={"attention_ffn": {"attention": 4, "ffn": 2}}).pools
    card = accelerator("hgx").model_copy(update={"standby_w": 30.0, "wake_j": 10.0})
    hardware = WorkerHardware(card, host(0.0), None, host(0.0))
    stated = CompiledCosts(StepCosts(*NO_COSTS), StepCosts(*NO_COSTS), 0.0, "x", "assumed", 0.0)
    costs, power = idle_draw(stated, pool, MODEL, hardware, worker_devices(pool, {}, None, None))
    assert 5 * costs.idle_w_by_component["ffn"] == pytest.approx(4 * 70.0)
    assert 5 * power.host_w == pytest.approx((5 + 4) * 800.0 / 8)
    assert power.ffn is not None
    assert (5 * power.ffn.saving_w, 5 * power.ffn.wake_j) == pytest.approx((4 * 40.0, 4 * 10.0))


def test_ffn_accelerators_are_bought_for_each_group_begun():
    split = {"attention_ffn": {"attention": 2, "ffn": 5}}
    cost = deployment_cost(deployment(replicas=3, devices=split), {"h100": accelerator()}, {}, {})
    assert cost.accelerators == 3 * 2 + 2 * 5
    assert cost.total == pytest.approx(16 * 2.5)


def test_mean_cost_is_of_the_workers_that_are_there():
    """Three replicas with devices and a tier, six for half of the time, and three that stay."""
    devices = {"attached": {"far": {"device": "cxl", "count": 2}}}
    grows = deployment(name="grows", devices=devices, tiers=[{"medium": "ddr5", "gib": 10.0}])
    stays = deployment(name="stays")
    bought = DeploymentSpec(model="m", pools=[*grows.pools, *stays.pools])
    known = {"h100": accelerator("hgx")}, {"hgx": host(0.0)}, {"ddr5": DDR5}, {"cxl": device(0.5)}
    parts = [deployment_cost(each, *known) for each in (grows, stays)]
    prices = PriceBook(*known).pool_prices(bought)
    steady = ((3, 1.0),)
    at_first, grown = (mean_cost(prices, bought, [each, steady]) for each in (steady, ((3, 0.5), (6, 0.5))))
    full_cost = deployment_cost(bought, *known)
    assert at_first == full_cost
    assert at_first.total == pytest.approx(sum(part.total for part in parts))
    assert grown.total == pytest.approx(1.5 * parts[0].total + parts[1].total)
    assert grown.device_usd_per_hour == pytest.approx(1.5 * 2 * 3 * 2 * 0.5)
    assert grown.accelerators == pytest.approx(9.0 + 6.0)
    assert isinstance(at_first.accelerators, int)


@pytest.mark.parametrize("on_host", [True, False])
def test_shared_devices_are_paid_by_the_replicas_that_share_them(on_host):
    """Conservation: four to a device, replicas 1, 4, 5 and 9 for a quarter of the time each have 1, 1, 2 and 3."""
    devices = {"attached": {"far": {"device": "cxl", "count": 2, "shared_by": 4}}}
    bought = deployment(tensor_parallel=1, replicas=1, devices=devices)
    card = accelerator("hgx" if on_host else None)
    (price,) = PriceBook({"h100": card}, {"hgx": host(8.0)}, {}, {"cxl": device(0.5)}).pool_prices(bought)
    cost = mean_cost([price], bought, [[(workers, 0.25) for workers in (1, 4, 5, 9)]])
    assert cost.device_usd_per_hour == pytest.approx(2 * 0.5 * (1 + 1 + 2 + 3) / 4)
    assert cost.accelerators == pytest.approx(19 / 4)
    assert cost.host_usd_per_hour == pytest.approx(19 / 4 if on_host else 0.0)
    for workers in (1, 4, 5, 9):
        alone = mean_cost([price], bought, [((workers, 1.0),)])
        assert alone == deployment_cost(
            deployment(tensor_parallel=1, replicas=workers, devices=devices),
            {"h100": card}, {"hgx": host(8.0)}, {}, {"cxl": device(0.5)},
        )  # fmt: skip


def test_ffn_accelerators_are_paid_by_the_replicas_that_share_them():
    """Two attention workers to five: replicas 2 and 3 have 5 and 10. Replicas that are away are paid for."""
    bought = deployment(replicas=2, devices={"attention_ffn": {"attention": 2, "ffn": 5}})
    (price,) = PriceBook({"h100": accelerator()}, {}, {}).pool_prices(bought)
    assert mean_cost([price], bought, [((2, 0.5), (3, 0.5))]).accelerators == pytest.approx(5 + 7.5)
    left = bought.model_copy(update={"pools": [bought.pool.model_copy(update={"replicas": 1})]})
    assert mean_cost([price], left, [((1, 1.0),)]) == price.initial


def test_a_tier_of_the_cluster_is_paid_once_however_many_share_it():
    pool = {"tensor_parallel": 8, "replicas": 1, "host": "hgx"}
    for scope, stores in (("cluster", 1.0), ("node", 2.0)):
        tiers = [{"medium": "ddr5", "gib": 1.0, "scope": "worker"}, {"medium": "ddr5", "gib": 10.0, "scope": scope}]
        bought = deployment(tiers=tiers, **pool)
        (price,) = PriceBook({"h100": accelerator()}, {"hgx": host(0.0)}, {"ddr5": DDR5}).pool_prices(bought)
        cost = mean_cost([price], bought, [((1, 0.5), (3, 0.5))])
        assert cost.tiers[0].usd_per_hour == pytest.approx(2.0 * 0.004)
        assert cost.tiers[1].usd_per_hour == pytest.approx(stores * 10 * 0.004)


def test_hosts_of_ffn_accelerators_are_paid():
    """Two FFN accelerators in slots of the pool's host, or of the host that usually carries another kind."""
    split = {"attention_ffn": {"attention": 1, "ffn": 2}}
    known = {"h100": accelerator("hgx"), "other": accelerator("far")}, {"hgx": host(8.0), "far": host(80.0)}
    assert deployment_cost(deployment(replicas=3, devices=split), *known, {}).host_usd_per_hour == pytest.approx(12.0)
    split["attention_ffn"]["ffn_accelerator"] = "other"
    cost = deployment_cost(deployment(replicas=3, devices=split), *known, {})
    assert cost.host_usd_per_hour == pytest.approx(6.0 + 60.0)


def test_more_cpus_than_sockets_are_refused():
    """Eight accelerators with a CPU each in a host of two sockets; four may share one."""
    cpu = device(0.0).model_copy(update={"kind": "cpu"})
    sockets = {"hgx": host(0.0).model_copy(update={"cpu_sockets": 2})}
    for shared_by, accelerators in ((1, 2), (4, 8)):
        block = {"attached": {"cpu": {"device": "cpu", "shared_by": shared_by}}}
        fits = deployment(host="hgx", replicas=accelerators, tensor_parallel=1, devices=block)
        assert deployment_cost(fits, {"h100": accelerator()}, sockets, {}, {"cpu": cpu}).total > 0
    crowded = deployment(host="hgx", replicas=8, tensor_parallel=1, devices={"attached": {"cpu": {"device": "cpu"}}})
    scaler = {"target": 8.0, "max_replicas": 8}
    grows = deployment(
        host="hgx", replicas=1, tensor_parallel=1, devices={"attached": {"cpu": {"device": "cpu"}}}, autoscale=scaler
    )
    for each in (crowded, grows):
        with pytest.raises(ValueError, match="8 accelerators in hgx need 8 CPUs, but it has 2 sockets"):
            deployment_cost(each, {"h100": accelerator()}, sockets, {}, {"cpu": cpu})


def test_ffn_accelerators_draw_power_with_their_hosts():
    """L1: as many accelerators apart as together have as much of a host, and of standby."""
    card, server = (
        accelerator("hgx").model_copy(update={"standby_w": 30.0}),
        host(0.0).model_copy(update={"cpu_active_w": 160.0}),
    )
    model = Catalogue().get("Model", "llama-3.1-8b").spec
    separate_ffn = plan_power(Parallelism(tensor=2), model, card, server, FfnPart(2.0, 4, card, server))
    together = plan_power(Parallelism(tensor=4), model, card, server)
    alone = plan_power(Parallelism(tensor=2), model, card, server)
    assert separate_ffn.host_w == together.host_w == 2 * alone.host_w > 0
    assert separate_ffn.cpu_w == together.cpu_w == 2 * alone.cpu_w > 0
    assert separate_ffn.base_parts == together.base_parts
    saved = [plan.own.saving_w + (plan.ffn.saving_w if plan.ffn else 0.0) for plan in (separate_ffn, together)]
    assert saved[0] == saved[1] > 0


def test_memory_of_attached_cpus_is_the_host_s():
    """Each of eight accelerators has 256 GiB of a host with 1 TiB; four of them have all of it."""
    cpu = device(0.0).model_copy(update={"kind": "cpu", "memory_bytes": 256 * 1024.0**3})
    machine = host(0.0).model_copy(update={"dram_bytes": 1024.0**4})
    block = {"attached": {"cpu": {"device": "cpu"}}}

    def note(replicas: int, kind: str = "cpu") -> str:
        (pool,) = deployment(host="hgx", replicas=replicas, tensor_parallel=1, devices=block).pools
        attached = {"cpu": cpu.model_copy(update={"kind": kind})}
        return cpu_memory_note(pool, pool.devices, attached, "hgx", machine)

    assert note(4) == ""
    assert note(5) == ("CPUs attached to 5 accelerators in hgx have 1280 GiB of its main memory, which is 1024 GiB")
    assert "2048 GiB" in note(16)
    assert note(8, "cxl") == ""


def test_standby_s_times_need_a_standby():
    card = Catalogue().get("Accelerator", "h100-sxm").spec.model_dump(exclude_defaults=True)
    for name in ("standby_after_s", "wake_s", "wake_j"):
        with pytest.raises(ValidationError, match="goes with standby_w"):
            AcceleratorSpec.model_validate(card | {name: 5.0})
        AcceleratorSpec.model_validate(card | {name: 5.0, "standby_w": 30.0})
