"""From a trace's adapters and a worker's plan for them to the kernels' arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from hisearch.kernels.layout import lora as ll
from hisearch.simulate.arrays.records import record, records
from hisearch.simulate.plans.fleet import FleetPlan
from hisearch.simulate.plans.lora_plan import LoraPlan
from hisearch.traces.adapter_tree import requested_adapters
from hisearch.traces.adapters import RequestAdapters
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.models import RequestModels


class AdaptersDoNotFit(ValueError):  # noqa: N818
    """An adapter of the workload has a larger rank than the deployment's slots, or more are there than it holds."""


def check_adapters(fleet: FleetPlan, trace: CompiledTrace, models: RequestModels) -> None:
    """Refuse adapters that a pool could not serve, of the requests for its model; where no pool serves any, nothing.

    Raises:
        AdaptersDoNotFit: their rank exceeds the slots', they are more than a server holds, or one of several pools has
            none.
    """
    adapters = requested_adapters(trace)
    if adapters is None or all(pool.plan.lora is None for pool in fleet.pools):
        return
    for pool in fleet.pools:
        asked = adapters.adapter[models.model == fleet.models.index(pool.model)]
        mine, plan = np.unique(asked[asked >= 0]), pool.plan.lora
        if plan is None and len(mine):
            raise AdaptersDoNotFit(
                f"pool {pool.name} serves no adapters, and requests for its model ask for {len(mine)}: give it "
                "a section lora as well"
            )
        if plan is not None and plan.most_adapters and len(mine) > plan.most_adapters:
            raise AdaptersDoNotFit(
                f"the workload has {len(mine)} adapters; with lora.overlap_loading SGLang holds at most "
                f"{plan.most_adapters}, twice max_loras (--max-loaded-loras)"
            )
        largest = max(mine, key=lambda each: adapters.rank[each], default=-1)
        if plan is not None and plan.rank and largest >= 0 and adapters.rank[largest] > plan.rank:
            raise AdaptersDoNotFit(
                f"adapter {adapters.names[largest]} of the workload has rank {adapters.rank[largest]}; lora.rank is "
                f"{plan.rank}"
            )


def handle(plan: LoraPlan | None, adapters: RequestAdapters | None, requests: int, workers: int) -> ll.Lora:
    """All arrays; those of workers that serve no adapters where ``plan`` is None.

    Args:
        plan: of a worker.
        adapters: which each request asks for; None: all ask for the base model.
        requests: how many.
        workers: how many.
    """
    if plan is None:
        return _handle(records(1, ll.POLICY), np.zeros(0, np.int32), 0, 0, 0, False)
    count = 0 if adapters is None else len(adapters.names)
    base = np.full(requests, count, np.int32)
    of_request = base if adapters is None else np.where(adapters.adapter >= 0, adapters.adapter, count)
    policy = record(
        ll.POLICY, slots=plan.slots, adapters=count, copies=plan.copies, base_slot=plan.base_slot, fifo=plan.fifo,
        overlaps=plan.overlaps, drain_wait_s=plan.drain_wait_s, base_s=plan.base_s, step_s=plan.step_s,
        adapter_s=plan.adapter_s, token_s=plan.token_s, adapter_j=plan.adapter_j, token_j=plan.token_j,
    )  # fmt: skip
    arrays = _handle(policy, of_request.astype(np.int32), count, workers, plan.slots, plan.drain_wait_s > 0)
    share = np.ones(count + 1)
    if adapters is not None and plan.rank:
        share[:count] = np.where(adapters.rank > 0, adapters.rank / plan.rank, 1.0)
    arrays.adapters["load_s"] = plan.load_latency_s + (plan.load_s - plan.load_latency_s) * share
    arrays.adapters["read_s"] = plan.read_latency_s + (plan.read_s - plan.read_latency_s) * share
    return arrays


def _handle(policy: Any, adapter: np.ndarray, count: int, workers: int, slots: int, drains: bool) -> ll.Lora:
    return ll.Lora(
        policy=policy,
        adapter=adapter,
        adapters=records(count + 1, ll.ADAPTER),
        places=np.zeros((workers, count + 1), ll.PLACE).view(np.recarray),
        states=records(workers, ll.STATE),
        slots=np.full((workers, slots), -1, np.int32),
        members=np.empty((2 * workers, count + 1), np.int32),
        queued_s=np.full(len(adapter) if drains else 0, -1.0),
    )
