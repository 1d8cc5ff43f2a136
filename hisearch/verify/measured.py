"""Reads the output of benchmark tools into one form.

``sglang.bench_serving`` (0.5.9) appends a JSON object a run to a JSONL file, ``vllm bench serve`` (0.19) writes one
JSON object, ``guidellm`` (0.8) a report with ``benchmarks``. All three time a request from the moment it is sent, and
TPOT is (last token - first token) / (tokens - 1) over requests of two or more tokens, as here. guidellm calls that
``inter_token_latency_ms`` of a request; its ``time_per_output_token_ms``, which counts the first token, is not used.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hisearch.base.dtypes import F8, I8

#: Percentiles that are compared.
PERCENTILES = (50, 90, 95, 99)
_DETAILS = ("input_lens", "output_lens", "ttfts", "itls")


class MeasurementError(ValueError):
    """A file that is not a benchmark's output; names file, key and what was expected."""


#: A median TTFT that grows from quarter to quarter, by this factor in all, shows an overload: the queue never empties.
#: Then the fewest requests for which this is tested.
OVERLOADED, LEAST_REQUESTS = 5.0, 40


@dataclass(frozen=True)
class PerRequest:
    """Successful requests, arrays of length N, in the order in which they were given to the tool.

    rows: their places in that order, failed ones included. start_s: when each was sent, from the first one; None where
    the tool does not record it. ttft_s, e2e_s: seconds. input_tokens, output_tokens: as the tool counted them.
    """

    rows: I8
    start_s: F8 | None
    ttft_s: F8
    e2e_s: F8
    input_tokens: I8
    output_tokens: I8

    def keep(self, mask: np.ndarray) -> PerRequest:
        """The requests under ``mask``, shape (N,)."""
        start_s = None if self.start_s is None else self.start_s[mask]
        return PerRequest(
            self.rows[mask], start_s, self.ttft_s[mask], self.e2e_s[mask], self.input_tokens[mask],
            self.output_tokens[mask],
        )  # fmt: skip

    def growing_wait(self) -> tuple[float, float] | None:
        """Median TTFT of the first and of the last quarter of the requests, if it grew throughout.

        None if it did not grow by ``OVERLOADED`` in all, or if it is not known when requests were sent.
        """
        if self.start_s is None or len(self.start_s) < LEAST_REQUESTS:
            return None
        quarters = np.array_split(self.ttft_s[np.argsort(self.start_s, kind="stable")], 4)
        medians = [float(np.median(quarter)) for quarter in quarters]
        rising = all(earlier < later for earlier, later in itertools.pairwise(medians))
        return (medians[0], medians[-1]) if rising and medians[-1] > OVERLOADED * medians[0] else None

    def figures(self) -> dict[str, float]:
        """Means and percentiles of TTFT, TPOT and E2E, seconds."""
        return latency_figures(self.ttft_s, self.e2e_s, self.output_tokens)


@dataclass(frozen=True)
class Measurement:
    """One run of a benchmark.

    tool: its name. source: file, and which run of it. sent, failed: requests. rate_rps: of Poisson arrivals, infinite
    where all came at once, None where times are the trace's own. concurrency: the client's limit, or None.
    input_tokens: of all successful prompts. figures: seconds and rates under the names of ``score.metrics``.
    requests: one by one, if the tool kept them.
    """

    tool: str
    source: str
    sent: int
    failed: int
    rate_rps: float | None
    concurrency: int | None
    input_tokens: int
    figures: dict[str, float]
    requests: PerRequest | None


def latency_figures(ttft_s: F8, e2e_s: F8, output_tokens: I8) -> dict[str, float]:
    """Means and percentiles of requests' latencies, seconds; TPOT only if some request has a second token."""
    several = output_tokens > 1
    values = {"ttft": ttft_s, "e2e": e2e_s}
    if several.any():
        values["tpot"] = (e2e_s - ttft_s)[several] / (output_tokens[several] - 1)
    figures = {}
    for name, seconds in values.items():
        figures[f"{name}_mean_s"] = float(seconds.mean())
        for percent, value in zip(PERCENTILES, np.percentile(seconds, PERCENTILES), strict=True):
            figures[f"{name}_p{percent}_s"] = float(value)
    return figures


def read_measurements(path: Path) -> list[Measurement]:
    """Every run in a file.

    Raises:
        OSError: it cannot be read.
        MeasurementError: it is none of the three tools' output, or lacks what is needed.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise MeasurementError(f"{path}: expected UTF-8 text: {error.reason} at byte {error.start}") from error
    if not text.strip():
        raise MeasurementError(f"{path}: empty: the benchmark wrote nothing, or has not ended")
    documents = _documents(path, text)
    measurements: list[Measurement] = []
    for number, (where, data) in enumerate(documents, 1):
        name = f"{path}:{where}" if len(documents) > 1 else str(path)
        reader = _Reader(name, data)
        if "benchmarks" in data:
            measurements += _guidellm(reader)
        elif "server_info" in data or "sharegpt_output_len" in data:
            measurements.append(_sglang(reader))
        elif "endpoint_type" in data and "tokenizer_id" in data:
            measurements.append(_vllm(reader))
        else:
            raise MeasurementError(
                f"{name}: run {number}: expected the output of sglang.bench_serving, vllm bench serve or guidellm"
            )
    return measurements


def _documents(path: Path, text: str) -> list[tuple[int, dict[str, Any]]]:
    """(line, object) of a JSON document, or of every line of a JSONL file."""
    try:
        document = json.loads(text)
        documents = [(1, document)]
    except json.JSONDecodeError:
        documents = []
        for line, row in enumerate(text.splitlines(), 1):
            if row.strip():
                try:
                    documents.append((line, json.loads(row)))
                except json.JSONDecodeError as error:
                    raise MeasurementError(f"{path}:{line}: expected JSON: {error.msg}") from error
    if not documents or not all(isinstance(data, dict) for _, data in documents):
        raise MeasurementError(f"{path}: expected a JSON object, or one a line")
    return documents


class _Reader:
    """Fields of one object, with errors that name them."""

    def __init__(self, name: str, data: Mapping[str, Any]) -> None:
        self.name = name
        self.data = data

    def number(self, key: str) -> float:
        value = self.data.get(key)
        (checked,) = self._checked(key, [value], key)
        return float(checked)

    def rate(self) -> float | None:
        value = self.data.get("request_rate")
        if value == "trace":
            return None
        return math.inf if value in ("inf", math.inf) else self.number("request_rate")

    def concurrency(self) -> int | None:
        return None if self.data.get("max_concurrency") is None else int(self.number("max_concurrency"))

    def milliseconds(self, names: Mapping[str, str]) -> dict[str, float]:
        """Figure -> seconds, of the keys that exist."""
        return {figure: self.number(key) / 1e3 for figure, key in names.items() if key in self.data}

    def details(self, start_times: bool) -> PerRequest | None:
        """Values of each request, if the tool kept them."""
        if not all(key in self.data for key in _DETAILS):
            return None
        lists = {key: self.data[key] for key in (*_DETAILS, "errors") if key in self.data}
        for key, values in lists.items():
            if not isinstance(values, list):
                raise MeasurementError(f"{self.name}: {key}: expected a list, got {values!r}")
        lengths = {key: len(values) for key, values in lists.items()}
        if len(set(lengths.values())) != 1:
            raise MeasurementError(f"{self.name}: expected lists of one length, got {lengths}")
        errors = self.data.get("errors") or [""] * lengths["ttfts"]
        outputs = self._amounts("output_lens")
        good = np.array([not e and n > 0 for e, n in zip(errors, outputs, strict=True)], dtype=bool)
        if not good.any():
            raise MeasurementError(f"{self.name}: no request succeeded")
        ttft_s = self._amounts("ttfts", good)
        e2e_s = ttft_s + np.array([
            math.fsum(self._checked(f"itls[{at}]", gaps)) if good[at] else 0.0
            for at, gaps in enumerate(self.data["itls"])
        ])  # fmt: skip
        start_s = None
        if start_times and self.data.get("start_times"):
            start_s = self._amounts("start_times", good)
            if len(start_s) != len(good):
                raise MeasurementError(f"{self.name}: start_times: expected {len(good)} of them, got {len(start_s)}")
            start_s = start_s - start_s[good].min()
        inputs = self._amounts("input_lens", good)
        lens = (amounts.astype(np.int64) for amounts in (inputs, outputs))
        return PerRequest(np.arange(len(good)), start_s, ttft_s, e2e_s, *lens).keep(good)

    def _amounts(self, key: str, good: np.ndarray | None = None) -> F8:
        """A list of numbers of at least 0; those of requests that are not ``good`` are ignored, and 0."""
        values = self.data[key]
        if good is not None and len(good) == len(values):
            values = [value if counts else 0.0 for value, counts in zip(values, good, strict=True)]
        return np.array(self._checked(key, values), dtype=np.float64)

    def _checked(self, key: str, values: Any, name: str = "") -> list[float]:
        """``values``, a list of finite numbers of at least 0; ``name``: of a single value."""
        if not isinstance(values, list):
            raise MeasurementError(f"{self.name}: {key}: expected a list, got {values!r}")
        for at, value in enumerate(values):
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not number or value < 0:
                where = name or f"{key}[{at}]"
                raise MeasurementError(f"{self.name}: {where}: expected a number of at least 0, got {value!r}")
        return values


def _names(stem: str, tool_stem: str, percents: tuple[int, ...]) -> dict[str, str]:
    """Our figure -> a tool's key."""
    keys = {f"{stem}_mean_s": f"mean_{tool_stem}_ms", f"{stem}_p50_s": f"median_{tool_stem}_ms"}
    return keys | {f"{stem}_p{percent}_s": f"p{percent}_{tool_stem}_ms" for percent in percents}


def _bench_serve(reader: _Reader, tool: str, e2e: str, requests: PerRequest | None, sent: int) -> Measurement:
    """The output that ``vllm bench serve`` and ``sglang.bench_serving`` share."""
    names = {stem: stem for stem in ("ttft", "tpot", "itl")} | {"e2e": e2e}
    keys = {
        figure: key
        for stem, tool_stem in names.items()
        for figure, key in _names(stem, tool_stem, (90, 95, 99)).items()
    }
    stated = reader.milliseconds(keys)
    figures = (requests.figures() if requests is not None else {}) | stated
    if "ttft_mean_s" not in figures:
        raise MeasurementError(f"{reader.name}: mean_ttft_ms: expected a number")
    figures["throughput_rps"] = reader.number("request_throughput")
    figures["output_tokens_per_s"] = reader.number("output_throughput")
    completed = int(reader.number("completed"))
    if completed < 1:
        raise MeasurementError(f"{reader.name}: completed: no request succeeded")
    return Measurement(
        tool, reader.name, max(sent, completed), max(sent - completed, 0), reader.rate(), reader.concurrency(),
        int(reader.number("total_input_tokens")), figures, requests,
    )  # fmt: skip


def _sglang(reader: _Reader) -> Measurement:
    requests = reader.details(start_times=False)
    sent = len(reader.data["ttfts"]) if requests is not None else int(reader.number("completed"))
    return _bench_serve(reader, "sglang.bench_serving", "e2e_latency", requests, sent)


def _vllm(reader: _Reader) -> Measurement:
    requests = reader.details(start_times=True)
    return _bench_serve(reader, "vllm bench serve", "e2el", requests, int(reader.number("num_prompts")))


def _guidellm(reader: _Reader) -> list[Measurement]:
    runs = reader.data["benchmarks"]
    if not isinstance(runs, list) or not runs:
        raise MeasurementError(f"{reader.name}: benchmarks: expected at least one")
    return [_guidellm_run(f"{reader.name} benchmarks[{index}]", run) for index, run in enumerate(runs)]


def _guidellm_run(name: str, run: Any) -> Measurement:
    try:
        by_status = run["requests"]
        good = by_status["successful"] or []
        unfinished = [*(by_status.get("errored") or []), *(by_status.get("incomplete") or [])]
        # A run that was ended early also lists requests that it never sent.
        sent_unfinished = [request for request in unfinished if request["request_start_time"] is not None]
        sent_at = sorted(float(request["request_start_time"]) for request in (*good, *sent_unfinished))
        rows = sorted(
            (
                float(request["request_start_time"]), float(request["time_to_first_token_ms"]) / 1e3,
                float(request["request_latency"]), int(request["prompt_tokens"]), int(request["output_tokens"]),
            )
            for request in good
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise MeasurementError(
            f"{name}: requests.successful: expected request_start_time, time_to_first_token_ms, request_latency, "
            f"prompt_tokens and output_tokens of each request ({type(error).__name__}: {error})"
        ) from error
    if not rows:
        raise MeasurementError(f"{name}: no request succeeded")
    for row in rows:
        if not all(math.isfinite(value) and value >= 0 for value in row):
            raise MeasurementError(f"{name}: requests.successful: expected numbers of at least 0, got {row}")
    start, ttft_s, e2e_s, inputs, outputs = (np.array(column) for column in zip(*rows, strict=True))
    places = np.searchsorted(sent_at, start)
    requests = PerRequest(places, start - sent_at[0], ttft_s, e2e_s, inputs, outputs)
    span_s = float((start + e2e_s).max() - start[0])
    figures = requests.figures()
    figures["throughput_rps"] = len(rows) / span_s
    figures["output_tokens_per_s"] = float(outputs.sum()) / span_s
    return Measurement(
        "guidellm", name, len(sent_at), len(sent_unfinished), None, None, int(inputs.sum()), figures, requests
    )
