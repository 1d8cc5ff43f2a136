"""SGLang's states of linear attention: tiny cases by hand from the engine's rules, and laws on random traces."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reference.recorded import recorded_law
from tests.reference.restatement import sglang
from tests.reference.restatement.content import PathContent
from tests.reference.restatement.recording import Recording, Request, Step
from tests.reference.restatement.sglang_cache import OutOfMemoryError
from tests.reference.restatement.sglang_state import SglangConfig
from tests.reference.restatement.sglang_states import StatesConfig, StatesWorker, replay
from tests.reference.restatement.sglang_states_tree import StateNode, StateTree

CONTENT = PathContent("a", [(1, 0, 400)])
SMALL = StatesConfig(
    max_running_requests=4, max_total_tokens=4000, page_size=1, chunked_prefill_size=-1, max_mamba_cache_size=40,
    mamba_radix_cache_strategy="extra_buffer", mamba_chunk_size=16, mamba_track_interval=16,
    disable_overlap_schedule=False, version="0.5.23",
)  # fmt: skip


def _unit(chunks: list[tuple[int, int]], decodes: list[int], sampling: int) -> float:
    return 1.0


def _request(name: str, input_tokens: int, output_tokens: int, *, at: float = 0.0, shared: int = 0) -> Request:
    nodes = [(1, 0, shared)] if shared else []
    return Request(name, at, input_tokens, output_tokens, output_tokens, PathContent(name, nodes), pinned=True)


def _insert(tree: StateTree, tokens: int, *, protected: int = 0) -> tuple[int, bool, StateNode]:
    return tree.insert_state(CONTENT, tokens, 0, inserted=0, protected=protected)


def _runs(tree: StateTree) -> list[tuple[int, bool]]:
    """Tokens of each node from the root of a tree without branches, and whether a state is at its end."""
    runs, node = [], tree.root
    while node.children:
        (child,) = node.children.values()
        node = child  # type: ignore[assignment]
        runs.append((tree.tokens_of(node), node.stateful))
    return runs


# ---- the tree --------------------------------------------------------------------------------------------------------


def test_a_match_ends_at_a_state() -> None:
    tree = StateTree(1, "lru")
    _insert(tree, 10)
    _insert(tree, 30)
    assert tree.match_state(CONTENT, 40)[::2] == (30, 30)
    # Full attention has 25 tokens, the last state before them is after ten. The node is split all the same.
    assert tree.match_state(CONTENT, 25)[::2] == (10, 25)
    assert _runs(tree) == [(10, True), (15, False), (5, True)]


def test_an_insertion_gives_a_node_its_state_once() -> None:
    tree = StateTree(1, "lru")
    assert _insert(tree, 30)[:2] == (0, True)
    assert _insert(tree, 20, protected=5)[:2] == (15, True)
    assert _insert(tree, 20)[:2] == (20, False)
    assert (tree.states, _runs(tree)) == (2, [(20, True), (10, True)])


def test_a_lock_holds_the_path_and_the_state_at_its_end_alone() -> None:
    tree = StateTree(1, "lru")
    _insert(tree, 10)
    _, _, node = _insert(tree, 30)
    tree.lock(node, 1)
    assert (tree.evictable_tokens, tree.evictable_states) == (0, 1)
    assert tree.evict_states(2) == (0, 1)
    assert _runs(tree) == [(10, False), (20, True)]
    # The upper part of a locked node has no state's lock; a state that it gets can go.
    _insert(tree, 15)
    assert tree.evictable_states == 1
    tree.lock(node, -1)
    tree.check()


def test_the_state_used_longest_ago_goes_first_and_a_leaf_with_it() -> None:
    tree = StateTree(1, "lru")
    _insert(tree, 10)
    _insert(tree, 20)
    _insert(tree, 30)
    tree.match_state(CONTENT, 10)
    # After ten tokens it was used last; 20 lies inside, so its tokens stay; 30 is a leaf.
    assert tree.evict_states(2) == (10, 2)
    assert _runs(tree) == [(10, True), (10, False)]
    # A node without a state is a leaf now; it goes by the policy.
    assert tree.evict_tokens(1) == (10, 0)
    assert tree.evict_tokens(1) == (10, 1)


def test_a_path_keeps_its_last_states() -> None:
    tree = StateTree(1, "lru", limit=2)
    freed = []
    for tokens in (10, 20, 30, 40):
        _, _, node = _insert(tree, tokens)
        freed.append(tree.drop_excess(node))
    assert freed == [0, 0, 1, 1]
    assert _runs(tree) == [(10, False), (10, False), (10, True), (10, True)]


# ---- requests --------------------------------------------------------------------------------------------------------


def _held(recording: Recording, config: StatesConfig) -> list[tuple[int, int]]:
    """States that requests and locks hold at each step, and those in the tree that can be evicted."""
    return [(config.max_mamba_cache_size - sum(step.pool[2:]), step.pool[3]) for step in recording.steps]


@pytest.mark.parametrize(
    ("change", "first", "second"),
    [
        # Its own, two buffers; and one in the tree after the prompt's result, which is known a step later.
        ({}, 3, 3),
        ({"disable_overlap_schedule": True}, 2, 3),
        ({"mamba_radix_cache_strategy": "no_buffer", "disable_overlap_schedule": True}, 1, 2),
        ({"mamba_radix_cache_strategy": "extra_buffer_lazy"}, 2, 2),
        ({"disable_radix_cache": True}, 1, 1),
    ],
)
def test_a_request_holds_states_by_strategy(change: dict[str, object], first: int, second: int) -> None:
    config = replace(SMALL, **change)  # type: ignore[arg-type]
    held = _held(replay(config, [_request("a", 20, 5)], _unit), config)
    assert [count for count, _ in held[:2]] == [first, second]


def test_a_prompt_leaves_the_state_after_its_last_whole_chunk() -> None:
    requests = [_request("a", 40, 2, shared=40), _request("b", 60, 2, at=10.0, shared=40)]
    # Of 40 tokens 32 are two chunks; the rest of the prompt is not cached.
    assert replay(SMALL, requests, _unit).reused_tokens == {"a": 0, "b": 32}


def test_a_prompt_shorter_than_a_chunk_leaves_nothing() -> None:
    requests = [_request("a", 15, 2, shared=15), _request("b", 60, 2, at=10.0, shared=15)]
    recording = replay(SMALL, requests, _unit)
    assert recording.reused_tokens == {"a": 0, "b": 0}
    assert recording.steps[-1].pool[0] < recording.steps[0].pool[0] - 15  # only b's own tokens are held


def test_chunks_are_counted_from_the_prefix() -> None:
    config = replace(SMALL, chunked_prefill_size=24, mamba_radix_cache_strategy="extra_buffer")
    requests = [_request("a", 40, 2, shared=40), _request("b", 60, 2, at=10.0, shared=40)]
    # The second step computes tokens 24 to 40: its last whole chunk ends at 40, which is no multiple of 16.
    assert replay(config, requests, _unit).reused_tokens == {"a": 0, "b": 40}


def test_without_buffer_a_request_leaves_its_last_state() -> None:
    config = replace(SMALL, mamba_radix_cache_strategy="no_buffer", disable_overlap_schedule=True)
    requests = [_request("a", 15, 2, shared=15), _request("b", 60, 2, at=10.0, shared=15)]
    recording = replay(config, requests, _unit)
    assert recording.reused_tokens == {"a": 0, "b": 15}
    # a is cached after 15 tokens of prompt, which b holds, and after 16 at its end. b has a state of its own.
    assert recording.steps[2].pool[2:] == (40 - 3, 1)


def test_decode_steps_leave_a_state_at_each_interval() -> None:
    config = replace(SMALL, mamba_track_interval=32)
    content = [(1, 0, 40), (2, 40, 100)]
    turn = Request("b", 100.0, 100, 1, 1, PathContent("b", content), pinned=True)
    for output, expected in ((24, 32), (25, 64), (40, 64)):
        first = Request("a", 0.0, 40, output, output, PathContent("a", content), pinned=True)
        # The state after 64 tokens is there when the 25th output token is known, and no sooner.
        assert replay(config, [first, turn], _unit).reused_tokens == {"a": 0, "b": expected}


def test_the_first_to_branch_leaves_the_state_where_it_branched() -> None:
    requests = [_request(name, 100, 1, at=10.0 * number, shared=70) for number, name in enumerate("abc")]
    # a leaves a state after 96 tokens; b shares 70, finds none before, and leaves one after 64, its only one; c has it.
    assert replay(SMALL, requests, _unit).reused_tokens == {"a": 0, "b": 0, "c": 64}


def test_a_state_of_the_match_is_taken_and_given_back() -> None:
    config = replace(SMALL, max_total_tokens=160)
    requests = [
        _request("a", 32, 2, shared=32),
        _request("b", 40, 60, at=10.0),
        _request("c", 40, 60, at=11.0, shared=32),
    ]
    recording = replay(config, requests, _unit)
    # c finds a's state and does not fit, in each pass until b's end: b holds three and one in the tree, a's can go.
    assert [step.pool[2:] for step in recording.steps[4:10]] == [(35, 1)] * 6
    assert recording.reused_tokens["c"] == 32
    assert recording.steps[-1].start_s > recording.finish_s["b"]


def test_a_lazy_buffer_doubles_for_a_step_at_the_interval() -> None:
    config = replace(SMALL, mamba_radix_cache_strategy="extra_buffer_lazy")
    held = [count for count, _ in _held(replay(config, [_request("a", 20, 20)], _unit), config)]
    # With 20 tokens of prompt step 12 computes the 32nd token; its result is known a step later.
    assert held[2:16] == [3] * 10 + [4, 4, 3, 3]


def test_states_that_can_not_be_had_are_an_error_as_in_the_engine() -> None:
    config = replace(SMALL, max_mamba_cache_size=4, max_running_requests=2)
    with pytest.raises(OutOfMemoryError, match="no state is free"):
        replay(config, [_request("a", 20, 9), _request("b", 20, 9)], _unit)


# ---- laws ------------------------------------------------------------------------------------------------------------


class _Checked(StatesWorker):
    """Checks both pools at every step."""

    def _checked(self) -> None:
        flying = [live for done in self.outstanding for live in done.requests]
        last = self.last.requests if self.last else []
        holders = {*self.running.requests, *last, *flying, *([self.chunked] if self.chunked else [])}
        self.cache.check([live for live in holders if live.committed])

    def form(self, now: float) -> Step | None:
        step = super().form(now)
        self._checked()
        return step

    def process(self) -> list[Request]:
        finished = super().process()
        self._checked()
        return finished


def _random_requests(seed: int) -> list[Request]:
    rng = random.Random(seed)
    requests = []
    for number in range(rng.randint(5, 25)):
        shared = rng.choice((0, 0, rng.randint(1, 120)))
        total = shared + rng.randint(1, 60)
        nodes = [(rng.randint(1, 3), 0, shared)] if shared else []
        output = rng.choice((rng.randint(1, 20), rng.randint(60, 150)))
        content = PathContent(number, nodes)
        at = rng.random() * 2
        requests.append(Request(number, at, total, output, output, content, rng.randint(0, 3), rng.random() < 0.5))
    return requests


@st.composite
def _configs(draw: st.DrawFn) -> StatesConfig:
    overlap, page = draw(st.booleans()), draw(st.sampled_from([1, 4, 16]))
    strategies = ["auto", "extra_buffer", *(["extra_buffer_lazy"] if overlap else [])]
    strategies += ["no_buffer"] if page == 1 and not overlap else []
    running = draw(st.integers(1, 6))
    config = StatesConfig(
        max_running_requests=running, max_total_tokens=draw(st.integers(420, 1200)), page_size=page,
        chunked_prefill_size=draw(st.sampled_from([-1, 16, 64])), disable_overlap_schedule=not overlap,
        schedule_policy=draw(st.sampled_from(["fcfs", "lpm", "dfs-weight"])),
        disable_radix_cache=draw(st.sampled_from([False, False, False, True])),
        radix_eviction_policy=draw(st.sampled_from(["lru", "lfu", "mru", "fifo"])),
        enable_mixed_chunk=draw(st.booleans()), mamba_radix_cache_strategy=draw(st.sampled_from(strategies)),
        mamba_chunk_size=draw(st.sampled_from([1, 16, 64])), mamba_track_interval=draw(st.sampled_from([16, 48])),
        mamba_max_states_per_path=draw(st.sampled_from([-1, -1, 1, 2])), version="0.5.23",
    )  # fmt: skip
    slots = 1 if config.disable_radix_cache else 3 + config.buffers
    return replace(config, max_mamba_cache_size=slots * running + draw(st.sampled_from([0, 1, 5])))


@given(_configs(), st.integers(0, 2**20))
@settings(max_examples=80, deadline=None)
def test_kv_and_states_are_conserved_and_every_request_ends(config: StatesConfig, seed: int) -> None:
    """L1 and L3."""
    requests = _random_requests(seed)
    recording = sglang.drive(_Checked(config, recorded_law), requests)
    assert recording.finish_s.keys() == {request.id for request in requests}


@given(_configs(), st.integers(0, 2**20))
@settings(max_examples=40, deadline=None)
def test_without_radix_cache_states_change_nothing(config: StatesConfig, seed: int) -> None:
    """L7."""
    states = replace(config, disable_radix_cache=True, max_mamba_cache_size=config.max_running_requests)
    shared = {name: getattr(states, name) for name in SglangConfig.__dataclass_fields__}
    requests = _random_requests(seed)
    ours = replay(states, requests, recorded_law)
    theirs = sglang.replay(SglangConfig(**shared), requests, recorded_law)
    assert [(step.start_s, step.batch, step.pool[:2]) for step in ours.steps] == [
        (step.start_s, step.batch, step.pool) for step in theirs.steps
    ]


@given(st.lists(st.integers(2, 200), min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_states_after_every_token_find_whole_prompts(prompts: list[int]) -> None:
    """L7: with room for all, a prompt that continues an earlier one is computed from that one's end."""
    config = replace(SMALL, mamba_chunk_size=1, max_total_tokens=20_000, max_mamba_cache_size=900)
    requests = []
    for number, tokens in enumerate(prompts):
        content = PathContent(number, [(number, 0, tokens)])
        requests.append(Request((0, number), 10.0 * number, tokens, 1, 1, content, pinned=True))
        requests.append(Request((1, number), 10.0 * number + 5, tokens + 7, 1, 1, content, pinned=True))
    reused = replay(config, requests, recorded_law).reused_tokens
    assert [reused[1, number] for number in range(len(prompts))] == prompts
