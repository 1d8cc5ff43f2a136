"""Energy by consumer, and standby, compared with explicit sums."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest

from hisearch.hardware.power import BaseParts, FfnPart, PowerPlan, Standby, plan_power
from hisearch.latency.sharding import Parallelism
from hisearch.score.energy import energy_parts, energy_usd_per_hour, energy_use, mean_w
from hisearch.score.watts import watts_series
from hisearch.simulate import Result, WorkerPlan, plan_worker, simulate
from hisearch.simulate.results.uses import LinkUse, StoreUse, TierEnergy
from hisearch.specs.deployments.deployment import EngineSpec, PoolSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.traces.compiled import CompiledTrace
from tests.kernels.systems import compiled, compiled_costs, plan
from tests.reference.random_traces import TraceShape, random_trace

CATALOGUE = Catalogue()
MODEL = CATALOGUE.get("Model", "qwen3-32b").spec
H100 = CATALOGUE.get("Accelerator", "h100-sxm").spec
HOST = CATALOGUE.get("Host", "hgx-h100-8").spec

PARTS = BaseParts(cpu_w=10.0, dram_w=5.0, links_w=4.0, nics_w=3.0, storage_w=2.0)
GAPS_S = (0.0, 5.0, 30.0, 31.0, 200.0)


def disaggregated(
    overlap: bool, engine: str = "vllm", power: PowerPlan | None = None
) -> tuple[WorkerPlan, CompiledTrace]:
    """A worker, and requests with gaps so long that each is alone."""
    spec = EngineSpec.model_validate({"name": engine, "max_running_requests": 4, "page_tokens": 1, "overlap": overlap})
    shape = TraceShape(len(GAPS_S), prompt_tokens=20, output_tokens=12, follow_up=0.0, repeat=0.0)
    arrays = random_trace(2, shape)._replace(arrival_s=np.cumsum(GAPS_S))
    costs = replace(compiled_costs(), idle_w=100.0)
    return replace(plan(spec, 100_000, costs=costs), power=power or PowerPlan()), compiled(arrays)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_standby_is_what_idle_gaps_exceed_the_delay_by(engine: str, overlap: bool) -> None:
    delay = 10.0
    worker, trace = disaggregated(overlap, engine, PowerPlan(standby_saving_w=60.0, standby_after_s=delay))
    result = simulate(worker, trace)
    requests = result.requests
    gaps = requests.arrival_s[1:] - requests.finish_s[:-1]
    # With overlap an engine has launched one more step, of a few ms, when it sees that a request has ended.
    beyond_s = 0.01 * len(gaps) if overlap else 1e-9
    asleep_s = float(result.workers.standby_s.sum())
    assert asleep_s == pytest.approx(np.maximum(gaps - delay, 0.0).sum(), abs=beyond_s)
    idle_j = 100.0 * result.makespan_s - 60.0 * float(result.workers.standby_s.sum())
    assert energy_use(result).idle_j == pytest.approx(idle_j)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_step_out_of_standby_begins_later_and_costs_more(engine: str) -> None:
    """Of gaps of 0, 5, 30, 31 and 200 s, three exceed 10 s."""
    asleep = PowerPlan(standby_saving_w=60.0, standby_after_s=10.0)
    worker, trace = disaggregated(False, engine, asleep)
    at_once = simulate(worker, trace)
    slow = simulate(replace(worker, power=replace(asleep, wake_s=0.5, wake_j=40.0)), trace)
    later_s = slow.requests.first_token_s - at_once.requests.first_token_s
    np.testing.assert_allclose(later_s, [0.0, 0.0, 0.5, 0.5, 0.5], atol=1e-9)
    more_j = float((slow.workers.energy_j - at_once.workers.energy_j).sum())
    assert more_j == pytest.approx(3 * 40.0)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_ffn_accelerators_apart_sleep_and_wake_by_their_own_figures(engine: str) -> None:
    """Of gaps of 0, 5, 30, 31 and 200 s, three exceed 10 s and one the FFN's 100 s, where the longer wake counts."""
    own = PowerPlan(standby_saving_w=60.0, standby_after_s=10.0, wake_s=0.5, wake_j=40.0)
    worker, trace = disaggregated(False, engine, own)
    alone = simulate(worker, trace)
    separate = simulate(replace(worker, power=replace(own, ffn=Standby(30.0, 100.0, 2.0, 500.0))), trace)
    later_s = separate.requests.first_token_s - alone.requests.first_token_s
    np.testing.assert_allclose(later_s, [0.0, 0.0, 0.0, 0.0, 1.5], atol=1e-9)
    assert float((separate.workers.energy_j - alone.workers.energy_j).sum()) == pytest.approx(500.0)
    assert separate.workers.ffn_standby_s is not None
    gaps = separate.requests.arrival_s[1:] - separate.requests.finish_s[:-1]
    asleep_s = [np.maximum(gaps - after_s, 0.0).sum() for after_s in (10.0, 100.0)]
    waking_s = [0.5 * 2 + 2.0, 2.0]  # until the step begins
    slept_s = float(separate.workers.standby_s.sum()), float(separate.workers.ffn_standby_s.sum())
    assert slept_s == pytest.approx(np.add(asleep_s, waking_s))
    saved_j = 60.0 * slept_s[0] + 30.0 * slept_s[1]
    assert energy_use(separate).idle_j == pytest.approx(100.0 * separate.makespan_s - saved_j)


def test_a_plan_has_the_standby_of_each_kind_of_accelerator() -> None:
    """Repro: attention on a card without standby, an FFN accelerator of two with one; and cards that save nothing."""
    ffn = H100.model_copy(update={"standby_w": 20.0, "idle_w": 70.0, "standby_after_s": 5.0, "wake_s": 2.0})
    ffn = ffn.model_copy(update={"wake_j": 500.0})
    power_plan = plan_power(Parallelism(1), MODEL, H100, None, FfnPart(0.5, 2, ffn, None))
    assert power_plan.ffn == Standby(25.0, 5.0, 2.0, 250.0)
    assert power_plan.own == Standby()
    level = ffn.model_copy(update={"standby_w": 70.0})
    assert plan_power(Parallelism(2), MODEL, level, None).own == Standby(0.0, 5.0, 2.0, 1000.0)


def test_a_worker_that_gets_nothing_sleeps_from_the_first_arrival_on() -> None:
    worker, trace = disaggregated(True, power=PowerPlan(standby_saving_w=1.0, standby_after_s=10.0))
    compiled_trace = compiled(trace.arrays)
    result = simulate(worker, compiled_trace, replicas=8)
    idle = result.workers.requests == 0
    assert idle.any()
    np.testing.assert_allclose(result.workers.standby_s[idle], result.makespan_s - 10.0)


def measured(power: PowerPlan) -> Result:
    worker, trace = disaggregated(True, power=power)
    return simulate(worker, trace, replicas=2)


def test_energy_is_the_sum_of_what_draws_it() -> None:
    power = PowerPlan(accelerators=1, host_w=50.0, cpu_w=30.0, peer_j_per_token=2.0, usd_per_kwh=0.5, pue=1.2)
    result = measured(power)
    use = energy_use(result)
    span_s = result.makespan_s
    tokens = float((result.workers.prefill_tokens + result.workers.decode_tokens).sum())
    assert use.idle_j == pytest.approx(2 * 100.0 * span_s)
    assert use.active_j == pytest.approx(float(result.workers.energy_j.sum()))
    assert use.host_j == pytest.approx(2 * 50.0 * span_s)
    assert use.cpu_j == pytest.approx(30.0 * float(result.workers.busy_s.sum()))
    assert use.links_j == pytest.approx(2.0 * tokens)
    assert use.tiers_j == 0.0
    assert mean_w(result) == pytest.approx(use.total_j / span_s)
    assert energy_usd_per_hour(result) == pytest.approx(mean_w(result) / 1000.0 * 1.2 * 0.5)


def test_a_host_without_a_price_of_electricity_costs_none() -> None:
    assert energy_usd_per_hour(measured(PowerPlan(host_w=500.0))) == 0.0


def test_a_plan_takes_its_share_of_the_host() -> None:
    host = HOST.model_copy(update={"base_w": 800.0, "cpu_active_w": 400.0, "usd_per_kwh": 0.1, "pue": 1.3})
    card = H100.model_copy(update={"standby_w": 20.0, "standby_after_s": 30.0, "idle_w": 70.0})
    power_plan = plan_power(Parallelism(2, pipeline=2), MODEL, card, host)
    assert (power_plan.accelerators, power_plan.host_w, power_plan.cpu_w) == (4, 400.0, 200.0)
    assert (power_plan.standby_saving_w, power_plan.standby_after_s) == (50.0, 30.0)
    assert (power_plan.usd_per_kwh, power_plan.pue) == (0.1, 1.3)
    assert plan_power(Parallelism(2), MODEL, H100, None).host_w == 0.0


def test_peer_links_carry_the_collectives_of_every_token() -> None:
    """TP 2: an all-reduce sends its payload once from each of two ranks; two a layer and one of the embedding."""
    link = H100.peer_link.model_copy(update={"energy_j_per_byte": 1.0})
    card = H100.model_copy(update={"peer_link": link})
    payload = 2.0 * MODEL.hidden_size
    power_plan = plan_power(Parallelism(2), MODEL, card, None)
    assert power_plan.peer_j_per_token == pytest.approx((2 * MODEL.layers + 1) * payload * 2)
    staged = plan_power(Parallelism(2, pipeline=3), MODEL, card, None)
    assert staged.peer_j_per_token == pytest.approx(power_plan.peer_j_per_token + 2 * payload)


def networked(algorithm: str) -> Result:
    """A run of eight ranks on a switch, whose hops take a nanojoule a byte; the peer link's joules do not count."""
    dimension = {"topology": "switch", "ranks": 8, "bandwidth_bytes_per_s": 4e11, "latency_s": 1e-6}
    block = {"network": {"dimensions": [{**dimension, "algorithm": algorithm, "energy_j_per_byte": 1e-9}]}}
    engine = {"name": "vllm", "max_running_requests": 4, "chunk_tokens": 256}
    pool = PoolSpec.model_validate({"accelerator": "card", "engine": engine, "tensor_parallel": 8, "devices": block})
    link = H100.peer_link.model_copy(update={"energy_j_per_byte": 1.0})
    worker = plan_worker(
        pool, model=MODEL, accelerator=H100.model_copy(update={"peer_link": link}), host=HOST, media={},
        profile=CATALOGUE.get("LatencyProfile", "roofline").spec, profile_name="roofline",
    )  # fmt: skip
    return simulate(worker, disaggregated(True)[1])


def test_a_run_on_a_network_pays_for_what_it_moves() -> None:
    """Every token's all-reduces and every sample's logits, over two hops; a switch that adds up moves about half."""
    of_all, payload = 8 * 1e-9 * (2 * MODEL.layers + 1), 2.0 * MODEL.hidden_size
    for algorithm, moved in (("ring", 2 * 2 * 7 / 8), ("in_network", 2 * 9 / 8)):
        result = networked(algorithm)
        tokens = float((result.workers.prefill_tokens + result.workers.decode_tokens).sum())
        gathered = (1.0 if algorithm == "in_network" else 2 * 7 / 8) * 8 * 1e-9 * 2.0 * MODEL.vocab_size
        samples = float(result.requests.output_tokens.sum())
        use, parts = energy_use(result), energy_parts(result)
        assert use.links_j == pytest.approx(of_all * payload * moved * tokens + gathered * samples, rel=0.02)
        assert parts.total_j == pytest.approx(use.total_j)


def test_watts_over_time_add_up_to_the_energy() -> None:
    power = PowerPlan(host_w=50.0, cpu_w=30.0, standby_saving_w=60.0, standby_after_s=10.0, base_parts=PARTS)
    worker, trace = disaggregated(False, power=power)
    result = simulate(worker, trace, log=True)
    series = watts_series(result, worker.costs.joules, 0.5)
    widths = np.diff(np.append(series["time_s"], result.requests.arrival_s.min() + result.makespan_s))
    use = energy_use(result)
    assert float((series["accelerators_w"] * widths).sum()) == pytest.approx(use.idle_j + use.active_j, rel=1e-6)
    assert float((series["host_w"] * widths).sum()) == pytest.approx(use.host_j + use.cpu_j, rel=1e-6)
    parts = series[["cpu_w", "dram_w", "links_w", "nics_w", "storage_w", "rest_w"]]
    np.testing.assert_allclose(parts.sum(axis=1), series["host_w"])
    assert series["accelerators_w"].min() == pytest.approx(40.0)


def test_components_are_the_same_joules_sorted_otherwise() -> None:
    power = PowerPlan(host_w=50.0, cpu_w=30.0, peer_j_per_token=2.0, base_parts=PARTS)
    worker, trace = disaggregated(True, power=power)
    result = simulate(worker, trace, replicas=2)
    use, parts, span_s = energy_use(result), energy_parts(result), result.makespan_s
    assert parts.total_j == pytest.approx(use.total_j)
    assert parts.accelerators_j == use.idle_j + use.active_j
    assert parts.devices_j == 0.0
    assert parts.cpu_j == pytest.approx(2 * 10.0 * span_s + use.cpu_j)
    assert parts.dram_j == pytest.approx(2 * 5.0 * span_s)
    assert parts.links_j == pytest.approx(2 * 4.0 * span_s + use.links_j)
    assert parts.nics_j == pytest.approx(2 * 3.0 * span_s)
    assert parts.storage_j == pytest.approx(2 * 2.0 * span_s)
    assert parts.rest_j == pytest.approx(2 * 26.0 * span_s)


def test_bytes_count_where_they_are_kept_and_where_they_pass() -> None:
    """The medium tells memory from disks; the path tells host links from networks."""
    worker, trace = disaggregated(True, power=PowerPlan(host_link_j_per_byte=0.5, network_j_per_byte=0.25))
    stores = tuple(
        StoreUse(tier, 0, 1, 100, 0, stored_tokens=tokens, read_tokens=0, evicted_tokens=0, expired_tokens=0)
        for tier, tokens in ((1, 10), (2, 20), (3, 30))
    )
    kinds = (TierEnergy(1.0, 4.0, "dram"), TierEnergy(2.0, 4.0, "nvme"), TierEnergy(3.0, 4.0, "remote"))
    links = (LinkUse(1, "host", 0, True, 0.0, 10, 1), LinkUse(3, "network", 0, True, 0.0, 30, 1))
    plain = simulate(worker, trace)
    result = replace(plain, stores=stores, links=links, pools=(replace(plain.pools[0], tier_energy=kinds),))
    parts = energy_parts(result)
    assert (parts.dram_j, parts.storage_j) == (10 * 1.0, 20 * 2.0 + 30 * 3.0)
    assert (parts.links_j, parts.nics_j) == (10 * 4.0 * 0.5, 30 * 4.0 * 0.25)
    assert parts.total_j == pytest.approx(energy_use(result).total_j)


def test_a_host_of_parts_that_draw_more_than_it_is_refused() -> None:
    data = HOST.model_dump() | {"base_w": 100.0, "base_parts": {"cpu_w": 80.0, "dram_w": 30.0}}
    with pytest.raises(ValueError, match="110 W, more than base_w, 100 W"):
        type(HOST).model_validate(data)


@pytest.mark.parametrize("name", CATALOGUE.names("Host"))
def test_shipped_hosts_keep_what_they_drew_in_all(name: str) -> None:
    host = CATALOGUE.get("Host", name).spec
    share = plan_power(Parallelism(1), MODEL, H100, host)
    stated = sum(asdict(share.base_parts).values())
    assert 0 <= stated <= share.host_w
    assert share.host_w == pytest.approx(host.base_w / host.accelerators)
