"""Compiled trees against tries built token by token."""

from __future__ import annotations

import numpy as np
import pytest
import trace_reference as reference
from hypothesis import given, settings
from hypothesis import strategies as st

from hisearch.traces import _tree
from hisearch.traces.changes.selection import head
from hisearch.traces.compiled import ChosenIds, digest_of
from hisearch.traces.compiler import compile_trace, scale_load
from hisearch.traces.stats import ideal_hit_tokens, lru_hit_curve, unique_prompt_tokens
from hisearch.traces.trace import make_trace


@st.composite
def traces(draw, most=12):
    """Small traces with sharing of every kind: none, part of a prompt, all of it, parts of an output, follow-ups."""
    count = draw(st.integers(1, most))
    lengths = st.integers(1, 9)
    inputs = [draw(lengths) for _ in range(count)]
    outputs = [draw(lengths) for _ in range(count)]
    thinking = [draw(st.integers(0, tokens)) if draw(st.booleans()) else 0 for tokens in outputs]
    shares_with, shared, previous, arrival, think = [], [], [], [], []
    clock = 0.0
    for i in range(count):
        other = draw(st.integers(-1, i - 1))
        most_shared = min(inputs[i] + outputs[i], inputs[other] + outputs[other]) if other >= 0 else 0
        tokens = draw(st.integers(0, most_shared))
        shares_with.append(other if tokens else -1)
        shared.append(tokens)
        before = draw(st.integers(-1, i - 1)) if draw(st.booleans()) else -1
        previous.append(before)
        clock += draw(st.sampled_from([0.0, 0.5, 2.0]))
        unknown = before >= 0 and draw(st.booleans())
        arrival.append(float("nan") if unknown else clock)
        think.append(draw(st.sampled_from([0.0, 1.0])) if before >= 0 else 0.0)
    return make_trace(
        arrival_s=arrival, input_tokens=inputs, output_tokens=outputs, shares_with=shares_with, shared_tokens=shared,
        previous=previous, think_s=think, thinking_tokens=thinking, open_loop=False,
    )  # fmt: skip


def in_order(trace, compiled):
    """Sequences of a trace in the compiled order."""
    sequences = reference.sequences_of(trace)
    return [sequences[int(name)] for name in compiled.request_ids]


@given(traces())
@settings(max_examples=150, deadline=None)
def test_tree_holds_every_sequence(trace):
    compiled = compile_trace(trace, "t")
    reference.check_tree(compiled.arrays, in_order(trace, compiled))


@given(traces())
@settings(max_examples=100, deadline=None)
def test_requests_come_after_what_they_wait_for(trace):
    arrays = compile_trace(trace, "t").arrays
    assert (arrays.previous < np.arange(len(arrays.previous))).all()
    first = arrays.arrival_s[arrays.previous < 0]
    assert (np.diff(first) >= 0).all()
    for array in arrays:
        assert not array.flags.writeable
        assert array.flags.c_contiguous


@given(traces(), st.integers(1, 12))
@settings(max_examples=100, deadline=None)
def test_head_is_the_trace_of_the_first_requests(trace, count):
    compiled = compile_trace(trace, "t")
    short = head(compiled, count)
    kept = min(count, len(trace))
    assert list(short.request_ids) == compiled.request_ids[:kept]
    reference.check_tree(short.arrays, in_order(trace, compiled)[:kept])


@given(traces())
@settings(max_examples=100, deadline=None)
def test_ideal_hits_equal_brute_force(trace):
    compiled = compile_trace(trace, "t")
    sequences = in_order(trace, compiled)
    prompts = [sequence[:length] for sequence, length in zip(sequences, compiled.arrays.input_tokens, strict=True)]
    assert ideal_hit_tokens(compiled).tolist() == reference.ideal_hits(prompts)
    with_outputs = ideal_hit_tokens(compiled, include_outputs=True).tolist()
    assert with_outputs == reference.ideal_hits(prompts, sequences)
    distinct = {tuple(prompt[:length]) for prompt in prompts for length in range(1, len(prompt) + 1)}
    assert unique_prompt_tokens(compiled) == len(distinct)


@given(traces(), st.integers(1, 5), st.integers(0, 12))
@settings(max_examples=150, deadline=None)
def test_lru_curve_equals_brute_force(trace, block_tokens, blocks):
    compiled = compile_trace(trace, "t")
    prompts = [s[:n] for s, n in zip(in_order(trace, compiled), compiled.arrays.input_tokens, strict=True)]
    (point,) = lru_hit_curve(compiled, [blocks * block_tokens], block_tokens=block_tokens)
    expected = reference.lru_hits(prompts, block_tokens, blocks) if blocks else 0
    assert point.hit_tokens == expected
    assert point.hit_rate == expected / compiled.prompt_tokens


@given(traces())
@settings(max_examples=50, deadline=None)
def test_more_capacity_never_hits_less(trace):  # law L7
    compiled = compile_trace(trace, "t")
    hits = [point.hit_tokens for point in lru_hit_curve(compiled, range(0, 40, 2), block_tokens=2)]
    assert hits == sorted(hits)
    assert hits[-1] <= ideal_hit_tokens(compiled).sum()


@st.composite
def block_lists(draw):
    """Sequences of block ids with few ids, so that they often agree, and partial last blocks; ids are not chained."""
    block_tokens = draw(st.integers(1, 4))
    count = draw(st.integers(1, 10))
    lists, known, inputs, outputs = [], [], [], []
    for _ in range(count):
        ids = draw(st.lists(st.integers(0, 2), max_size=4))
        covered = len(ids) * block_tokens
        if ids:
            covered -= draw(st.integers(0, block_tokens - 1))
        total = max(2, covered + draw(st.integers(0, 3)))
        prompt = draw(st.integers(1, total - 1))
        lists.append(ids)
        known.append(covered)
        inputs.append(prompt)
        outputs.append(total - prompt)
    return block_tokens, lists, known, inputs, outputs


def shared_tokens_of(ids_a, covered_a, ids_b, covered_b, block_tokens):
    """Tokens that two sequences share by their ids, as the canonical form defines it."""
    common = reference.common_prefix(ids_a, ids_b)
    return min(common * block_tokens, covered_a, covered_b)


@given(block_lists())
@settings(max_examples=200, deadline=None)
def test_block_ids_share_their_common_leading_tokens(case):
    block_tokens, lists, known, inputs, outputs = case
    ptr = np.concatenate([[0], np.cumsum([len(ids) for ids in lists])]).astype(np.int64)
    ids = np.array([i for block_list in lists for i in block_list], dtype=np.int64)
    shares_with, shared = _tree.resolve_blocks(ptr, ids, block_tokens, np.array(known, dtype=np.int64))
    for i in range(len(lists)):
        by_pair = [
            shared_tokens_of(lists[i], known[i], lists[j], known[j], block_tokens) for j in range(i)
        ]  # fmt: skip
        assert shared[i] == max(by_pair, default=0)
        if shared[i]:
            assert by_pair[shares_with[i]] == shared[i]
    trace = make_trace(
        arrival_s=np.arange(len(lists)), input_tokens=inputs, output_tokens=outputs, shares_with=shares_with,
        shared_tokens=shared,
    )  # fmt: skip
    lengths = [a + b for a, b in zip(inputs, outputs, strict=True)]
    compiled = compile_trace(trace, "t")
    expected = reference.block_sequences(lists, block_tokens, known, lengths)
    reference.check_tree(compiled.arrays, expected)


def test_longer_prompt_through_a_partial_block():
    # Request 0 ends inside block 7, which request 1 has whole; request 2 follows request 1 beyond it.
    ids = np.array([1, 7, 1, 7, 8, 1, 7, 8, 9], dtype=np.int64)
    shares_with, shared = _tree.resolve_blocks(
        np.array([0, 2, 5, 9]), ids, 4, np.array([6, 12, 14], dtype=np.int64)
    )  # fmt: skip
    assert shares_with.tolist() == [-1, 0, 1]
    assert shared.tolist() == [0, 6, 12]


def test_open_loop_replays_recorded_times_of_follow_ups():
    trace = make_trace(
        arrival_s=[0.0, 1.0, 5.0], input_tokens=[4, 4, 9], output_tokens=[2, 2, 2], previous=[-1, -1, 0],
        think_s=[0.0, 0.0, 3.0], open_loop=False,
    )  # fmt: skip
    closed = compile_trace(trace, "t")
    assert closed.arrays.previous.tolist() == [-1, -1, 0]
    assert closed.arrays.think_s.tolist() == [0.0, 0.0, 3.0]
    opened = compile_trace(trace, "t", "open_loop")
    assert opened.arrays.previous.tolist() == [-1, -1, -1]
    assert opened.arrays.arrival_s.tolist() == [0.0, 1.0, 5.0]
    assert opened.arrays.session.tolist() == closed.arrays.session.tolist()


def test_unknown_think_times_are_taken_from_the_arrivals():
    trace = make_trace(
        arrival_s=[0.0, 7.5], input_tokens=[4, 9], output_tokens=[2, 2], previous=[-1, 0], think_s=[0.0, np.nan]
    )
    compiled = compile_trace(trace, "t", "closed_loop")
    assert compiled.arrays.think_s.tolist() == [0.0, 7.5]
    assert "1 think times are not recorded" in compiled.warnings[-1]
    unknown = make_trace(
        arrival_s=[0.0, np.nan], input_tokens=[4, 9], output_tokens=[2, 2], previous=[-1, 0], think_s=[0.0, np.nan]
    )
    with pytest.raises(ValueError, match="closed_loop needs think times"):
        compile_trace(unknown, "t", "closed_loop")
    with pytest.raises(ValueError, match="open_loop needs the arrival time"):
        compile_trace(unknown, "t", "open_loop")


def test_scale_load_divides_open_loop_arrivals_alone():
    trace = make_trace(
        arrival_s=[2.0, 4.0, 10.0], input_tokens=[4, 4, 9], output_tokens=[2, 2, 2], previous=[-1, -1, 0],
        think_s=[0.0, 0.0, 3.0], open_loop=False,
    )  # fmt: skip
    compiled = compile_trace(trace, "t")
    doubled = scale_load(compiled, 2.0)
    assert doubled.arrays.arrival_s.tolist() == [1.0, 2.0, 9.0]
    assert doubled.arrays.think_s.tolist() == [0.0, 0.0, 3.0]
    assert doubled.digest != compiled.digest
    assert scale_load(compiled, 1.0) is compiled
    for factor in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="load must be a positive number"):
            scale_load(compiled, factor)


def test_digest_covers_every_array():
    compiled = compile_trace(make_trace(arrival_s=[0.0], input_tokens=[3], output_tokens=[2]), "t")
    assert digest_of(compiled.arrays) == compiled.digest
    for column, values in compiled.arrays._asdict().items():
        changed = compiled.arrays._replace(**{column: values + 1})
        assert digest_of(changed) != compiled.digest


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"input_tokens": [0, 1]}, "request 0: input_tokens"),
        ({"output_tokens": [1, 0]}, "request 1: output_tokens"),
        ({"arrival_s": [0.0, -1.0]}, "request 1: arrival_s"),
        ({"arrival_s": [0.0, np.nan]}, "request 1: arrival_s"),
        ({"previous": [-1, 1]}, "request 1: previous"),
        ({"shares_with": [-1, 0], "shared_tokens": [0, 99]}, "request 1: shared_tokens"),
        ({"shared_tokens": [0, 1]}, "request 1: shared_tokens"),
        ({"max_output_tokens": [1, 9]}, "request 0: max_output_tokens"),
        ({"think_s": [np.nan, 0.0]}, "request 0: think_s"),
        ({"think_s": [0.0, 1.0]}, "request 1: think_s"),
        ({"previous": [-1, 0], "think_s": [0.0, -1.0]}, "request 1: think_s"),
        ({"priority": [0, -1]}, "request 1: session, tenant, priority"),
        ({"input_tokens": [1]}, "column input_tokens has 1 rows, not 2"),
    ],
)
def test_impossible_traces_are_refused(columns, message):
    good = {"arrival_s": [0.0, 1.0], "input_tokens": [5, 5], "output_tokens": [3, 3]}
    make_trace(**good)
    with pytest.raises(ValueError, match=message):
        make_trace(**(good | columns))


def test_empty_trace_is_refused():
    with pytest.raises(ValueError, match="no requests"):
        make_trace(arrival_s=[], input_tokens=[], output_tokens=[])
    compiled = compile_trace(make_trace(arrival_s=[0.0], input_tokens=[3], output_tokens=[2]), "t")
    with pytest.raises(ValueError, match="at least 1 request"):
        head(compiled, 0)


def test_names_of_chosen_requests_are_made_when_they_are_looked_at() -> None:
    names = ChosenIds(["a", "b", "c"], np.array([2, 0, 2]), np.array([0, 0, 1]))
    assert (len(names), list(names), names[-1], list(names[1:])) == (3, ["c~0", "a~0", "c~1"], "c~1", ["a~0", "c~1"])
    assert list(ChosenIds(names, np.array([1, 1]))) == ["a~0", "a~0"]
    with pytest.raises(IndexError):
        names[3]
