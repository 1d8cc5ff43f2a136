"""From one pool's worker plan to the kernels' arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hisearch.base.policies import EVICTIONS, QUEUE_ORDERS
from hisearch.kernels.core import owners
from hisearch.kernels.core.gap_bins import BINS
from hisearch.kernels.layout import agents as al
from hisearch.kernels.layout import fleet as fl
from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.layout import log as log_layout
from hisearch.kernels.layout import schedulers_fields, sglang_fields
from hisearch.kernels.layout import sim as la
from hisearch.kernels.layout import tree as tree_layout
from hisearch.kernels.layout.client import FIRST_VISIBLE, Thinking
from hisearch.simulate.arrays import agents as agent_arrays
from hisearch.simulate.arrays import costs as cost_arrays
from hisearch.simulate.arrays import drafts as draft_arrays
from hisearch.simulate.arrays import grammars as grammar_arrays
from hisearch.simulate.arrays import groups as group_arrays
from hisearch.simulate.arrays import lora as lora_arrays
from hisearch.simulate.arrays import offload as offload_arrays
from hisearch.simulate.arrays import tiers as tier_arrays
from hisearch.simulate.arrays.records import records
from hisearch.simulate.plans.plan import WorkerPlan
from hisearch.traces.adapters import RequestAdapters, RequestGrammars
from hisearch.traces.agents import AgentArrays
from hisearch.traces.compiled import TraceArrays

#: Separates the shuffle streams' seed from the router's: the first 64 bits of the square root of 2's fraction.
_SHUFFLE_STREAMS = 0x6A09E667F3BCC908


def trace_of(trace: TraceArrays) -> fl.Trace:
    """A trace's arrays in the kernels' layout."""
    return fl.Trace(**{name: getattr(trace, name) for name in fl.Trace.FIELDS})


def request_records(count: int) -> Any:
    """Records of ``count`` requests that have not arrived."""
    blank = np.zeros(1, la.REQUEST)
    for name in ("arrival_s", "scheduled_s", "first_token_s", "finish_s"):
        blank[name] = np.nan
    blank["outcome"] = la.UNREACHED
    blank["worker"] = -1
    blank["heap_slot"] = -1
    blank["fetch"] = -1
    # Whole records at once: memory is touched once, not once for each field.
    whole = np.dtype((np.void, la.REQUEST.itemsize))
    return np.repeat(blank.view(whole), count).view(la.REQUEST).view(np.recarray)


def _thinking(tokens: np.ndarray, config: Any) -> Thinking:
    """Which requests think, by their ``tokens`` (N,); prefill workers make no token behind the first."""
    used = bool(tokens.any()) and config.role != fl.PREFILL
    workers, count = (int(config.workers), len(tokens)) if used else (0, 0)
    first_visible = records(count, FIRST_VISIBLE)
    first_visible["at_s"] = np.nan
    first_visible["heap_slot"] = -1
    return Thinking(
        tokens=tokens[:count],
        first_visible=first_visible,
        heap=np.empty((workers, int(config.max_running) if used else 0), np.int32),
        heap_size=np.zeros(workers, np.int64),
    )


def _hosts(workers: int, places: Sequence[int]) -> Any:
    """Host memory records of each scheduler."""
    hosts = records(workers, hl.HOST)
    hosts["place"] = places[:workers] if len(places) else np.arange(workers)
    return hosts


def _shuffle_streams(seed: int, workers: int) -> np.ndarray:
    """States of the workers' random streams, with which SGLang's random schedule shuffles (``kernels.core.rng``)."""
    from hisearch.kernels.core import rng

    # Distinct from the router's stream, whose state is the seed itself.
    state = np.array([seed], np.uint64) ^ np.uint64(_SHUFFLE_STREAMS)
    return np.array([rng.next_u64(state) for _ in range(workers)], np.uint64)


def _give_places(trees: Any, plan: WorkerPlan, config: Any, nodes: int, workers: int) -> int:
    """Give each of ``trees`` places for its leaves, each of which is a page or more; returns how many there are.

    They are twice the leaves for a heap and a line; a store has twice as many again, as it may also remember some. None
    where no tree evicts leaves.
    """
    if not _has_radix_cache(config) and (plan.agents is None or plan.agents.pool_pages <= 0):
        return 0
    if plan.agents is not None:
        # Objects are leaves of their own.
        leaves = np.full(len(trees), nodes)
    else:
        # All but workers' caches and, at the end, their host pools are stores.
        stores = [2 * pages + 1 for pages in tier_arrays.store_pages(plan)]
        leaves = np.full(len(trees), max(stores, default=0) + 1)
        leaves[:workers] = int(config.capacity_pages) + 1
        if config.host_pages > 0:
            leaves[-workers:] = int(config.host_pages) + 1
    trees["places"] = 2 * np.minimum(leaves, nodes)
    ends = np.cumsum(trees["places"])
    trees["first_place"] = ends - trees["places"]
    return int(ends[-1])


def _has_radix_cache(config: Any) -> bool:
    return bool(config.engine == la.SGLANG and config.role != fl.DECODE)


def _tree_records(plan: WorkerPlan, config: Any, searched_trees: int) -> Any:
    """Records of trees: the ``searched_trees``, then agents' pools of objects, their copies, and host pools."""
    workers = int(config.workers)
    pools = workers if plan.agents is not None and plan.agents.pool_pages else 0
    copies = workers if plan.agents is not None and plan.agents.host_pages else 0
    host_pools = workers if config.host_pages > 0 else 0
    trees = records(searched_trees + pools + copies + host_pools, tree_layout.TREE)
    if plan.agents is not None and pools:
        trees["capacity_pages"][searched_trees : searched_trees + pools] = plan.agents.pool_pages
        trees["capacity_pages"][searched_trees + pools : searched_trees + pools + copies] = plan.agents.host_pages
    return trees


def _queue_arrays(plan: WorkerPlan, config: Any, nodes: int, trace: TraceArrays, *, ends: bool) -> dict[str, Any]:
    """Arrays that order a queue, and of which SGLang forms batches; of one place where the engine has no use for them.

    nodes: of all trees. trace: the requests. ends: requests may end within a step, without a cache to keep them.
    """
    workers, radix, count = int(config.workers), _has_radix_cache(config), len(trace.arrival_s)
    order = QUEUE_ORDERS[plan.engine.schedule]
    # With storage the queue keeps its order between passes that sort it (see ``sglang.order``).
    late = len(plan.tiers) > 1 and config.schedule != la.FCFS
    sorts = config.counts_service or (radix and (order.every_pass or late))
    keys = config.counts_service or (radix and config.schedule != la.FCFS)
    priorities = EVICTIONS[plan.engine.eviction].priorities or tier_arrays.by_priority(plan)
    has_ranks = radix and (priorities or order.weighs_nodes)
    has_prompts = radix or config.engine == la.TRTLLM
    queued = np.empty(count if keys else 1, sglang_fields.QUEUED).view(np.recarray)
    tenants, of_requests = np.unique(trace.tenant if config.counts_service else [0], return_inverse=True)
    queued["tenant"] = of_requests
    return {
        "node_ranks": np.empty(nodes if has_ranks else 1, tree_layout.NODE_RANK).view(np.recarray),
        "queued": queued,
        "tenants": records(workers * len(tenants), sglang_fields.TENANT).reshape(workers, -1),
        "ttft_targets_s": np.array([math.inf if of is None else of for of in plan.engine.ttft_targets_s] or [math.inf]),
        "joins": np.empty((workers, config.max_running if radix else 1), sglang_fields.JOIN).view(np.recarray),
        "prompts": np.empty((2 * workers, config.max_running) if has_prompts else (1, 1), np.int32),
        "ends": np.empty((2 * workers, config.max_running + 1) if radix and ends else (1, 1), np.float64),
        "queue_order": np.empty((2, count if sorts else 1), np.int32),
    }


def _output_arrays(plan: WorkerPlan, config: Any, trace: TraceArrays, *, pooled: bool) -> dict[str, Any]:
    """How outputs end, and which prompts go through them while they are made (vLLM)."""
    pinned = np.broadcast_to(plan.ignore_eos, len(trace.arrival_s)).astype(np.int8)
    ends_by_limit = (trace.output_tokens == trace.max_output_tokens) & ((pinned != 0) | plan.limits_stated)
    runs_vllm = config.engine == la.VLLM or config.role == fl.DECODE
    in_order = trace._replace(previous=np.full_like(trace.previous, -1)) if pooled else trace
    owner_head, owner, next_owner = owners.find(in_order) if runs_vllm else (np.empty(0, np.int32),) * 3
    return {
        "pinned": pinned,
        "ends_by_limit": ends_by_limit.astype(np.int8),
        "owner_head": owner_head,
        "owner": owner,
        "next_owner": next_owner,
    }


def _step_arrays(config: Any) -> dict[str, Any]:
    """Batches and steps under way, and the decodes by their ends and by the next page that they need."""
    workers, running = int(config.workers), config.max_running
    return {
        "residue": np.zeros((workers, config.page_tokens), np.int64),
        "finish_heap": np.empty((workers, running), np.int32),
        "batch": np.empty((workers, running), np.int32),
        "launches": records(2 * workers, schedulers_fields.LAUNCH),
        "stage_free_s": np.zeros((workers // config.schedulers, config.schedulers)),
        "event_heap": np.empty(workers, np.int32),
    }


def _server_arrays(plan: WorkerPlan, workers: int) -> dict[str, Any]:
    """Servers of tiers and of agents, and their heap."""
    servers = hl.SERVERS * workers + (al.AGENT_SERVERS * workers if plan.agents is not None else 0)
    return {"servers": records(servers, hl.SERVER), "server_heap": np.empty(servers, np.int32)}


def _log_arrays(config: Any, steps: int) -> dict[str, Any]:
    """The log of so many steps."""
    return {
        "log_fetches": records(steps, hl.FETCH_LOG),
        "log_steps": np.empty(steps, log_layout.STEP_LOG).view(np.recarray),
        "log_entries": np.empty(8 * steps, log_layout.ENTRY_LOG).view(np.recarray),
        "log_outputs": np.empty(8 * steps if config.draft_tokens else 0, log_layout.OUTPUT_LOG).view(np.recarray),
        "log_lost": np.empty(steps, np.int32),
    }


def allocate(
    plan: WorkerPlan,
    trace: TraceArrays,
    settings: Any,
    *,
    fleet: fl.Fleet,
    seed: int,
    node_limit: int,
    log_limit: int = 0,
    agents: AgentArrays | None = None,
    adapters: RequestAdapters | None = None,
    grammars: RequestGrammars | None = None,
    places: Sequence[int] = (),
    pooled: bool = False,
) -> la.Sim:
    """All arrays of one pool.

    Args:
        plan: its worker.
        trace: the requests that it serves.
        settings: see ``settings.config_of``; what depends on the requests is set here.
        fleet: the arrays that pools share.
        seed: of the workers' random streams.
        node_limit: cache-tree nodes to reserve.
        log_limit: steps to log.
        agents: of the requests, if any.
        adapters: that they ask for.
        grammars: that their outputs follow.
        places: for each worker, the one whose place on the node it takes; empty: itself.
        pooled: whether follow-ups wait for any request instead of their previous turn.
    """
    config, count, workers = settings[0], len(trace.arrival_s), int(settings[0].workers)
    places = [plan.schedulers * place + scheduler for place in places for scheduler in range(plan.schedulers)]
    # Host pools hold nodes of the workers' trees; pools of objects hold none.
    searched_trees = workers + tier_arrays.store_trees(plan, workers)
    tree_records = _tree_records(plan, config, searched_trees)
    trees = len(tree_records)
    nodes = node_limit + trees + workers * agent_arrays.record_count(agents, plan.agents)
    leaves = _give_places(tree_records, plan, config, nodes, workers)
    of_outputs = _output_arrays(plan, config, trace, pooled=pooled)
    thinking = _thinking(trace.thinking_tokens, config)
    settings.shared_outputs = len(of_outputs["owner"]) > 0
    settings.thinks = len(thinking.heap_size) > 0
    settings.compiles_grammars = plan.grammars is not None and grammars is not None
    settings.goes_by = settings.serves_adapters + settings.compiles_grammars > 0
    return la.Sim(
        config=settings,
        fleet=fleet,
        trace=trace_of(draft_arrays.with_nodes_as_hashed(trace, config)),
        seconds=cost_arrays.kernel_costs(cost_arrays.scheduler_costs(plan)),
        **cost_arrays.joules_arrays(plan),
        requests=request_records(count),
        blank=request_records(1),
        workers=records(workers, la.WORKER),
        trees=tree_records,
        agents=agent_arrays.handle(
            trace, agents, plan.agents, searched_trees, workers, nodes, int(config.capacity_pages), seed
        ),
        lora=lora_arrays.handle(plan.lora, adapters, count, workers),
        grammars=grammar_arrays.handle(plan.grammars, grammars, count, workers, polls=plan.engine.name == "sglang"),
        nodes=np.empty(nodes, tree_layout.NODE).view(np.recarray),
        **_queue_arrays(
            plan, config, nodes, trace, ends=bool(of_outputs["pinned"].any()) and not config.prefix_caching
        ),
        **tier_arrays.arrays(plan, trace, workers, node_limit),
        hosted=np.empty(nodes if config.hicache else 1, hl.HOSTED).view(np.recarray),
        hosts=_hosts(workers if config.hicache or config.store_pool >= 0 else 1, places),
        **_server_arrays(plan, workers),
        **offload_arrays.arrays(plan, trace, workers, node_limit, places),
        **group_arrays.arrays(plan, trace, workers),
        **group_arrays.component_arrays(plan, trees, nodes, count),
        deepest_cached=np.empty((searched_trees, len(trace.parent)), np.int32),
        trace_paths=np.empty((workers, owners.depth(trace.parent) + 1), np.int32),
        **_step_arrays(config),
        shuffle_rng=_shuffle_streams(seed, workers),
        evict_heap=np.empty(leaves, np.int32),
        **of_outputs,
        accepted=draft_arrays.accepted(plan),
        compiled_lengths=cost_arrays.compiled_lengths(plan, trace, workers),
        thinking=thinking,
        pledged=np.zeros(len(trace.parent) if config.engine == la.TRTLLM else 0, np.int64),
        **cost_arrays.lockstep_arrays(plan),
        counters=np.zeros(la.COUNTERS, np.int64),
        gaps=np.zeros(BINS, np.int64),
        **_log_arrays(config, log_limit),
    )
