"""What slots share on the way to host memory: conservation, limits, monotony; held against fair shares in a fluid."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.kernels.traffic import links
from hisearch.simulate.arrays.tiers import shared_levels
from hisearch.simulate.engine import allocate, simulate, simulate_fleet
from hisearch.simulate.plans.fleet import FleetPlan, PoolPlan, TransferPlan
from hisearch.simulate.plans.plan import WorkerPlan, plan_worker
from hisearch.specs.deployments.deployment import PoolSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.errors import SpecError
from hisearch.specs.machines.hardware import HostSpec
from hisearch.specs.workloads.workload import GeneratorSpec
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.compiler import compile_trace
from hisearch.traces.generate import generate_trace
from tests.kernels.systems import examples

CATALOGUE = Catalogue()
CARD = CATALOGUE.get("Accelerator", "h100-sxm").spec
HOST = CATALOGUE.get("Host", "hgx-h100-8").spec
MEDIA = {name: CATALOGUE.get("Medium", name).spec for name in CATALOGUE.names("Medium")}
OWN = CARD.host_link.bandwidth_bytes_per_s


def host(*shared: dict[str, Any]) -> HostSpec:
    return HostSpec.model_validate({**HOST.model_dump(), "shared": [{"name": "a switch", **link} for link in shared]})


def plan(
    of: HostSpec, *, ranks: int = 1, engine: str = "vllm", memory_fraction: float = 0.8, copies: bool = True
) -> WorkerPlan:
    tiers = [{"medium": "ddr5", "gib": 64 * ranks}] if copies else []
    settings = {"name": engine, "memory_fraction": memory_fraction}
    return plan_worker(
        PoolSpec.model_validate(
            {"accelerator": "h100-sxm", "engine": settings, "tensor_parallel": ranks, "tiers": tiers}
        ),
        model=CATALOGUE.get("Model", "llama-3.1-8b").spec,
        accelerator=CARD,
        host=of,
        media=MEDIA,
        profile=CATALOGUE.get("LatencyProfile", "roofline").spec,
    )


@functools.cache
def trace() -> CompiledTrace:
    """Conversations that come back after others have taken their place in HBM."""
    spec = {
        "requests": 160, "arrivals": {"process": "poisson", "rate_rps": 4.0},
        "first_input": {"distribution": "constant", "scale_tokens": 6000},
        "output": {"distribution": "constant", "scale_tokens": 40},
        "sessions": {"continue_probability": [0.8], "think": {"p50_s": 15.0, "p90_s": 25.0}},
    }  # fmt: skip
    return compile_trace(generate_trace(GeneratorSpec.model_validate(spec), seed=3), "turns")


@pytest.mark.parametrize(
    ("ranks", "slots", "workers", "taken"),
    [
        (1, 2, 10, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]),  # the ninth worker is on another host
        (2, 4, 5, [0, 0, 1, 1, 2]),
        (2, 8, 5, [0, 0, 0, 0, 1]),
        (4, 2, 3, [0, 2, 4]),  # of two switches, which are alike
        (8, 2, 2, [0, 4]),
    ],
)
def test_neighbours_share(ranks: int, slots: int, workers: int, taken: list[int]) -> None:
    worker = plan(host({"accelerators": slots, "bandwidth_bytes_per_s": 1e9}), ranks=ranks)
    (level,) = shared_levels(worker, workers)
    assert level.index.tolist() == taken
    per_token = 2 * 8 * 128 * 2 * 32 / min(ranks, 8) * min(ranks, slots)
    assert level.into == level.out
    assert level.into.s_per_token == pytest.approx(per_token / 1e9)


def send(of: HostSpec, transfers: list[tuple[int, int, float]], workers: int = 4) -> tuple[list[float], Any]:
    """Ends of (worker, tokens, time) sent in order, and the arrays behind them."""
    worker = plan(of)
    shared, (sim,) = allocate(FleetPlan((PoolPlan(worker, workers),)), trace(), [2000])
    ends = [float(links.send_to_host(sim, w, 0, at_s, tokens)) for w, tokens, at_s in transfers]
    assert shared is not None
    return ends, sim


def fair_shares(transfers: list[tuple[int, int, float]], own_s: float, shared_s: float) -> list[float]:
    """Ends with max-min shares of own links and links shared by two workers, by events of a fluid; no latency.

    A worker's transfers go one after another.
    """
    left = {i: float(tokens) for i, (_, tokens, _) in enumerate(transfers)}
    ends, now = [0.0] * len(transfers), 0.0
    while left:
        heads: dict[int, int] = {}
        for i in left:
            heads.setdefault(transfers[i][0], i)
        active = [i for i in heads.values() if transfers[i][2] <= now]
        on = {i: sum(transfers[j][0] // 2 == transfers[i][0] // 2 for j in active) for i in active}
        # Equal own links: the fair share is an equal part of the shared link, or the own link.
        rates = {i: min(1 / own_s, 1 / (shared_s * on[i])) for i in active}
        waits = [transfers[i][2] - now for i in heads.values() if i not in rates]
        step = min([left[i] / rates[i] for i in active] + waits)
        now += step
        for i in active:
            left[i] -= rates[i] * step
            if left[i] <= 1e-6:
                ends[i] = now
                del left[i]
    return ends


@examples(60)
@given(
    transfers=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5000)), min_size=1, max_size=12),
    ratio=st.sampled_from([0.5, 1.0, 1.5, 2.0, 4.0]),
)
def test_transfers_share_a_link_as_fair_shares_would(transfers: list[tuple[int, int]], ratio: float) -> None:
    at_once = [(w, tokens, 0.0) for w, tokens in transfers]
    link = {"accelerators": 2, "bandwidth_bytes_per_s": ratio * OWN}
    ends, sim = send(host(link), at_once)
    own, shared = sim.links[0], sim.links[sim.shared[0, 0]]
    alone = [own.base_s + tokens * max(own.s_per_token, shared.s_per_token) for _, tokens in transfers]
    fluid = fair_shares(at_once, own.s_per_token, shared.s_per_token)
    latency_s = own.base_s * len(transfers)
    for pair in (0, 1):
        mine = [i for i, (w, _) in enumerate(transfers) if w // 2 == pair]
        if not mine:
            continue
        link_s = shared.s_per_token * sum(transfers[i][1] for i in mine)
        # Nothing is faster than alone, no link carries more than its bandwidth, and all is done as early as by fair
        # shares, where the last to begin does not wait for those before it.
        assert all(ends[i] >= alone[i] * (1 - 1e-9) - own.base_s for i in mine)
        assert max(ends[i] for i in mine) >= link_s * (1 - 1e-9)
        assert max(ends[i] for i in mine) <= max(fluid[i] for i in mine) * (1 + 1e-9) + latency_s


def test_a_wide_link_changes_nothing() -> None:
    wide = {"accelerators": 2, "bandwidth_bytes_per_s": 2 * OWN}
    transfers = [(w, 1000 * (w + 1), 0.0) for w in (0, 1, 2, 3, 0, 2)]
    assert send(host(wide), transfers)[0] == pytest.approx(send(host(), transfers)[0])
    alone = [(0, 4000, 0.0), (0, 10, 5.0)]
    as_wide_as_its_own = {"accelerators": 8, "bandwidth_bytes_per_s": OWN}
    assert send(host(as_wide_as_its_own), alone)[0] == send(host(), alone)[0]


def test_switches_within_sockets_each_take_their_turn() -> None:
    """Four workers at once: pairs behind switches at own speed, all behind a socket at half of that."""
    switch = {"accelerators": 2, "bandwidth_bytes_per_s": OWN}
    socket = {"accelerators": 4, "bandwidth_bytes_per_s": OWN / 2}
    ends, sim = send(host(switch, socket), [(w, 1000, 0.0) for w in range(4)])
    token_s = sim.links[0].s_per_token
    assert max(ends) == pytest.approx(4 * 1000 * 2 * token_s)
    assert sim.shared.shape == (4, 2)
    assert [int(sim.links[k].tokens) for k in np.unique(sim.shared)] == [2000, 2000, 4000]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_narrower_link_is_busier_and_no_faster(engine: str) -> None:
    def busy_and_end(bandwidth: float) -> tuple[float, float, int]:
        link = {"accelerators": 8, "bandwidth_bytes_per_s": bandwidth}
        result = simulate(plan(host(link), engine=engine, memory_fraction=0.27), trace(), replicas=4)
        used = [use for use in result.links if use.path == "shared"]
        own = sum(use.tokens for use in result.links if use.path == "medium")
        assert sum(use.tokens for use in used) == own > 0
        assert all(use.busy_s <= result.makespan_s for use in used)
        return sum(use.busy_s for use in used), float(np.nansum(result.requests.finish_s)), own

    wide, narrow = busy_and_end(100e9), busy_and_end(0.2e9)
    assert narrow[0] > wide[0]
    assert narrow[1] >= wide[1]


def handed_over(of: HostSpec, *, copies: bool, over_slots: bool = True, ranks: int = 1) -> Any:
    """A run of four workers that compute prompts, with copies to host memory or without, and four that decode."""
    pools = (
        PoolPlan(plan(of, ranks=ranks, copies=copies), 4, "prefill", "prefill"),
        PoolPlan(plan(of, ranks=ranks, copies=False), 4, "decode", "decode"),
    )
    size = pools[0].plan.memory.kv_bytes_per_token_per_rank
    transfer = TransferPlan(bytes_per_token=size, bytes_per_s=OWN, over_slots=over_slots)
    return simulate_fleet(FleetPlan(pools, transfer=transfer), trace())


@pytest.mark.parametrize("copies", [True, False])
@pytest.mark.parametrize(("ranks", "slots"), [(1, 4), (4, 2)])
def test_kv_between_workers_passes_what_lies_before_the_ports(copies: bool, ranks: int, slots: int) -> None:
    """Conservation: a shared link is occupied by all that passes it, copies of the same workers among it."""
    link = {"accelerators": slots, "bandwidth_bytes_per_s": OWN / 2, "ports": True}
    result = handed_over(host(link), copies=copies, ranks=ranks)
    worker = plan(host(link), ranks=ranks)
    token_s = worker.ports[0].law.s_per_token
    assert token_s == worker.memory.kv_bytes_per_token_per_rank * min(ranks, slots) / (OWN / 2)
    sent = sum(use.tokens for use in result.kv_transfers[:4])
    assert sent == sum(use.tokens for use in result.kv_transfers[4:]) > 0
    for pool, write in ((0, True), (1, False)):
        used = [use for use in result.links if use.path == "shared" and (use.pool, use.write) == (pool, write)]
        copied = sum(use.tokens for use in used)
        assert (copied > 0) == (copies and pool == 0)
        assert sum(use.busy_s for use in used) == pytest.approx((copied + sent) * token_s)
        assert all(use.busy_s <= result.makespan_s for use in used)
    back = [use.busy_s for use in result.links if use.path == "shared" and (use.pool, use.write) == (1, True)]
    assert not any(back), "nothing is sent out of decode workers"


def test_kv_between_workers_comes_no_sooner_over_a_narrower_link() -> None:
    def ends(bandwidth: float, ports: bool = True, **more: Any) -> Any:
        link = {"accelerators": 8, "bandwidth_bytes_per_s": bandwidth, "ports": ports}
        return handed_over(host(link), copies=False, **more).requests.finish_s

    wide, free, narrow = ends(8 * OWN), ends(0.01 * OWN, ports=False), ends(0.01 * OWN)
    np.testing.assert_allclose(wide, free)
    assert (narrow - free).sum() > 1.0
    np.testing.assert_array_equal(ends(0.01 * OWN, over_slots=False), free)


def test_slots_that_do_not_divide_a_host_are_refused() -> None:
    with pytest.raises((SpecError, ValueError), match="is 3, which does not divide the host's 8 slots"):
        host({"accelerators": 3, "bandwidth_bytes_per_s": 1e9})
