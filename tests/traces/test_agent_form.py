"""Agents in hisearch's own form, and exports of agents' runs: what waits for what, joins, shared prompts, errors."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from hisearch.specs.workloads.agent_workload import AgentWorkloadSpec
from hisearch.specs.workloads.workload import TraceFileSpec
from hisearch.traces.agents import is_closed, memberships
from hisearch.traces.changes.ordering import in_arrival_order
from hisearch.traces.compiler import compile_trace
from hisearch.traces.generators import generate_agents
from hisearch.traces.importers import detect_format, read_trace
from hisearch.traces.reading.canonical import write_trace
from hisearch.traces.reading.errors import TraceError

LENGTHS = {"distribution": "lognormal", "mean_log": 3.0, "sigma_log": 0.5, "max_tokens": 200}
POPULATION = {"agents": 20, "calls": 200, "new_input": LENGTHS, "output": LENGTHS, "adapters": 8}
FREE = {"pacing": "free", "action": {"p50_s": 20.0, "p90_s": 60.0}}
HEADER = {"format": "hisearch-trace", "version": 1}
START_AT_ONCE = {"arrival_s": 0.0}
START = datetime(2026, 11, 1, 9, 0, tzinfo=UTC)


def written(path, rows, header=HEADER):
    path.write_text("\n".join(json.dumps(row) for row in ([header] if header else []) + rows) + "\n")
    return path


def read(path):
    return read_trace(path, TraceFileSpec(path=str(path)))


@pytest.mark.parametrize("kind", ["independent", "interaction", "diffusion"])
@pytest.mark.parametrize("pacing", [{}, FREE])
def test_a_population_that_is_written_and_read_is_the_same(tmp_path, kind, pacing):  # law L6
    spec = AgentWorkloadSpec(kind=kind, **POPULATION, **pacing, adapter_ranks=[8, 64])
    trace = in_arrival_order(generate_agents(spec))
    path = tmp_path / "population.jsonl.gz"
    write_trace(trace, path)
    again = read(path)
    assert compile_trace(again, "a").digest == compile_trace(trace, "b").digest
    assert again.agents.adapter_rank.tolist() == [8, 64, 8, 64, 8, 64, 8, 64]
    assert is_closed(again.agents)
    with pytest.raises(TraceError, match="jsonl"):
        write_trace(trace, tmp_path / "population.parquet")


def rows_of(*more):
    first = {"id": "a", "arrival_s": 0.0, "input_tokens": 9, "output_tokens": 3, "agent": "plan", "adapter": "p"}
    return [first, *({"input_tokens": 9, "output_tokens": 3} | row for row in more)]


def test_a_join_waits_for_all_and_a_fan_out_for_one(tmp_path):
    rows = rows_of(
        {"id": "b", "agent": "left", "waits_for": ["a"]},
        {"id": "c", "agent": "right", "previous": "a", "think_s": 2.0, "next_call_s": 7.5},
        {"id": "d", "agent": "write", "waits_for": ["b", "c"], "think_s": 0.5},
    )
    trace = read(written(tmp_path / "t.jsonl", rows))
    agents = trace.agents
    assert trace.previous.tolist() == [-1, 0, 0, 2]
    assert agents.gate.tolist() == [-1, 0, 0, -1]
    assert agents.behind.tolist() == [-1, -1, -1, 0]
    assert agents.adapter.tolist() == [0, -1, -1, -1]
    assert (agents.hint_trigger.tolist(), agents.hint_agent.tolist(), agents.hint_s.tolist()) == ([2], [2], [7.5])
    assert not is_closed(agents)


@pytest.mark.parametrize(
    ("row", "field", "message"),
    [
        ({"agent": "x", "waits_for": ["z"]}, "waits_for", "ids of earlier rows"),
        ({"agent": "x", "waits_for": ["a"], "previous": "a"}, "waits_for", "neither"),
        ({"previous": "a"}, "agent", "in all rows, or in none"),
        ({"agent": "plan", "adapter": "q", "previous": "a"}, "adapter", "had before"),
        ({"agent": "x", "adapter": "p", "adapter_rank": 8, "previous": "a"}, "adapter_rank", "had before"),
        ({"agent": "x", "previous": "a", "gate_hints": []}, "gate_hints", "gate beside it"),
        ({"agent": "x", "previous": "a", "gate": []}, "gate", "list of names"),
        ({"agent": "x", "previous": "a", "hints": [["x", 1]]}, "hints", "after_s"),
    ],
)
def test_rows_that_contradict_are_refused_with_line_and_field(tmp_path, row, field, message):  # law L9
    path = written(tmp_path / "t.jsonl", rows_of({"id": "b"} | row))
    with pytest.raises(TraceError, match=message) as error:
        read(path)
    assert ":3:" in str(error.value)
    assert field in str(error.value)


def test_hints_of_agents_that_never_call_are_refused(tmp_path):
    path = written(tmp_path / "t.jsonl", rows_of({"id": "b", "agent": "x", "previous": "a", "next_call_s": 1.0}))
    assert len(read(path).agents.hint_agent) == 1
    path = written(tmp_path / "t.jsonl", rows_of(), HEADER | {"agents": {"hints": [["ghost", 0, 1, 0]]}})
    with pytest.raises(TraceError, match="ghost"):
        read(path)


#: (name, agent, start ms, end ms, what its prompt begins with): a plan, two side by side, a join; then a second round.
CALLS = [
    ("a", "plan", 0, 100, []), ("b", "left", 110, 200, ["a"]), ("c", "right", 112, 260, ["a"]),
    ("d", "write", 300, 400, []), ("e", "plan", 450, 500, ["a"]),
]  # fmt: skip


def moment(ms):
    return (START + timedelta(milliseconds=ms)).isoformat()


def prompt(name, agent, before):
    return [f"you are {agent}" if not before else "you are plan", *(f"answer {other}" for other in before), name * 9]


def langsmith_rows():
    for name, agent, start, end, before in CALLS:
        metadata = {"thread_id": "t", "langgraph_node": agent}
        messages = [{"kwargs": {"content": text, "type": "human"}} for text in prompt(name, agent, before)]
        usage = {"input_tokens": 90, "output_tokens": 20}
        answer = {"message": {"kwargs": {"content": f"answer {name}", "usage_metadata": usage}}}
        yield {"id": f"node {name}", "run_type": "chain", "start_time": moment(start), "end_time": moment(end)}
        yield {
            "id": name, "run_type": "llm", "start_time": moment(start), "end_time": moment(end), "trace_id": "r",
            "parent_run_id": f"node {name}", "extra": {"metadata": metadata}, "inputs": {"messages": [messages]},
            "outputs": {"generations": [[answer]]},
        }  # fmt: skip


def otlp_row():
    spans = []
    for name, agent, start, end, before in CALLS:
        begin = int(START.timestamp() * 1e9)
        times = {"startTimeUnixNano": str(begin + start * 10**6), "endTimeUnixNano": str(begin + end * 10**6)}
        said = json.dumps([{"role": "user", "parts": [text]} for text in prompt(name, agent, before)])
        around = {"gen_ai.agent.name": agent, "gen_ai.conversation.id": "t"}
        own = {"gen_ai.input.messages": said}
        texts = [{"key": key, "value": {"stringValue": value}} for key, value in own.items()]
        counts = {"gen_ai.usage.input_tokens": 90, "gen_ai.usage.output_tokens": 20}
        texts += [{"key": key, "value": {"intValue": str(value)}} for key, value in counts.items()]
        outer = [{"key": key, "value": {"stringValue": value}} for key, value in around.items()]
        spans.append({"traceId": "1", "spanId": name, "parentSpanId": f"{name}0", "attributes": texts} | times)
        spans.append({"traceId": "1", "spanId": f"{name}0", "attributes": outer} | times)
    return {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}


def printed_rows():
    for span in otlp_row()["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        start, end = (
            datetime.fromtimestamp(int(span[field]) / 1e9, UTC).isoformat().replace("+00:00", "Z")
            for field in ("startTimeUnixNano", "endTimeUnixNano")
        )
        attributes = {
            entry["key"]: int(entry["value"]["intValue"])
            if "intValue" in entry["value"]
            else entry["value"]["stringValue"]
            for entry in span["attributes"]
        }
        context = {"trace_id": span["traceId"], "span_id": span["spanId"]}
        yield {
            "name": "s", "context": context, "parent_id": span.get("parentSpanId"), "start_time": start,
            "end_time": end, "attributes": attributes,
        }  # fmt: skip


EXPORTS = {
    "langsmith": lambda: list(langsmith_rows()),
    "otel_genai": lambda: [otlp_row()],
    "otel_genai printed": lambda: list(printed_rows()),
}


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_becomes_the_closed_loop_that_it_recorded(tmp_path, name):
    path = written(tmp_path / "export.jsonl", EXPORTS[name](), None)
    assert detect_format(path) == name.split()[0]
    trace = read(path)
    assert len(trace) == 5
    assert trace.previous.tolist() == [-1, 0, 0, 2, 3]
    np.testing.assert_allclose(trace.think_s, [0, 0.01, 0.012, 0.04, 0.05], atol=1e-6)
    assert trace.agents.agent.tolist() == [0, 1, 2, 3, 0]
    assert trace.agents.gate.tolist() == [-1, 0, 0, -1, -1]
    assert trace.agents.behind.tolist() == [-1, -1, -1, 0, -1]
    assert (trace.agents.adapter == -1).all()
    # Prompts of b, c and e begin with a's first message; with messages of LangSmith its answer follows there.
    assert (trace.shared_tokens[[1, 2, 4]] > 0).all()
    assert trace.shared_tokens[3] == 0
    assert any("by times" in warning for warning in trace.warnings)
    again = tmp_path / "again.jsonl"
    write_trace(trace, again)
    assert compile_trace(read(again), "a").digest == compile_trace(trace, "b").digest


def span(name, parent, start, end, **attributes):
    """A span of OTLP; names of attributes without their ``gen_ai.``."""
    begin = int(START.timestamp() * 1e9)
    kind = {int: "intValue", float: "doubleValue", str: "stringValue"}
    return {
        "traceId": "1", "spanId": name, "parentSpanId": parent,
        "startTimeUnixNano": str(begin + start * 10**6), "endTimeUnixNano": str(begin + end * 10**6),
        "attributes": [
            {"key": f"gen_ai.{key.replace('__', '.')}", "value": {kind[type(value)]: value}}
            for key, value in attributes.items()
        ],
    }  # fmt: skip


def counts(inputs, outputs):
    return {"usage__input_tokens": inputs, "usage__output_tokens": outputs}


def otlp(*spans):
    return {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}


def test_of_spans_around_each_other_that_count_tokens_the_innermost_is_the_call(tmp_path):
    row = otlp(
        # An agent that adds up its calls, a framework's span around the client's, a tool, and an agent without calls.
        span("agent", "", 0, 900, operation__name="invoke_agent", agent__name="plan", **counts(700, 86)),
        span("chat", "agent", 0, 100, operation__name="chat", **counts(100, 20)),
        span("framework", "agent", 200, 410, operation__name="chat", **counts(200, 30)),
        span("client", "framework", 210, 400, **counts(200, 30)),
        span("tool", "agent", 500, 600, operation__name="execute_tool", **counts(50, 5)),
        span("remote", "agent", 600, 700, operation__name="invoke_agent", **counts(50, 5)),
        # An unnamed operation that adds up too: its place alone tells.
        span("sum", "", 1000, 1300, agent__name="read", **counts(300, 9)),
        span("part", "sum", 1000, 1100, **counts(150, 4)),
    )
    trace = read(written(tmp_path / "export.jsonl", [row], None))
    assert trace.request_ids == ["1/chat", "1/client", "1/part"]
    assert trace.input_tokens.tolist() == [100, 200, 150]
    assert trace.agents.agent.tolist() == [0, 0, 1]
    (left_out,) = [note for note in trace.notes if "left out" in note]
    assert left_out.startswith("5 rows left out: ")
    assert "no call of a model (line 1)" in left_out
    assert "encloses a call that counts its own tokens (line 1)" in left_out


@pytest.mark.parametrize("nested", [False, True])
def test_of_runs_around_each_other_that_count_tokens_the_innermost_is_the_call(tmp_path, nested):
    def run(name, kind, parent, start, end, **more):
        times = {"start_time": moment(start), "end_time": moment(end)}
        return {"id": name, "name": name, "run_type": kind, "trace_id": "r", "parent_run_id": parent} | times | more

    tokens = {"prompt_tokens": 90, "completion_tokens": 20}
    inner = [run("client", "llm", "model", 10, 90, **tokens), run("later", "llm", "node", 200, 300, **tokens)]
    model = run("model", "llm", "node", 5, 95, **tokens)
    node = run("node", "chain", None, 0, 400, extra={"metadata": {"langgraph_node": "plan", "thread_id": "t"}})
    rows = [node, model, *inner]
    if nested:
        rows = [node | {"child_runs": [model | {"child_runs": inner[:1]}, inner[1]]}]
    trace = read(written(tmp_path / "export.jsonl", rows, None))
    assert trace.request_ids == ["client", "later"]
    assert trace.agents.agent.tolist() == [0, 0]  # of the node around, whose metadata they lack
    assert trace.previous.tolist() == [-1, 0]
    assert any("encloses a call" in note for note in trace.notes)


@pytest.mark.parametrize(
    ("usage", "key", "expected"),
    [
        (counts("many", 5), "input_tokens", "expected a number, got 'many' (span b)"),
        (counts(-5, 5), "input_tokens", "expected at least 0, got -5 (span b)"),
        (counts(9, 5.5), "output_tokens", "got 5.5 (span b)"),
    ],
)
def test_counts_that_are_none_are_refused_by_line_key_and_span(tmp_path, usage, key, expected):  # law L9
    good = otlp(span("a", "", 0, 100, **counts(9, 5)))
    path = written(tmp_path / "export.jsonl", [good, otlp(span("b", "", 200, 300, **usage))], None)
    with pytest.raises(TraceError) as error:
        read(path)
    assert f"export.jsonl:2: gen_ai.usage.{key}: " in str(error.value)
    assert expected in str(error.value)
    trace = read_trace(path, TraceFileSpec(path=str(path), skip_bad=1))
    assert (len(trace), trace.skipped_rows) == (1, 1)


@pytest.mark.parametrize(("prompt", "expected"), [("many", "expected a number"), (-5, "expected at least 1")])
def test_counts_of_runs_that_are_none_are_refused_by_line_and_key(tmp_path, prompt, expected):  # law L9
    rows = list(langsmith_rows())
    rows[3] |= {"prompt_tokens": prompt, "completion_tokens": 20}
    with pytest.raises(TraceError, match=expected) as error:
        read(written(tmp_path / "export.jsonl", rows, None))
    assert "export.jsonl:4: prompt_tokens: " in str(error.value)


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_of_indented_documents_is_read_as_of_lines(tmp_path, name):
    rows = EXPORTS[name]()
    rows = rows * 2 if name == "otel_genai" else rows  # spans that are exported twice are there once
    path = tmp_path / "indented.json"
    path.write_text("\n".join(json.dumps(row, indent=4) for row in rows) + "\n")
    assert detect_format(path) == name.split()[0]
    again = compile_trace(read(path), "a")
    assert again.digest == compile_trace(read(written(tmp_path / "lines.jsonl", rows, None)), "b").digest


def test_an_indented_document_that_is_broken_is_refused_by_the_line_where_it_begins(tmp_path):  # law L9
    first, second, third = (json.dumps(row, indent=4) for row in list(printed_rows())[:3])
    path = tmp_path / "spans.json"
    path.write_text(f"{first}\n\n{second.replace(',', '', 1)}\n{third}\n")
    with pytest.raises(TraceError, match="delimiter at column 5 of its line 3") as error:
        read(path)
    assert f"spans.json:{first.count(chr(10)) + 3}: " in str(error.value)
    path.write_text(f"{first}\nready\n{third}\n{second[:-9]}")
    trace = read_trace(path, TraceFileSpec(path=str(path), skip_bad=2))
    assert (len(trace), trace.skipped_rows) == (2, 2)


def test_a_call_may_be_in_several_joins(tmp_path):
    rows = [
        {
            "id": name, "run_type": "llm", "start_time": moment(start), "end_time": moment(end), "trace_id": "r",
            "prompt_tokens": 10, "completion_tokens": 5, "inputs": {}, "outputs": {},
        }
        for name, start, end in (
            ("a", 0, 100), ("b", 0, 110), ("c", 0, 300), ("d", 120, 310), ("e", 320, 400), ("f", 315, 330)
        )
    ]  # fmt: skip
    trace = read(written(tmp_path / "export.jsonl", rows, None))
    # d waits for a and b; f, and e after it, for c and d.
    assert trace.agents.behind.tolist() == [-1, -1, -1, 0, 1, 1]
    assert trace.previous.tolist() == [-1, -1, -1, 1, 3, 3]
    assert any("no messages" in warning for warning in trace.warnings)
    joins = rows_of(
        {"id": "b", "agent": "x"} | START_AT_ONCE, {"id": "c", "agent": "y"} | START_AT_ONCE,
        {"id": "d", "agent": "x", "waits_for": ["a", "b"]}, {"id": "e", "agent": "y", "waits_for": ["b", "c"]},
        {"id": "f", "agent": "x", "waits_for": ["d", "e"], "gate": ["last", "spare"]},
    )  # fmt: skip
    trace = read(written(tmp_path / "joins.jsonl", joins))
    agents = trace.agents
    assert agents.behind.tolist() == [-1, -1, -1, 0, 1, 2]
    waited: dict[int, set[int]] = {}
    for request, gate in zip(*memberships(agents), strict=True):
        waited.setdefault(int(gate), set()).add(int(request))
    assert [waited[gate] for gate in range(5)] == [{0, 1}, {1, 2}, {3, 4}, {5}, {5}]
    again = tmp_path / "again.jsonl"
    write_trace(trace, again)
    assert compile_trace(read(again), "a").digest == compile_trace(trace, "b").digest


def test_the_form_as_its_page_shows_it(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "traces.md").read_text(encoding="utf-8")
    section = page[page.index("### Agents") :]
    example = section[section.index("```json\n") + 8 : section.index("\n```\n")]
    path = tmp_path / "page.jsonl"
    path.write_text(example)
    trace = read(path)
    assert sorted(compile_trace(trace, "page").request_ids) == trace.request_ids == ["a", "b", "c", "d"]
    assert trace.agents.behind.tolist() == [-1, -1, -1, 0]
    assert trace.think_s.tolist() == [0.0, 1.5, 0.0, 0.0]
    assert trace.agents.adapter_rank.tolist() == [16]
    assert trace.agents.hint_s.tolist() == [20.0]


#: AgentSociety's own fields of a call; times as it writes them.
def noted(start_s, took_s, inputs=50, outputs=7):
    return {
        "request_time": 1764_000_000.0 + start_s, "total_errors": 0, "error_types": {"timeout_error": 0},
        "input_tokens": inputs, "output_tokens": outputs, "consumption": took_s,
    }  # fmt: skip


def test_a_log_of_agentsociety_goes_on_by_rounds(tmp_path):
    # As its calls end: two rounds of three and two calls; one has failed and is left out.
    calls = [noted(0.5, 1.0), noted(0.0, 2.0), noted(1.0, 2.0), noted(3.5, 1.0), noted(4.0, 9.0, outputs=0)]
    calls.append(noted(4.25, 0.5))
    path = tmp_path / "llm_log_lists.json"
    path.write_text(json.dumps(calls, indent=2))
    assert detect_format(path) == "agentsociety"
    trace = read(path)
    assert trace.arrival_s.tolist() == pytest.approx([0.0, 0.5, 1.0, 3.5, 4.25])
    assert trace.agents.gate.tolist() == [0, 0, 0, -1, -1]
    assert trace.agents.behind.tolist() == [-1, -1, -1, 0, 0]
    assert trace.previous.tolist() == [-1, -1, -1, 2, 2]
    np.testing.assert_allclose(trace.think_s, [0, 0, 0, 0.5, 1.25], atol=1e-6)
    assert trace.output_tokens.tolist() == [7] * 5
    assert any("in 2 rounds" in warning for warning in trace.warnings)
    calls[1].pop("consumption")
    path.write_text("\n".join(map(json.dumps, calls)))
    with pytest.raises(TraceError, match="consumption") as error:
        read(path)
    assert ":2:" in str(error.value)
