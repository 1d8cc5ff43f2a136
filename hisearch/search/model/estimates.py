"""Speed of one worker from its step costs alone: stage 1's estimate, before any simulation.

Notation
    b          decoding sequences in the batch
    D(b)       seconds of a decode step of b sequences at the trace's mean context
    P          seconds of prefill that a mean request costs, net of cache hits
    O          mean output tokens per request

In a steady state a worker spends its time on prefills and decode steps. Requests complete at ``b / (O * D(b) + b * P)``
per second. A token of each takes ``tpot(b) = D(b) + (b - 1) * P / O`` seconds, as the others' prefills stretch it. Both
grow with b. Bisection finds the largest batch that keeps the TPOT bound; its rate is the worker's capacity.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from hisearch.latency.costs import CompiledCosts, StepCosts
from hisearch.latency.step_cost import decode_step_seconds, step_seconds
from hisearch.search.model.demand import Demand
from hisearch.specs.deployments.deployment import EngineSpec, PoolSpec
from hisearch.specs.studies.slo import SloSpec


@dataclass(frozen=True)
class Estimate:
    """One worker's expected figures at a cache hit rate.

    batch: decoding sequences in steady state; 0 if even one breaks the TPOT bound. limit: what bounds the batch:
    "tpot", "kv" or "max_running". tpot_s: mean at that batch. ttft_s: of a prompt at the SLO's TTFT percentile, without
    queueing. capacity_rps: requests per second. hit_rate: share of prompt tokens taken from the cache.
    """

    batch: int
    limit: str
    tpot_s: float
    ttft_s: float
    capacity_rps: float
    hit_rate: float


def tpot_bound_s(slo: SloSpec, demand: Demand) -> float:
    """Seconds allowed per token: the tightest TPOT term, or an E2E or TTFO term's time per token; else infinite.

    A TTFO term leaves its time to as many gaps between tokens as there are tokens of thinking.
    """
    bounds = [term.at_most_s for term in slo.common if term.metric == "tpot_s"]
    spans = {"e2e_s": demand.output_tokens, "ttfo_s": demand.thinking_tokens}
    for term in slo.common:
        tokens = float(np.percentile(spans[term.metric], term.percentile)) if term.metric in spans else 0.0
        if tokens > 0.0:
            bounds.append(term.at_most_s / tokens)
    return min(bounds, default=math.inf)


def ttft_bound(slo: SloSpec) -> tuple[float, float]:
    """(seconds, percentile) of the tightest TTFT term, else of TTFO, else of E2E, else infinite at the median."""
    for metric in ("ttft_s", "ttfo_s", "e2e_s"):
        terms = [(term.at_most_s, term.percentile) for term in slo.common if term.metric == metric]
        if terms:
            return min(terms)
    return math.inf, 50.0


def estimate(
    costs: StepCosts,
    engine: EngineSpec,
    kv_capacity_tokens: int,
    demand: Demand,
    slo: SloSpec,
    hit_rate: float,
    prompts: StepCosts | None = None,
) -> Estimate:
    """Expected figures of one worker (the module's law).

    kv_capacity_tokens: tokens that its KV memory holds. hit_rate: share of prompt tokens that need no prefill.
    prompts: costs of steps with prompts where they are others (``CompiledCosts.prompt_seconds``).
    """
    prompts = costs if prompts is None else prompts
    context = demand.mean_context_tokens
    mean_input, mean_output = float(demand.input_tokens.mean()), float(demand.output_tokens.mean())
    prefill = prefill_seconds(
        prompts, engine.chunk_tokens, round(mean_input * (1 - hit_rate)), round(mean_input * hit_rate)
    )

    def tpot_s(batch: int) -> float:
        # A request's own prefill comes before its first token: the others' prefills stretch its decoding.
        return decode_step_seconds(costs, batch, round(batch * context)) + (batch - 1) * prefill / mean_output

    most, limit = _batch_limit(engine, kv_capacity_tokens, demand)
    batch = largest(lambda b: tpot_s(b) <= tpot_bound_s(slo, demand), most)
    if batch < most:
        limit = "tpot"
    running = max(batch, 1)
    return Estimate(
        batch=batch,
        limit=limit,
        tpot_s=tpot_s(running),
        ttft_s=ttft_s(prompts, engine, demand, slo, hit_rate, running),
        capacity_rps=running / (mean_output * tpot_s(running) + prefill),
        hit_rate=hit_rate,
    )


def of_worker(figures: Estimate, groups: int) -> Estimate:
    """Figures of a worker, of one of whose ``groups`` attention groups these are: all serve at once."""
    return replace(figures, capacity_rps=groups * figures.capacity_rps)


def lone_seconds(costs: CompiledCosts, groups: int) -> StepCosts:
    """Step costs of an attention group while the others have nothing to do: joint work is for its tokens alone."""
    if costs.lockstep is None or groups == 1:
        return costs.seconds
    own_s, shared_s = costs.lockstep.own_s, costs.lockstep.shared_s
    tokens = np.arange(len(own_s))
    known = np.arange(len(shared_s))
    together, alone = (own_s + np.interp(tokens / sharing, known, shared_s) for sharing in (1, groups))
    share = np.divide(alone, together, out=np.ones_like(alone), where=together > 0)
    return costs.seconds._replace(token_s=costs.seconds.token_s * share[: len(costs.seconds.token_s)])


def least_tpot_s(costs: StepCosts, demand: Demand) -> float:
    """TPOT of a single request on a worker at the trace's shortest context; 0 if every output is one token."""
    decoding = demand.output_tokens >= 2
    if not decoding.any():
        return 0.0
    return decode_step_seconds(costs, 1, int(demand.input_tokens[decoding].min()))


def least_ttft_s(costs: StepCosts, engine: EngineSpec, demand: Demand, slo: SloSpec) -> float:
    """TTFT at the SLO's percentile that no worker can beat: at zero load, with every hit of an unlimited cache.

    Only the new tokens' prefill counts, without reading the cached ones and without a wait for a running step.
    """
    new = float(np.percentile(demand.new_tokens, ttft_bound(slo)[1]))
    return prefill_seconds(costs, engine.chunk_tokens, max(round(new), 1), 0)


def least_class_ttft(costs: StepCosts, engine: EngineSpec, demand: Demand, slo: SloSpec) -> float:
    """TTFT of a class that no worker can beat, as a share of its bound: the worst of the terms about classes, else 0.

    At zero load, where caches hold all that requests have in common, whatever their order. E2E terms bound it too. All
    requests that the SLO lets be rejected are taken to be the class's longest.
    """
    shares = [0.0]
    spared = math.floor(slo.max_rejected_fraction * demand.requests + 1e-9)
    for term in slo.terms:
        if not term.of_class or term.metric == "tpot_s":
            continue
        own = np.sort(demand.own_tokens[demand.of_class(term)])
        counted = own[: max(len(own) - spared, 0)]
        if len(counted):
            tokens = max(int(counted[math.floor(term.percentile / 100.0 * (len(counted) - 1))]), 1)
            chunk_tokens = engine.chunk_tokens if engine.chunked_prefill else tokens
            shares.append(prefill_seconds(costs, chunk_tokens, tokens, 0) / term.at_most_s)
    return max(shares)


def least_class_tpot(costs: StepCosts, demand: Demand, slo: SloSpec) -> float:
    """TPOT of a class that no worker can beat, as a share of its bound, likewise: of its shortest context, alone."""
    shares = [0.0]
    for term in slo.terms:
        decoding = demand.of_class(term) & (demand.output_tokens >= 2)
        if term.of_class and term.metric == "tpot_s" and decoding.any():
            shares.append(decode_step_seconds(costs, 1, int(demand.input_tokens[decoding].min())) / term.at_most_s)
    return max(shares)


def largest(holds: Callable[[int], bool], most: int) -> int:
    """Largest n in [1, most] for which ``holds`` (true up to some n, false beyond); 0 if ``holds(1)`` is false."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


def prefill_seconds(costs: StepCosts, chunk_tokens: int, new: int, cached: int) -> float:
    """Seconds to prefill ``new`` tokens behind ``cached`` ones in chunks, alone on the worker."""
    total, done = 0.0, 0
    while done < new:
        chunk = min(chunk_tokens, new - done)
        total += step_seconds(costs, [(chunk, cached + done)], [], 1 if done + chunk == new else 0)
        done += chunk
    return total


def expected_hit_rate(demand: Demand, pool: PoolSpec, kv_tokens: int, workers: int) -> float:
    """Hit rate of the HBM of ``workers`` workers behind a router that knows what is where, as in one LRU cache.

    Attention groups are dealt requests whatever they hold, and find no hits in each other's caches (see
    ``hisearch.search.model.reuse``), unless all read a store behind them. What tiers hold themselves is not counted.

    Args:
        demand: of the trace.
        pool: the worker.
        kv_tokens: that each of its attention groups holds.
        workers: of that kind.
    """
    groups = pool.attention_data_parallel
    share = shares_store(pool)
    curve, held = demand.reuse(1 if share else groups), kv_tokens * workers * (groups if share else 1)
    return min(curve.hit_rate(held), demand.ideal_hit_rate)


def shares_store(pool: PoolSpec) -> bool:
    """Whether a worker's attention groups find what the others have computed: in storage behind HiCache's host memory.

    All that is computed has to be written there, and requests have to wait for what is fetched. Of a chat's prompt
    tokens four groups then hit 0.47, as many as one cache. Under any other pair of policies they hit 0.27 to 0.29,
    where 0.27 lie in their own HBM.
    """
    movement = pool.movement
    waits = movement.write_policy == "write_through" and movement.prefetch != "best_effort"
    return pool.kv_connector == "hicache" and len(pool.tiers) > 1 and waits


def _batch_limit(engine: EngineSpec, kv_capacity_tokens: int, demand: Demand) -> tuple[int, str]:
    """Most sequences that run, and why: TensorRT-LLM reserves declared outputs but under ``max_utilization``."""
    reserves = engine.name == "trtllm" and engine.capacity_policy != "max_utilization"
    tokens = demand.mean_reserved_tokens if reserves else demand.mean_context_tokens
    by_memory = max(int(kv_capacity_tokens / tokens), 1)
    if by_memory < engine.max_running_requests:
        return by_memory, "kv"
    return engine.max_running_requests, "max_running"


def ttft_s(costs: StepCosts, engine: EngineSpec, demand: Demand, slo: SloSpec, hit_rate: float, batch: int) -> float:
    """TTFT of the prompt at the TTFT percentile in mixed steps with ``batch`` decodes, after half a step's wait.

    vLLM's and TensorRT-LLM's chunks share their steps with the decodes; SGLang's prefills run alone.
    """
    ideal = demand.ideal_hit_rate
    share = hit_rate / ideal if ideal > 0 else 0.0
    percentile = ttft_bound(slo)[1]
    fully = float(np.percentile(demand.input_tokens, percentile))
    best = float(np.percentile(demand.new_tokens, percentile))
    new = max(round(fully + (best - fully) * share), 1)
    chunks = math.ceil(new / engine.chunk_tokens)
    decode_s = decode_step_seconds(costs, batch, round(batch * demand.mean_context_tokens))
    prefill_s = prefill_seconds(costs, engine.chunk_tokens, new, max(round(fully) - new, 0))
    shared_s = chunks * (decode_s - decode_step_seconds(costs, 0, 0)) if engine.name != "sglang" else 0.0
    return decode_s / 2 + prefill_s + shared_s
