"""Runs of benchmarks as traces: what the client sent, and when."""

from __future__ import annotations

import math

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.specs.wording import counted
from hisearch.traces.importers.measurement import Measurement, PerRequest
from hisearch.traces.reading.errors import TraceError
from hisearch.traces.reading.source import Requests, Source
from hisearch.traces.sampling import stream
from hisearch.traces.trace import Trace


def measured_trace(source: Source, runs: list[Measurement]) -> Trace:
    """The requests of the runs, one run after another.

    Recorded times of sending are kept. Where a run has none, arrivals are drawn at its stated rate, seeded; of a closed
    loop each request follows up the one that stood as many places before it as requests were in flight. Failed
    requests are left out. Contents are not recorded: nothing is shared.

    Raises:
        TraceError: a run has no requests one by one, or lacks their token counts.
    """
    requests, warnings = Requests(), list[str]()
    end_s, chained = 0.0, False
    for run in runs:
        served = run.requests
        if served is None:
            message = f"a summary of {counted(run.sent, 'request')} by {run.tool}: the requests themselves are needed"
            raise TraceError.at(message, path=run.path, line=run.line)
        if (served.input_tokens < 1).any() or (served.output_tokens < 1).any():
            message = f"{run.tool} recorded no token counts: a trace needs those of every request"
            raise TraceError.at(message, path=run.path, line=run.line)
        starts = _starts(run, served, source.seed)
        base = len(requests)
        behind = run.concurrency if starts is None and run.concurrency is not None else len(served.rows)
        thinking = 0 * served.output_tokens if served.thinking_tokens is None else served.thinking_tokens
        counts = (column.tolist() for column in (served.input_tokens, served.output_tokens, thinking))
        for index, (inputs, outputs, thought) in enumerate(zip(*counts, strict=True)):
            if starts is not None or index < behind:
                at_s = end_s + (0.0 if starts is None else float(starts[index]))
                requests.add(at_s, inputs, outputs, thinking_tokens=min(thought, outputs))
            else:
                previous = base + index - behind
                requests.add(
                    math.nan, inputs, outputs, previous=previous, think_s=0.0, thinking_tokens=min(thought, outputs)
                )
                chained = True
        begun_s = starts if starts is not None else np.zeros(len(served.rows))
        end_s += float((begun_s + served.e2e_s).max())
        warnings += _about(run)
    if len(runs) > 1:
        warnings.append(f"{len(runs)} runs of a benchmark follow one another")
    warnings.append("prompts are not recorded: nothing is shared between them")
    if not chained:
        requests.sort_by_time(source)
    return requests.build(source, open_loop=not chained, from_first_arrival=not chained, warnings=warnings)


def _starts(run: Measurement, served: PerRequest, seed: int) -> F8 | None:
    """When each request was sent, seconds; None in a closed loop without recorded times."""
    if served.start_s is not None:
        return served.start_s
    if run.is_closed_loop:
        return None
    if run.rate_rps is None:
        message = "request_rate: the file does not record when requests were sent, and states no rate"
        raise TraceError.at(message, path=run.path, line=run.line)
    return arrivals(run, len(served.rows), 1, seed)[0]


def arrivals(run: Measurement, count: int, draws: int, seed: int) -> tuple[F8, ...]:
    """Draws of the times at which a run's client sent ``count`` requests at its rate, seconds from the first one."""
    if run.rate_rps is None or math.isinf(run.rate_rps):
        return (np.zeros(count),)
    scale_s = 1.0 / (run.rate_rps * run.burstiness)
    gaps = stream("verify arrivals", seed).gamma(run.burstiness, scale_s, (draws, count))
    return tuple(np.cumsum(drawn) - drawn[0] for drawn in gaps)


def _about(run: Measurement) -> list[str]:
    """What a reader of the trace should know of how the run was made."""
    said = []
    recorded = run.requests is not None and run.requests.start_s is not None
    if run.is_closed_loop:
        effect = (
            "recorded times are kept, but a faster deployment would have been sent its requests sooner"
            if recorded
            else "requests follow each other up as in the loop"
        )
        said.append(f"{run.source}: {run.pacing}: {effect}")
    elif run.concurrency is not None and run.rate_rps is not None:
        said.append(f"{run.source}: {run.pacing}: the client may have held requests back")
    elif run.rate_rps is not None and not recorded:
        drawn = "" if math.isinf(run.rate_rps) else "; arrivals are drawn at that rate, seeded"
        said.append(f"{run.source}: {run.pacing}{drawn}")
    if run.failed:
        said.append(f"{run.source}: {counted(run.failed, 'failed request')} left out, of {run.sent}")
    return said
