"""Sizes of adapters and memories, and beginnings of prompts by name, in hisearch's own form."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisearch.specs.workloads.workload import TraceFileSpec
from hisearch.traces.changes.ordering import in_arrival_order
from hisearch.traces.compiler import compile_trace
from hisearch.traces.importers import read_trace
from hisearch.traces.reading.canonical import write_trace
from hisearch.traces.reading.errors import TraceError
from hisearch.traces.stats import trace_stats
from tests.traces.test_agent_form import HEADER, written

PLAN = {
    "agent": "plan",
    "adapter": "p",
    "adapter_rank": 16,
    "adapter_bytes": 1000,
    "memory": "shop",
    "memory_bytes": 70,
}
READ = {"agent": "read", "memory": "shop", "memory_bytes": 70}
ROWS = [
    {"id": "a", "arrival_s": 0} | PLAN,
    {"id": "b", "waits_for": ["a"]} | READ,
    {"id": "c", "waits_for": ["b"]} | PLAN,
    {"id": "d", "waits_for": ["b"], "agent": "bare"},
]


def read(path):
    return read_trace(path, TraceFileSpec(path=str(path)))


def graph(tmp_path, rows=ROWS, header=HEADER):
    return written(tmp_path / "t.jsonl", [{"input_tokens": 10, "output_tokens": 4} | row for row in rows], header)


def test_sizes_and_memories_are_read_and_written_again(tmp_path):
    trace = read(graph(tmp_path))
    agents = trace.agents
    assert (agents.adapter.tolist(), agents.memory.tolist()) == ([0, -1, -1], [0, 0, -1])
    assert (agents.adapter_rank.tolist(), agents.adapter_bytes.tolist()) == ([16], [1000])
    assert (agents.memory_names, agents.memory_bytes.tolist()) == (("shop",), [70])
    assert trace_stats(compile_trace(trace, "t")).agents.memories == 1
    again = tmp_path / "again.jsonl"
    write_trace(in_arrival_order(trace), again)
    kept = read(again)
    assert compile_trace(kept, "a").digest == compile_trace(trace, "b").digest
    assert kept.agents.memory_names == ("shop",)
    third = tmp_path / "third.jsonl"
    write_trace(kept, third)
    assert third.read_bytes() == again.read_bytes()


def test_sizes_are_in_the_digest_and_absent_ones_change_none(tmp_path):
    plain = [{key: value for key, value in row.items() if "bytes" not in key and key != "memory"} for row in ROWS]
    digests = [compile_trace(read(graph(tmp_path, rows)), "t").digest for rows in (ROWS, plain)]
    bare = read(graph(tmp_path, plain)).agents
    assert digests[0] != digests[1]
    assert [len(column) for column in (bare.adapter_bytes, bare.memory, bare.memory_bytes)] == [0, 0, 0]


def test_the_header_knows_objects_of_agents_without_a_call(tmp_path):
    known = [["ghost", "g", 8, 500, "attic", 9], ["plan", "p", 16, 1000, "shop", 70]]
    agents = read(graph(tmp_path, ROWS, HEADER | {"agents": {"known": known}})).agents
    assert agents.names == ("ghost", "plan", "read", "bare")
    assert (agents.adapter_names, agents.adapter_bytes.tolist()) == (("g", "p"), [500, 1000])
    assert (agents.memory_names, agents.memory_bytes.tolist()) == (("attic", "shop"), [9, 70])


@pytest.mark.parametrize(
    ("row", "field", "message"),
    [
        (PLAN | {"adapter_bytes": 999}, "adapter_bytes", "expected the bytes that adapter 'p' had before"),
        ({"agent": "x", "adapter": "q", "adapter_rank": 2**40}, "adapter_rank", "up to 1048576"),
        (PLAN | {"memory": "yard"}, "memory", "expected the memory that agent 'plan' had before"),
        (READ | {"memory_bytes": 71}, "memory_bytes", "expected the bytes that memory 'shop' had before"),
        ({"agent": "x", "memory_bytes": 71}, "memory_bytes", "memory beside it"),
        ({"agent": "x", "adapter_bytes": 71}, "adapter_bytes", "adapter beside it"),
        ({"agent": "x", "prefix_tokens": 5}, "prefix_tokens", "prefix beside it"),
        ({"agent": "x", "prefix": "system"}, "prefix_tokens", "missing"),
        ({"agent": "x", "prefix": "system", "prefix_tokens": 11}, "prefix_tokens", "up to 10"),
        ({"agent": "x", "prefix": "world", "prefix_tokens": 4}, "prefix_tokens", "expected 6, as prefix 'world'"),
        (
            {"agent": "x", "prefix": "world", "prefix_tokens": 6, "shares_with": "a", "shared_tokens": 2},
            "prefix",
            "expected one of shares_with, block_ids, token_ids, prefix",
        ),
    ],
)
def test_sizes_and_prefixes_that_contradict_are_refused_by_line(tmp_path, row, field, message):  # law L9
    rows = [*ROWS[:3], {"id": "d", "agent": "y", "prefix": "world", "prefix_tokens": 6, "previous": "a"}]
    with pytest.raises(TraceError, match=message) as error:
        read(graph(tmp_path, [*rows, {"id": "e", "previous": "a"} | row]))
    assert f":6: {field}" in str(error.value)


def test_prompts_share_the_beginning_that_they_name(tmp_path):
    begins = {"prefix": "world", "prefix_tokens": 6}
    rows = [
        {"id": "a", "arrival_s": 0} | begins, {"id": "b", "arrival_s": 1, "prefix": "other", "prefix_tokens": 3},
        {"id": "c", "arrival_s": 2} | begins, {"id": "d", "previous": "c", "shares_with": "c", "shared_tokens": 9},
        {"id": "e", "arrival_s": 3, "prefix": "other", "prefix_tokens": 3}, {"id": "f", "arrival_s": 4},
    ]  # fmt: skip
    trace = read(graph(tmp_path, rows))
    assert trace.shares_with.tolist() == [-1, -1, 0, 2, 1, -1]
    assert trace.shared_tokens.tolist() == [0, 0, 6, 9, 3, 0]
    models = [row | {"model": "y" if row["id"] in "ce" else "x"} for row in rows[:3]]
    assert read(graph(tmp_path, models)).shares_with.tolist() == [-1, -1, -1]


@st.composite
def populations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Rows of agents with any objects, sizes and prefixes; a row waits for some rows before it."""
    sizes = st.integers(0, 3)
    adapters = [{"adapter": f"l{k}", "adapter_rank": draw(sizes), "adapter_bytes": draw(sizes)} for k in range(3)]
    memories = [{"memory": f"m{k}", "memory_bytes": draw(sizes)} for k in range(2)]
    agents = []
    for k in range(4):
        own = {"agent": f"a{k}"} | draw(st.sampled_from([{}, *adapters])) | draw(st.sampled_from([{}, *memories]))
        agents.append({name: value for name, value in own.items() if value})
    rows = []
    for k in range(draw(st.integers(1, 8))):
        row = {"id": f"{k}", "arrival_s": float(k)} | draw(st.sampled_from(agents))
        prefix = draw(st.sampled_from([None, "p", "q"]))
        row |= {} if prefix is None else {"prefix": prefix, "prefix_tokens": 3 + 4 * (prefix == "q")}
        before = draw(st.sets(st.integers(0, k - 1), max_size=3)) if k else set()
        rows.append(row | ({"waits_for": [f"{other}" for other in sorted(before)]} if before else {}))
    return rows


@given(rows=populations())
@settings(deadline=None, max_examples=50)
def test_what_is_written_is_what_was_read(rows: list[dict[str, Any]]) -> None:  # law L6
    with TemporaryDirectory() as folder:
        trace = read(graph(Path(folder), rows))
        write_trace(trace, Path(folder) / "again.jsonl")
        again = read(Path(folder) / "again.jsonl")
    assert compile_trace(again, "a").digest == compile_trace(trace, "b").digest
    for name in ("names", "adapter_names", "memory_names"):
        assert getattr(again.agents, name) == getattr(trace.agents, name)
    agents = trace.agents
    for index, row in enumerate(rows):
        agent = int(agents.agent[index])
        own, kept = int(agents.adapter[agent]), int(agents.memory[agent]) if len(agents.memory) else -1
        assert row.get("adapter") == (agents.adapter_names[own] if own >= 0 else None)
        assert row.get("memory") == (agents.memory_names[kept] if kept >= 0 else None)
        if own >= 0:
            assert row.get("adapter_bytes", 0) == (agents.adapter_bytes[own] if len(agents.adapter_bytes) else 0)
