"""A pool's settings, and the kernels that it runs."""

from __future__ import annotations

import math
from typing import Any

from hisearch.base.engine_rules import GROUPS_CONSERVATIVENESS, RULES
from hisearch.base.policies import EVICTIONS, QUEUE_ORDERS
from hisearch.kernels.layout import client
from hisearch.kernels.layout import fleet as fl
from hisearch.kernels.layout import sim as la
from hisearch.simulate.arrays import agents as agent_arrays
from hisearch.simulate.arrays import costs as cost_arrays
from hisearch.simulate.arrays import drafts as draft_arrays
from hisearch.simulate.arrays import groups as group_arrays
from hisearch.simulate.arrays import offload as offload_arrays
from hisearch.simulate.arrays import tiers as tier_arrays
from hisearch.simulate.arrays.records import record
from hisearch.simulate.plans.plan import WorkerPlan
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.deployments.engine_rules import rules_in_force

ENGINES = {"vllm": la.VLLM, "sglang": la.SGLANG, "trtllm": la.TRTLLM}
_DRAFTS = {"vllm": la.VLLM_DRAFTS, "sglang": la.SGLANG_DRAFTS, "trtllm": la.TRTLLM_DRAFTS}
_SCHEDULER_KINDS = {"alone": la.SINGLE, "lockstep": la.LOCKSTEP, "pipe": la.PIPE}
_CAPACITY_POLICIES = {
    "guaranteed_no_evict": la.GUARANTEED_NO_EVICT,
    "max_utilization": la.MAX_UTILIZATION,
    "static_batch": la.STATIC_BATCH,
}
_CHUNKING_POLICIES = {
    "first_come_first_served": la.FIRST_COME_FIRST_SERVED,
    "equal_progress": la.EQUAL_PROGRESS,
}


def entry_of(plan: WorkerPlan, role: int = fl.UNIFIED) -> int:
    """The kernels that a pool runs (see ``kernels.engine.engine_calls``)."""
    if role == fl.DECODE:
        return la.DECODE_WORKER if plan.speculation is None else la.DRAFTS_DECODE_WORKER
    if plan.groups is not None:
        return la.VLLM_GROUPS
    if plan.speculation is not None and not draft_arrays.only_prices(plan, role):
        return _DRAFTS[plan.engine.name]
    kv_connector, by_chunk = offload_arrays.kv_connector_of(plan), offload_arrays.by_chunk(plan)
    return offload_arrays.engine_entry(ENGINES[plan.engine.name], kv_connector, by_chunk)


def config_of(plan: WorkerPlan, workers: int, role: int = fl.UNIFIED) -> Any:
    """A pool's settings, shape (1,), as the fleet's first pool, without output write-back and front end."""
    from hisearch.kernels.engine import engine_calls

    engine = plan.engine
    page = engine.page_size
    # SGLang's decode workers have no radix cache by default; TensorRT-LLM's blocks are reused by the context phase.
    caches = engine.prefix_caching and (role != fl.DECODE or engine.name == "vllm")
    return record(
        la.CONFIG,
        engine=ENGINES[engine.name],
        engine_entry=engine_calls.address(entry_of(plan, role)),
        objects=engine_calls.address(la.AGENTS) if plan.agents is not None else 0,
        pool=0,
        role=role,
        first_member=0,
        workers=workers * plan.schedulers,
        schedulers=plan.schedulers,
        scheduler_kind=_SCHEDULER_KINDS[plan.scheduler_kind],
        **cost_arrays.power_settings(plan),
        page_tokens=page,
        rank_page_tokens=page // plan.split.decode_context,
        capacity_pages=plan.kv_capacity_tokens // page,
        host_pages=0 if plan.engine.name == "vllm" else plan.host_capacity_tokens // page,
        hicache=_is_hicache(plan),
        store_pool=-1,
        store_tier=0,
        prefix_caching=caches,
        max_running=plan.scheduler_running_requests,
        chunk_tokens=max(engine.chunk_tokens, _decode_tokens(plan) if role == fl.DECODE else 0),
        max_prefill_tokens=engine.max_prefill_tokens,
        max_prefills=la.NEVER if engine.prefill_max_requests is None else engine.prefill_max_requests,
        preempts=engine.name == "sglang" and engine.by_priority,
        priority_sign=-1 if engine.high_priority_first else 1,
        preemption_threshold=engine.preemption_threshold,
        max_request_tokens=plan.max_request_tokens,
        **{name: 0.0 for name, _ in client.CONFIG},
        horizon_s=math.inf,
        conservativeness=_conservativeness(plan),
        eviction=la.DISTANCE if agent_arrays.evicts_by_predicted_call(plan.agents) else EVICTIONS.code(engine.eviction),
        schedule=QUEUE_ORDERS.code("priority" if engine.by_priority and engine.schedule == "fcfs" else engine.schedule),
        # While results are taken in, the other micro-batches keep a pipeline busy.
        overlap=engine.overlap and plan.scheduler_kind != "pipe",
        chunked_prefill=engine.chunked_prefill,
        long_prefill_tokens=engine.long_prefill_tokens,
        long_prefill_adaptive=engine.long_prefill_adaptive,
        reserve_full_prompt=engine.reserve_full_prompt,
        # Of all blocks: the pool has one more, which never holds KV.
        watermark_pages=int(engine.watermark * (plan.kv_capacity_tokens // page + 1)),
        **draft_arrays.settings(plan, role),
        **group_arrays.component_settings(plan),
        capacity_policy=_CAPACITY_POLICIES[engine.capacity_policy],
        # Of no effect without chunks (MicroBatchScheduler: ctx_chunk_config is None).
        chunking_policy=_CHUNKING_POLICIES[engine.chunking_policy] if engine.chunked_prefill else 0,
        wait_steps=engine.batch_wait_timeout_iters,
        wait_tokens=engine.batch_wait_max_tokens_ratio * engine.chunk_tokens,
        gather_s=1e-3 * engine.batch_wait_timeout_ms,
        balances_ranks=engine.attention_dp_balance,
        balance_timeout_steps=engine.attention_dp_timeout_iters,
        balance_wait_steps=engine.attention_dp_batching_wait_iters,
        mixed_chunk=engine.mixed_chunk and engine.chunked_prefill,
        receive_interval=engine.receive_interval,
        counts_service=role != fl.DECODE and QUEUE_ORDERS[engine.schedule].counts_service,
        kernel_compile_s=plan.kernel_compile_s * plan.split.pipeline,  # Stages compile in turn.
        serves_adapters=plan.lora is not None,
        compiles_grammars=0,
        goes_by=0,
        thinks=0,
        shared_outputs=0,
        log=0,
        **_rules(plan),
    )


def _decode_tokens(plan: WorkerPlan) -> int:
    """Tokens of a decode worker's largest step: each decode's own, and its drafts where no budget of the engine counts.

    vLLM counts drafts; a budget below one token for each decode is taken to be that for it too.
    """
    drafts = plan.speculation.draft_tokens if plan.speculation is not None and plan.engine.name != "vllm" else 0
    return plan.engine.max_running_requests * (1 + drafts)


def _conservativeness(plan: WorkerPlan) -> float:
    """SGLang's schedule conservativeness, as its schedulers take it."""
    stated = plan.engine.schedule_conservativeness
    relaxed = plan.split.attention_data > 1 and rules_in_force("sglang", plan.engine.version)["relaxes_groups"]
    return stated * GROUPS_CONSERVATIVENESS if relaxed else stated


def _rules(plan: WorkerPlan) -> dict[str, bool]:
    """Whether each dated rule of every engine that kernels ask for holds."""
    engine = plan.engine
    holds = {name: rules_in_force(name, _release(engine, name)) for name in RULES}
    rules = {rule.name: holds[name][rule.name] for name in RULES for rule in RULES[name] if rule.in_kernels}
    connects = offload_arrays.kv_connector_of(plan) == "lmcache" or offload_arrays.by_chunk(plan)
    return rules | {
        "fetches_by_hits": engine.name == "sglang" and tier_arrays.fetches_by_hits(plan),
        "defers_frees": rules["defers_frees"] and connects and engine.overlap,
    }


def _release(engine: EngineSpec, name: str) -> str:
    """The release of engine ``name`` by whose rules a worker goes: decode workers of all engines go by vLLM's."""
    return engine.version if engine.name == name else ""


def _is_hicache(plan: WorkerPlan) -> bool:
    """Whether the tiers form HiCache's prefix cache, which decode workers do not have."""
    movement = plan.movement
    return movement is not None and movement.kv_connector == "hicache" and not movement.writes_back_output
