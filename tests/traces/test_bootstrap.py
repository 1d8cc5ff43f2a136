"""Traces drawn anew, held against lists of tokens."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisearch.api.studies.study import load_study
from hisearch.traces.changes.bootstrap import (
    LEAST_NEIGHBOURS,
    NEIGHBOURHOOD,
    REACH,
    SessionTable,
    assemble,
    describe_schemes,
    resample,
    session_table,
)
from hisearch.traces.compiled import CompiledTrace, TraceArrays
from hisearch.traces.compiler import freeze
from tests.reference.random_traces import TraceShape, random_trace

Token = tuple[int, ...]


def compiled(seed: int, requests: int = 20, recorded: bool = False, **shape: float) -> CompiledTrace:
    """A random trace; recorded: when requests arrived that follow others is known, too."""
    arrays = random_trace(seed, TraceShape(requests=requests, prompt_tokens=6, output_tokens=3, **shape))  # type: ignore[arg-type]
    if recorded:
        arrival_s = arrays.arrival_s.copy()
        for k in np.flatnonzero(np.isnan(arrival_s)):
            arrival_s[k] = arrival_s[arrays.previous[k]] + 0.3
        arrays = arrays._replace(arrival_s=arrival_s)
    return freeze("random", arrays, [f"r{k}" for k in range(requests)], 0, (), 1)


def table_of(trace: CompiledTrace) -> SessionTable:
    table = session_table(trace)
    assert table is not None
    return table


def path(arrays: TraceArrays, node: int) -> list[Token]:
    """The tokens that lead to a node's end, each named after its node."""
    tokens: list[Token] = []
    while node > 0:
        depths = range(int(arrays.start_tokens[node]), int(arrays.end_tokens[node]))
        tokens = [(int(node), depth) for depth in depths] + tokens
        node = int(arrays.parent[node])
    return tokens


def shared(a: list[Token], b: list[Token]) -> int:
    return next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def expected_sequences(table: SessionTable, drawn: list[int], node_of: str) -> dict[str, list[Token]]:
    """By a drawn request's name, its source's tokens, renamed in further copies where no other session has them."""
    arrays, trace = table.trace.arrays, table.trace
    owners: dict[int, set[int]] = {}
    for request in range(len(trace)):
        for end in (int(arrays.prompt_node[request]), int(arrays.output_node[request])):
            for node, _ in path(arrays, end):
                owners.setdefault(node, set()).add(int(table.of[request]))
    seen: set[int] = set()
    sequences = {}
    for copy, session in enumerate(drawn):
        for request in np.flatnonzero(table.of == session):
            tokens = path(arrays, int(getattr(arrays, node_of)[request]))
            renamed = [(*token, copy) if session in seen and len(owners[token[0]]) == 1 else token for token in tokens]
            sequences[f"{trace.request_ids[request]}~{copy}"] = renamed
        seen.add(session)
    return sequences


def cut(table: SessionTable, drawn: list[int], starts: list[float]) -> set[str]:
    """Names of drawn requests that would arrive behind the original's last, and of those that follow one."""
    arrays, late = table.trace.arrays, set()
    end_s = math.inf if any(map(math.isnan, arrays.arrival_s)) else max(arrays.arrival_s)
    for copy, (session, start_s) in enumerate(zip(drawn, starts, strict=True)):
        moved_s = start_s - table.start_s[session]
        for request in np.flatnonzero(table.of == session):  # predecessors first
            name, before = f"{table.trace.request_ids[request]}~{copy}", int(arrays.previous[request])
            follows = before >= 0 and f"{table.trace.request_ids[before]}~{copy}" in late
            if follows or arrays.arrival_s[request] + moved_s > end_s:
                late.add(name)
    return late


@given(st.integers(0, 10_000), st.integers(0, 10_000), st.booleans())
@settings(deadline=None, max_examples=40)
def test_copies_share_what_their_sources_share_and_no_more(seed: int, choice: int, recorded: bool) -> None:
    table = table_of(compiled(seed, recorded=recorded))
    rng = np.random.default_rng(choice)
    drawn = rng.integers(0, len(table), len(table) + 2)
    starts = rng.uniform(0.0, 1.0, len(drawn))
    starts[0] = 0.0  # before the end of any trace
    made, late = assemble(table, drawn, starts), cut(table, drawn.tolist(), starts.tolist())
    for node_of in ("prompt_node", "output_node"):
        expected = expected_sequences(table, drawn.tolist(), node_of)
        expected = {name: tokens for name, tokens in expected.items() if name not in late}
        assert set(expected) == set(made.request_ids)
        ours = [path(made.arrays, int(node)) for node in getattr(made.arrays, node_of)]
        theirs = [expected[name] for name in made.request_ids]
        for a in range(len(made)):
            assert len(ours[a]) == len(theirs[a])
            for b in range(a):
                assert shared(ours[a], ours[b]) == shared(theirs[a], theirs[b])


@given(st.integers(0, 10_000), st.integers(0, 10_000), st.booleans())
@settings(deadline=None, max_examples=40)
def test_a_session_comes_whole_at_its_place_up_to_the_end(seed: int, choice: int, recorded: bool) -> None:
    trace = compiled(seed, follow_up=0.6, recorded=recorded)
    table = table_of(trace)
    source = {name: k for k, name in enumerate(trace.request_ids)}
    made = resample(table, "sessions" if "sessions" in table.schemes else "blocks", np.random.default_rng(choice))
    arrays, rows = made.arrays, [name.split("~") for name in made.request_ids]
    copies: dict[str, list[int]] = {}
    for k, (name, copy) in enumerate(rows):
        copies.setdefault(copy, []).append(source[name])
        before, theirs = int(arrays.previous[k]), int(trace.arrays.previous[source[name]])
        assert (before < 0) == (theirs < 0)
        assert before < k  # a predecessor has the smaller index
        if before >= 0:
            assert rows[before] == [trace.request_ids[theirs], copy]
        for field in ("input_tokens", "output_tokens", "max_output_tokens", "think_s", "priority", "tenant"):
            assert getattr(arrays, field)[k] == getattr(trace.arrays, field)[source[name]]
        assert len(path(arrays, int(arrays.prompt_node[k]))) == arrays.input_tokens[k]
    assert (arrays.parent[1:] < np.arange(1, len(arrays.parent))).all()
    for copy, requests in copies.items():
        session = int(table.of[requests[0]])
        start_s = min(arrays.arrival_s[k] for k, row in enumerate(rows) if row[1] == copy and arrays.previous[k] < 0)
        late = cut(table, [session], [start_s])
        whole = np.flatnonzero(table.of == session).tolist()
        assert sorted(requests) == [request for request in whole if f"{trace.request_ids[request]}~0" not in late]


@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=20)
def test_every_session_once_at_its_own_start_is_the_trace_itself(seed: int) -> None:
    unordered = table_of(compiled(seed))
    trace = assemble(unordered, np.arange(len(unordered)), unordered.start_s)  # in the order of compiled traces
    table = table_of(trace)
    made = assemble(table, np.arange(len(table)), table.start_s)
    for field in TraceArrays._fields:
        if field != "session":  # numbered anew
            np.testing.assert_array_equal(getattr(made.arrays, field), getattr(trace.arrays, field), err_msg=field)


def long_trace(count: int, rate_of_time: float = 0.0) -> CompiledTrace:
    """Requests of one token each, whose rate rises with time."""
    at = np.sort(np.random.default_rng(3).uniform(0.0, 1.0, count) ** (1.0 / (1.0 + rate_of_time))) * 100.0
    nodes = np.arange(1, 2 * count, 2)
    parent = np.zeros(2 * count + 1, np.int32)
    parent[0], parent[nodes + 1] = -1, nodes
    start, end = np.zeros(2 * count + 1, np.int64), np.ones(2 * count + 1, np.int64)
    start[nodes + 1], end[nodes + 1], end[0] = 1, 2, 0
    unit = np.ones(count, np.int64)
    zeros = np.zeros(count, np.int32)
    arrays = TraceArrays(
        at, unit, unit, unit, np.full(count, -1, np.int32), np.zeros(count), np.arange(count, dtype=np.int32) // 2,
        zeros, zeros, 0 * unit, nodes.astype(np.int32), (nodes + 1).astype(np.int32), parent, start, end,
    )  # fmt: skip
    return freeze("long", arrays, [str(k) for k in range(count)], 0, (), 1)


@pytest.mark.parametrize("scheme", ["sessions", "blocks"])
def test_a_rush_hour_stays_where_it_is(scheme: str) -> None:
    trace = long_trace(4000, rate_of_time=2.0)
    table = table_of(trace)
    edges = np.linspace(0.0, 100.0, 9)
    expected = np.histogram(trace.arrays.arrival_s, edges)[0]
    counts = [
        np.histogram(resample(table, scheme, np.random.default_rng(k)).arrays.arrival_s, edges)[0]  # type: ignore[arg-type]
        for k in range(40)
    ]
    mean = np.mean(counts, axis=0)
    # Pieces come from as far as REACH blocks away: of a rate that rises with time the first eighth gets more.
    np.testing.assert_allclose(mean[1:], expected[1:], rtol=0.12, atol=12)
    assert expected[-1] > 1.6 * expected[3]


def test_a_session_is_drawn_from_about_its_own_time() -> None:
    table = table_of(long_trace(4000))
    made = resample(table, "sessions", np.random.default_rng(0))
    order = np.argsort(np.argsort(table.start_s, kind="stable"), kind="stable")
    near = max(round(len(table) * NEIGHBOURHOOD), LEAST_NEIGHBOURS)
    for copy, name in {int(n.split("~")[1]): n.split("~")[0] for n in made.request_ids}.items():
        assert abs(order[int(table.of[int(name)])] - copy) <= near


def test_a_piece_comes_from_as_far_as_its_reach_at_most() -> None:
    table = table_of(long_trace(4000))
    made = resample(table, "blocks", np.random.default_rng(0))
    length_s = 100.0 / table.blocks
    moved = [
        abs(at - float(table.trace.arrays.arrival_s[int(name.split("~")[0])]))
        for at, name in zip(made.arrays.arrival_s, made.request_ids, strict=True)
    ]
    assert max(moved) <= REACH * length_s * 1.01
    assert max(moved) > length_s


@pytest.mark.slow
def test_the_spread_of_a_mean_is_that_of_independent_sessions() -> None:
    """Sessions of the same law at any time: the bootstrap's standard error of a mean is the textbook's."""
    trace = long_trace(2000)
    values = np.random.default_rng(5).exponential(size=len(trace))
    table = table_of(trace)
    means = []
    for k in range(300):
        made = resample(table, "sessions", np.random.default_rng(k))
        means.append(np.mean([values[int(name.split("~")[0])] for name in made.request_ids]))
    by_session = np.array([values[table.of == s].mean() for s in range(len(table))])
    expected = by_session.std(ddof=1) / np.sqrt(len(table))
    assert np.std(means) == pytest.approx(expected, rel=0.15)
    assert np.mean(means) == pytest.approx(values.mean(), abs=3 * expected)


def test_what_cannot_be_drawn_is_said() -> None:
    assert describe_schemes(None).startswith("the trace as it is")
    table = table_of(long_trace(4000))
    with pytest.raises(ValueError, match="cannot be drawn by chance"):
        resample(table, "chance", np.random.default_rng(0))  # type: ignore[arg-type]


def test_a_trace_cut_out_of_a_service_is_drawn_as_busy_to_its_end() -> None:
    """Sessions of earlier places would go on behind the end; see the module."""
    trace = load_study("quickstart").trace
    table, end_s = table_of(trace), float(trace.arrays.arrival_s.max())
    for scheme in table.schemes:
        rates = []
        for seed in range(4):
            made = resample(table, scheme, np.random.default_rng(seed))
            span_s = float(np.ptp(made.arrays.arrival_s))
            assert made.arrays.arrival_s.max() <= end_s
            rates.append(len(made) / span_s)
        assert np.mean(rates) == pytest.approx(len(trace) / np.ptp(trace.arrays.arrival_s), rel=0.03)
