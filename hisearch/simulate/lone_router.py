"""A router by itself, for events that come from elsewhere: requests are sent and finish, no worker computes anything.

It drives the kernels that simulate routers in a fleet. Workers are told by their place in the router's order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from hisearch.base.dtypes import I8, U8
from hisearch.kernels.core.handle import Array, Record
from hisearch.kernels.layout import fleet as fl
from hisearch.simulate.arrays.pool import trace_of
from hisearch.simulate.arrays.records import records
from hisearch.simulate.arrays.routing import give_places, route_of, routing_arrays
from hisearch.specs.deployments.routing import RouterSpec
from hisearch.traces.compiled import TraceArrays


class LoneRouter:
    """A router before so many equal workers, all of which are up.

    Its own clock does nothing: trees are trimmed, loads polled, metrics told and ranges drawn when it is told to.

    Args:
        router: policy and parameters.
        trace: the requests; only prompts and sessions are read.
        workers: how many.
        disaggregated: whether they are prefill workers.
        seed: of its draws.
    """

    def __init__(
        self, router: RouterSpec, trace: TraceArrays, workers: int, *, disaggregated: bool = False, seed: int = 0
    ) -> None:
        from hisearch.kernels.fleet import members

        fronts = records(workers, fl.MEMBER)
        fronts["weight"] = fronts["starts"] = 1
        front, back = route_of(router, 0, workers), route_of(RouterSpec(), 0, 0)
        give_places(front, [], len(trace.arrival_s))
        for row in (front, back):
            row["disaggregated"] = disaggregated
            for due in ("trim_s", "poll_s", "look_s", "draw_s"):
                row[due] = math.inf
        self._fleet = _fleet(
            trace, routing_arrays(
                ((router, RouterSpec()),), np.concatenate([front, back]).view(np.recarray), fronts, trace, None,
                seed=seed,
            ), seed,
        )  # fmt: skip
        members.reset(self._fleet)
        self._route = self._fleet.routes[fl.FRONT]

    def set_clock(self, clock: int) -> None:
        """What the clock of cache_aware's tree stands at."""
        self._route.tree_clock = clock

    def set_hashes(self, hashes: U8) -> None:
        """Hashes of the requests' sessions, shape (N,), for consistent_hashing."""
        self._fleet.affinity[:] = hashes

    def choose(self, request: int, now: float = 0.0, drawn: tuple[int, int] = (-1, -1)) -> tuple[int, bool]:
        """The worker for ``request``, and whether that was left to chance.

        drawn: workers that are to be drawn, where they may be, in place of the stream's: the first decides, the second
        is power_of_two's other one, or the name that cache_aware's tree stamps though the match is too short.
        """
        from hisearch.kernels.routing import router

        self._route.drawn, self._route.drawn_next = drawn
        before = int(self._route.draws)
        member = router.route(self._fleet, fl.FRONT, request, now)
        return int(self._fleet.members[member].place), int(self._route.draws) > before

    def send(self, request: int, worker: int) -> None:
        """``request`` is in flight on ``worker`` from now on."""
        from hisearch.kernels.traffic import flow

        flow.join(self._fleet, int(self._fleet.at_place[worker]), request)

    def count_answer(self, request: int, worker: int, change: int, *, streamed: bool) -> None:
        """The answer to ``request`` of the disaggregated ``worker`` begins (``change`` 1) or ends (-1)."""
        from hisearch.kernels.traffic import flow

        flow.count_answer(self._fleet, int(self._fleet.at_place[worker]), request, change, streamed)

    def first_token(self, request: int, worker: int) -> None:
        """``worker`` has made the first token of ``request``, as a router that tracks blocks is told."""
        from hisearch.kernels.traffic import active_blocks

        active_blocks.end_prefill(self._fleet, int(self._fleet.at_place[worker]), request)

    def set_cached(self, worker: int, requests: Iterable[int]) -> None:
        """The whole prompts of ``requests`` are in the cache of ``worker``, and nothing else; of routers that look."""
        from hisearch.kernels.routing import prefix_index

        word, bit = prefix_index.column(self._route, worker)
        bit = np.uint64(bit)
        index, trace = self._fleet.prefix_index, self._fleet.trace
        index[:, word] &= ~bit
        for request in requests:
            node = int(trace.prompt_node[request])
            while node > 0 and not index[node, word] & bit:
                index[node, word] |= bit
                node = int(trace.parent[node])

    def tell(self, worker: int, waiting: int, running: int, usage: float) -> None:
        """What the metrics of ``worker`` say: requests that wait and run, share of KV memory that they hold."""
        member = self._fleet.members[int(self._fleet.at_place[worker])]
        member.scraped_waiting, member.scraped_running, member.scraped_kv_usage = waiting, running, usage

    def finish(self, request: int, worker: int) -> None:
        """``request`` has left ``worker``."""
        from hisearch.kernels.traffic import flow

        flow.forgo(self._fleet, int(self._fleet.at_place[worker]), request, 0.0)

    def trim(self) -> None:
        """Trim the tree of cache_aware."""
        from hisearch.kernels.routing import router_tree

        router_tree.trim(self._fleet, fl.FRONT)

    def draw_ranges(self) -> None:
        """Draw the ranges of bucket anew, if its load asks for it."""
        from hisearch.kernels.routing.policies import bucket

        self._route.draw_s = 0.0
        bucket.draw_where_due(self._fleet, self._route, 0.0)
        self._route.draw_s = math.inf

    @property
    def unseen(self) -> int:
        """Names that cache_aware's tree has drawn without a choice that shows them."""
        return int(self._route.unseen)

    @property
    def tree_tokens(self) -> I8:
        """Tokens that cache_aware's tree holds for each worker, shape (W,)."""
        return self._by_place("prefix_index_tokens")

    @property
    def answers(self) -> I8:
        """Requests with an answer under way on each disaggregated worker, shape (W,)."""
        return self._by_place("streaming")

    @property
    def loads(self) -> I8:
        """Loads that power_of_two compares, shape (W,)."""
        return self._by_place("polled_tokens")

    @loads.setter
    def loads(self, loads: Any) -> None:
        self._fleet.members["polled_tokens"][self._fleet.at_place] = loads

    @property
    def bounds(self) -> I8:
        """Longest prompt of each range of bucket, by worker, in tokens times characters_per_token; shape (W,)."""
        return np.array(self._fleet.bounds)

    def _by_place(self, field: str) -> I8:
        return np.array(self._fleet.members[field][self._fleet.at_place])


def _fleet(trace: TraceArrays, routing: dict[str, Any], seed: int) -> fl.Fleet:
    """Arrays of a fleet without pools: what routers use, and nothing else."""
    empty = {
        name: records(1, np.dtype(kind.dtype)) if isinstance(kind, Record) else np.zeros((0,) * kind.ndim, kind.dtype)
        for name, kind in fl.Fleet.FIELDS.items()
        if isinstance(kind, Array | Record)
    }
    return fl.Fleet(
        **empty
        | routing
        | {
            "trace": trace_of(trace),
            "counters": np.zeros(fl.COUNTERS, np.int64),
            "rng": np.array([[seed], [seed]], np.uint64),
        }
    )
