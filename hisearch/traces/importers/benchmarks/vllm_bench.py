"""Results of ``vllm bench serve``."""

from __future__ import annotations

from hisearch.base.policies import TraceFormat
from hisearch.traces.importers.bench_serve import measurement_of
from hisearch.traces.importers.measurement import Measurement
from hisearch.traces.importers.results import Results

FORMAT = TraceFormat(
    "Results of vllm bench serve.",
    json_fields=(("endpoint_type", "tokenizer_id"),),
    times="start_times holds seconds",
)


def measurements(results: Results) -> list[Measurement]:
    """``--save-result`` or ``--append-result`` of vLLM 0.19.1 to 0.33.0 (vllm/benchmarks/serve.py).

    One object a run; ``--save-detailed`` adds the requests. TPOT is (last token - first token) / (tokens - 1) of a
    request, as here; ITL are the gaps between a response's messages. ``start_times`` are those at which requests left
    the client's own queue.
    """
    return [measurement_of(run, "vllm bench serve", "e2el", "num_prompts") for run in results.objects()]
