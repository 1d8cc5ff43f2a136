"""The router in front of identical workers: random, round_robin, power_of_two, cache_aware.

It knows what it dispatched and what has finished, and nothing of the workers' insides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hisearch.validate.restatement.splitmix import SplitMix64


@dataclass(frozen=True)
class RouterConfig:
    """Policy and parameters; the last three are cache_aware's, the seed random's and power_of_two's."""

    policy: Literal["random", "round_robin", "power_of_two", "cache_aware"] = "round_robin"
    seed: int = 0
    cache_threshold: float = 0.3
    balance_abs_threshold: int = 64
    balance_rel_threshold: float = 1.5


@dataclass
class _Dispatched:
    worker: int
    tokens: int


class Router:
    """Chooses a worker for each request.

    Attributes:
        in_flight_requests, in_flight_tokens: per worker, over dispatched unfinished requests (prompt tokens).
        believed: per worker, node -> tokens of the prompts that went there (cache_aware only; never trimmed).
    """

    def __init__(self, config: RouterConfig, workers: int) -> None:
        self.config = config
        self.workers = workers
        self.random = SplitMix64(config.seed)
        self.dispatched = 0
        self.in_flight_requests = [0] * workers
        self.in_flight_tokens = [0] * workers
        self.believed: list[dict[int, int]] = [{} for _ in range(workers)]
        self._unfinished: dict[int, _Dispatched] = {}

    def dispatch(self, request: int, prompt: Sequence[tuple[int, int, int]]) -> int:
        """Choose the worker of a request and count it as in flight.

        Args:
            request: its index.
            prompt: runs ``(node, start_token, end_token)`` of the prompt, from the root.

        Returns:
            The worker's index.
        """
        worker = self._choose(prompt)
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

    def _choose(self, prompt: Sequence[tuple[int, int, int]]) -> int:
        if self.config.policy == "random":
            return self.random.next() % self.workers
        if self.config.policy == "round_robin":
            return self.dispatched % self.workers
        if self.config.policy == "power_of_two":
            return self._power_of_two()
        worker = self._cache_aware(prompt)
        self.believed[worker].update((node, end - start) for node, start, end in prompt)
        return worker

    def _power_of_two(self) -> int:
        """Two distinct workers by two outputs of the generator (none is drawn where there is one worker only)."""
        if self.workers == 1:
            return 0
        first = self.random.next() % self.workers
        second = self.random.next() % (self.workers - 1)
        if second >= first:
            second += 1
        return min(first, second, key=lambda w: (self.in_flight_tokens[w], self.in_flight_requests[w], w))

    def _cache_aware(self, prompt: Sequence[tuple[int, int, int]]) -> int:
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
        return min(indices, key=lambda w: (sum(self.believed[w].values()), w))

    def _match(self, worker: int, prompt: Sequence[tuple[int, int, int]]) -> int:
        """Leading tokens of the prompt that the worker is believed to have."""
        matched = 0
        for node, _, end in prompt:
            if node not in self.believed[worker]:
                break
            matched = end
        return matched
