"""What routers know, as arrays: their order of workers, trees, rings, windows and sessions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hisearch.base import blake3
from hisearch.base.dtypes import I4
from hisearch.base.policies import ROUTERS, UNLIMITED
from hisearch.kernels.layout import fleet as fl
from hisearch.kernels.traffic import flow
from hisearch.simulate.arrays.records import record, records
from hisearch.simulate.plans.plan import WorkerPlan
from hisearch.specs.deployments.router_rules import router_rules_in_force
from hisearch.specs.deployments.routing import RouterSpec
from hisearch.traces.compiled import TraceArrays

#: Points of each member on the ring of consistent hashing.
RING_POINTS = 64
#: Policies that keep an index of blocks that they sent.
_INDEXING = tuple(ROUTERS.code(name) for name in ("dynamo_kv", "endpoint_picker", "prefix_cache"))
#: The routers' orders of workers have a stream of their own: the first 64 bits of the square root of 5's fraction.
_ORDER_STREAM = 0x3C6EF372FE94F82B


#: What the Gateway API inference extension takes where metrics tell no cache's size: tokens of a block, blocks.
_UNTOLD_CACHE = (16, 31250)


def route_of(router: RouterSpec, first: int, members: int, worker: WorkerPlan | None = None) -> Any:
    """A route of consecutive ``members`` from ``first`` on, shape (1,); ``worker``: the first of them."""
    return record(
        fl.ROUTE,
        policy=ROUTERS.code(router.policy),
        first=first,
        members=members,
        ups=0,
        disaggregated=0,
        word=0,
        words=0,
        window_first=0,
        window_places=0,
        drawn=-1,
        drawn_next=-1,
        draws=0,
        unseen=0,
        **router_rules_in_force(router.version),
        **ROUTERS.kernel_values(router) | _block_settings(router, worker),
    )


def _block_settings(router: RouterSpec, worker: WorkerPlan | None) -> dict[str, int]:
    """What settings of an index of blocks stand for that are null, as the router reads them off its workers."""
    page, pages = _UNTOLD_CACHE
    if worker is not None and (worker.engine.name == "vllm" or router.policy == "dynamo_kv"):
        page = worker.engine.page_size
        pages = worker.kv_capacity_tokens // page
    longest = router.max_prefix_blocks if router.policy == "endpoint_picker" else UNLIMITED
    if router.policy == "prefix_cache":
        page = max(round(router.block_characters / router.characters_per_token), 1)
    return {
        "block_tokens": page if router.policy == "prefix_cache" else router.block_tokens or page,
        "max_prefix_blocks": longest,
        "lru_capacity_blocks": max(router.lru_capacity_blocks or pages, longest),
    }


def give_places(row: Any, before: Sequence[Any], sent: int) -> None:
    """Give a front route its bits and its places in the window, behind those of the routes ``before`` it.

    sent: requests that it may send at most. ``row`` is modified in place.
    """
    row["word"] = sum(int(other["words"][0]) for other in before)
    # prefix_aware also remembers where prompts ended.
    kinds = 2 if row["policy"][0] == ROUTERS.code("prefix_aware") else 1
    row["words"] = kinds * -(-int(row["members"][0]) // 64)
    row["window_first"] = sum(int(other["window_places"][0]) for other in before)
    row["window_places"] = 2 * sent
    row["window_head"] = row["window_tail"] = row["window_first"]


def routing_arrays(
    routers: Sequence[tuple[RouterSpec, RouterSpec]],
    routes: Any,
    members: Any,
    trace: TraceArrays,
    models: I4 | None,
    *,
    seed: int,
) -> dict[str, Any]:
    """Fields of ``layout.fleet.Fleet`` that routers use.

    Args:
        routers: front and back of each model.
        routes: records of ``ROUTE``, two for each model.
        members: records of ``MEMBER``; their places are filled in.
        trace: whose requests are sent.
        models: number of each request's model, shape (N,); None with a single one.
        seed: of the run; decides the order in which routers have their workers.
    """
    fronts = [front for front, _ in routers]
    trees = any(front.policy == "cache_aware" for front in fronts)
    pictures = any(front.policy in ("kv_aware", "dynamo_kv") and front.staleness_s > 0 for front in fronts) or any(
        front.policy in ("prefix_aware", "prefix_cache") for front in fronts
    )
    longest = int(trace.input_tokens.max(initial=0)) // routes["block_tokens"]
    shared = routes["policy"] == ROUTERS.code("prefix_cache")
    routes["lru_capacity_blocks"][shared] = np.maximum(routes["index_blocks_in_all"], longest)[shared]
    indexed = [row for row in routes if row["policy"] in _INDEXING]
    counting = any(front.policy == "dynamo_kv" for front in fronts)
    nodes, front_members = len(trace.parent), int((members["route"] % fl.SIDES == fl.FRONT).sum())
    leaves = 1 << max(math.ceil(math.log2(max(int(routes["members"].max()), 1))), 0)
    window = int(routes["window_places"].sum()) if any(front.policy == "bucket" for front in fronts) else 1
    hashes = np.flatnonzero(routes["policy"] == ROUTERS.code("consistent_hash")).tolist()
    ring, ring_member = _ring(routes, hashes)
    sessions = _sessions(routers, trace)
    keys = np.zeros((len(routes), int(sessions.max(initial=-1)) + 1), fl.KEY).view(np.recarray)
    keys["place"] = -1
    return {
        "routes": routes,
        "members": members,
        "up": np.empty(len(members), np.int32),
        "at_place": _order(routers, routes, members, seed),
        "candidates": np.empty(len(members), np.int64),
        "scores": np.empty(len(members)),
        "path": np.empty(nodes if any(front.policy == "prefix_cache" for front in fronts) else 1, np.int32),
        "keys": np.empty((len(routes) * flow.ROWS, leaves)),
        "winners": np.empty((len(routes) * flow.ROWS, 2 * leaves), np.int32),
        "prefix_index": np.zeros((nodes if trees or pictures else 1, int(routes["words"].sum())), np.uint64),
        "tree": np.zeros((nodes if trees else 1, len(routers)), fl.TREE_NODE).view(np.recarray),
        **_trimming(routes, trace, len(routers), front_members),
        "stamps": np.zeros((nodes, front_members) if indexed else (0, 0), np.int32),
        "sends": records(1 + sum(int(row["window_places"]) // 2 for row in indexed), fl.SEND),
        "active": np.zeros((nodes, front_members) if counting else (0, 0), np.int32),
        "uncached": records(len(trace.arrival_s) if counting else 0, fl.UNCACHED),
        "affinity": _affinity(routers, trace, models),
        "ring": ring,
        "ring_member": ring_member,
        "key": sessions,
        "keys_known": keys,
        "window": np.empty(window, np.int32),
        "window_member": np.empty(window, np.int32),
        "sent_s": np.empty(window),
        "bounds": np.zeros(len(members), np.int64),
        "lengths": np.empty(window, np.int64),
    }


def _trimming(routes: Any, trace: TraceArrays, models: int, front_members: int) -> dict[str, Any]:
    """Fields of ``layout.fleet.Fleet`` for the trimming of cache_aware's trees, where all prompts make one so large."""
    trees = routes[routes["policy"] == ROUTERS.code("cache_aware")]
    tokens = int((trace.end_tokens - trace.start_tokens).sum())
    trims = bool((trees["max_tree_characters"] / trees["characters_per_token"] < tokens).any())
    nodes = len(trace.parent) if trims else 0
    # At each send one, and at every eighth match.
    stamps = 1 + int(trees["window_places"].sum()) if trims else 0
    return {
        "tree_ends": np.zeros((nodes, models), fl.TREE_END).view(np.recarray),
        "shared_ends": np.zeros((nodes * models + 1 if trims else 0, front_members), fl.TREE_END).view(np.recarray),
        "tree_stamps": records(stamps, fl.TREE_STAMP),
    }


def _order(routers: Sequence[tuple[RouterSpec, RouterSpec]], routes: Any, members: Any, seed: int) -> I4:
    """Members of each route in its router's order, shape (W,); fills in their places.

    A hash map's order is drawn; the others have their workers as the deployment lists them.
    """
    at_place = np.arange(len(members), dtype=np.int32)
    for k in range(len(routes)):
        model, side = divmod(k, fl.SIDES)
        first, count = int(routes["first"][k]), int(routes["members"][k])
        if ROUTERS[routers[model][side].policy].hash_order:
            drawn = mixed(np.arange(count) ^ mixed(np.array([seed ^ _ORDER_STREAM ^ k], np.uint64)).astype(np.int64))
            at_place[first : first + count] = first + np.argsort(drawn, kind="stable")
        members["place"][at_place[first : first + count]] = np.arange(count)
    return at_place


def _sessions(routers: Sequence[tuple[RouterSpec, RouterSpec]], trace: TraceArrays) -> I4:
    """Row of each request's session where a router keeps sessions; else of length 0."""
    if not any("keys" in ROUTERS[router.policy].tracks for pair in routers for router in pair):
        return np.empty(0, np.int32)
    return np.unique(trace.session, return_inverse=True)[1].astype(np.int32)


def mixed(keys: np.ndarray) -> np.ndarray:
    """Integers spread evenly over 64 bits (the finalizer of SplitMix64), shape as ``keys``."""
    z = keys.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))


def _affinity(routers: Sequence[tuple[RouterSpec, RouterSpec]], trace: TraceArrays, models: I4 | None) -> np.ndarray:
    """Where each request's key lies on the ring of its model, or the key's hash; of length 0 where nothing hashes."""
    hashing = ("consistent_hash", "consistent_hashing")
    if not any(router.policy in hashing for pair in routers for router in pair):
        return np.empty(0, np.uint64)
    keys = [_keys_of(front if front.policy in hashing else back, trace) for front, back in routers]
    return keys[0] if models is None else np.choose(models, keys)


def _keys_of(router: RouterSpec, trace: TraceArrays) -> np.ndarray:
    """Each request's session, or its prompt's first tokens, as points of a ring.

    The key of a prefix is the node of the trace's tree in which it ends: prompts that share it share the node.
    """
    if router.policy == "consistent_hashing":
        names, row = np.unique(trace.session, return_inverse=True)
        return blake3.first_words([str(name).encode() for name in names.tolist()])[row]
    if router.hash_key == "session":
        return mixed(trace.session)
    node = trace.prompt_node.astype(np.int64)
    while True:
        up = trace.start_tokens[node] >= router.prefix_tokens
        if not up.any():
            return mixed(node)
        node[up] = trace.parent[node[up]]


def _ring(routes: Any, hashes: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Points of the members of the routes that hash, ascending: (point, member)."""
    members = np.concatenate(
        [np.arange(routes[k]["first"], routes[k]["first"] + routes[k]["members"]) for k in hashes] or [np.empty(0)]
    ).astype(np.int64)
    points = mixed(np.arange(RING_POINTS)[:, None] + (members[None, :] + 1) * 2**32).ravel()
    owner = np.broadcast_to(members, (RING_POINTS, len(members))).ravel()
    order = np.argsort(points, kind="stable")
    return points[order], owner[order].astype(np.int32)
