"""Stage 1's expected hits: against a slow cache, against the LRU curve of statistics, and against the simulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hisearch.api.deployments.deployment import simulate_deployment
from hisearch.api.deployments.workload import load_trace
from hisearch.search.model.demand import measure_demand
from hisearch.search.model.estimates import expected_hit_rate, shares_store
from hisearch.search.model.reuse import LEAST_REQUESTS, Reuse, hit_curve
from hisearch.specs.deployments.deployment import EngineSpec, PoolSpec
from hisearch.specs.deployments.tiers import MovementSpec, TierSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.documents.resolve import load_deployment
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.sampling import stream
from hisearch.traces.stats import default_block_tokens, lru_hit_curve

SLO = Catalogue().get("SLO", "interactive-chat").spec
CHAT = 1500


@pytest.fixture(scope="module")
def chat() -> CompiledTrace:
    return load_trace("chat-multiturn", limit=CHAT)


def _blocks(trace: CompiledTrace, node: int, page: int) -> list[tuple[int, int]]:
    """Whole pages of a sequence by the node and depth at which each ends, first to last."""
    arrays, path = trace.arrays, []
    while node > 0:
        path.append(node)
        node = int(arrays.parent[node])
    blocks = []
    for at in reversed(path):
        first = int(arrays.start_tokens[at]) // page + 1
        blocks += [(at, depth) for depth in range(first, int(arrays.end_tokens[at]) // page + 1)]
    return blocks


def _slow_hits(trace: CompiledTrace, requests: np.ndarray, capacity: int, page: int) -> int:
    """Tokens that one LRU cache of so many pages hits, page by page."""
    arrays, held, hits = trace.arrays, dict[tuple[int, int], None](), 0
    for request in requests.tolist():
        for block in _blocks(trace, int(arrays.prompt_node[request]), page):
            if block not in held:
                break
            hits += page
        for block in reversed(_blocks(trace, int(arrays.output_node[request]), page)):
            held.pop(block, None)
            held[block] = None
            while len(held) > capacity:
                del held[next(iter(held))]
    return hits


@pytest.mark.parametrize("caches", [1, 3])
@pytest.mark.parametrize("pages", [200, 2000, 10**6])
def test_each_cache_sees_its_share_of_the_requests(caches: int, pages: int) -> None:
    trace = load_trace("chat-multiturn", limit=200)
    page, order = default_block_tokens(trace), np.arange(len(trace))
    cache_of = stream("attention groups", caches).integers(0, caches, len(trace))
    hits = sum(_slow_hits(trace, order[cache_of == cache], pages, page) for cache in range(caches))
    expected = hits / float(trace.arrays.input_tokens.sum())
    assert Reuse(trace, order)(caches).hit_rate(pages * page) == pytest.approx(expected, abs=1e-12)


def test_one_cache_is_the_lru_curve(chat: CompiledTrace) -> None:
    curve, block = Reuse(chat, np.arange(len(chat)))(1), default_block_tokens(chat)
    sizes = [0, 1000, 20_000, 300_000, 4_000_000, 10**9]
    points = lru_hit_curve(chat, sizes, block_tokens=block, include_outputs=True)
    assert [curve.hit_rate(size) for size in sizes] == pytest.approx([point.hit_rate for point in points])
    assert curve.hit_rate(0) == 0.0


def test_enough_caches_are_looked_at() -> None:
    """Of 8 caches so many that they see ``LEAST_REQUESTS`` requests; single ones would differ more."""
    trace = load_trace("chat-multiturn", limit=3 * LEAST_REQUESTS)
    curve = Reuse(trace, np.arange(len(trace)))(8)
    share = curve.prompt_tokens / trace.prompt_tokens
    assert LEAST_REQUESTS / len(trace) - 0.05 < share < 0.5


def test_a_curve_without_reuses_hits_nothing() -> None:
    nothing = np.zeros(0, dtype=np.int64)
    assert hit_curve(nothing, nothing, nothing, 16, 100).hit_rate(10**9) == 0.0


DEPLOYMENT = """\
apiVersion: hisearch/v1
kind: Deployment
metadata: {{name: groups}}
spec:
  model: qwen3-30b-a3b
  pools:
    - accelerator: h100-sxm
      tensor_parallel: 1
      attention_data_parallel: {groups}
      expert_parallel: {groups}
      replicas: 2
      engine: {{name: {engine}, memory_fraction: {fraction}}}{tiers}
  router: {{policy: cache_aware}}
"""
STORE = """
      tiers: [{medium: ddr5, gib: 600}, {medium: ddr5, gib: 1400, scope: node}]
      movement: {write_policy: write_through, prefetch: wait_complete}"""


@pytest.mark.parametrize(
    ("engine", "groups", "tiers"),
    [("vllm", 1, ""), ("vllm", 4, ""), ("sglang", 1, ""), ("sglang", 4, ""), ("sglang", 4, STORE)],
)
def test_the_simulator_hits_what_is_expected(
    engine: str, groups: int, tiers: str, chat: CompiledTrace, tmp_path: Path
) -> None:
    """Within a load that is kept up with; a share of what an unlimited cache hits would be far off."""
    load, path = 0.3, tmp_path / "groups.yaml"
    fraction = 0.7 if tiers else 0.9
    path.write_text(DEPLOYMENT.format(engine=engine, groups=groups, tiers=tiers, fraction=fraction), encoding="utf-8")
    simulated = simulate_deployment(path, chat, load=load)
    demand = measure_demand(chat, SLO, load, window_tokens=40960)
    pool, tokens = load_deployment(path).deployment.pools[0], simulated.plan.kv_capacity_tokens
    assert expected_hit_rate(demand, pool, tokens, 2) == pytest.approx(simulated.result.hit_rate, abs=0.035)


def test_groups_share_a_store_that_holds_all_and_is_waited_for() -> None:
    host, behind = TierSpec(medium="ddr5", gib=600), TierSpec(medium="ddr5", gib=1400, scope="node")

    def pool(tiers: list[TierSpec], **movement: str) -> PoolSpec:
        return PoolSpec(
            accelerator="h100-sxm", engine=EngineSpec(name="sglang"), attention_data_parallel=4, expert_parallel=4,
            tiers=tiers, movement=MovementSpec(**movement),  # type: ignore[arg-type]
        )  # fmt: skip

    waiting = {"write_policy": "write_through", "prefetch": "wait_complete"}
    assert shares_store(pool([host, behind], **waiting))
    assert not shares_store(pool([host], write_policy="write_through"))
    assert not shares_store(pool([]))
    assert not shares_store(pool([host, behind], write_policy="write_through", prefetch="best_effort"))
    assert not shares_store(pool([host, behind], write_policy="write_back", prefetch="wait_complete"))
