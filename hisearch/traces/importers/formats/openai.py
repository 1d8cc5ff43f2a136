"""JSON logs of OpenAI-style gateways: the response's usage, and a time."""

from __future__ import annotations

from hisearch.base.policies import TraceFormat
from hisearch.traces.importers.logs import LogFields, json_log_rows, read_log
from hisearch.traces.reading.source import Source
from hisearch.traces.trace import Trace

FORMAT = TraceFormat(
    "Logs of OpenAI-style gateways.",
    json_fields=(
        ("usage.prompt_tokens", "usage.completion_tokens"),
        ("usage.input_tokens", "usage.output_tokens"),
        ("response.usage.prompt_tokens", "response.usage.completion_tokens"),
        ("response.usage.input_tokens", "response.usage.output_tokens"),
        ("response.body.usage.prompt_tokens", "response.body.usage.completion_tokens"),
        ("body.usage.prompt_tokens", "body.usage.completion_tokens"),
        ("ai.proxy.usage.prompt_tokens", "ai.proxy.usage.completion_tokens"),
    ),
    among_lines=True,
    names_adapters=True,
    rank=7,
    quantum_s=1.0,  # created is whole seconds
)

#: Where a gateway puts the response; Kong has the last.
_PLACES = ("", "response.", "response.body.", "body.", "ai.proxy.")
_STARTS = ("request_time", "request_timestamp", "start_time", "startTime", "started_at", "received_at")
_STAMPS = ("timestamp", "ts", "time", "@timestamp", "created_at", "created")

_FIELDS = LogFields(
    arrivals=(*_STARTS, *(f"{place}{name}" for name in _STAMPS for place in _PLACES)),
    inputs=tuple(f"{place}usage.{name}" for place in _PLACES for name in ("prompt_tokens", "input_tokens")),
    outputs=tuple(f"{place}usage.{name}" for place in _PLACES for name in ("completion_tokens", "output_tokens")),
    thinking=tuple(
        f"{place}usage.{name}reasoning_tokens"
        for place in _PLACES
        for name in ("completion_tokens_details.", "output_tokens_details.", "")
    ),
    ends=("end_time", "endTime", "ended_at", "finished_at"),
    durations_ms=("duration_ms", "latency_ms", "latencies.request"),
    ids=("request_id", "requestId", "id", "response.id", "response.body.id", "body.id", "request.id"),
    sessions=("session_id", "conversation_id", "conversation.id", "metadata.session_id", "metadata.conversation_id"),
    tenants=("tenant", "team_id", "user_id", "user", "request.user", "consumer.username"),
    models=(*(f"{place}model" for place in _PLACES), "request.model", "ai.proxy.meta.response_model"),
    statuses=("status_code", "status", "response.status_code", "response.status", "upstream_status"),
    cache_hits=("cache_hit", "cached"),
    bodies=("request.body.", "request.", "body.", ""),
)  # fmt: skip


def read(source: Source) -> Trace:
    """Logs with the ``usage`` of OpenAI's API (platform.openai.com/docs/api-reference), one JSON object per request.

    The object is the response, or holds it under ``response``, ``response.body``, ``body`` or ``ai.proxy`` (Kong,
    whose serialiser logs ``started_at`` and ``latencies.request`` in milliseconds and ``response.status``).
    The arrival is the gateway's own start time where it logs one, else its ``timestamp``, else the response's
    ``created``. That counts whole seconds, over which arrivals are then spread, seeded. Where ends or latencies are
    logged, requests of one session follow each other up; else they come at their recorded times. Reasoning tokens
    (``completion_tokens_details.reasoning_tokens``; SGLang has ``reasoning_tokens``) are thinking, part of the output.
    A request's body, under ``request``, ``request.body`` or ``body`` or in the row itself, says whether its output
    follows a grammar.
    Failures, rows without usage or output, and answers from the gateway's cache are left out. Contents are not read:
    nothing is shared.
    """
    return read_log(source, _FIELDS, json_log_rows(source))
