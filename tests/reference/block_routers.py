"""Routers of platforms that cut prompts into blocks, restated block by block.

A block is named by its last token's place in the trace's tree, which no two contents share.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Block = tuple[int, int]
#: One of these workers, at random.
AnyOf = Callable[[list[int]], int]


def blocks_of(text: Sequence[Block], tokens: int) -> list[Block]:
    """Whole blocks of a prompt, given token by token."""
    return [text[end - 1] for end in range(tokens, len(text) + 1, tokens)]


def drawn(shares: Sequence[float], point: float) -> int:
    """The first at which the sum of all before it and itself, as a share, reaches ``point``."""
    reached, total = 0.0, sum(shares)
    for place, share in enumerate(shares):
        reached += share / total
        if point <= reached:
            return place
    return len(shares) - 1


@dataclass
class _Sent:
    worker: int
    blocks: list[Block]
    uncached_tokens: int


class DynamoKv:
    """Dynamo's cost of each worker, from its lists of blocks.

    Attributes:
        last_sent_s: of each worker, when it was sent each block of the approximate index.
        in_flight: requests, with what they count for.
    """

    def __init__(self, config: Any, workers: int, block_tokens: int) -> None:
        self.config = config
        self.workers = range(workers)
        self.block_tokens = block_tokens
        self.last_sent_s: list[dict[Block, float]] = [{} for _ in self.workers]
        self.in_flight: dict[int, _Sent] = {}

    def choose(
        self, request: int, text: Sequence[Block], now: float, cached: Sequence[int], any_of: AnyOf, unit: Any
    ) -> int:
        """The worker of a request; ``cached``: tokens of its prompt that workers have, by their events."""
        blocks = blocks_of(text, self.block_tokens)
        by_events = self.config.block_tracking == "events"
        depths = [tokens // self.block_tokens for tokens in cached] if by_events else self._indexed(blocks, now)
        new = [max(len(text) - depth * self.block_tokens, 0) for depth in depths]
        costs = [self._cost(worker, blocks, new[worker]) for worker in self.workers]
        worker = (
            self._cheapest(costs, depths, any_of) if self.config.router_temperature == 0 else self._softmax(costs, unit)
        )
        self.in_flight[request] = _Sent(worker, blocks, new[worker])
        if not by_events:
            self.last_sent_s[worker].update(dict.fromkeys(blocks, now))
        return worker

    def first_token(self, request: int) -> None:
        """Its prompt is computed."""
        self.in_flight[request].uncached_tokens = 0

    def finished(self, request: int) -> None:
        """It counts no more."""
        del self.in_flight[request]

    def _indexed(self, blocks: Sequence[Block], now: float) -> list[int]:
        for sent_s in self.last_sent_s:
            for block in [block for block, at_s in sent_s.items() if at_s + self.config.router_ttl_s <= now]:
                del sent_s[block]
        return [
            next((k for k, block in enumerate(blocks) if block not in sent_s), len(blocks))
            for sent_s in self.last_sent_s
        ]

    def _cost(self, worker: int, blocks: Sequence[Block], new_tokens: int) -> float:
        mine = [sent for sent in self.in_flight.values() if sent.worker == worker]
        active = {block for sent in mine for block in sent.blocks}
        prefill_tokens = sum(sent.uncached_tokens for sent in mine) + new_tokens
        return float(self.config.overlap_weight * (prefill_tokens / self.block_tokens) + len(active | set(blocks)))

    def _cheapest(self, costs: Sequence[float], depths: Sequence[int], any_of: AnyOf) -> int:
        """Of equal costs the smallest index, where only workers with a match have a size; else any."""
        tied = [worker for worker in self.workers if costs[worker] == min(costs)]
        sizes = [len(self.last_sent_s[worker]) if depths[worker] else 0 for worker in tied]
        return any_of([worker for worker, size in zip(tied, sizes, strict=True) if size == min(sizes)])

    def _softmax(self, costs: Sequence[float], unit: Callable[[], float]) -> int:
        least, spread = min(costs), max(costs) - min(costs)
        if spread == 0:
            return drawn([1.0 for _ in costs], unit())
        scaled = [-(cost / spread) / self.config.router_temperature for cost in costs]
        most = least / spread / self.config.router_temperature
        return drawn([math.exp(value + most) for value in scaled], unit())


@dataclass
class Metrics:
    """What a worker's metrics tell: requests that wait and run, share of its KV memory that they hold."""

    waiting: int = 0
    running: int = 0
    usage: float = 0.0


class EndpointPicker:
    """llm-d's scores of each worker, with an LRU of blocks for each.

    Attributes:
        metrics: of each worker, as of the last scrape.
        lru: of each worker, its blocks from the least recently sent on.
        cold: workers that were sent a request without a hit, the latest last.
    """

    def __init__(self, config: Any, workers: int, block_tokens: int, capacity_blocks: int) -> None:
        self.config = config
        self.workers = range(workers)
        self.block_tokens = block_tokens
        self.capacity_blocks = max(capacity_blocks, config.max_prefix_blocks)
        self.metrics = [Metrics() for _ in self.workers]
        self.lru: list[OrderedDict[Block, None]] = [OrderedDict() for _ in self.workers]
        self.cold: list[int] = []

    def choose(self, text: Sequence[Block], in_flight: Sequence[int], any_of: AnyOf, unit: Any) -> int:
        """The worker of a request; ``in_flight``: requests on each, as the router counts them."""
        blocks = blocks_of(text, self.block_tokens)[: self.config.max_prefix_blocks]
        matched = self._matched(blocks)
        cold = not any(matched.values())
        scores = [self._score(worker, len(blocks), matched[worker], cold, in_flight) for worker in self.workers]
        if self.config.picker == "weighted_random" and sum(scores) > 0:
            worker = drawn(scores, unit())
        else:
            worker = any_of([worker for worker in self.workers if scores[worker] == max(scores)])
        if cold:
            self.cold = [other for other in self.cold if other != worker] + [worker]
        for block in blocks:
            self.lru[worker][block] = None
            self.lru[worker].move_to_end(block)
            if len(self.lru[worker]) > self.capacity_blocks:
                self.lru[worker].popitem(last=False)
        return worker

    def _matched(self, blocks: Sequence[Block]) -> Counter[int]:
        matched: Counter[int] = Counter()
        for block in blocks:
            holders = [worker for worker in self.workers if block in self.lru[worker]]
            if not holders:
                break
            matched.update(holders)
        return matched

    def _score(self, worker: int, blocks: int, matched: int, cold: bool, in_flight: Sequence[int]) -> float:
        config, metrics = self.config, self.metrics
        score = config.queue_weight * _by_count(worker, [other.waiting for other in metrics])
        score += config.kv_utilization_weight * (1.0 - metrics[worker].usage)
        score += config.prefix_weight * (matched / blocks if blocks else 0.0)
        score += config.running_weight * _by_count(worker, [other.running for other in metrics])
        most = max(in_flight)
        score += config.active_requests_weight * ((most - in_flight[worker]) / most if most else 1.0)
        if config.no_hit_weight > 0:
            order = [other for other in self.workers if other not in self.cold] + self.cold
            rank = order.index(worker) / (len(order) - 1)
            score += config.no_hit_weight * (1.0 - rank if cold else 0.5)
        return float(score)


def _by_count(worker: int, counts: Sequence[int]) -> float:
    most, least = max(counts), min(counts)
    return 1.0 if most == least else (most - counts[worker]) / (most - least)


class PrefixAware:
    """production-stack's trie of chunks.

    Attributes:
        sent: chunk -> workers that were sent it. A chunk is named by its first and its last character's places, in
            which the end of a prompt makes a difference.
    """

    def __init__(self, config: Any, workers: int) -> None:
        self.config = config
        self.workers = list(range(workers))
        self.sent: dict[tuple[int, Block], set[int]] = {}

    def choose(self, text: Sequence[Block], any_of: AnyOf) -> int:
        """The worker of a request."""
        chunks = self._chunks(text)
        longest = self.workers
        for chunk in chunks:
            holders = [worker for worker in longest if worker in self.sent.get(chunk, set())]
            if not holders:
                break
            longest = holders
        worker = any_of(longest)
        for chunk in chunks:
            self.sent.setdefault(chunk, set()).add(worker)
        return worker

    def _chunks(self, text: Sequence[Block]) -> list[tuple[int, Block]]:
        """Their numbers of characters so far, each with the token that has the last of them."""
        characters, each = int(len(text) * self.config.characters_per_token), self.config.chunk_characters
        ends = [*range(each, characters + 1, each)] + ([characters] if characters % each else [])
        return [(end, text[self._token_of(end)]) for end in ends]

    def _token_of(self, characters: int) -> int:
        """The token with which so many characters are complete."""
        tokens = 1
        while int(tokens * self.config.characters_per_token) < characters:
            tokens += 1
        return tokens - 1


@dataclass
class _Stored:
    workers: set[int]
    sent_s: float


class PrefixCache:
    """AIBrix's one LRU of blocks.

    Attributes:
        store: block -> workers that were sent it and when that was last, the least recently sent first.
    """

    def __init__(self, config: Any, workers: int, longest_prompt: int) -> None:
        self.config = config
        self.workers = range(workers)
        self.block_tokens = max(round(config.block_characters / config.characters_per_token), 1)
        self.capacity = max(config.index_blocks_in_all, longest_prompt // self.block_tokens)
        self.store: OrderedDict[Block, _Stored] = OrderedDict()

    def choose(self, text: Sequence[Block], now: float, in_flight: Sequence[int], any_of: AnyOf) -> int:
        """The worker of a request; ``in_flight``: requests on each, as the router counts them."""
        for block in [block for block, kept in self.store.items() if self._is_old(kept, now)]:
            del self.store[block]
        blocks = blocks_of(text, self.block_tokens)
        worker = self._for_its_prefix(blocks, in_flight, any_of)
        if worker is None:
            worker = any_of([worker for worker in self.workers if in_flight[worker] == min(in_flight)])
        for block in blocks:
            kept = self.store.setdefault(block, _Stored(set(), now))
            kept.workers.add(worker)
            kept.sent_s = now
            self.store.move_to_end(block)
            if len(self.store) > self.capacity:
                self.store.popitem(last=False)
        return worker

    def _is_old(self, kept: _Stored, now: float) -> bool:
        """Whether a look, every second, has found a block too old."""
        return kept.sent_s + self.config.index_ttl_s < math.floor(now)

    def _for_its_prefix(self, blocks: Sequence[Block], in_flight: Sequence[int], any_of: AnyOf) -> int | None:
        left = set(self.workers)
        if max(in_flight) - min(in_flight) > self.config.imbalance_requests:
            left = {worker for worker in left if in_flight[worker] == min(in_flight)}
        percent: dict[int, int] = {}
        for place, block in enumerate(blocks):
            left &= self.store[block].workers if block in self.store else set()
            percent |= dict.fromkeys(left, (place + 1) * 100 // len(blocks))
        mean = sum(in_flight) / len(in_flight)
        deviation = math.sqrt(sum((count - mean) ** 2 for count in in_flight) / (len(in_flight) - 1))
        most = mean + self.config.deviation_factor * deviation
        keys = {worker: (-percent[worker], in_flight[worker]) for worker in percent if in_flight[worker] <= most}
        best = min(keys.values(), default=None)
        return None if best is None else any_of([worker for worker in sorted(keys) if keys[worker] == best])
