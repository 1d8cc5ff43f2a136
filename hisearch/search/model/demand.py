"""A trace's demand in a few numbers: enough to size a deployment without simulating.

Notation
    own tokens   prompt tokens that no other sequence has in common with the request: no cache spares it these, in
                 whatever order requests are served
    hit tokens   prompt tokens that an unlimited cache would hold at the request's arrival: the longest prefix shared
                 with an earlier sequence (prompt and output) of the trace, at most the prompt less one token
    context      tokens that a decode step reads; averaged over all decode steps of the trace
    reserved     tokens of a prompt and its declared output; averaged likewise
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hisearch.base.dtypes import F8, I4, I8
from hisearch.search.model.reuse import HitCurve, Reuse
from hisearch.specs.studies.slo import SloSpec, SloTerm
from hisearch.traces.compiled import CompiledTrace, TraceArrays

Mask = npt.NDArray[np.bool_]

#: Width of the window for the peak rate, seconds.
PEAK_WINDOW_S = 60.0

#: Guesses of a follow-up's wait for its predecessor if the SLO bounds neither TTFT nor TPOT.
_TTFT_GUESS_S = 0.5
_TPOT_GUESS_S = 0.03


@dataclass(frozen=True)
class Rates:
    """Arrivals per second: over a complete trace, and in its busiest window of ``PEAK_WINDOW_S``."""

    mean_rps: float
    peak_rps: float


@dataclass(frozen=True)
class Demand:
    """Statistics of a trace at the study's load, over the S requests within the model's window; others cost no work.

    requests: in the complete trace. mean_rps, peak_rps: arrivals per second over the complete trace and in its busiest
    window; follow-ups arrive at half the SLO's bounds. least_rps: rate that a deployment within the SLO must carry:
    every response takes all the time that the SLO allows, the last one too; 0 if the SLO sets no such time.
    scales_with_load: first turns arrive over some time, so a larger load is a denser one. input_tokens, new_tokens,
    output_tokens, own_tokens, priority, tenant: shape (S,); new = input - hit; own is known where the SLO has terms
    about classes, else new. thinking_tokens: of those with a visible token. mean_context_tokens,
    mean_reserved_tokens: see the module. unique_tokens: distinct tokens, the contents of an unlimited cache. reuse:
    what caches of limited size hit, by the number of caches among which requests are dealt.
    """

    requests: int
    mean_rps: float
    peak_rps: float
    least_rps: float
    scales_with_load: bool
    input_tokens: I8
    new_tokens: I8
    output_tokens: I8
    thinking_tokens: I8
    mean_context_tokens: float
    mean_reserved_tokens: float
    unique_tokens: int
    reuse: Callable[[int], HitCurve]
    own_tokens: I8
    priority: I4
    tenant: I4

    def of_class(self, term: SloTerm) -> Mask:
        """The requests that a term is about, shape (S,)."""
        mask = np.ones(len(self.input_tokens), np.bool_)
        for name, number in term.of_class.items():
            mask &= getattr(self, name) == number
        return mask

    @property
    def ideal_hit_rate(self) -> float:
        """Share of prompt tokens that an unlimited cache would hit."""
        return 1.0 - float(self.new_tokens.sum()) / float(self.input_tokens.sum())


def measure_demand(
    trace: CompiledTrace, slo: SloSpec, load: float = 1.0, *, window_tokens: int | None = None
) -> Demand:
    """Statistics of a compiled trace whose first turns arrive ``load`` times as fast as recorded.

    Requests whose prompt and declared output exceed a model's ``window_tokens`` are left out, as every deployment
    rejects them. If all exceed it, none are left out.

    Raises:
        ValueError: the trace is empty.
    """
    from hisearch.traces.stats import ideal_hit_tokens

    arrays, count = trace.arrays, len(trace)
    if count == 0:
        raise ValueError("the trace holds no request")
    served = _served(trace, window_tokens)
    inputs, outputs = arrays.input_tokens[served], arrays.output_tokens[served]
    hits = np.minimum(ideal_hit_tokens(trace, include_outputs=True)[served], inputs - 1)
    arrivals = _expected_arrivals(arrays, slo, load)
    order = np.argsort(arrivals, kind="stable")
    order = order[served[order]]
    rates = rates_of(arrivals[order])
    context = (inputs + (outputs + 1) / 2.0) * outputs
    reserved = (inputs + arrays.max_output_tokens[served].astype(np.float64)) * outputs
    return Demand(
        requests=count,
        mean_rps=rates.mean_rps,
        peak_rps=rates.peak_rps,
        least_rps=_least_rps(arrays, slo, load, served),
        scales_with_load=scales_with_load(arrays),
        input_tokens=inputs,
        new_tokens=inputs - hits,
        output_tokens=outputs,
        thinking_tokens=_before_visible(arrays, served),
        mean_context_tokens=float(context.sum() / outputs.sum()),
        mean_reserved_tokens=float(reserved.sum() / outputs.sum()),
        unique_tokens=_unique_tokens(arrays, served),
        reuse=Reuse(trace, order),
        own_tokens=_own_tokens(arrays)[served] if any(term.of_class for term in slo.terms) else inputs - hits,
        priority=arrays.priority[served],
        tenant=arrays.tenant[served],
    )


def _before_visible(arrays: TraceArrays, served: Mask) -> I8:
    """Thinking tokens of those requests of a mask that have a visible token; a single 0 where none has."""
    thinking = arrays.thinking_tokens[served]
    visible = thinking[thinking < arrays.output_tokens[served]]
    return visible if len(visible) else np.zeros(1, np.int64)


def _served(trace: CompiledTrace, window_tokens: int | None) -> Mask:
    """The requests within a model's window; all of them if none is."""
    from hisearch.traces.stats import requests_over_window

    if window_tokens is not None and (within := ~requests_over_window(trace, window_tokens)).any():
        return within
    return np.ones(len(trace), np.bool_)


def scales_with_load(arrays: TraceArrays) -> bool:
    """Whether first turns arrive over some time; in a closed loop no arrival depends on the load."""
    return bool(np.ptp(arrays.arrival_s[arrays.previous < 0]) > 0)


def _own_tokens(arrays: TraceArrays) -> I8:
    """Prompt tokens of each request that no other sequence of the trace begins with, before it or after; shape (N,)."""
    parents, ends = arrays.parent.tolist(), arrays.end_tokens.tolist()
    passing = np.bincount(arrays.output_node, minlength=len(parents)).tolist()
    for node in range(len(parents) - 1, 0, -1):  # a parent has a smaller index than its children
        passing[parents[node]] += passing[node]
    shared = [0] * len(parents)
    for node in range(1, len(parents)):
        shared[node] = ends[node] if passing[node] > 1 else shared[parents[node]]
    return np.asarray(arrays.input_tokens - np.array(shared, np.int64)[arrays.prompt_node])


def _unique_tokens(arrays: TraceArrays, served: Mask) -> int:
    """Distinct tokens of the requests of a mask, prompts and outputs."""
    tokens = arrays.end_tokens - arrays.start_tokens
    if served.all():
        return int(tokens.sum())
    held = np.zeros(len(tokens), np.bool_)
    held[arrays.output_node[served]] = True
    parents = arrays.parent.tolist()
    for node in range(len(tokens) - 1, 0, -1):  # a parent has a smaller index than its children
        if held[node]:
            held[parents[node]] = True
    return int(tokens[held].sum())


def _expected_arrivals(arrays: TraceArrays, slo: SloSpec, load: float) -> F8:
    """Arrival times in the trace's order; predecessors are assumed to need half of what the SLO allows."""
    ttft_s = min((t.at_most_s / 2 for t in slo.common if t.metric == "ttft_s"), default=_TTFT_GUESS_S)
    tpot_s = min((t.at_most_s / 2 for t in slo.common if t.metric == "tpot_s"), default=_TPOT_GUESS_S)
    return _arrivals(arrays, load, ttft_s, tpot_s)


def _least_rps(arrays: TraceArrays, slo: SloSpec, load: float, served: Mask) -> float:
    """Requests of a mask over the longest time that a deployment within the SLO can take for the trace.

    Percentiles leave some requests free of the bounds; they are assumed to keep them, with half as much again to spare.
    """
    longest = float(arrays.output_tokens[served].max())
    bounds = {
        metric: [t.at_most_s for t in slo.common if t.metric == metric] for metric in ("ttft_s", "tpot_s", "e2e_s")
    }
    if bounds["e2e_s"]:
        ttft_s, tpot_s = min(bounds["e2e_s"]), 0.0
    elif bounds["ttft_s"] and bounds["tpot_s"]:
        ttft_s, tpot_s = min(bounds["ttft_s"]), min(bounds["tpot_s"])
    else:
        return 0.0
    arrivals = _arrivals(arrays, load, ttft_s, tpot_s)[served]
    return len(arrivals) / (1.5 * (float(np.ptp(arrivals)) + ttft_s + longest * tpot_s))


def _arrivals(arrays: TraceArrays, load: float, ttft_s: float, tpot_s: float) -> F8:
    """Arrival times in the trace's order, if every request takes ``ttft_s``, then ``tpot_s`` for each further token."""
    arrivals = (arrays.arrival_s / load).tolist()
    outputs, thinks = arrays.output_tokens.tolist(), arrays.think_s.tolist()
    for request, previous in enumerate(arrays.previous.tolist()):
        if previous >= 0:
            arrivals[request] = arrivals[previous] + ttft_s + outputs[previous] * tpot_s + thinks[request]
    return np.array(arrivals, dtype=np.float64)


def rates_of(arrivals_s: F8) -> Rates:
    """Mean and peak of sorted arrival times, at least one; a trace shorter than a window counts as one window."""
    span_s = float(arrivals_s[-1] - arrivals_s[0])
    window_s = min(PEAK_WINDOW_S, max(span_s, 1.0))
    first = np.searchsorted(arrivals_s, arrivals_s - window_s, side="right")
    busiest = int((np.arange(1, len(arrivals_s) + 1) - first).max())
    mean = len(arrivals_s) / max(span_s, 1.0)
    return Rates(mean, max(busiest / window_s, mean))
