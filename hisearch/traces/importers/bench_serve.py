"""What results of ``vllm bench serve`` and ``sglang.bench_serving`` have in common: one object a run.

Lists of requests have a place for each that was sent, in order; failed ones have an error, or no output.
"""

from __future__ import annotations

import math

import numpy as np

from hisearch.base.dtypes import BOOL, F8
from hisearch.specs.wording import counted
from hisearch.traces.importers.measurement import Measurement, PerRequest
from hisearch.traces.importers.results import ResultObject, check_latencies, names_of

_DETAILS = ("input_lens", "output_lens", "ttfts", "itls")


def measurement_of(run: ResultObject, tool: str, e2e: str, sent_key: str) -> Measurement:
    """A run with its summary and, where they were kept, its requests.

    Args:
        run: the tool's object.
        tool: its name.
        e2e: what its keys call end-to-end latency.
        sent_key: where it says how many requests it sent, if it does not keep them.

    Raises:
        TraceError: a figure is none, lists differ in length, or no request succeeded.
    """
    requests = _requests(run)
    completed = run.count("completed")
    if completed < 1:
        raise run.refuse("completed", "no request succeeded")
    sent = len(run.get("ttfts")) if requests is not None else run.count(sent_key)
    stems = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": e2e}
    keys = {
        figure: key
        for stem, tool_stem in stems.items()
        for figure, key in names_of(stem, "", f"mean_{tool_stem}_ms", f"p{{}}_{tool_stem}_ms").items()
    }
    medians = {f"{stem}_p50_s": f"median_{tool_stem}_ms" for stem, tool_stem in stems.items()}
    stated = run.seconds(keys, 1e-3) | run.seconds(medians, 1e-3)
    figures = (requests.figures() if requests is not None else {}) | stated
    check_latencies(run, figures, ("mean_ttft_ms", "mean_tpot_ms", f"mean_{e2e}_ms"))
    figures["throughput_rps"] = run.number("request_throughput")
    figures["output_tokens_per_s"] = run.number("output_throughput")
    sent = max(sent, completed)
    return run.measurement(
        tool,
        sent=sent,
        failed=sent - completed,
        figures=figures,
        rate_rps=_rate(run),
        burstiness=run.number("burstiness") or 1.0 if run.get("burstiness") is not None else 1.0,
        concurrency=None if run.get("max_concurrency") is None else max(run.count("max_concurrency"), 1),
        input_tokens=run.count("total_input_tokens"),
        requests=requests,
    )


def _rate(run: ResultObject) -> float | None:
    value = run.get("request_rate")
    if value == "trace":
        return None
    if value in ("inf", math.inf):
        return math.inf
    rate = run.number("request_rate")
    if rate == 0:
        raise run.refuse("request_rate", "expected a rate above 0, inf or trace, got 0")
    return rate


def _requests(run: ResultObject) -> PerRequest | None:
    """Values of each request, if the tool kept them."""
    if any(run.get(key) is None for key in _DETAILS):
        return None
    keys = [key for key in (*_DETAILS, "errors", "start_times") if run.get(key)]
    for key in keys:
        if not isinstance(run.get(key), list):
            raise run.refuse(key, f"expected a list, got {run.get(key)!r:.60}")
    lengths = {key: len(run.get(key)) for key in keys}
    if len(set(lengths.values())) != 1:
        raise run.refuse(keys[0], f"expected lists of one length, got {lengths}")
    count = lengths[keys[0]]
    errors = run.get("errors") or [""] * count
    outputs = run.numbers("output_lens")
    good = np.array([not error and n > 0 for error, n in zip(errors, outputs, strict=True)], dtype=bool)
    if not good.any():
        raise run.refuse("errors", f"no request succeeded, of {counted(count, 'request')}")
    ttft_s = _of_good(run, "ttfts", good)
    gaps = [run.checked(f"itls[{at}]", gaps) if good[at] else [] for at, gaps in enumerate(run.get("itls"))]
    e2e_s = ttft_s + np.array([math.fsum(of_request) for of_request in gaps])
    start_s = None
    if "start_times" in keys:
        start_s = _of_good(run, "start_times", good)
        start_s = start_s - start_s[good].min()
    inputs, tokens = (amounts.astype(np.int64) for amounts in (_of_good(run, "input_lens", good), outputs))
    return PerRequest(np.arange(count), start_s, ttft_s, e2e_s, inputs, tokens).keep(good)


def _of_good(run: ResultObject, key: str, good: BOOL) -> F8:
    """A list of numbers; those of requests that are not ``good`` are 0."""
    values = [value if counts else 0.0 for value, counts in zip(run.get(key), good, strict=True)]
    return np.array(run.checked(key, values), dtype=np.float64)
