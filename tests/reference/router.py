"""The router in front of identical workers.

It knows dispatched and finished requests, and nothing of the workers' state; only ``kv_aware`` and ``dynamo_kv`` see
their caches, ``power_of_two`` asks for their loads now and then, and ``endpoint_picker`` scrapes their metrics. Workers
of policies with a hash map's order are numbered by it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hisearch.base.blake3 import first_words
from hisearch.base.policies import ROUTERS
from hisearch.specs.deployments.routing import RouterSpec
from hisearch.specs.policies import effective
from tests.reference.restatement.splitmix import SplitMix64

from .block_routers import DynamoKv, EndpointPicker, Metrics, PrefixAware, PrefixCache
from .router_tree import RouterTree

#: Runs ``(node, start_token, end_token)`` from the root on.
Path = Sequence[tuple[int, int, int]]


class RouterConfig:
    """A policy and the parameters that router policies declare, each as an attribute."""

    def __init__(self, policy: str = "round_robin", seed: int = 0, version: str = "", **parameters: Any) -> None:
        read = effective(ROUTERS[policy], parameters)
        spec = RouterSpec(policy=policy, **({"version": version} if version else {}), **read)
        self.version = spec.version
        self.policy = policy
        self.seed = seed
        for name in ROUTERS.parameters():
            setattr(self, name, getattr(spec, name))


#: (worker) -> tokens that it says it holds, or -1.
Ask = Callable[[int], int]
#: (worker, path, tokens) -> leading tokens of the path's first ``tokens`` that a worker has in HBM, in whole pages.
Look = Callable[[int, Path, int], int]


@dataclass
class _Dispatched:
    worker: int
    tokens: int


class Router:
    """Chooses a worker for each request.

    Attributes:
        in_flight_requests, in_flight_tokens: per worker, over dispatched unfinished requests (prompt tokens).
        tree: of cache_aware.

    Args:
        config: policy and parameters.
        workers: how many.
        look: into their caches, of pages of ``page_tokens`` (kv_aware and dynamo_kv only, as the next). paths: to every
            node of the trace's prefix tree.
        ask: a worker for its load (power_of_two only).
        scrape: a worker's metrics (endpoint_picker only). cache_sizes: tokens of a page and pages of a worker, where
            its metrics tell them. longest_prompt: of all, in tokens (prefix_cache only).
    """

    def __init__(
        self,
        config: RouterConfig,
        workers: int,
        look: Look | None = None,
        paths: Mapping[int, Path] | None = None,
        page_tokens: int = 1,
        ask: Ask = lambda _worker: -1,
        scrape: Callable[[int], Metrics] = lambda _worker: Metrics(),
        cache_sizes: tuple[int, int] | None = None,
        longest_prompt: int = 0,
    ) -> None:
        self.config = config
        self.workers = workers
        self._look = look
        self._paths = paths or {}
        self._page_tokens = page_tokens
        self._snapshot_s = 0.0
        self._snapshots: list[set[int]] = [set() for _ in range(workers)]
        self.random = SplitMix64(config.seed)
        self.dispatched = 0
        self.in_flight_requests = [0] * workers
        self.in_flight_tokens = [0] * workers
        self.order = _order(config, workers)
        self.tree = RouterTree(self._any_of)
        self._ask = ask
        self._poll_s = 0.0
        self._polled = [0] * workers
        self._sessions: dict[int, tuple[int, float]] = {}
        self._session_of: dict[int, int] = {}
        self._unfinished: dict[int, _Dispatched] = {}
        self._trim_s = config.eviction_interval_s
        self._scrape = scrape
        self._scrape_s = 0.0
        block_tokens, blocks = cache_sizes or (16, 31250)
        self.dynamo = DynamoKv(config, workers, config.block_tokens or page_tokens)
        self.prefixes = PrefixAware(config, workers)
        self.shared = PrefixCache(config, workers, longest_prompt)
        self.picker = EndpointPicker(
            config, workers, config.block_tokens or block_tokens, config.lru_capacity_blocks or blocks
        )

    def dispatch(self, request: int, prompt: Path, now: float = 0.0, session: int = 0) -> int:
        """Choose the worker of a request and count it as in flight.

        Args:
            request: its index.
            prompt: runs ``(node, start_token, end_token)`` of the prompt, from the root.
            now: seconds.
            session: that the request belongs to.

        Returns:
            The worker's index.
        """
        worker = self._choose(request, prompt, now, session)
        tokens = prompt[-1][2]
        self._session_of[request] = session
        self.dispatched += 1
        self.in_flight_requests[worker] += 1
        self.in_flight_tokens[worker] += tokens
        self._unfinished[request] = _Dispatched(worker, tokens)
        return worker

    def pass_time(self, now: float) -> None:
        """What routers do at times of their own up to ``now``, before the event at ``now``."""
        interval_s = self.config.metrics_refresh_s
        if self.config.policy != "endpoint_picker" or interval_s == 0 or now < self._scrape_s:
            return
        self._scrape_s += (math.floor((now - self._scrape_s) / interval_s) + 1) * interval_s
        self.picker.metrics = [self._scrape(worker) for worker in range(self.workers)]

    def first_token(self, request: int) -> None:
        """A dispatched request has its first token."""
        if self.config.policy == "dynamo_kv" and self.workers > 1:
            self.dynamo.first_token(request)

    def finished(self, request: int) -> None:
        """A dispatched request has left its worker."""
        done = self._unfinished.pop(request)
        if self.config.policy == "dynamo_kv" and self.workers > 1:
            self.dynamo.finished(request)
        self.in_flight_requests[done.worker] -= 1
        self.in_flight_tokens[done.worker] -= done.tokens

    def _choose(self, request: int, prompt: Path, now: float, session: int) -> int:
        if self.workers == 1:
            return 0
        if self.config.policy in ("bucket", "random"):
            # Buckets are there in front of disaggregated prefill workers alone.
            return self.order[self.random.next() % self.workers]
        if self.config.policy == "consistent_hash":
            return self._hashed(prompt, session)
        if self.config.policy == "consistent_hashing":
            return self.order[int(first_words([str(session).encode()])[0]) % self.workers]
        if self.config.policy == "manual":
            return self._manual(session, now)
        if self.config.policy == "least_outstanding_tokens":
            return min(range(self.workers), key=lambda w: (self.in_flight_tokens[w], w))
        if self.config.policy == "weighted":
            return self.dispatched % self.workers
        if self.config.policy == "cost_aware":
            return self._cheapest()
        if self.config.policy == "round_robin":
            return self.dispatched % self.workers
        if self.config.policy == "power_of_two":
            return self._power_of_two(now)
        if self.config.policy == "kv_aware":
            return self._kv_aware(prompt, now)
        text = [(node, at) for node, start, end in prompt for at in range(start, end)]
        if self.config.policy == "dynamo_kv":
            cached = self._cached(prompt, now) if self.config.block_tracking == "events" else []
            return self.dynamo.choose(request, text, now, cached, self._any_of, self._unit)
        if self.config.policy == "prefix_aware":
            return self.prefixes.choose(text, self._any_of)
        if self.config.policy == "prefix_cache":
            return self.shared.choose(text, now, self.in_flight_requests, self._any_of)
        if self.config.policy == "endpoint_picker":
            if self.config.metrics_refresh_s == 0:
                self.picker.metrics = [self._scrape(worker) for worker in range(self.workers)]
            return self.picker.choose(text, self.in_flight_requests, self._any_of, self._unit)
        if self.config.policy != "cache_aware":
            raise NotImplementedError(f"no slow reference for the router policy {self.config.policy}")
        self._trim_tree(now)
        place = self._cache_aware(text)
        self.tree.insert(text, place)
        return self.order[place]

    def _any_of(self, places: list[int]) -> int:
        """One of them at random; no output of the generator is used where there is no choice."""
        return places[0] if len(places) == 1 else places[self.random.next() % len(places)]

    def _unit(self) -> float:
        """A number in [0, 1) of 53 bits."""
        return float(self.random.next() >> 11) * 2.0**-53

    def _trim_tree(self, now: float) -> None:
        """Down to the allowed size, where that is due."""
        most = self.config.max_tree_characters
        if most is None or now < self._trim_s:
            return
        while self._trim_s <= now:
            self._trim_s += self.config.eviction_interval_s
        for place in range(self.workers):
            self.tree.trim(place, int(most / self.config.characters_per_token))

    def _manual(self, session: int, now: float) -> int:
        """The session's worker, unless a look for idle sessions found it idle since."""
        interval_s, known = self.config.eviction_interval_s, self._sessions.get(session)
        if known is not None:
            looks = math.ceil((known[1] + self.config.max_idle_s) / interval_s)
            known = None if looks * interval_s <= now else known
        place = self._place_of_new() if known is None else known[0]
        self._sessions[session] = (place, now)
        return self.order[place]

    def _place_of_new(self) -> int:
        if self.config.assignment_mode == "random":
            return self.random.next() % self.workers
        if self.config.assignment_mode == "min_load":
            loads = [self.in_flight_requests[worker] for worker in self.order]
        else:
            loads = [len(self._sessions_on(place)) for place in range(self.workers)]
        return self._any_of([place for place in range(self.workers) if loads[place] == min(loads)])

    def _sessions_on(self, place: int) -> set[int]:
        """Sessions with requests in flight on the worker to which they go now."""
        on = {r: sent.worker for r, sent in self._unfinished.items()}
        return {
            self._session_of[r]
            for r, worker in on.items()
            if worker == self.order[place] and self._sessions[self._session_of[r]][0] == place
        }

    def _kv_aware(self, prompt: Path, now: float) -> int:
        """The worker with the least prompt tokens in flight plus weighted uncached tokens of this prompt."""
        tokens, cached = prompt[-1][2], self._cached(prompt, now)
        loads = [
            self.config.overlap_weight * (tokens - cached[w]) + self.in_flight_tokens[w] for w in range(self.workers)
        ]
        return loads.index(min(loads))

    def _cached(self, prompt: Path, now: float) -> list[int]:
        """Tokens of a prompt that each worker has, as far as the router knows."""
        assert self._look is not None
        if self.config.staleness_s == 0.0:
            return [self._look(w, prompt, prompt[-1][2]) for w in range(self.workers)]
        self._refresh_snapshot(now)
        return [
            max((end for node, _, end in prompt if node in self._snapshots[w]), default=0) for w in range(self.workers)
        ]

    def _refresh_snapshot(self, now: float) -> None:
        """Snapshot of each worker's tree: the nodes in which a page ends and whose path is cached up to that page."""
        if now < self._snapshot_s:
            return
        while self._snapshot_s <= now:
            self._snapshot_s += self.config.staleness_s
        for worker in range(self.workers):
            self._snapshots[worker] = {node for node, path in self._paths.items() if self._holds(worker, path)}

    def _holds(self, worker: int, path: Path) -> bool:
        assert self._look is not None
        _, start, end = path[-1]
        page_end = end // self._page_tokens * self._page_tokens
        return page_end > start and self._look(worker, path, end) == page_end

    def _cheapest(self) -> int:
        """All cost the same: the first with headroom, else the one with the fewest requests."""
        for worker in range(self.workers):
            if self.in_flight_requests[worker] < self.config.fill_requests:
                return worker
        return min(range(self.workers), key=lambda w: (self.in_flight_requests[w], w))

    def _hashed(self, prompt: Path, session: int) -> int:
        key = session
        if self.config.hash_key == "prefix":
            key = next(node for node, _, end in prompt if end >= min(self.config.prefix_tokens, prompt[-1][2]))
        points = sorted(
            (_mixed(point + (worker + 1) * 2**32), worker) for worker in range(self.workers) for point in range(64)
        )
        place = _mixed(key)
        around = [w for at, w in points if at >= place] + [w for at, w in points if at < place]
        limit = self.config.load_factor * (sum(self.in_flight_requests) + 1) / self.workers
        return next((w for w in around if self.in_flight_requests[w] + 1 <= limit), around[0])

    def _power_of_two(self, now: float) -> int:
        """Two distinct workers by two outputs of the generator; the second where it told a lower load."""
        if now >= self._poll_s:
            while self._poll_s <= now and self.config.load_poll_s > 0.0:
                self._poll_s += self.config.load_poll_s
            self._polled = [self._ask(worker) for worker in range(self.workers)]
        at = self.random.next() % self.workers
        first, second = (
            self.order[at], self.order[(at + 1 + self.random.next() % (self.workers - 1)) % self.workers]
        )  # fmt: skip
        return second if self._polled[second] < self._polled[first] else first

    def _cache_aware(self, text: list[tuple[int, int]]) -> int:
        loads = [self.in_flight_requests[worker] for worker in self.order]
        most, least = max(loads), min(loads)
        single = np.float32
        if most - least > self.config.balance_abs_threshold and single(most) > single(least) * single(
            self.config.balance_rel_threshold
        ):
            return loads.index(least)
        matched, named = self.tree.match(text)
        if single(matched) / single(len(text)) > single(self.config.cache_threshold):
            place = named()
        elif self.config.version == "0.2.3":
            sizes = [self.tree.size(place) for place in range(self.workers)]
            place = sizes.index(min(sizes))
        else:
            place = loads.index(least)
        self.tree.stamp_match(text)
        return place


def _order(config: RouterConfig, workers: int) -> list[int]:
    """Workers in the router's order: drawn where it is a hash map's (0x3C6E… is that stream's constant)."""
    if not ROUTERS[config.policy].hash_order:
        return list(range(workers))
    start = _mixed(config.seed ^ 0x3C6EF372FE94F82B)
    return sorted(range(workers), key=lambda worker: (_mixed(worker ^ start), worker))


def _mixed(key: int) -> int:
    """64 bits in which every bit of ``key`` counts."""
    return SplitMix64(key).next()
