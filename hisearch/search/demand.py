"""What a trace asks of a deployment, in a few numbers: enough to size one without simulating.

Notation
    hit tokens   prompt tokens that an unlimited cache would hold when the request arrives: the longest prefix that an
                 earlier sequence (prompt and output) of the trace shares, at most the prompt less one token
    context      tokens that a decode step reads; averaged over all decode steps of the trace
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hisearch.specs.slo import SloSpec
from hisearch.traces.compiled import F8, I8, CompiledTrace, TraceArrays

#: Width of the window in which the busiest rate is looked for, seconds.
PEAK_WINDOW_S = 60.0

#: Guesses of a follow-up's wait for its predecessor where the SLO bounds neither TTFT nor TPOT.
_TTFT_GUESS_S = 0.5
_TPOT_GUESS_S = 0.03


@dataclass(frozen=True)
class Demand:
    """Statistics of a trace at the study's load.

    requests: N. mean_rps, peak_rps: arrivals per second over the whole trace and in its busiest window; follow-ups
    arrive where half the SLO's bounds would put them. input_tokens, new_tokens, output_tokens: shape (N,); new = input
    - hit. mean_context_tokens: see the module. unique_tokens: distinct tokens of the trace, what an unlimited cache
    would hold.
    """

    requests: int
    mean_rps: float
    peak_rps: float
    input_tokens: I8
    new_tokens: I8
    output_tokens: I8
    mean_context_tokens: float
    unique_tokens: int

    @property
    def ideal_hit_rate(self) -> float:
        """Share of prompt tokens that an unlimited cache would hit."""
        return 1.0 - float(self.new_tokens.sum()) / float(self.input_tokens.sum())


def measure_demand(trace: CompiledTrace, slo: SloSpec, load: float = 1.0) -> Demand:
    """Statistics of a compiled trace whose first turns arrive ``load`` times as fast as recorded.

    Raises:
        ValueError: the trace is empty.
    """
    from hisearch.traces.stats import ideal_hit_tokens

    arrays, count = trace.arrays, len(trace)
    if count == 0:
        raise ValueError("the trace holds no request")
    hits = np.minimum(ideal_hit_tokens(trace, include_outputs=True), arrays.input_tokens - 1)
    mean_rps, peak_rps = _rates(_expected_arrivals(arrays, slo, load))
    outputs = arrays.output_tokens
    context = (arrays.input_tokens + (outputs + 1) / 2.0) * outputs
    return Demand(
        requests=count,
        mean_rps=mean_rps,
        peak_rps=peak_rps,
        input_tokens=arrays.input_tokens,
        new_tokens=arrays.input_tokens - hits,
        output_tokens=outputs,
        mean_context_tokens=float(context.sum() / outputs.sum()),
        unique_tokens=int((arrays.end_tokens - arrays.start_tokens).sum()),
    )


def _expected_arrivals(arrays: TraceArrays, slo: SloSpec, load: float) -> F8:
    """Arrival times, sorted; a follow-up's predecessor is taken to need half of what the SLO allows it."""
    ttft_s = min((t.at_most_s / 2 for t in slo.terms if t.metric == "ttft_s"), default=_TTFT_GUESS_S)
    tpot_s = min((t.at_most_s / 2 for t in slo.terms if t.metric == "tpot_s"), default=_TPOT_GUESS_S)
    arrivals = (arrays.arrival_s / load).tolist()
    outputs, thinks = arrays.output_tokens.tolist(), arrays.think_s.tolist()
    for request, previous in enumerate(arrays.previous.tolist()):
        if previous >= 0:
            arrivals[request] = arrivals[previous] + ttft_s + outputs[previous] * tpot_s + thinks[request]
    return np.sort(np.array(arrivals, dtype=np.float64))


def _rates(arrivals_s: F8) -> tuple[float, float]:
    """Mean and peak arrivals per second; a trace shorter than a window counts as one window."""
    span_s = float(arrivals_s[-1] - arrivals_s[0])
    window_s = min(PEAK_WINDOW_S, max(span_s, 1.0))
    first = np.searchsorted(arrivals_s, arrivals_s - window_s, side="right")
    busiest = int((np.arange(1, len(arrivals_s) + 1) - first).max())
    mean = len(arrivals_s) / max(span_s, 1.0)
    return mean, max(busiest / window_s, mean)
