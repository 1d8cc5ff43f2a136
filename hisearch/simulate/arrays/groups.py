"""From groups of KV blocks, and pools for windows, to the kernels' arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from hisearch.kernels.layout import components as cl
from hisearch.kernels.layout import kv_groups as gl
from hisearch.latency.device_memory.kv_groups import admitted_pages
from hisearch.simulate.plans.plan import WorkerPlan
from hisearch.traces.compiled import TraceArrays


def arrays(plan: WorkerPlan, trace: TraceArrays, workers: int) -> dict[str, Any]:
    """The fields of ``layout.Sim`` for groups of KV blocks; of length 1 where the plan has none.

    Args:
        plan: one worker.
        trace: compiled.
        workers: how many.
    """
    if plan.groups is None:
        return _fields(_settings(plan, 1), 1, 1, 1, 1, 1)
    page = plan.engine.page_size
    longest = int((trace.input_tokens + trace.output_tokens).max(initial=0))
    settings = _settings(plan, -(-longest // page) + 1)
    columns = plan.groups.full * settings["table_pages"] + plan.groups.windowed * settings["ring_pages"]
    if plan.groups.states:
        # Blocks of each group, and their pages.
        columns += (plan.groups.states + 1) * gl.STATE_PLACES
    blocks = plan.kv_capacity_tokens // page
    return _fields(settings, workers, blocks, plan.scheduler_running_requests, int(columns[0]), len(trace.arrival_s))


def _settings(plan: WorkerPlan, table_pages: int) -> Any:
    settings = np.zeros(1, gl.GROUPS).view(np.recarray)
    groups, engine = plan.groups, plan.engine
    if groups is None:
        return settings
    page = engine.page_size
    most = admitted_pages(groups.window_tokens, engine, plan.max_request_tokens)
    settings["full"] = groups.full
    settings["windowed"] = groups.windowed
    settings["states"] = groups.states
    settings["checkpoints"] = groups.checkpoints
    settings["window_tokens"] = groups.window_tokens
    settings["admitted_pages"] = np.iinfo(np.int64).max if most is None else most
    settings["retention_pages"] = -1 if groups.retention_tokens is None else groups.retention_tokens // page
    settings["ring_pages"] = min(-(-(groups.window_tokens + 3 * engine.chunk_tokens) // page) + 2, table_pages)
    settings["table_pages"] = table_pages
    return settings


def _fields(settings: Any, workers: int, blocks: int, tables: int, columns: int, requests: int) -> dict[str, Any]:
    buckets = 1 << max(2 * blocks - 1, 1).bit_length()
    return {
        "kv_groups": settings,
        "kv_pools": np.zeros(workers, gl.POOL).view(np.recarray),
        "kv_blocks": np.zeros((workers, blocks), gl.BLOCK).view(np.recarray),
        "kv_buckets": np.zeros((workers, buckets), np.int32),
        "kv_tables": np.zeros((workers * tables, columns), np.int32),
        "next_tables": np.zeros(workers * tables, np.int32),
        "held": np.zeros(requests, gl.HELD).view(np.recarray),
    }


def component_settings(plan: WorkerPlan) -> dict[str, int]:
    """The fields of ``layout.sim.CONFIG`` for SGLang's pool besides full attention's."""
    names = (
        "component", "other_capacity", "window_tokens", "state_slots", "state_grid_tokens", "state_interval_tokens",
    )  # fmt: skip
    windows, states = plan.windows, plan.states
    values: tuple[int, ...] = (0,) * len(names)
    if windows is not None:
        capacity = windows.capacity_tokens // plan.engine.page_size
        values = (cl.WINDOWS, capacity, windows.window_tokens, 0, 0, 0)
    elif states is not None:
        values = (cl.STATES, states.capacity, 0, states.slots, states.grid_tokens, states.interval_tokens)
    return dict(zip(names, values, strict=True))


def component_arrays(plan: WorkerPlan, trees: int, nodes: int, requests: int) -> dict[str, Any]:
    """The fields of ``layout.Sim`` for that pool; of length 1 where the plan has none.

    Args:
        plan: one worker.
        trees: of the pool.
        nodes: records of the trees' nodes.
        requests: of the trace.
    """
    if plan.windows is None and plan.states is None:
        trees = nodes = requests = 1
    return {
        "other_pools": np.zeros(trees, cl.POOL).view(np.recarray),
        "other_nodes": np.zeros(nodes, cl.NODE).view(np.recarray),
        "other_requests": np.zeros(requests, cl.REQUEST).view(np.recarray),
    }
