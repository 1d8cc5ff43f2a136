"""Names of agents and of their adapters: told by exports and tables, kept in files, shown by number where absent."""

from __future__ import annotations

import json

import pytest

from hisearch.specs.workloads.workload import TraceFileSpec
from hisearch.traces.agents import label
from hisearch.traces.cache import read_compiled, write_compiled
from hisearch.traces.changes.ordering import in_arrival_order
from hisearch.traces.compiler import compile_trace
from hisearch.traces.importers import read_trace
from hisearch.traces.load import load_trace_file
from hisearch.traces.reading.canonical import write_trace
from hisearch.traces.reading.errors import TraceError
from tests.traces.test_agent_form import counts, otlp, span, written

ADAPTERS = {"planner": 16, "writer": 0}


def read(path, **options):
    return read_trace(path, TraceFileSpec(path=str(path), **options))


def export(path, *models):
    """A file of a call for each of ``models``, one after another; the caller has the model's name without its base."""
    agents = [model.rpartition(":")[2] for model in models]
    calls = [
        span(f"c{k}", "", 100 * k, 100 * k + 50, agent__name=agent, request__model=model, **counts(40, 5))
        for k, (agent, model) in enumerate(zip(agents, models, strict=True))
    ]
    return written(path / "export.jsonl", [otlp(*calls)], None)


def test_models_that_are_said_to_be_adapters_are_their_callers_adapters(tmp_path):
    path = export(tmp_path, "planner", "qwen", "qwen:writer", "planner", "writer")
    trace = read(path, adapters=ADAPTERS)
    agents = trace.agents
    assert trace.models is None
    assert agents.adapter.tolist() == [0, -1, 1]
    assert agents.agent.tolist() == [0, 1, 2, 0, 2]
    assert (agents.adapter_names, agents.adapter_rank.tolist()) == (("planner", "writer"), [16, 0])
    assert agents.names == ("1/planner", "1/qwen", "1/writer")
    again = tmp_path / "again.jsonl"
    write_trace(in_arrival_order(trace), again)
    kept = read(again).agents
    assert (kept.names, kept.adapter_names) == (agents.names, agents.adapter_names)
    assert kept.adapter_rank.tolist() == [16, 0]
    assert compile_trace(read(again), "a").digest == compile_trace(trace, "b").digest


def test_several_models_are_no_adapters_unless_somebody_says_so(tmp_path):
    trace = read(export(tmp_path, "planner", "qwen"))
    assert trace.models.names == ("planner", "qwen")
    assert (trace.agents.adapter == -1).all()
    assert any("--adapters NAME=RANK" in warning for warning in trace.warnings)
    assert not any("--adapters" in warning for warning in read(export(tmp_path, "qwen")).warnings)


def test_a_caller_with_several_adapters_is_an_agent_for_each(tmp_path):
    calls = [
        span(f"c{k}", "", 100 * k, 100 * k + 50, agent__name="one", request__model=model, **counts(40, 5))
        for k, model in enumerate(["planner", "writer", "planner"])
    ]
    agents = read(written(tmp_path / "export.jsonl", [otlp(*calls)], None), adapters=ADAPTERS).agents
    assert agents.names == ("1/one/planner", "1/one/writer")
    assert agents.agent.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (["qwen", "planner"], "no call asks for 'writer'; calls ask for planner and qwen"),
        (["qwen", "llama", "planner", "writer"], "of which model planner and writer is an adapter is not recorded"),
    ],
)
def test_adapters_that_the_calls_contradict_are_refused(tmp_path, models, message):  # law L9
    with pytest.raises(TraceError, match=message) as error:
        read(export(tmp_path, *models), adapters=ADAPTERS)
    assert "adapters" in str(error.value)


def test_adapters_of_formats_that_name_none_are_refused(tmp_path):
    row = {"format": "hisearch-trace", "version": 1}
    path = written(tmp_path / "t.jsonl", [{"arrival_s": 0, "input_tokens": 9, "output_tokens": 3}], row)
    with pytest.raises(TraceError, match="csv, envoy, langsmith, litellm, openai, otel_genai"):
        read(path, adapters=ADAPTERS)


def test_names_outlive_the_cache_of_compiled_traces(tmp_path):
    first = load_trace_file(export(tmp_path, "planner", "writer"), adapters=ADAPTERS)
    write_compiled(tmp_path / "kept.npz", first, "key")
    again = read_compiled(tmp_path / "kept.npz", "again", "key")
    assert first.agents.names == again.agents.names == ("1/planner", "1/writer")
    assert again.agents.adapter_names == ("planner", "writer")
    assert first.digest == again.digest


def test_names_do_not_change_a_digest_and_numbers_stand_for_them(tmp_path):
    trace = read(export(tmp_path, "planner", "writer"), adapters=ADAPTERS)
    bare = trace.agents._replace(names=(), adapter_names=())
    assert (
        compile_trace(trace, "a").digest
        == compile_trace(trace.__class__(**{**vars(trace), "agents": bare}), "b").digest
    )
    assert (label(trace.agents.names, 1), label(bare.names, 1)) == ("1/writer", "1")


TABLE = """\
at,who,lora,chat,in,out
0,plan,p,x,100,20
1,read,,y,50,10
2,plan,p,x,130,20
9,read,,y,70,10
"""
COLUMNS = {"arrival_s": "at", "input_tokens": "in", "output_tokens": "out"}


def table(path, text=TABLE, **columns):
    path = path / "own.csv"
    path.write_text(text)
    return path, COLUMNS | columns


def test_a_table_names_agents_and_adapters(tmp_path):
    path, columns = table(tmp_path, agent="who", adapter="lora")
    trace = read(path, columns=columns, adapters={"p": 16})
    agents = trace.agents
    assert (agents.names, agents.adapter_names) == (("plan", "read"), ("p",))
    assert (agents.agent.tolist(), agents.adapter.tolist()) == ([0, 1, 0, 1], [0, -1])
    assert agents.adapter_rank.tolist() == [16]
    assert trace.previous.tolist() == [-1, -1, 0, 1]
    assert compile_trace(trace, "t").arrays.previous.tolist() == [-1, -1, 0, 1]
    with pytest.raises(ValueError, match="closed loop"):
        compile_trace(trace, "t", "open_loop")


@pytest.mark.parametrize("more", [{}, {"session": "chat"}])
def test_a_table_with_adapters_and_no_agents_is_an_open_loop(tmp_path, more):
    path, columns = table(tmp_path, adapter="lora", **more)
    trace = compile_trace(read(path, columns=columns, adapters={"p": 8}), "t", "open_loop")
    assert trace.agents is None
    adapters = trace.adapters
    assert (adapters.names, adapters.rank.tolist(), adapters.adapter.tolist()) == (("p",), [8], [0, -1, 0, -1])


def test_rows_of_a_table_that_are_sorted_keep_their_agents(tmp_path):
    lines = TABLE.splitlines()
    path, columns = table(tmp_path, "\n".join([lines[0], *lines[:0:-1]]) + "\n", agent="who", adapter="lora")
    agents = read(path, columns=columns).agents
    assert [agents.names[k] for k in agents.agent.tolist()] == ["plan", "read", "plan", "read"]
    assert [agents.adapter_names[agents.adapter[k]] if agents.adapter[k] >= 0 else "" for k in agents.agent] == [
        "p", "", "p", "",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "columns", "message"),
    [
        (("2,plan,p", "2,plan,q"), {"agent": "who", "adapter": "lora"}, r"own.csv:4: lora: expected the adapter that"),
        (("1,read", "1,"), {"agent": "who"}, r"own.csv:3: who: missing"),
        (("", ""), {"agent": "caller"}, r"own.csv:2: caller: no such column"),
    ],
)
def test_tables_of_agents_are_refused_by_line_and_column(tmp_path, change, columns, message):  # law L9
    path, mapping = table(tmp_path, TABLE.replace(*change) if change[0] else TABLE, **columns)
    with pytest.raises(TraceError, match=message):
        read(path, columns=mapping)


@pytest.mark.parametrize(
    ("columns", "adapters", "message"),
    [
        ({"agent": "who", "adapter": "lora"}, {"q": 8}, "no call asks for 'q'; calls ask for p"),
        ({"agent": "who"}, {"p": 8}, "adapter=COLUMN"),
    ],
)
def test_ranks_of_adapters_that_a_table_lacks_are_refused(tmp_path, columns, adapters, message):  # law L9
    path, mapping = table(tmp_path, **columns)
    with pytest.raises(TraceError, match=message):
        read(path, columns=mapping, adapters=adapters)


def test_columns_agent_and_adapter_are_taken_by_a_mapping_alone(tmp_path):
    path = tmp_path / "own.jsonl"
    rows = [{"arrival_s": k, "input_tokens": 5, "output_tokens": 2, "agent": "Mozilla/5.0"} for k in range(3)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert read(path).agents is None
