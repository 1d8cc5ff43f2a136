"""Runs of LangGraph and LangChain, as LangSmith exports them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from hisearch.base.policies import TraceFormat
from hisearch.traces.importers.spans import SpanCall, trace_of
from hisearch.traces.reading.rows import RowError, json_rows
from hisearch.traces.reading.source import Source
from hisearch.traces.trace import Trace

FORMAT = TraceFormat(
    "Runs of LangGraph and LangChain, as LangSmith exports them.",
    json_fields=(("run_type", "start_time"),),
    records_think=True,
    times="runs hold their own starts and ends",
    rank=4,
)


def read(source: Source) -> Trace:
    """Runs of LangSmith (docs.langchain.com/langsmith/run-data-format), one a line, or trees with ``child_runs``.

    As ``langsmith.Client.list_runs``, the bulk export and ``langchain_core.tracers`` write them. A run of type ``llm``
    is a call. Its tokens are ``prompt_tokens`` and ``completion_tokens``, else the ``usage_metadata`` or
    ``token_usage`` in its outputs. Its agent is the node of the graph (``langgraph_node``), else the run around it.
    Calls belong together by ``thread_id``, else by trace.
    """
    calls = []
    for line, row in json_rows(source.path, source.bad):
        with source.bad.row(line):
            for run, parent in _with_children(row.values, {}):
                if run.get("run_type") != "llm":
                    source.understood.leave_out(line, "no call of a model")
                    continue
                call = _call(run, parent)
                if call is None:
                    source.understood.leave_out(line, "no tokens")
                else:
                    calls.append(call)
    return trace_of(source, calls)


def _with_children(run: Mapping[str, Any], parent: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Any]]:
    yield run, parent
    for child in run.get("child_runs") or ():
        yield from _with_children(child, run)


def _call(run: Mapping[str, Any], parent: Mapping[str, Any]) -> SpanCall | None:
    """The call of a run of a model; None where it has no tokens."""
    outputs = run.get("outputs") or {}
    tokens = (run.get("prompt_tokens"), run.get("completion_tokens"))
    if not all(tokens):
        tokens = _usage(outputs)
    if not tokens[0] or not tokens[1]:
        return None
    start_s, end_s = _seconds(run, "start_time"), _seconds(run, "end_time")
    if end_s < start_s:
        raise RowError("end_time", "expected a time after start_time")
    metadata = (run.get("extra") or {}).get("metadata") or run.get("metadata") or {}
    messages, answer = _prompt(run.get("inputs") or {}, outputs)
    trace = run.get("trace_id") or run.get("id")
    name = run.get("id")
    return SpanCall(
        start_s,
        end_s,
        int(tokens[0]),
        int(tokens[1]),
        run=str(metadata.get("thread_id") or metadata.get("conversation_id") or trace),
        agent=str(metadata.get("langgraph_node") or parent.get("name") or run.get("parent_run_id") or ""),
        model=str(metadata.get("ls_model_name") or ""),
        messages=messages,
        answer=answer,
        name=None if name is None else str(name),
    )


def _prompt(inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> tuple[tuple[str, ...], str]:
    """The prompt's parts and the answer, as a later prompt would have it: messages, or lines of one text."""
    generations = outputs.get("generations") or outputs.get("messages")
    if inputs.get("messages"):
        return tuple(_texts(inputs["messages"])), "".join(_texts(generations))
    prompts = inputs.get("prompts") or ()
    lines = tuple(line for prompt in prompts for line in str(prompt).splitlines())
    answers = [entry.get("text", "") for row in generations or () for entry in row if isinstance(entry, dict)]
    return lines, f"AI: {answers[0]}" if lines and len(answers) == 1 else ""


def _seconds(run: Mapping[str, Any], field: str) -> float:
    """A time in ISO 8601, in UTC where it names no zone."""
    try:
        time = datetime.fromisoformat(str(run.get(field)))
    except ValueError as error:
        raise RowError(field, f"expected a date and time, got {run.get(field)!r}") from error
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _usage(outputs: Any) -> tuple[Any, Any]:
    """Counts of input and output tokens anywhere in a run's outputs; (None, None) where there are none."""
    pending = [outputs]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            for inputs, generated in (("input_tokens", "output_tokens"), ("prompt_tokens", "completion_tokens")):
                if value.get(inputs) and value.get(generated):
                    return value[inputs], value[generated]
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    return None, None


def _texts(value: Any) -> Iterator[str]:
    """Texts of messages in nested lists: of each the kind and content alone, since ids and usage differ."""
    if isinstance(value, list):
        for entry in value:
            yield from _texts(entry)
    elif isinstance(value, dict):
        inner = value.get("message") or value.get("kwargs")
        if isinstance(inner, dict):
            yield from _texts(inner)
        elif "content" in value:
            content = [value.get("content"), value.get("tool_calls") or []]
            yield json.dumps(content, sort_keys=True, ensure_ascii=False)
