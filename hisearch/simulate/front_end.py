"""Front ends: delays of requests on their way to the router, and of tokens on their way to the client.

One process for each worker reads and tokenises requests one after another, so that a burst queues there. Tokens of a
step are streamed one after another by the same process; on average a token waits for half of the others in its step.
So does a follow-up that is sent at once for the other half, else it finds the process idle (``kernels.traffic.flow``).
``FrontEnd.ttft_factor`` delays all tokens of a request by a share of its TTFT.

A process with no time left falls behind (``kernels.traffic.front_end``). Each step brings it a message for each
decoding request; prompts count apart. Messages of a stream that wait are merged into one, which saves a
share of their work (1 - ``UNMERGED``); the rest waits in line, and tokens come later by it. Where nothing need wait
but for merging, the process goes round over all streams without a pause, and a request passes ``ROUNDS`` such rounds
until its client has the first token: its parts (reading, sending to the engine, waking the stream) each wait for one.

Notation
    a_i   when request i is sent, seconds; i counts requests with given arrival times, in order
    c_i   read_s + prompt_token_s * input tokens: service time of the process
    e     request_s - read_s: further delay, without queueing
    W     front ends, ``servers`` for each worker: the queue moves W times as fast

    done_i = e + c_i + max over j <= i of (a_j + sum of c_k / W over j <= k < i)
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hisearch.base.dtypes import F8, I4
from hisearch.latency.costs import FrontEnd
from hisearch.simulate.plans.fleet import FleetPlan
from hisearch.simulate.plans.plan import WorkerPlan
from hisearch.simulate.results.tables import RequestTable
from hisearch.traces.compiled import CompiledTrace, TraceArrays

#: Share of a token's work that merging messages does not save, by engine: in vLLM every token passes the process that
#: detokenises, SGLang's does so elsewhere. Measured without time left: 0.76 to 0.88 of vLLM 0.32.0, 0.5 to 0.84 of
#: SGLang 0.5.9 (docs/notes/2026-11-host-work.md); chosen within. TensorRT-LLM's is assumed to be vLLM's.
UNMERGED = {"vllm": 0.85, "sglang": 0.6, "trtllm": 0.85}

#: Rounds over all streams that a request takes where the process has no time left: 2 to 5.6 measured of SGLang 0.5.9,
#: 4 of vLLM 0.32.0 at the edge of saturation and 8 beyond it, where the tokens in line are most of the wait.
ROUNDS = 4.0


def delayed(
    arrays: TraceArrays, plan: FleetPlan, trace: CompiledTrace, load: float, models: I4
) -> tuple[TraceArrays, F8]:
    """(``arrays`` with the times at which requests reach the router instead of those at which they are sent, delays).

    All requests of a model pass the front end of the first pool that serves it. Agents call in their own loop, without
    a front end. Arrivals stay those of the trace at a load of 1: the caller divides them by ``load``. ``models``: index
    of each request's model among the plan's, shape (N,).

    Delays, shape (N,): seconds from sending to the router; of a follow-up, if it finds the process idle. Shape (0,) for
    front ends that take no time.
    """
    fronts = [pool.plan.costs.front_end for pool in plan.pools]
    if trace.agents is not None or all(front._replace(ttft_factor=1.0) == FrontEnd() for front in fronts):
        return arrays, np.empty(0)
    arrival, delay = arrays.arrival_s.copy(), np.zeros(len(trace))
    for model in np.unique(models):
        front, workers = _front_of(plan, int(model))
        mine = models == model
        each, beyond_s = read_s(front, arrays.input_tokens), front.request_s - front.read_s
        delay[mine] = beyond_s + each[mine]
        by_clock = np.flatnonzero(mine & (arrays.previous < 0))
        order = by_clock[np.argsort(arrays.arrival_s[by_clock], kind="stable")]
        sent = arrays.arrival_s[order] / load
        reached = in_line(sent, each[order], workers) + beyond_s
        arrival[order], delay[order] = load * reached, reached - sent
    return arrays._replace(arrival_s=arrival), delay


def _front_of(plan: FleetPlan, model: int) -> tuple[FrontEnd, int]:
    """(front end of requests for a model, number of processes that take them)."""
    pools = [pool for pool in plan.pools if pool.role != "decode" and plan.model_of(pool) == model]
    return pools[0].plan.costs.front_end, sum(pool.replicas * servers(pool.plan) for pool in pools)


def in_line(sent_s: F8, each_s: F8, workers: int) -> F8:
    """When requests sent at ``sent_s``, ascending, have been read; see the module's law."""
    moved = np.cumsum(each_s / workers) - each_s / workers
    return np.asarray(each_s + moved + np.maximum.accumulate(sent_s - moved))


def read_s(front: FrontEnd, input_tokens: np.ndarray) -> F8:
    """Service time of the reading process for each request, seconds."""
    return np.asarray(front.read_s + front.prompt_token_s * input_tokens)


def stream_s(plan: WorkerPlan) -> tuple[float, float]:
    """Seconds for (a token that is sent, each other request in its step on its attention group).

    Attention groups share the worker's processes, of which each serves its share of requests.
    """
    return plan.costs.front_end.stream_s, plan.split.attention_data * _token_work_s(plan)


def set_queue(settings: np.recarray, plan: WorkerPlan) -> None:
    """Write what the kernels need of the pool's front end into its ``layout.sim.CONFIG``."""
    settings.stream_s, settings.stream_share_s = stream_s(plan)
    # With each token of a scheduler come those of the worker's other schedulers.
    settings.message_s = plan.schedulers * _token_work_s(plan)
    settings.unmerged, settings.rounds = UNMERGED[plan.engine.name], ROUNDS


def _token_work_s(plan: WorkerPlan) -> float:
    """Seconds of each process for a token of the worker; ``stream_interval`` tokens of a request take one message."""
    return plan.costs.front_end.stream_s / (plan.engine.stream_interval * servers(plan))


def servers(plan: WorkerPlan) -> int:
    """Processes in front of a worker: as stated, else vLLM's own choice, one for each attention group; others' one."""
    if plan.engine.api_servers is not None:
        return plan.engine.api_servers
    return plan.split.attention_data if plan.engine.name == "vllm" else 1


def busy_share(plan: FleetPlan, table: RequestTable, pools: np.ndarray) -> float:
    """Share of time for which the front ends of the busiest pool would have work without merging; may exceed 1.

    ``pools``: that made a request's tokens, shape (N,).
    """
    served = table.finished
    if not served.any():
        return 0.0
    span_s = float(np.nanmax(table.finish_s[served]) - np.nanmin(table.arrival_s[served]))
    shares = [0.0]
    for p, pool in enumerate(plan.pools):
        mine = served & (pools == p)
        work_s = _token_work_s(pool.plan) * float(table.output_tokens[mine].sum())
        if pool.role != "decode":
            work_s += float(read_s(pool.plan.costs.front_end, table.input_tokens[mine]).sum()) / servers(pool.plan)
        shares.append(work_s / (pool.replicas * span_s) if span_s > 0 else 0.0)
    return max(shares)


def deliveries(
    plan: FleetPlan, models: I4, pools: np.ndarray, front_end_s: F8, columns: Mapping[str, np.ndarray]
) -> dict[str, F8]:
    """Client-side delays besides the engines', columns of a ``RequestTable``; none if front ends take no time.

    Args:
        plan: pools with their front ends.
        models: index of each request's model among the plan's.
        pools: for each request, the pool that made its tokens.
        front_end_s: between its sending and the router, shape (N,); (0,) where that takes no time.
        columns: ``arrival_s`` at the router, ``first_token_s``, ``finish_s``; ``decoding_at_first_token``,
            ``decoding_at_last_token``: requests decoding on its worker at its first, and at its last token;
            ``first_waits_s``, ``last_waits_s``: for a front end without time left. Where requests think also
            ``first_visible_s``, ``decoding_at_first_visible``.
    """
    front_ends = [pool.plan.costs.front_end for pool in plan.pools]
    if all(front == FrontEnd() for front in front_ends):
        return {}
    own_s, share_s = np.array([stream_s(pool.plan) for pool in plan.pools]).T[:, pools]
    front_end_s = front_end_s.copy() if len(front_end_s) else np.zeros(len(models))
    # With overlap, SGLang counts the request itself among the decodes when its first token is noted.
    joined = [pool.plan.engine.name == "sglang" and pool.plan.engine.overlap for pool in plan.pools]
    batch_mates = np.maximum(columns["decoding_at_first_token"] - np.array(joined, dtype=np.int64)[pools], 0)
    first_waits_s, last_waits_s = columns["first_waits_s"], columns["last_waits_s"]
    first_s = own_s + 0.5 * share_s * batch_mates + first_waits_s
    last_s = own_s + 0.5 * share_s * columns["decoding_at_last_token"] + last_waits_s
    factors = np.ones(len(models))
    for model in np.unique(models):
        factors[models == model] = _front_of(plan, int(model))[0].ttft_factor
    ttft_s = front_end_s + columns["first_token_s"] - columns["arrival_s"] + first_s
    first_s, last_s = first_s + (factors - 1.0) * ttft_s, last_s + (factors - 1.0) * ttft_s
    # Tokens of a request come in order.
    last_s = np.maximum(last_s, first_s + columns["first_token_s"] - columns["finish_s"])
    delivery = {"front_end_s": front_end_s, "first_delivery_s": first_s, "last_delivery_s": last_s}
    if "first_visible_s" in columns:
        at_s = columns["first_visible_s"]
        visible_s = own_s + 0.5 * share_s * columns["decoding_at_first_visible"] + (factors - 1.0) * ttft_s
        visible_s += np.minimum(first_waits_s, last_waits_s)
        visible_s = np.maximum(visible_s, first_s + columns["first_token_s"] - at_s)
        visible_s = np.where(at_s == columns["finish_s"], last_s, visible_s)
        visible_s = np.where(at_s == columns["first_token_s"], first_s, visible_s)
        # No visible token: nothing to come after.
        delivery |= {
            "visible_delivery_s": visible_s,
            "last_delivery_s": np.fmax(last_s, visible_s + at_s - columns["finish_s"]),
        }
    return delivery
