"""Runs of LangGraph and LangChain, as LangSmith exports them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from hisearch.base.policies import TraceFormat
from hisearch.traces.importers.spans import ENCLOSES, SpanCall, enclosing, trace_of
from hisearch.traces.reading.rows import Fields, RowError, json_rows, short
from hisearch.traces.reading.source import Source
from hisearch.traces.trace import Trace

FORMAT = TraceFormat(
    "Runs of LangGraph and LangChain, as LangSmith exports them.",
    json_fields=(("run_type", "start_time"),),
    records_think=True,
    names_adapters=True,
    times="runs hold their own starts and ends",
    rank=4,
)


def read(source: Source) -> Trace:
    """Runs of LangSmith (docs.langchain.com/langsmith/run-data-format), one a line, or trees with ``child_runs``.

    As ``langsmith.Client.list_runs``, the bulk export and ``langchain_core.tracers`` write them. A run of type ``llm``
    is a call, unless it encloses another. Its tokens are ``prompt_tokens`` and ``completion_tokens``, else the
    ``usage_metadata`` or ``token_usage`` in its outputs. Its agent is the node of the graph (``langgraph_node``), else
    the run around it. Calls belong together by ``thread_id``, else by trace.
    """
    runs: dict[str, _Run] = {}
    for line, row in json_rows(source.path, source.bad):
        with source.bad.row(line):
            for data, parent in _with_children(row.values, {}):
                run = _run(line, data, parent)
                runs[str(data.get("id") or f"line {line}")] = run
                if run.call is None:
                    source.understood.leave_out(line, "no call of a model" if run.kind != "llm" else "no tokens")
    around = enclosing(
        (key for key, run in runs.items() if run.call is not None), {key: run.parent for key, run in runs.items()}
    )
    calls = []
    for key, run in runs.items():
        if run.call is not None and key in around:
            source.understood.leave_out(run.line, ENCLOSES)
        elif run.call is not None:
            thread = _around(runs, run, lambda at: at.thread)
            agent = _around(runs, run, lambda at: at.node) or _around(runs, run, lambda at: at.name) or run.parent
            calls.append(replace(run.call, run=thread or run.call.run, agent=agent))
    return trace_of(source, calls)


@dataclass(frozen=True)
class _Run:
    """A run: its line, its parent's id, its type; its name ("" of a call: its caller's is wanted), thread, node."""

    line: int
    parent: str
    kind: str
    name: str
    thread: str
    node: str
    call: SpanCall | None


def _around(runs: Mapping[str, _Run], run: _Run, value: Callable[[_Run], str]) -> str:
    """The value of the run, or of the nearest run around it that has any; "" where none has."""
    seen: set[str] = set()
    while not value(run):
        if run.parent in seen or run.parent not in runs:
            return ""
        seen.add(run.parent)
        run = runs[run.parent]
    return value(run)


def _with_children(run: Mapping[str, Any], parent: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Any]]:
    yield run, parent
    for child in run.get("child_runs") or ():
        if not isinstance(child, dict):
            raise RowError("child_runs", f"expected a list of runs, got {short(child)}")
        yield from _with_children(child, run)


def _run(line: int, data: Mapping[str, Any], parent: Mapping[str, Any]) -> _Run:
    kind = str(data.get("run_type"))
    metadata = _object(_object(data.get("extra")).get("metadata")) or _object(data.get("metadata"))
    return _Run(
        line,
        parent=str(data.get("parent_run_id") or parent.get("id") or ""),
        kind=kind,
        name="" if kind == "llm" else str(data.get("name") or ""),
        thread=str(metadata.get("thread_id") or metadata.get("conversation_id") or ""),
        node=str(metadata.get("langgraph_node") or ""),
        call=_call(data, str(metadata.get("ls_model_name") or "")) if kind == "llm" else None,
    )


def _call(run: Mapping[str, Any], model: str) -> SpanCall | None:
    """The call of a run of a model, without who called; None where it has no tokens."""
    outputs = _object(run.get("outputs"))
    counts = {name: run.get(name) for name in ("prompt_tokens", "completion_tokens")}
    if not all(counts.values()):
        counts = _usage(outputs)
    if not counts or not all(counts.values()):
        return None
    inputs, generated = (Fields(counts).tokens(name) for name in counts)
    start_s, end_s = _seconds(run, "start_time"), _seconds(run, "end_time")
    if end_s < start_s:
        raise RowError("end_time", "expected a time after start_time")
    messages, answer = _prompt(_object(run.get("inputs")), outputs)
    trace, name = run.get("trace_id") or run.get("id"), run.get("id")
    return SpanCall(
        start_s,
        end_s,
        inputs,
        generated,
        run=str(trace),
        agent="",
        model=model,
        messages=messages,
        answer=answer,
        name=None if name is None else str(name),
        thinking=_thinking(outputs, generated),
    )


def _object(value: Any) -> Mapping[str, Any]:
    """A JSON object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def _prompt(inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> tuple[tuple[str, ...], str]:
    """The prompt's parts and the answer, as a later prompt would have it: messages, or lines of one text."""
    generations = outputs.get("generations") or outputs.get("messages")
    if inputs.get("messages"):
        return tuple(_texts(inputs["messages"])), "".join(_texts(generations))
    prompts, rows = inputs.get("prompts"), generations if isinstance(generations, list) else []
    lines = tuple(line for prompt in prompts for line in str(prompt).splitlines()) if isinstance(prompts, list) else ()
    entries = (entry for row in rows if isinstance(row, list) for entry in row if isinstance(entry, dict))
    answers = [str(entry.get("text", "")) for entry in entries]
    return lines, f"AI: {answers[0]}" if lines and len(answers) == 1 else ""


def _seconds(run: Mapping[str, Any], field: str) -> float:
    """A time in ISO 8601, in UTC where it names no zone."""
    try:
        time = datetime.fromisoformat(str(run.get(field)))
    except ValueError as error:
        raise RowError(field, f"expected a date and time, got {run.get(field)!r}") from error
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _usage(outputs: Any) -> dict[str, Any]:
    """Counts of input and output tokens anywhere in a run's outputs, by their names; empty where there are none."""
    pending = [outputs]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            for inputs, generated in (("input_tokens", "output_tokens"), ("prompt_tokens", "completion_tokens")):
                if value.get(inputs) and value.get(generated):
                    return {inputs: value[inputs], generated: value[generated]}
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    return {}


def _thinking(outputs: Any, generated: int) -> int:
    """Of the ``generated`` tokens those that were reasoning, by LangChain's or OpenAI's details of usage; else 0."""
    pending = [outputs]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            for details, name in (
                ("output_token_details", "reasoning"),
                ("completion_tokens_details", "reasoning_tokens"),
            ):
                counts = value.get(details)
                if isinstance(counts, dict) and counts.get(name):
                    return Fields(counts).count(name, minimum=0, maximum=generated)
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    return 0


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
