"""Results of k6."""

from __future__ import annotations

import datetime
import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hisearch.base.policies import TraceFormat
from hisearch.traces.importers.measurement import PERCENTILES, Measurement, PerRequest, rates_of
from hisearch.traces.importers.results import RequestRows, ResultObject, Results, check_latencies

FORMAT = TraceFormat(
    "Results of k6.",
    json_fields=(
        ("type", "metric", "data.name"),
        ("type", "metric", "data.time", "data.value"),
        ("root_group.id", "metrics.http_reqs.count"),
        ("root_group.id", "metrics.http_reqs.values.count"),
        ("metrics.http_reqs.count", "metrics.http_reqs.rate"),
        ("metrics.http_reqs.values.count", "metrics.http_reqs.values.rate"),
    ),
    times="data.time holds dates",
)

#: What scripts call the metrics that k6 does not have itself. Times are milliseconds, as k6's own, or as the name says.
_CUSTOM = {
    "ttft": ("ttft", "time_to_first_token", "llm_ttft"),
    "tpot": ("tpot", "time_per_output_token", "llm_tpot"),
    "itl": ("itl", "inter_token_latency", "llm_itl"),
    "inputs": ("input_tokens", "prompt_tokens", "llm_input_tokens", "llm_prompt_tokens"),
    "outputs": ("output_tokens", "completion_tokens", "llm_output_tokens", "llm_completion_tokens"),
}
_UNIT_SUFFIXES = {"_ms": 1e-3, "_s": 1.0, "_seconds": 1.0}
_NOTES = (
    "E2E is http_req_duration: from the first byte sent to the last one received, without connecting",
    "TTFT is a metric of the script: k6 has none of its own (http_req_waiting ends with the headers)",
)


class _Point(NamedTuple):
    """A sample: when it was taken, its value, the iteration that took it, and whether its request succeeded."""

    at_s: float
    value: float
    iteration: Hashable | None
    good: bool


@dataclass(frozen=True)
class _Metric:
    """What a custom metric stands for, and the unit of its times in seconds."""

    role: str
    unit_s: float


def measurements(results: Results) -> list[Measurement]:
    """``--out json=FILE`` (samples, one a line), ``--summary-export`` or ``handleSummary`` of k6 0.4x to 2.

    Read in its documentation (grafana.com/docs/k6, results output / real time / json, and end of test / custom
    summary). k6 knows requests, not tokens: TTFT, TPOT and token counts are metrics of the script, by usual names.
    Samples of one request are told by the system tags ``vu`` and ``iter``, which ``--system-tags`` adds; without them
    every metric is summed up by itself.
    """
    objects = list(results.objects())
    if objects[0].get("metrics") is not None:
        return [_summary(item) for item in objects]
    return [_of_samples(results, objects)]


def _role(name: str) -> _Metric | None:
    """What a metric stands for by its name; None for others."""
    low = name.lower()
    suffix = next((suffix for suffix in _UNIT_SUFFIXES if low.endswith(suffix)), "")
    stem = low.removesuffix(suffix)
    role = next((role for role, names in _CUSTOM.items() if stem in names or low in names), None)
    if role is None:
        return None
    return _Metric(role, 1.0 if role in ("inputs", "outputs") else _UNIT_SUFFIXES.get(suffix, 1e-3))


def _of_samples(results: Results, objects: list[ResultObject]) -> Measurement:
    roles: dict[str, _Metric] = {"http_req_duration": _Metric("e2e", 1e-3)}
    points: dict[str, list[_Point]] = {}
    for item in objects:
        name = str(item.get("metric"))
        if item.get("type") == "Metric":
            metric = _role(name)
            if metric is not None:
                roles[name] = metric
        elif item.get("type") == "Point" and name in roles:
            metric = roles[name]
            points.setdefault(metric.role, []).append(_point(item, metric))
    whole = ResultObject(results.path, None, {})
    served = [point for point in points.get("e2e", []) if point.good]
    if not served:
        raise whole.refuse("http_req_duration", "no request succeeded: expected its samples")
    failed = len(points["e2e"]) - len(served)
    requests = _requests(points)
    figures = {
        figure: value
        for role in ("e2e", "ttft", "tpot", "itl")
        for figure, value in _spread(role, [point.value for point in points.get(role, []) if point.good]).items()
    }
    if requests is not None:
        figures |= requests.figures() | rates_of(requests)
    span_s = max(point.at_s for point in served) - min(point.at_s - point.value for point in served)
    if span_s > 0:
        figures["throughput_rps"] = len(served) / span_s
        tokens = sum(point.value for point in points.get("outputs", []))
        figures |= {"output_tokens_per_s": tokens / span_s} if tokens else {}
    inputs = [int(point.value) for point in points.get("inputs", [])]
    return whole.measurement(
        "k6",
        sent=len(points["e2e"]),
        failed=failed,
        figures=figures,
        input_tokens=sum(inputs) if len(inputs) == len(served) else None,
        requests=requests,
        notes=_NOTES,
    )


def _point(item: ResultObject, metric: _Metric) -> _Point:
    at = item.get("data.time")
    try:
        moment = datetime.datetime.fromisoformat(str(at))
    except ValueError:
        raise item.refuse("data.time", f"expected a date and time, got {at!r:.60}") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    tags = item.get("data.tags") or {}
    vu, iteration = (str(item.get(f"data.tags.{name}") or "") for name in ("vu", "iter"))
    if not vu:
        vu = str(item.get("data.metadata.vu") or "")
        iteration = str(item.get("data.metadata.iter") or "")
    status = str(item.get("data.tags.status") or "")
    refused = status.isdigit() and not 200 <= int(status[:9]) < 400
    good = not (refused or item.get("data.tags.expected_response") == "false" or "error_code" in tags)
    value = item.number("data.value") * metric.unit_s
    return _Point(moment.timestamp(), value, (vu, iteration) if vu and iteration else None, good)


def _requests(points: dict[str, list[_Point]]) -> PerRequest | None:
    """Requests one by one where every sample says of which iteration it is, and each has as many of all metrics."""
    wanted = [role for role in ("e2e", "ttft", "inputs", "outputs") if points.get(role)]
    if "inputs" not in wanted or "outputs" not in wanted:
        return None
    rows = RequestRows()
    by_role: dict[str, dict[Hashable, list[_Point]]] = {role: {} for role in wanted}
    for role in wanted:
        for point in points[role]:
            if point.iteration is None:
                return None
            if role == "e2e" and not point.good:
                rows.failed_s.append(point.at_s - point.value)
            else:
                by_role[role].setdefault(point.iteration, []).append(point)
    for iteration, ended in by_role["e2e"].items():
        samples = {role: by_role[role].get(iteration, []) for role in wanted}
        if any(len(values) != len(ended) for values in samples.values()):
            return None
        for index, point in enumerate(ended):
            first_s = samples["ttft"][index].value if "ttft" in samples else math.nan
            tokens = (samples[role][index].value for role in ("inputs", "outputs"))
            rows.add(point.at_s - point.value, first_s, point.value, *tokens)
    return rows.built() if rows.start_s else None


def _spread(stem: str, values: list[float]) -> dict[str, float]:
    """Mean and percentiles; none of no values."""
    if not values:
        return {}
    at = np.percentile(values, PERCENTILES).tolist()
    named = {f"{stem}_p{percent}_s": value for percent, value in zip(PERCENTILES, at, strict=True)}
    return {f"{stem}_mean_s": float(np.mean(values))} | named


def _summary(item: ResultObject) -> Measurement:
    metrics = item.inner("metrics")
    figures: dict[str, float] = {}
    for name in metrics.data:
        metric = _Metric("e2e", 1e-3) if name == "http_req_duration" else _role(name)
        if metric is not None and metric.role not in ("inputs", "outputs"):
            figures |= _trend(metrics.inner(name), metric)
    check_latencies(metrics, figures, ("http_req_duration",))
    requests = _values(metrics.inner("http_reqs"))
    if requests.get("rate") is not None:
        figures["throughput_rps"] = requests.number("rate")
    sent = requests.count("count")
    failed = 0
    if metrics.get("http_req_failed") is not None:
        failures = _values(metrics.inner("http_req_failed"))
        # The rate is of requests that failed: those are its passes.
        failed = failures.count("passes") if failures.get("passes") is not None else 0
    return item.measurement("k6", sent=sent, failed=failed, figures=figures, notes=_NOTES)


def _trend(item: ResultObject, metric: _Metric) -> dict[str, float]:
    """Figures of a trend. Percentile names have parentheses: ``p(95)``."""
    values = _values(item)
    keys = {f"{metric.role}_p{percent}_s": f"p({percent})" for percent in PERCENTILES}
    keys |= {f"{metric.role}_mean_s": "avg", f"{metric.role}_p50_s": values.first("med", "p(50)") or "med"}
    return values.seconds(keys, metric.unit_s)


def _values(item: ResultObject) -> ResultObject:
    """A metric's values, which stand under ``values`` in one of k6's two forms."""
    return item.inner("values") if item.get("values") is not None else item
