"""Prefill and decode workers of SGLang of which the latter write what they make to the storage of the former.

And what that must come to, said slowly: ``restated``.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hisearch.kernels.fleet import cluster
from hisearch.kernels.layout import sim as la
from hisearch.kernels.layout.hicache import BATCH_PAGES
from hisearch.simulate import engine as engine_module
from hisearch.simulate.plans.fleet import FleetPlan, PoolPlan, TransferPlan
from hisearch.simulate.plans.plan import WorkerPlan
from hisearch.simulate.plans.tier_plan import MovementPlan, TierPlan, TransferLaw
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.traces.compiled import CompiledTrace
from tests.kernels.systems import plan

AMPLE = 1 << 20
EVERYTHING = 2**40
QUICK = TransferLaw(0.0, 0.0)


@dataclass(frozen=True)
class Laws:
    """Of a decode worker's link to host memory, of its network and of the store's writes."""

    host: TransferLaw = QUICK
    network: TransferLaw = QUICK
    store: TransferLaw = QUICK


def workers(
    *,
    page: int = 1,
    hbm: int = AMPLE,
    host: int = EVERYTHING,
    laws: Laws = Laws(),
    policy: str = "write_through",
    prompts_hbm: int = AMPLE,
    overlap: bool = True,
) -> tuple[WorkerPlan, WorkerPlan]:
    """A prefill and a decode worker; ``hbm`` and ``host`` are the decode worker's capacity in tokens."""
    spec = EngineSpec.model_validate(
        {"name": "sglang", "page_tokens": page, "max_running_requests": 16, "chunk_tokens": 512, "overlap": overlap}
    )
    store = TierPlan("storage", "cluster", EVERYTHING // page * page, page, write=laws.store)
    movement = MovementPlan(
        "hicache",
        write_policy=policy,
        prefetch="wait_complete",
        prefetch_threshold_tokens=1,
        load_back_tokens=1,
        network_read=QUICK,
        network_write=QUICK,
    )
    host_tier = TierPlan("host", "worker", 2 * AMPLE, page)
    prefill = replace(plan(spec, prompts_hbm), tiers=(host_tier, store), movement=movement)
    kept = TierPlan("host", "worker", host // page * page, page)
    sending = MovementPlan(
        "hicache", host_write=laws.host, network_read=QUICK, network_write=laws.network, writes_back_output=True
    )
    return prefill, replace(plan(spec, hbm), tiers=(kept,), movement=sending)


def fleet(
    prefill: WorkerPlan, decode: WorkerPlan, counts: tuple[int, int] = (1, 1), *, reserved: int = 8, spare: int = 0
) -> FleetPlan:
    """``counts`` workers of each, over an instant network."""
    pools = (
        PoolPlan(prefill, counts[0], "prefill", "prefill"),
        PoolPlan(decode, counts[1], "decode", "decode", spare=spare),
    )
    return FleetPlan(
        pools, transfer=TransferPlan(reserve_first=True, reserved_tokens=reserved), retry_s=0.05, retries=100
    )


def run(
    deployment: FleetPlan, trace: CompiledTrace, seed: int = 0, horizon_s: float = math.inf
) -> tuple[Any, la.Sim, la.Sim]:
    """The arrays as a run up to ``horizon_s`` leaves them: of the fleet, of the prefill and of the decode pool."""
    rooms = [4 * engine_module.node_limit(pool, trace) for pool in deployment.pools]
    arrays, (front, back) = engine_module.allocate(deployment, trace, rooms, seed=seed, horizon_s=horizon_s)
    _, _, faulty = cluster.run(arrays)
    assert faulty < 0
    return arrays, front, back


@dataclass
class Worker:
    """A decode worker's host pool, links and line of requests to be written."""

    free_pages: int
    link_s: float = 0.0
    network_s: float = 0.0
    peak_pages: int = 0
    line: deque[int] = field(default_factory=deque)


@dataclass
class Restated:
    """Outcome of every request: its copy's end, or a refusal for lack of memory; written: (time, request, first token,
    last token) of each batch that storage got.
    """

    workers: list[Worker]
    copied_s: dict[int, float]
    written: list[tuple[float, int, int, int]]
    refused: set[int]


def restated(
    plan: WorkerPlan, laws: Laws, trace: CompiledTrace, finished: list[tuple[float, int, int]], horizon_s: float
) -> Restated:
    """Play what decode workers send to storage up to ``horizon_s``, event by event, where nobody else writes to it.

    Args:
        plan: a decode worker.
        laws: of the links that carry its copies and writes.
        trace: prompts and outputs.
        finished: (time, worker, request), in the order in which requests finished.
        horizon_s: nothing that is done later is done.
    """
    page = plan.engine.page_size
    count = 1 + max((w for _, w, _ in finished), default=0)
    state = Restated([Worker(plan.tiers[0].capacity_tokens // page) for _ in range(count)], {}, [], set())
    store_s = 0.0
    # (time, order among equals, what, worker, request, from token): servers go before schedulers.
    events = [(at, 2, "finish", w, r, 0) for at, w, r in finished]

    def span(r: int) -> tuple[int, int]:
        prompt, output = int(trace.arrays.input_tokens[r]), int(trace.arrays.output_tokens[r])
        return prompt // page * page, (prompt + output - 1) // page * page

    def write(now: float, w: int, r: int, begin: int) -> None:
        nonlocal store_s
        tokens = min(span(r)[1] - begin, BATCH_PAGES * page)
        worker = state.workers[w]
        store_s = max(now, store_s) + laws.store.base_s + tokens * laws.store.s_per_token
        worker.network_s = max(now, worker.network_s) + laws.network.base_s + tokens * laws.network.s_per_token
        events.append((max(store_s, worker.network_s), 1, "written", w, r, begin))

    def copy(now: float, w: int, r: int) -> None:
        worker, (begin, end) = state.workers[w], span(r)
        pages = (end - begin) // page
        if pages > worker.free_pages:
            state.refused.add(r)
        elif pages > 0:
            worker.free_pages -= pages
            worker.peak_pages = max(worker.peak_pages, plan.tiers[0].capacity_tokens // page - worker.free_pages)
            worker.link_s = max(now, worker.link_s) + laws.host.base_s + (end - begin) * laws.host.s_per_token
            state.copied_s[r] = worker.link_s
            events.append((worker.link_s, 1, "copied", w, r, begin))

    while events:
        event = min(events, key=lambda e: (e[0], e[1], 2 * e[3] + (e[2] == "written") if e[1] < 2 else 0))
        events.remove(event)
        now, _, what, w, r, at = event
        if now > horizon_s:
            break
        worker, (begin, end) = state.workers[w], span(r)
        if what == "finish":
            # All that a step ends are looked at together.
            together = [e for e in events if e[2] == "finish" and (e[0], e[3]) == (now, w)]
            events = [e for e in events if e not in together]
            for request in (r, *(e[4] for e in together)):
                copy(now, w, request)
        elif what == "copied":
            worker.line.append(r)
            if len(worker.line) == 1:
                write(now, w, r, begin)
        else:
            upto = min(end, at + BATCH_PAGES * page)
            state.written.append((now, r, at, upto))
            if upto < end:
                write(now, w, r, upto)
                continue
            worker.free_pages += (end - begin) // page
            worker.line.popleft()
            if worker.line:
                write(now, w, worker.line[0], span(worker.line[0])[0])
    return state


def finished(sim: la.Sim) -> list[tuple[float, int, int]]:
    """(time, worker, request) of requests that decode workers finished, in order; equal times in admission order."""
    done = np.flatnonzero(sim.requests["outcome"] == la.FINISHED)
    rows = [
        (float(sim.requests[r].finish_s), int(sim.requests[r].worker), int(sim.requests[r].order), int(r)) for r in done
    ]
    return [(at, w, r) for at, w, _, r in sorted(rows)]
