"""Results of ``sglang.bench_serving``."""

from __future__ import annotations

from hisearch.base.policies import TraceFormat
from hisearch.traces.importers.bench_serve import measurement_of
from hisearch.traces.importers.measured_trace import measured_trace
from hisearch.traces.importers.measurement import Measurement
from hisearch.traces.importers.results import Results, read_results
from hisearch.traces.reading.source import Source
from hisearch.traces.trace import Trace

FORMAT = TraceFormat(
    "Results of sglang.bench_serving.",
    json_fields=(("sharegpt_output_len", "dataset_name", "max_concurrency"), ("sharegpt_output_len", "request_rate")),
    times="not recorded",
)


def measurements(results: Results) -> list[Measurement]:
    """``--output-file`` of SGLang 0.5.9 to 0.5.23 (bench_serving.py): a line for each run.

    ``--output-details`` adds the requests, but never when each was sent. TPOT is (last token - first token) /
    (tokens - 1) of a request, as here; ITL are the gaps between a response's messages. The summary alone does not say
    how many requests failed.
    """
    return [measurement_of(run, "sglang.bench_serving", "e2e_latency", "completed") for run in results.objects()]


def read(source: Source) -> Trace:
    """The requests of runs with ``--output-details``; see ``measurements``."""
    return measured_trace(source, measurements(read_results(source.path, source.bad)))
