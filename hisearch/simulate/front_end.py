"""Front ends: what requests pass on their way to the router, and their tokens on the way back to the client.

One process for each worker reads and tokenises requests one after another, so that a burst waits in line there. A
request that follows on another finds it idle: it is sent by itself. Tokens of a step are streamed one after another; on
average one waits for half of those beside it.

Notation
    a_i   when request i is sent, seconds; i counts those that come by the clock, in order
    c_i   read_s + prompt_token_s * input tokens: the process's own time
    e     request_s - read_s: what else it takes, in line for nobody
    W     workers, each with a front end: the line moves W times as fast

    done_i = e + c_i + max over j <= i of (a_j + sum of c_k / W over j <= k < i)
"""

from __future__ import annotations

import numpy as np

from hisearch.latency.costs import FrontEnd
from hisearch.simulate.fleet import FleetPlan
from hisearch.traces.compiled import F8, CompiledTrace, TraceArrays


def delayed(arrays: TraceArrays, plan: FleetPlan, trace: CompiledTrace, load: float) -> TraceArrays:
    """``arrays`` with the times at which requests reach the router instead of those at which they are sent.

    All pass the front end of the first pool; agents call in a loop of their own, without one. Follow-ups take its time
    before they come. Arrivals stay those of the trace at a load of 1: the caller divides them by ``load``.
    """
    front = plan.pools[0].plan.costs.front_end
    if trace.agents is not None or not _takes_time(front):
        return arrays
    each, beyond_s = read_s(front, arrays.input_tokens), front.request_s - front.read_s
    by_clock = np.flatnonzero(arrays.previous < 0)
    order = by_clock[np.argsort(arrays.arrival_s[by_clock], kind="stable")]
    arrival = arrays.arrival_s.copy()
    read = in_line(arrays.arrival_s[order] / load, each[order], plan.pools[0].replicas)
    arrival[order] = load * (read + beyond_s)
    return arrays._replace(arrival_s=arrival, think_s=arrays.think_s + beyond_s + each)


def in_line(sent_s: F8, each_s: F8, workers: int) -> F8:
    """When requests that are sent at ``sent_s``, rising, have been read; see the module's law."""
    moved = np.cumsum(each_s / workers) - each_s / workers
    return np.asarray(each_s + moved + np.maximum.accumulate(sent_s - moved))


def read_s(front: FrontEnd, input_tokens: np.ndarray) -> F8:
    """What the reading process takes for each request."""
    return np.asarray(front.read_s + front.prompt_token_s * input_tokens)


def deliveries(
    plan: FleetPlan,
    trace: CompiledTrace,
    arrival_s: F8,
    load: float,
    pools: tuple[np.ndarray, np.ndarray],
    beside: tuple[np.ndarray, np.ndarray],
) -> dict[str, F8]:
    """What clients wait for beside the engines, columns of a ``RequestTable``; none where front ends take no time.

    Args:
        plan: whose front ends.
        trace: what was sent.
        arrival_s: when each request reached the router.
        load: factor on the rate of arrivals.
        pools: of each request, the pool that it came to, and the one that made its tokens.
        beside: requests that decoded on its worker when it made its first, and its last token.
    """
    fronts = [pool.plan.costs.front_end for pool in plan.pools]
    if not any(any(front) for front in fronts):
        return {}
    stream_s = np.array([front.stream_s for front in fronts])[pools[1]]
    if trace.agents is None:
        sent_s = np.where(trace.arrays.previous < 0, trace.arrays.arrival_s / load, np.nan)
        alone_s = fronts[0].request_s - fronts[0].read_s + read_s(fronts[0], trace.arrays.input_tokens)
        front_end_s = np.where(np.isnan(sent_s), alone_s, np.maximum(arrival_s - sent_s, 0.0))
    else:
        front_end_s = np.zeros(len(trace))
    first_s, last_s = (stream_s * (1.0 + 0.5 * others) for others in beside)
    return {"front_end_s": front_end_s, "first_delivery_s": first_s, "last_delivery_s": last_s}


def _takes_time(front: FrontEnd) -> bool:
    return front.request_s > 0 or front.prompt_token_s > 0
