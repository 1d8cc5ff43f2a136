"""The router in front of identical workers.

It knows dispatched and finished requests, and nothing of the workers' state; only ``kv_aware`` sees their caches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hisearch.base.policies import ROUTERS
from hisearch.specs.deployments.routing import RouterSpec
from hisearch.validate.restatement.splitmix import SplitMix64

#: Runs ``(node, start_token, end_token)`` from the root on.
Path = Sequence[tuple[int, int, int]]


class RouterConfig:
    """A policy and the parameters that router policies declare, each as an attribute."""

    def __init__(self, policy: str = "round_robin", seed: int = 0, **parameters: Any) -> None:
        spec = RouterSpec(policy=policy, **parameters)
        self.policy = policy
        self.seed = seed
        for name in ROUTERS.parameters():
            setattr(self, name, getattr(spec, name))


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
        prefix_index: per worker, node -> tokens of the prompts that went there (cache_aware only; never trimmed).

    Args:
        config: policy and parameters.
        workers: how many.
        look: into their caches, of pages of ``page_tokens`` (kv_aware only, as the next). paths: to every node of the
            trace's prefix tree.
    """

    def __init__(
        self,
        config: RouterConfig,
        workers: int,
        look: Look | None = None,
        paths: Mapping[int, Path] | None = None,
        page_tokens: int = 1,
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
        self.prefix_index: list[dict[int, int]] = [{} for _ in range(workers)]
        self._unfinished: dict[int, _Dispatched] = {}
        self._used: list[dict[int, float]] = [{} for _ in range(workers)]
        self._trim_s = config.eviction_interval_s
        self._draw_s = config.bucket_window_s
        self._window: list[tuple[float, int, int]] = []
        self._bucket_tokens = 0
        self._bounds = [(k + 1) * (4096 // workers) - 1 for k in range(workers - 1)]

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
        worker = self._choose(prompt, now, session)
        tokens = prompt[-1][2]
        self.dispatched += 1
        self.in_flight_requests[worker] += 1
        self.in_flight_tokens[worker] += tokens
        self._unfinished[request] = _Dispatched(worker, tokens)
        return worker

    def finished(self, request: int) -> None:
        """A dispatched request has left its worker."""
        done = self._unfinished.pop(request)
        self.in_flight_requests[done.worker] -= 1
        self.in_flight_tokens[done.worker] -= done.tokens

    def _choose(self, prompt: Path, now: float, session: int) -> int:
        if self.workers == 1:
            return 0
        if self.config.policy == "bucket":
            return self._bucket(prompt[-1][2], now)
        if self.config.policy == "consistent_hash":
            return self._hashed(prompt, session)
        if self.config.policy == "least_outstanding_tokens":
            return min(range(self.workers), key=lambda w: (self.in_flight_tokens[w], w))
        if self.config.policy == "weighted":
            return self.dispatched % self.workers
        if self.config.policy == "cost_aware":
            return self._cheapest()
        if self.config.policy == "random":
            return self.random.next() % self.workers
        if self.config.policy == "round_robin":
            return self.dispatched % self.workers
        if self.config.policy == "power_of_two":
            return self._power_of_two()
        if self.config.policy == "kv_aware":
            return self._kv_aware(prompt, now)
        if self.config.policy != "cache_aware":
            raise NotImplementedError(f"no slow reference for the router policy {self.config.policy}")
        self._trim_trees(now)
        worker = self._cache_aware(prompt)
        self.prefix_index[worker].update((node, end - start) for node, start, end in prompt)
        self._used[worker].update((node, now) for node, _, _ in prompt)
        return worker

    def _trim_trees(self, now: float) -> None:
        """Evict the least recently used nodes, the deeper first among equals, down to the allowed size."""
        if self.config.max_tree_tokens is None or now < self._trim_s:
            return
        while self._trim_s <= now:
            self._trim_s += self.config.eviction_interval_s
        for worker in range(self.workers):
            held = self.prefix_index[worker]
            for node in sorted(held, key=lambda node: (self._used[worker][node], -node)):
                if sum(held.values()) <= self.config.max_tree_tokens:
                    break
                del held[node]

    def _kv_aware(self, prompt: Path, now: float) -> int:
        """The worker with the least prompt tokens in flight plus weighted uncached tokens of this prompt."""
        assert self._look is not None
        tokens = prompt[-1][2]
        if self.config.staleness_s == 0.0:
            cached = [self._look(w, prompt, tokens) for w in range(self.workers)]
        else:
            self._refresh_snapshot(now)
            cached = [
                max((end for node, _, end in prompt if node in self._snapshots[w]), default=0)
                for w in range(self.workers)
            ]
        loads = [
            self.config.overlap_weight * (tokens - cached[w]) + self.in_flight_tokens[w] for w in range(self.workers)
        ]
        return loads.index(min(loads))

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

    def _bucket(self, tokens: int, now: float) -> int:
        if now >= self._draw_s:
            self._draw()
            while self._draw_s <= now:
                self._draw_s += self.config.bucket_window_s
        loads = self._window_loads()
        least = loads.index(min(loads))
        unbalanced = max(loads) - min(loads) > self.config.balance_abs_threshold and max(
            loads
        ) > self.config.balance_rel_threshold * min(loads)
        worker = least if unbalanced else sum(bound < tokens for bound in self._bounds)
        self._window = [sent for sent in self._window if now - sent[0] <= self.config.bucket_window_s]
        self._window.append((now, worker, tokens))
        return worker

    def _window_loads(self) -> list[int]:
        return [sum(tokens for _, w, tokens in self._window if w == worker) for worker in range(self.workers)]

    def _draw(self) -> None:
        """Bounds so that prompts of the window, by length, fill each bucket but the last up to an even share."""
        if not self._window:
            return
        share = sum(self._window_loads()) // self.workers
        if self._bucket_tokens and share <= 2 * self._bucket_tokens and self._bucket_tokens <= 2 * share:
            return
        self._bucket_tokens = share
        lengths = sorted(tokens for _, _, tokens in self._window)
        lowest, self._bounds = 0, []
        for _ in range(self.workers - 1):
            load, bound = 0, lowest + share
            while lengths:
                length = lengths.pop(0)
                load += length
                if load >= share:
                    bound = length if length > lowest else bound
                    break
            self._bounds.append(bound)
            lowest = bound + 1

    def _power_of_two(self) -> int:
        """Two distinct workers by two outputs of the generator (none is drawn where there is one worker only)."""
        if self.workers == 1:
            return 0
        first = self.random.next() % self.workers
        second = self.random.next() % (self.workers - 1)
        if second >= first:
            second += 1
        return min(first, second, key=lambda w: (self.in_flight_tokens[w], self.in_flight_requests[w], w))

    def _cache_aware(self, prompt: Path) -> int:
        indices = range(self.workers)
        most, least = max(self.in_flight_requests), min(self.in_flight_requests)
        unbalanced = (
            most - least > self.config.balance_abs_threshold and most > self.config.balance_rel_threshold * least
        )
        if unbalanced:
            return min(indices, key=lambda w: (self.in_flight_requests[w], w))
        matches = [self._match(w, prompt) for w in indices]
        if max(matches) / prompt[-1][2] > self.config.cache_threshold:
            return matches.index(max(matches))
        return min(indices, key=lambda w: (sum(self.prefix_index[w].values()), w))

    def _match(self, worker: int, prompt: Path) -> int:
        """Leading tokens of the prompt that the worker has by the prefix index."""
        matched = 0
        for node, _, end in prompt:
            if node not in self.prefix_index[worker]:
                break
            matched = end
        return matched


def _mixed(key: int) -> int:
    """64 bits in which every bit of ``key`` counts."""
    return SplitMix64(key).next()
