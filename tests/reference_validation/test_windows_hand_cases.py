"""SGLang's sliding windows: tiny cases worked out by hand from the engine's rules, and laws on random traces."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.reference.recorded import recorded_law
from tests.reference.restatement import sglang
from tests.reference.restatement.content import PathContent
from tests.reference.restatement.recording import Recording, Request, Step
from tests.reference.restatement.sglang_state import SglangConfig
from tests.reference.restatement.sglang_windows import WindowsConfig, WindowsWorker, replay
from tests.reference.restatement.sglang_windows_tree import WindowTree

CONTENT = PathContent("a", [(1, 0, 40)])
SMALL = WindowsConfig(
    max_running_requests=4, max_total_tokens=400, page_size=1, chunked_prefill_size=-1, sliding_window_size=4,
    swa_max_total_num_tokens=300, version="0.5.23",
)  # fmt: skip


def _unit(chunks: list[tuple[int, int]], decodes: list[int], sampling: int) -> float:
    return 1.0


def _request(name: str, input_tokens: int, output_tokens: int, *, at: float = 0.0, shared: int = 0) -> Request:
    nodes = [(1, 0, shared)] if shared else []
    return Request(name, at, input_tokens, output_tokens, output_tokens, PathContent(name, nodes), pinned=True)


def _insert(tree: WindowTree, tokens: int, *, protected: int = 0, freed: int = 0) -> tuple[int, int]:
    full, windows, _ = tree.insert_window(CONTENT, tokens, 0, inserted=0, protected=protected, freed=freed)
    return full, windows


def _runs(tree: WindowTree) -> list[tuple[int, bool]]:
    """Tokens of each node from the root of a tree without branches, and whether its window layers' KV is there."""
    runs, node = [], tree.root
    while node.children:
        (child,) = node.children.values()
        node = child  # type: ignore[assignment]
        runs.append((tree.tokens_of(node), node.windowed))
    return runs


def test_a_leaf_is_split_one_window_before_its_end() -> None:
    tree = WindowTree(1, "lru", window=4)
    assert _insert(tree, 10) == (0, 0)
    assert _runs(tree) == [(6, True), (4, True)]
    paged = WindowTree(8, "lru", window=9)
    _insert(paged, 40)
    assert _runs(paged) == [(24, True), (16, True)]


def test_what_a_request_freed_enters_the_tree_as_a_tombstone() -> None:
    tree = WindowTree(1, "lru", window=4)
    _insert(tree, 10, freed=3)
    assert _runs(tree) == [(3, False), (3, True), (4, True)]
    assert (tree.total_tokens, tree.window_tokens) == (10, 7)


def test_a_match_ends_where_a_window_is_there() -> None:
    tree = WindowTree(1, "lru", window=4)
    _insert(tree, 10)
    assert tree.evict_both(0, 1) == (0, 6)
    assert _runs(tree) == [(6, False), (4, True)]
    assert tree.match_window(CONTENT, 10)[::2] == (10, 10)
    # Two tokens of the window's four: nothing can be used, and the node is split all the same.
    assert tree.match_window(CONTENT, 8)[::2] == (0, 8)
    assert _runs(tree) == [(6, False), (2, True), (2, True)]


def test_an_insertion_gives_tombstones_their_windows_back_as_far_as_it_has_them() -> None:
    tree = WindowTree(1, "lru", window=4)
    _insert(tree, 10)
    tree.evict_both(0, 1)
    # Another request's ten tokens: duplicates of full attention, and of windows those that were there.
    assert _insert(tree, 10, freed=2) == (10, 4)
    assert _runs(tree) == [(2, False), (4, True), (4, True)]


def test_tokens_that_the_tree_gave_are_no_duplicates() -> None:
    tree = WindowTree(1, "lru", window=4)
    _insert(tree, 10)
    assert _insert(tree, 20, protected=6) == (4, 4)


def test_a_lock_holds_the_path_and_one_window_of_it() -> None:
    tree = WindowTree(1, "lru", window=4)
    _insert(tree, 10)
    _, node, _ = tree.match_window(CONTENT, 10)
    receipt = tree.acquire(node)
    assert (tree.evictable_tokens, tree.evictable_window_tokens) == (0, 6)
    # The locked node is split: both parts stay locked, and the lock's end is that of the upper one.
    tree.match_window(CONTENT, 8)
    assert tree.evict_both(10, 10) == (0, 6)
    tree.release(receipt)
    assert (tree.evictable_tokens, tree.evictable_window_tokens) == (10, 4)
    tree.check()


def test_evicting_a_leaf_of_full_attention_takes_its_window_along() -> None:
    tree = WindowTree(1, "lru", window=4)
    _insert(tree, 10)
    assert tree.evict_both(1, 4) == (4, 4)
    assert tree.evict_both(0, 1) == (6, 6)
    assert tree.total_tokens == 0


def _held_windows(recording: Recording, config: WindowsConfig) -> list[int]:
    return [config.window_capacity_tokens - step.pool[2] for step in recording.steps]


def test_a_decoding_request_frees_slots_at_intervals() -> None:
    config = replace(SMALL, disable_radix_cache=True)
    held = _held_windows(replay(config, [_request("a", 10, 200)], _unit), config)
    # With 132 tokens computed, 128 are behind a window of four; the step takes a slot for the next.
    assert held[:123] == list(range(10, 133))
    assert held[123:126] == [5, 6, 7]
    assert max(held) == 132


def test_a_prompt_frees_what_is_behind_the_window_when_it_is_cached() -> None:
    held = _held_windows(replay(SMALL, [_request("a", 10, 3)], _unit), SMALL)
    # Of 10 tokens computed the last five stay: a window behind the ninth in whole pages, and it.
    assert held == [10, 6, 7]


def test_a_prompt_is_parked_while_the_window_pool_has_no_room() -> None:
    config = replace(SMALL, chunked_prefill_size=12, swa_max_total_num_tokens=46, sliding_window_size=8)
    requests = [*(_request(f"a{number}", 18, 20) for number in range(3)), _request("b", 60, 2, at=0.5)]
    steps = replay(config, requests, _unit).steps[9:13]
    batches = [[(entry.id, entry.computed, entry.new) for entry in step.batch] for step in steps]
    # One token of the window layers is left behind b's second chunk, and a page must be: the other request decodes.
    assert batches == [[("b", 0, 12)], [("b", 12, 7)], [("a0", 22, 1)], [("b", 19, 11)]]
    assert steps[1].pool[2:] == (0, 1)


def test_a_prefix_without_its_window_is_computed_again_and_cached_up_to_its_end_first() -> None:
    config = replace(SMALL, max_running_requests=1, swa_max_total_num_tokens=46, max_total_tokens=400)
    requests = [
        _request("a", 30, 2, shared=20),
        _request("b", 36, 2, at=10.0),
        _request("c", 30, 2, at=20.0, shared=20),
        _request("d", 30, 2, at=30.0, shared=20),
    ]
    recording = replay(config, requests, _unit)
    # b takes the windows of a; c finds a's first 20 tokens without theirs, and gives them back; d finds them.
    assert recording.reused_tokens == {"a": 0, "b": 0, "c": 0, "d": 20}


class _Checked(WindowsWorker):
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
        shared = rng.choice((0, 0, rng.randint(1, 60)))
        total = shared + rng.randint(1, 60)
        nodes = [(rng.randint(1, 3), 0, shared)] if shared else []
        output = rng.choice((rng.randint(1, 20), rng.randint(100, 200)))
        content = PathContent(number, nodes)
        at = rng.random() * 2
        requests.append(Request(number, at, total, output, output, content, rng.randint(0, 3), rng.random() < 0.5))
    return requests


CONFIGS = st.builds(
    WindowsConfig, max_running_requests=st.integers(1, 8), max_total_tokens=st.integers(420, 1200),
    page_size=st.sampled_from([1, 4, 16]), chunked_prefill_size=st.sampled_from([-1, 16, 64]),
    schedule_policy=st.sampled_from(["fcfs", "lpm", "dfs-weight"]), disable_radix_cache=st.booleans(),
    radix_eviction_policy=st.sampled_from(["lru", "lfu", "mru", "fifo"]), enable_mixed_chunk=st.booleans(),
    disable_overlap_schedule=st.booleans(), sliding_window_size=st.sampled_from([1, 5, 31, 100]),
    swa_max_total_num_tokens=st.integers(340, 420), version=st.just("0.5.23"),
)  # fmt: skip


@given(CONFIGS, st.integers(0, 2**20))
@settings(max_examples=60, deadline=None)
def test_both_pools_are_conserved_and_every_request_ends(config: WindowsConfig, seed: int) -> None:
    """L1 and L3."""
    requests = _random_requests(seed)
    try:
        recording = sglang.drive(_Checked(config, recorded_law), requests)
    except RuntimeError:
        # The engine fails too.
        assume(False)
    assert recording.finish_s.keys() == {request.id for request in requests}


@given(CONFIGS, st.integers(0, 2**20))
@settings(max_examples=40, deadline=None)
def test_windows_longer_than_any_request_change_nothing(config: WindowsConfig, seed: int) -> None:
    """L7, with pools in which all requests fit."""
    page, room = config.page_size, 20_000
    windows = replace(config, max_total_tokens=room, swa_max_total_num_tokens=room, sliding_window_size=1000)
    shared = {name: getattr(windows, name) for name in SglangConfig.__dataclass_fields__}
    requests = _random_requests(seed)
    ours, theirs = (
        replay(windows, requests, recorded_law),
        sglang.replay(SglangConfig(**shared), requests, recorded_law),
    )
    assert [(step.start_s, step.batch, step.pool[:2]) for step in ours.steps] == [
        (step.start_s, step.batch, step.pool) for step in theirs.steps
    ]
    assert all(step.pool[0] >= room // page * page - 6000 for step in ours.steps)


def test_a_request_that_outgrows_the_window_pool_is_an_error_as_in_the_engine() -> None:
    config = replace(SMALL, swa_max_total_num_tokens=60)
    with pytest.raises(RuntimeError, match="no KV slot of windows for request a"):
        replay(config, [_request("a", 10, 200)], _unit)
