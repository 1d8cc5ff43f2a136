"""Results of ``sglang.bench_serving``."""

from __future__ import annotations

from hisearch.base.policies import TraceFormat
from hisearch.traces.importers.bench_serve import measurement_of
from hisearch.traces.importers.measurement import Measurement
from hisearch.traces.importers.results import Results

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
