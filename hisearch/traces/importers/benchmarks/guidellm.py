"""Results of guidellm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hisearch.base.policies import TraceFormat
from hisearch.traces.importers.measurement import Measurement, rates_of
from hisearch.traces.importers.results import RequestRows, ResultObject, Results

FORMAT = TraceFormat(
    "Results of guidellm.",
    json_fields=(("benchmarks",),),
    times="request_start_time holds seconds",
    rank=1,
)

_STATUSES = ("successful", "errored", "incomplete")


def measurements(results: Results) -> list[Measurement]:
    """``--output kind=json`` of guidellm 0.8 (src/guidellm/schemas/request_stats.py): ``benchmarks``, one a load.

    A request's ``inter_token_latency_ms`` is TPOT as here; ``time_per_output_token_ms`` counts the first token too and
    is not used. A run that was ended early also lists requests that it never sent.
    """
    runs = []
    for document in results.objects():
        benchmarks = document.get("benchmarks")
        if not isinstance(benchmarks, list) or not benchmarks:
            raise document.refuse("benchmarks", "expected at least one")
        for index, run in enumerate(benchmarks):
            if not isinstance(run, Mapping):
                raise document.refuse(f"benchmarks[{index}]", "expected an object")
            part = f"benchmarks[{index}]"
            runs.append(_run(ResultObject(document.path, document.line, run, f"{part}."), part))
    return runs


def _run(run: ResultObject, part: str) -> Measurement:
    by_status = run.inner("requests")
    rows = RequestRows()
    for status in _STATUSES:
        listed = by_status.get(status) or []
        if not isinstance(listed, list):
            raise by_status.refuse(status, "expected a list")
        for index, item in enumerate(listed):
            if not isinstance(item, Mapping):
                raise by_status.refuse(f"{status}[{index}]", "expected an object")
            _add(rows, ResultObject(run.path, run.line, item, f"{by_status.prefix}{status}[{index}]."), status)
    if not rows.start_s:
        raise run.refuse("requests.successful", "no request succeeded")
    requests = rows.built()
    strategy = _strategy(run)
    return run.measurement(
        "guidellm",
        sent=rows.sent,
        failed=len(rows.failed_s),
        figures=requests.figures() | rates_of(requests),
        part=part,
        concurrency=strategy,
        input_tokens=int(requests.input_tokens.sum()),
        requests=requests,
    )


def _add(rows: RequestRows, item: ResultObject, status: str) -> None:
    if status != "successful":
        if item.get("request_start_time") is not None:
            rows.failed_s.append(item.number("request_start_time"))
        return
    streamed = item.get("time_to_first_token_ms") is not None
    rows.add(
        item.number("request_start_time"),
        item.number("time_to_first_token_ms") / 1e3 if streamed else float("nan"),
        item.number("request_latency"),
        item.count("prompt_tokens"),
        item.count("output_tokens"),
    )


def _strategy(run: ResultObject) -> int | None:
    """Requests that the strategy keeps in flight; None where it sends them at their own times."""
    strategy: Any = run.get("config.strategy")
    if not isinstance(strategy, Mapping):
        return None
    kind = strategy.get("type_") or strategy.get("kind")
    if kind == "synchronous":
        return 1
    key = {"concurrent": "streams", "throughput": "max_concurrency"}.get(str(kind))
    if key is None or strategy.get(key) is None:
        return None
    return max(run.count(f"config.strategy.{key}"), 1)
