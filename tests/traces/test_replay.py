"""A replay sends a trace's requests at the simulated times, with what their prompts share."""

from __future__ import annotations

import json

import numpy as np
import pytest

from hisearch.traces.changes.replay import MOST_BLOCKS, replay_of
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.compiler import compile_trace
from hisearch.traces.stats import trace_stats
from hisearch.traces.trace import make_trace


@pytest.fixture
def chat() -> CompiledTrace:
    """Two sessions: 0, then 2 with 0's prompt and output; 1 shares 40 tokens with 0; 3 is on its own."""
    trace = make_trace(
        arrival_s=[0.0, 1.0, np.nan, 2.0],
        input_tokens=[100, 64, 150, 10],
        output_tokens=[20, 5, 30, 1],
        previous=[-1, -1, 0, -1],
        think_s=[0.0, 0.0, 2.0, 0.0],
        shares_with=[-1, 0, 0, -1],
        shared_tokens=[0, 40, 120, 0],
        open_loop=False,
    )
    return compile_trace(trace, "chat")


def shared_blocks(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    count = 0
    while count < min(len(first), len(second)) and first[count] == second[count]:
        count += 1
    return count


def test_prompts_that_begin_alike_share_that_and_nothing_else(chat: CompiledTrace) -> None:
    sent = replay_of(chat, np.array([0.0, 1.0, 5.0, 2.0]))
    alike = sent.beginning_alike(70)
    assert [len(ids) for ids in alike.block_ids] == (-(-sent.input_tokens // alike.block_tokens)).tolist()
    lengths = sent.input_tokens.tolist()
    for i in range(4):
        for j in range(i):
            shared = shared_blocks(alike.block_ids[i], alike.block_ids[j])
            assert shared == min(70, lengths[i] - 1, lengths[j] - 1) // alike.block_tokens
    names = [name for ids in alike.block_ids for name in ids[4:]]
    assert len(set(names)) == len(names)


def test_blocks_name_what_prompts_share(chat: CompiledTrace) -> None:
    ids = {name: index for index, name in enumerate(chat.request_ids)}
    arrival = np.zeros(4)
    arrival[[ids["0"], ids["1"], ids["2"], ids["3"]]] = [0.0, 1.0, 5.0, 2.0]
    replay = replay_of(chat, arrival)
    assert replay.block_tokens == 16
    by_name = {chat.request_ids[index]: replay.block_ids[at] for at, index in enumerate(replay.indices)}
    assert [len(by_name[name]) for name in "0123"] == [7, 4, 10, 1]
    assert shared_blocks(by_name["0"], by_name["1"]) == 2  # 40 tokens are 2 whole blocks
    # The prompt of 0 is not a whole number of blocks, and its output follows in 2: 6 blocks, not the partial one.
    assert shared_blocks(by_name["0"], by_name["2"]) == 6
    assert shared_blocks(by_name["0"], by_name["3"]) == 0
    assert replay.arrival_s.tolist() == [0.0, 1.0, 2.0, 5.0]
    assert replay.rate_rps == pytest.approx(3 / 5)


def test_the_file_says_all_and_equal_prompts_are_equal_blocks(chat: CompiledTrace) -> None:
    replay = replay_of(chat, np.arange(4.0))
    rows = [json.loads(line) for line in replay.text().splitlines()]
    assert [row["input_tokens"] for row in rows] == replay.input_tokens.tolist()
    assert [tuple(row["block_ids"]) for row in rows] == list(replay.block_ids)
    assert rows[0].keys() == {"arrival_s", "input_tokens", "output_tokens", "block_ids"}


def test_a_compiled_replay_shares_whole_blocks_and_waits_for_nobody(chat: CompiledTrace) -> None:
    replay = replay_of(chat, np.arange(4.0))
    compiled = replay.compile("again")
    assert (compiled.arrays.previous == -1).all()
    assert compiled.arrays.input_tokens.tolist() == replay.input_tokens.tolist()
    # 1 finds 32 of its 64 tokens, 2 finds 96 of its 150.
    assert trace_stats(compiled).ideal_hit_tokens == 32 + 96
    later = replay.compile("again", np.array([3.0, 2.0, 1.0, 0.0]))
    assert later.arrays.input_tokens.tolist() == replay.input_tokens.tolist()[::-1]


def test_requests_that_never_came_are_left_out(chat: CompiledTrace) -> None:
    replay = replay_of(chat, np.array([0.0, np.nan, 7.0, 1.0]), limit=3)
    assert replay.indices.tolist() == [0, 3, 2]
    assert replay_of(chat, np.array([0.0, np.nan, 7.0, 1.0]), limit=2).indices.tolist() == [0, 3], "the first to arrive"
    with pytest.raises(ValueError, match="none of its 4 requests arrives"):
        replay_of(chat, np.full(4, np.nan))


def test_blocks_grow_until_the_file_stays_small() -> None:
    count = 50
    trace = make_trace(
        arrival_s=np.arange(float(count)), input_tokens=np.full(count, 200_000), output_tokens=np.ones(count)
    )
    replay = replay_of(compile_trace(trace, "long"), np.arange(float(count)))
    assert replay.block_tokens == 64
    assert sum(map(len, replay.block_ids)) <= MOST_BLOCKS
