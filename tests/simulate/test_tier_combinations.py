"""Every combination of media and scopes: which of them each KV connector accepts, and which workers share a store."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from pydantic import ValidationError

from hisearch.simulate.engine import simulate
from hisearch.simulate.plans.plan import WorkerPlan, plan_worker
from hisearch.simulate.plans.tiers import TierRefused
from hisearch.specs.deployments.deployment import PoolSpec
from hisearch.specs.deployments.routing import RouterSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.errors import KeyedError, dotted
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.compiler import compile_trace
from hisearch.traces.trace import Trace

CATALOGUE = Catalogue()
#: A medium of each kind, by how the host sees it.
MEDIA = {"dram": "ddr5", "cxl": "cxl-dram", "nvme": "nvme-gen4", "remote": "rdma-pool"}
WIDTHS = ("worker", "node", "cluster")
KV_CONNECTORS = (("sglang", "hicache"), ("vllm", "offload"), ("vllm", "lmcache"), ("trtllm", "offload"))
#: Of two tensor-parallel devices each, eight to a host.
WORKERS, WORKERS_PER_NODE = 8, 4
PROMPT_TOKENS = 2048
#: Three requests a worker. Those of the middle round let SGLang note what the first ones have copied to the host, and
#: write it to storage: only passes that try to prefill do.
REQUESTS = 3 * WORKERS
#: The prompt of the first request comes again on the second worker, of the same node, and on the fifth, of the other.
ON_SAME_NODE, ON_OTHER_NODE = 2 * WORKERS + 1, 2 * WORKERS + WORKERS_PER_NODE


class Place(NamedTuple):
    """A tier: a kind of medium, and who shares a store of it."""

    kind: str
    scope: str

    @property
    def width(self) -> int:
        return WIDTHS.index(self.scope)


PLACES = [Place(kind, scope) for kind in MEDIA for scope in WIDTHS]


def is_supported(kv_connector: str, places: tuple[Place, ...]) -> bool:
    """The rules, said once more: of ``docs/tiers.md``."""
    nearest, behind = places[0], places[1:]
    if nearest.kind not in ("dram", "cxl"):
        return False
    if any(place.kind == "remote" and place.scope != "cluster" for place in places):
        return False
    if kv_connector == "offload":
        return not behind and nearest.scope == "worker"
    if kv_connector == "hicache":
        return nearest.scope == "worker" and [p.width for p in behind] == sorted(p.width for p in behind)
    private = [index for index, place in enumerate(places) if index and place.scope == "worker"]
    widths = [place.width for place in places]
    return widths == sorted(widths) and (not private or (private == [1] and places[1].kind == "nvme"))


def chains(tiers: int) -> Iterator[tuple[Place, ...]]:
    """All chains of ``tiers`` tiers; of three, those that begin with DRAM."""
    nearest = [place for place in PLACES if place.kind == "dram"] if tiers == 3 else PLACES
    return itertools.product(nearest, *[PLACES] * (tiers - 1))


def plan(engine: str, kv_connector: str, places: tuple[Place, ...]) -> WorkerPlan:
    pool = PoolSpec.model_validate(
        {
            "accelerator": "h100-sxm",
            "tensor_parallel": 2,
            "engine": {"name": engine, **({"page_tokens": 64} if engine == "sglang" else {})},
            "tiers": [{"medium": MEDIA[kind], "gib": 256, "scope": scope} for kind, scope in places],
            "movement": {
                "kv_connector": kv_connector,
                **({"prefetch": "wait_complete"} if _has_storage(kv_connector, places) else {}),
            },
        }
    )
    return plan_worker(
        pool,
        model=CATALOGUE.get("Model", "qwen3-8b").spec,
        accelerator=CATALOGUE.get("Accelerator", "h100-sxm").spec,
        host=CATALOGUE.get("Host", "hgx-h100-8").spec,
        media={name: CATALOGUE.get("Medium", name).spec for name in MEDIA.values()},
        profile=CATALOGUE.get("LatencyProfile", "roofline").spec,
    )


def _has_storage(kv_connector: str, places: tuple[Place, ...]) -> bool:
    return kv_connector == "hicache" and len(places) > 1


@functools.cache
def trace() -> CompiledTrace:
    """Prompts one a minute with nothing in common, except for three equal ones."""
    count = REQUESTS
    same = np.isin(np.arange(count), (ON_SAME_NODE, ON_OTHER_NODE))
    columns: dict[str, Any] = {
        "arrival_s": 60.0 * np.arange(count),
        "input_tokens": np.full(count, PROMPT_TOKENS),
        "output_tokens": np.full(count, 2),
        "max_output_tokens": np.full(count, 2),
        "previous": np.full(count, -1, np.int32),
        "think_s": np.zeros(count),
        **{name: np.zeros(count, np.int32) for name in ("session", "tenant", "priority")},
        "thinking_tokens": np.zeros(count, np.int64),
        "shares_with": np.where(same, 0, -1).astype(np.int32),
        "shared_tokens": np.where(same, PROMPT_TOKENS, 0),
    }
    return compile_trace(Trace([str(r) for r in range(count)], **columns), "same prompts")


def first_as_wide(places: tuple[Place, ...], scope: str) -> int:
    """The nearest tier, from 1 on below HBM, that is shared at least so widely; 0 where none is."""
    return next((k for k, place in enumerate(places, 1) if place.width >= WIDTHS.index(scope)), 0)


def refused_key(error: ValidationError | TierRefused) -> str:
    """The key that a refusal names, from the pool on."""
    if isinstance(error, TierRefused):
        return error.problem.key
    (details,) = error.errors()
    cause = details.get("ctx", {}).get("error")
    return dotted(cause.keypath if isinstance(cause, KeyedError) else details["loc"])


@pytest.mark.parametrize("tiers", [1, 2, 3])
@pytest.mark.parametrize(("engine", "kv_connector"), KV_CONNECTORS)
def test_what_is_supported_is_simulated_and_shared_and_all_else_refused_by_key(
    engine: str, kv_connector: str, tiers: int
) -> None:
    """On the same node a prompt is found in the nearest tier that the node shares, on the other one in the cluster's.

    Where there is no such tier, it is not found at all.
    """
    seen = set()
    for places in chains(tiers):
        supported = is_supported(kv_connector, places)
        seen.add(supported)
        if not supported:
            with pytest.raises((ValidationError, TierRefused)) as caught:
                plan(engine, kv_connector, places)
            assert refused_key(caught.value).startswith("tiers"), places
            continue
        result = simulate(
            plan(engine, kv_connector, places), trace(), replicas=WORKERS, router=RouterSpec(policy="round_robin")
        )
        assert result.requests.worker.tolist() == 3 * list(range(WORKERS))
        _check_sharing(places, result)
    assert False in seen
    assert (True in seen) == (tiers == 1 or kv_connector != "offload")


def _check_sharing(places: tuple[Place, ...], result: Any) -> None:
    stores = [sum(use.tier == k for use in result.stores) for k in range(1, 1 + len(places))]
    of_scope = {"worker": WORKERS, "node": WORKERS // WORKERS_PER_NODE, "cluster": 1}
    assert stores == [of_scope[place.scope] for place in places]
    table = result.requests
    hits = table.hit_tokens + table.host_hit_tokens + table.storage_hit_tokens
    expected = {ON_SAME_NODE: first_as_wide(places, "node"), ON_OTHER_NODE: first_as_wide(places, "cluster")}
    by_tier = np.zeros(1 + len(places), np.int64)
    for r in range(REQUESTS):
        if expected.get(r):
            assert PROMPT_TOKENS - 256 <= hits[r] < PROMPT_TOKENS, (places, r)
            by_tier[expected[r]] += hits[r]
        else:
            assert hits[r] == 0, (places, r)
    assert list(result.tier_hit_tokens)[: 1 + len(places)] == by_tier.tolist(), places
    assert sum(result.tier_hit_tokens) == by_tier.sum()
    for use in result.stores:
        assert use.peak_tokens <= use.capacity_tokens
