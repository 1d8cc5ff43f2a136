"""From a trace's adapters and a worker's plan for them to the kernels' arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from hisearch.kernels.layout import lora as ll
from hisearch.simulate.arrays.records import record, records
from hisearch.simulate.plans.lora_plan import LoraPlan
from hisearch.traces.adapter_tree import adapters_of
from hisearch.traces.adapters import RequestAdapters
from hisearch.traces.compiled import CompiledTrace


class AdaptersDoNotFit(ValueError):  # noqa: N818
    """An adapter of the workload has a larger rank than the deployment's slots, or more are there than it holds."""


def check_adapters(plan: LoraPlan | None, trace: CompiledTrace) -> None:
    """Refuse adapters of a larger rank than the slots', and more than a server may hold.

    Raises:
        AdaptersDoNotFit: names both ranks, or both numbers.
    """
    adapters = adapters_of(trace)
    if plan is None or adapters is None:
        return
    if plan.most_adapters and len(adapters.names) > plan.most_adapters:
        raise AdaptersDoNotFit(
            f"the workload has {len(adapters.names)} adapters; with lora.overlap_loading SGLang holds at most "
            f"{plan.most_adapters}, twice max_loras (--max-loaded-loras)"
        )
    largest = int(adapters.rank.max(initial=0))
    if plan.rank and largest > plan.rank:
        name = adapters.names[int(np.argmax(adapters.rank))]
        raise AdaptersDoNotFit(f"adapter {name} of the workload has rank {largest}; lora.rank is {plan.rank}")


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
