"""OpenTelemetry spans of generative AI."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from hisearch.base.policies import TraceFormat
from hisearch.traces.importers.spans import ENCLOSES, SpanCall, enclosing, trace_of
from hisearch.traces.reading.rows import Fields, RowError, json_rows
from hisearch.traces.reading.source import Source
from hisearch.traces.trace import Trace

FORMAT = TraceFormat(
    "OpenTelemetry spans of generative AI.",
    json_fields=(("resourceSpans",), ("context.trace_id", "context.span_id", "start_time", "end_time")),
    records_think=True,
    names_adapters=True,
    times="spans hold their own starts and ends",
    rank=4,
)

_INPUTS = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUTS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
_THINKING = ("gen_ai.usage.reasoning.output_tokens", "gen_ai.usage.output_tokens.reasoning")
#: Operations that may count tokens of the calls of a model within them, or call none that makes tokens.
_NO_CALLS = frozenset({
    "invoke_agent", "create_agent", "invoke_workflow", "execute_tool", "retrieval", "embeddings",
})  # fmt: skip
_AGENT = ("gen_ai.agent.id", "gen_ai.agent.name")


def read(source: Source) -> Trace:
    """Spans after the conventions for generative AI (opentelemetry.io/docs/specs/semconv/gen-ai).

    As OTLP in JSON (the collector's file exporter), or as the SDK prints spans (``ReadableSpan.to_json``), each on a
    line or indented. A span with counts of input and output tokens is a call, unless it encloses such a span, or its
    ``gen_ai.operation.name`` says otherwise. Its agent is ``gen_ai.agent.id`` or ``.name`` of it or of the nearest
    span around it, else the conversation has one agent. Calls belong together by ``gen_ai.conversation.id`` of it or
    around it, else by trace. Messages (``gen_ai.system_instructions``, ``gen_ai.input.messages``), where recorded, say
    what prompts share.
    """
    spans: dict[tuple[str, str], dict[str, Any]] = {}
    lines: dict[tuple[str, str], int] = {}
    for line, row in json_rows(source.path, source.bad):
        with source.bad.row(line):
            for span in _spans(row.values):
                key = (span["trace"], span["id"])
                spans[key], lines[key] = span, line
    calls: dict[tuple[str, str], SpanCall] = {}
    for key, span in spans.items():
        with source.bad.row(lines[key]):
            counts = _counts(span)
            if counts is None or not all(counts):
                source.understood.leave_out(lines[key], "no call of a model" if counts is None else "no tokens")
            else:
                calls[key] = _call(spans, span, *counts)
    around = enclosing(calls, {key: (span["trace"], span["parent"]) for key, span in spans.items()})
    for key in calls:
        if key in around:
            source.understood.leave_out(lines[key], ENCLOSES)
    return trace_of(source, [call for key, call in calls.items() if key not in around])


def _counts(span: dict[str, Any]) -> tuple[int, int] | None:
    """Tokens of a call of a model, in and out; None for any other span."""
    attributes = span["attributes"]
    names = [next((name for name in known if attributes.get(name) is not None), None) for known in (_INPUTS, _OUTPUTS)]
    if attributes.get("gen_ai.operation.name") in _NO_CALLS or None in names:
        return None
    fields = Fields(attributes)
    try:
        inputs, outputs = (fields.tokens(str(name), minimum=0) for name in names)
    except RowError as error:
        raise RowError(error.field, f"{error.message} (span {span['id']})") from error
    return inputs, outputs


def _call(spans: Mapping[tuple[str, str], dict[str, Any]], span: dict[str, Any], inputs: int, outputs: int) -> SpanCall:
    if span["end_s"] < span["start_s"]:
        raise RowError("end_time", f"expected a time after the start (span {span['id']})")
    own = span["attributes"]
    conversation = _around(spans, span, ("gen_ai.conversation.id",))
    system = own.get("gen_ai.system_instructions")
    return SpanCall(
        span["start_s"],
        span["end_s"],
        inputs,
        outputs,
        run=conversation or span["trace"],
        agent=_around(spans, span, _AGENT) or "",
        model=str(_first(own, ("gen_ai.request.model", "gen_ai.response.model")) or ""),
        messages=(*([_text(system)] if system else []), *_messages(own.get("gen_ai.input.messages"))),
        answer="".join(_messages(own.get("gen_ai.output.messages"))),
        name=f"{span['trace']}/{span['id']}",
        thinking=_thinking(span, outputs),
    )


def _thinking(span: dict[str, Any], outputs: int) -> int:
    """Of the output tokens those that were reasoning, which the conventions count among them."""
    attributes = span["attributes"]
    name = next((name for name in _THINKING if attributes.get(name) is not None), None)
    return 0 if name is None else Fields(attributes).count(name, minimum=0, maximum=outputs)


def _around(spans: Mapping[tuple[str, str], dict[str, Any]], span: dict[str, Any], names: tuple[str, ...]) -> str:
    """The first of these attributes that the span or the nearest one around it has; "" where none does."""
    seen: set[str] = set()
    at: dict[str, Any] | None = span
    while at is not None and at["id"] not in seen:
        value = _first(at["attributes"], names)
        if value is not None:
            return str(value)
        seen.add(at["id"])
        at = spans.get((at["trace"], at["parent"]))
    return ""


def _first(attributes: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((attributes[name] for name in names if attributes.get(name) is not None), None)


def _spans(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Spans of a line: trace, id, parent, start_s, end_s, attributes."""
    if "resourceSpans" not in row:
        yield _printed(row)
        return
    try:
        for resource in row["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    yield {
                        "trace": str(span["traceId"]), "id": str(span["spanId"]),
                        "parent": str(span.get("parentSpanId") or ""),
                        "start_s": int(span["startTimeUnixNano"]) / 1e9, "end_s": int(span["endTimeUnixNano"]) / 1e9,
                        "attributes": {entry["key"]: _value(entry["value"]) for entry in span.get("attributes", [])},
                    }  # fmt: skip
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise RowError("resourceSpans", f"expected spans of OTLP in JSON ({error!r})") from error


def _printed(row: Mapping[str, Any]) -> dict[str, Any]:
    """A span as the SDK prints it."""
    try:
        return {
            "trace": str(row["context"]["trace_id"]), "id": str(row["context"]["span_id"]),
            "parent": str(row.get("parent_id") or ""),
            "start_s": datetime.fromisoformat(row["start_time"]).timestamp(),
            "end_s": datetime.fromisoformat(row["end_time"]).timestamp(),
            "attributes": dict(row.get("attributes") or {}),
        }  # fmt: skip
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise RowError("context", f"expected a span as the SDK prints it ({error!r})") from error


def _value(value: Mapping[str, Any]) -> Any:
    """An attribute's value in OTLP's JSON, in which whole numbers are text."""
    if "intValue" in value:
        return int(value["intValue"])
    return next(iter(value.values()), None)


def _messages(value: Any) -> tuple[str, ...]:
    """Texts of messages: a list, or one in JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            return (value,)
    return tuple(_text(message) for message in value) if isinstance(value, list) else ()


def _text(value: Any) -> str:
    """A message as one text: its role and parts in a fixed order, without what an answer alone has."""
    if isinstance(value, dict):
        value = {name: part for name, part in value.items() if name != "finish_reason"}
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
