"""Observations of running servers (``hisearch observe``)."""

from __future__ import annotations

from hisearch.base.policies import TraceFormat
from hisearch.traces.importers.measurement import Measurement
from hisearch.traces.importers.results import Results, check_latencies

FORMAT = TraceFormat(
    "Results of hisearch observe.",
    json_fields=(("window_s", "complete", "version"),),
    times="all are seconds",
)
_NOTES = (
    "latencies are the server's own: without the network and what comes before a request is noted",
    "means are exact, percentiles are read off the buckets of a histogram",
)
_FIGURES = ("ttft_mean_s", "tpot_mean_s", "e2e_mean_s", "throughput_rps", "output_tokens_per_s")


def measurements(results: Results) -> list[Measurement]:
    """The window of an observation, summed up: means and rates. Requests one by one are not known."""
    made = []
    for item in results.objects():
        figures = {name: item.number(f"figures.{name}") for name in _FIGURES if item.get(f"figures.{name}") is not None}
        check_latencies(item, figures, ("figures.ttft_mean_s",))
        ended, failed = item.count("counters.requests"), 0
        if item.get("counters.failed") is not None:
            failed = item.count("counters.failed")
        inputs = item.count("counters.prompt_tokens") if item.get("counters.prompt_tokens") is not None else None
        made.append(
            item.measurement(
                "hisearch observe",
                sent=ended + failed,
                failed=failed,
                figures=figures,
                input_tokens=inputs,
                notes=_NOTES,
            )
        )
    return made
