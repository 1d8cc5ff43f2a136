"""Steps whose prompts several ranks share: tokens of each rank by hand, and the kernels' bits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.kernels.engine import cost
from hisearch.latency.costs import CompiledCosts, HostFloor, SharedPrompts, StepCosts
from hisearch.latency.knots import INTERLEAVE, SWAP, ZIGZAG
from hisearch.latency.many_steps import Stacked
from hisearch.latency.step_cost import shared_tokens, step_seconds
from hisearch.simulate.arrays.costs import kernel_costs
from tests.kernels.systems import (
    System,
    compiled_costs,
    examples,
    rugged_costs,
    sglang_engines,
    systems,
    vllm_engines,
)
from tests.kernels.test_against_reference import _assert_equal, _assert_same_without_log
from tests.kernels.test_cost import _requests

RANKS = st.sampled_from([2, 3, 4, 8])
CHUNKS = st.lists(st.tuples(st.integers(1, 600), st.integers(0, 3000), st.booleans()), min_size=1, max_size=5)
FLOORS = st.sampled_from([None, HostFloor(0.0, 1e-5, 1e-3, 5e-3, 100)])


def vllm_lists(chunks: list[int], decodes: int, ranks: int) -> list[list[tuple[int, int]]]:
    """Each rank's (request, position) of a step, as ``PCPManager._iter_rank_chunks`` deals them (vLLM 0.33.0)."""
    lists: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
    for request, new in enumerate(chunks):
        size = (new + 2 * ranks - 1) // (2 * ranks)
        for position in range(new):
            block = position // size
            lists[min(block, 2 * ranks - 1 - block)].append((request, position))
    for decode in range(decodes):
        lists[decode % ranks].append((len(chunks) + decode, 0))
    return lists


def sglang_lists(chunks: list[int], ranks: int) -> list[list[tuple[int, int]]]:
    """Likewise of ``ZigzagCPStrategy.build_metadata`` (SGLang 0.5.23)."""
    lists: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
    for request, new in enumerate(chunks):
        least, more = divmod(new, 2 * ranks)
        sizes = [least + 1] * more + [least] * (2 * ranks - more)
        owners = [min(block, 2 * ranks - 1 - block) for block, size in enumerate(sizes) for _ in range(size)]
        for position, owner in enumerate(owners):
            lists[owner].append((request, position))
    return lists


def shared_costs(seed: int, ranks: int, layout: int, floor: HostFloor | None) -> StepCosts:
    tables, others = rugged_costs(seed), rugged_costs(seed + 1)
    prompts = SharedPrompts(ranks, layout, others.token_s, None if layout == SWAP else 1.5 * tables.chunk_rate)
    return tables._replace(mixed_decode_s=None, late=None, prompt_s=None, floor=floor, shared=prompts)


@examples(300)
@given(chunks=st.lists(st.integers(1, 200), min_size=1, max_size=6), decodes=st.integers(0, 20), ranks=RANKS)
def test_the_rank_with_most_tokens_of_vllm(chunks: list[int], decodes: int, ranks: int) -> None:
    lists = vllm_lists(chunks, decodes, ranks)
    assert sum(map(len, lists)) == sum(chunks) + decodes == len({token for tokens in lists for token in tokens})
    shared = SharedPrompts(ranks, SWAP, np.zeros(2))
    assert shared_tokens(shared, chunks, decodes) == max(map(len, lists))


@examples(300)
@given(chunks=st.lists(st.integers(1, 200), min_size=1, max_size=6), ranks=RANKS)
def test_the_rank_with_most_tokens_of_sglang(chunks: list[int], ranks: int) -> None:
    """Filled up to a multiple of its blocks; not shared where a request has less than a token for each block."""
    most = max(map(len, sglang_lists(chunks, ranks)))
    expected = 0 if min(chunks) < 2 * ranks else next(n for n in range(most, 2 * most + 99) if n % (2 * ranks) == 0)
    assert shared_tokens(SharedPrompts(ranks, ZIGZAG, np.zeros(2)), chunks, 0) == expected
    in_turns = max(len(range(rank, sum(chunks), ranks)) for rank in range(ranks))
    filled = next(n for n in range(in_turns, in_turns + ranks) if n % ranks == 0)
    expected = filled if sum(chunks) >= ranks else 0
    assert shared_tokens(SharedPrompts(ranks, INTERLEAVE, np.zeros(2)), chunks, 0) == expected


@examples(300)
@given(
    seed=st.integers(0, 20), ranks=RANKS, layout=st.sampled_from([SWAP, ZIGZAG, INTERLEAVE]), floor=FLOORS,
    chunks=CHUNKS, late=st.lists(st.integers(1, 5000), max_size=3), decodes=st.lists(st.integers(1, 5000), max_size=20),
)  # fmt: skip
def test_a_shared_step_costs_the_same_bits(
    seed: int, ranks: int, layout: int, floor: HostFloor | None, chunks: list[tuple[int, int, bool]],
    late: list[int], decodes: list[int],
) -> None:  # fmt: skip
    tables = shared_costs(seed, ranks, layout, floor)
    if layout != SWAP:
        late, decodes = [], []
    requests, batch = _requests(chunks, late)
    shape = (len(decodes), sum(decodes), max(decodes, default=0), sum(length * length for length in decodes))
    sampling = len(late) + len(decodes) + sum(complete for _, _, complete in chunks)
    expected = step_seconds(tables, [(new, cached) for new, cached, _ in chunks], [*late, *decodes], sampling)
    assert max(cost.batch_cost(kernel_costs(tables), requests, batch, len(batch), *shape)) == expected


@pytest.mark.parametrize("layout", [SWAP, ZIGZAG, INTERLEAVE])
def test_many_steps_are_those_of_one(layout: int) -> None:
    rng = np.random.default_rng(3)
    costs = [shared_costs(seed, 4, layout, None) for seed in (0, 0)]
    costs[1] = costs[1]._replace(token_s=2.0 * costs[1].token_s, floor=HostFloor(0.0, 0.0, 1e-3, 5e-3, 100))
    steps = [(int(rng.integers(1, 300)), int(rng.integers(0, 900)), 0, 1) for _ in range(60)]
    if layout == SWAP:
        steps = [(new, cached, int(rng.integers(0, 9)), int(rng.integers(1, 500))) for new, cached, _, _ in steps]
    expected = [[step_seconds(each, [(n, c)], [reads] * count) for each in costs] for n, c, count, reads in steps]
    np.testing.assert_allclose(Stacked(costs).chunk_steps(*np.array(steps).T), expected, rtol=1e-9)
    with pytest.raises(ValueError, match="share prompts differently"):
        Stacked([costs[0], costs[0]._replace(shared=None)])


@dataclass(frozen=True)
class Shared(System):
    """A deployment whose workers' ranks share prompts."""

    ranks: int = 2
    layout: int = SWAP

    @property
    def costs(self) -> CompiledCosts:
        """Rugged ones."""
        return compiled_costs(shared_costs(self.seed, self.ranks, self.layout, None))


@pytest.mark.parametrize("layout", [SWAP, ZIGZAG, INTERLEAVE])
def test_whole_runs_equal_their_reference(layout: int) -> None:
    """Step by step and bit by bit; without a log, runs of decode steps are cut otherwise, to the same end."""
    engines = vllm_engines() if layout == SWAP else sglang_engines().filter(lambda engine: not engine.mixed_chunk)

    @examples(160, always=False)
    @given(system=systems(engines, repeats=True), ranks=RANKS)
    def check(system: System, ranks: int) -> None:
        fields = {field: getattr(system, field) for field in System.__dataclass_fields__ if field != "trace"}
        shared = Shared(**fields, ranks=ranks, layout=layout)
        _assert_same_without_log(shared, _assert_equal(shared))

    check()


def test_a_short_request_keeps_its_batch_whole() -> None:
    """SGLang computes all of a batch on all ranks where one of its requests has too few tokens."""
    tables = shared_costs(0, 4, ZIGZAG, None)
    assert tables.shared is not None
    whole = tables._replace(chunk_rate=tables.shared.whole_rate, shared=None)
    short, long = [(300, 0), (7, 900)], [(300, 0), (8, 900)]
    assert step_seconds(tables, short, []) == step_seconds(whole, short, [])
    assert step_seconds(tables, long, []) != step_seconds(whole, long, [])
