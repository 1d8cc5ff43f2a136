"""Orders of SGLang's waiting queue; every pass that tries to prefill sorts it again."""

from __future__ import annotations

from tests.reference.restatement.content import Content
from tests.reference.restatement.fair_share import FairShare
from tests.reference.restatement.sglang_cache import KvCache
from tests.reference.restatement.sglang_state import LiveRequest, SglangConfig
from tests.reference.restatement.sglang_tree import RadixNode
from tests.reference.restatement.splitmix import SplitMix64

#: lpm is fcfs while more than this many requests wait.
LPM_QUEUE_LIMIT = 128
#: Orders that count service.
FAIR = ("vtc", "deficit")
#: Passes between two touches of waiting prefixes, and how many are touched.
TOUCH_INTERVAL, TOUCHED = 32, 128
#: lpm: a request with at most this many cached tokens, and at least as many shared with an earlier one, goes last.
IN_BATCH_PREFIX_TOKENS = 32


class WaitingOrder:
    """Sorts the queue in place, by policy; equal requests keep their order.

    - ``fcfs``: as it is.
    - ``priority`` (``enable_priority_scheduling``, with lower values first): by value, then by time of entry, which is
      that of the last retraction for a retracted request.
    - ``lof``: longest declared output first; with ``enable_priority_scheduling`` among those of one priority.
    - ``srpt``: fewest tokens first, of the prompt and of the declared output together.
    - ``lpm``: longest cached prefix first.
    - ``dfs-weight``: the radix tree depth first, children by the number of waiting requests that end in them or below,
      and requests that end in a node behind those below it. Like ``lpm`` it is ``fcfs`` without radix cache.
    - ``random``: shuffled.
    - ``edf``: earliest deadline first, to the nanosecond; those without a deadline last.
    - ``vtc``, ``deficit``: see ``fair_share``.

    Sources: the ``lpm`` recording; otherwise SGLang's documented server arguments and ``SchedulePolicy`` (0.5.9).
    """

    def __init__(self, config: SglangConfig, cache: KvCache) -> None:
        self.config = config
        self.cache = cache
        self.stream = SplitMix64(config.seed)
        self.passes = 0
        self.share = FairShare(config.schedule_policy, config.quantum)

    def sort(self, waiting: list[LiveRequest]) -> None:
        """Bring the queue into the policy's order."""
        policy = self.config.schedule_policy
        if self.config.enable_priority_scheduling:
            # Requests enter at the end of the list, so equals are in order of entry.
            sign, longest = self.config.priority_sign, policy == "lof"
            waiting.sort(key=lambda live: (live.request.priority * sign, -live.max_new if longest else 0))
        elif policy == "lof":
            waiting.sort(key=lambda live: -live.max_new)
        elif policy == "srpt":
            waiting.sort(key=lambda live: live.request.input_tokens + live.max_new)
        elif policy == "edf":
            waiting.sort(key=self._deadline_ns)
        elif policy in FAIR:
            waiting[:] = self.share.ordered(waiting)
        elif policy == "random":
            self._shuffle(waiting)
        elif policy == "lpm" and self.cache.tree and len(waiting) <= LPM_QUEUE_LIMIT:
            self._longest_prefix_first(waiting)
        elif policy == "dfs-weight" and self.cache.tree:
            self._depth_first(waiting)

    def admit(self, live: LiveRequest) -> None:
        """Note that a pass admits a waiting request."""
        if self.config.schedule_policy in FAIR:
            self.share.admit(live)

    def decode(self, live: LiveRequest) -> None:
        """Note that a request decodes in the step being launched."""
        if self.config.schedule_policy in FAIR:
            self.share.decode(live)

    def touch(self, waiting: list[LiveRequest]) -> None:
        """Every so many passes, touch the cached prefixes of the first in the queue, the head's last."""
        looks_up = self.config.schedule_policy in ("lpm", "dfs-weight") and not (
            self.config.schedule_policy == "lpm" and len(waiting) > LPM_QUEUE_LIMIT
        )
        if not self.config.holds("touches_waiting") or not waiting or self.cache.tree is None or looks_up:
            return
        if self.config.radix_eviction_policy != "lru":
            return
        if self.passes % TOUCH_INTERVAL == 0:
            for live in reversed(waiting[:TOUCHED]):
                self.cache.match_all(live)
        self.passes += 1

    def _deadline_ns(self, live: LiveRequest) -> int:
        targets = self.config.ttft_targets_s
        target_s = targets[min(live.request.priority, len(targets) - 1)]
        return 10**18 if target_s is None else int(min(live.request.arrival_s + target_s, 1e9) * 1e9)

    def _shuffle(self, waiting: list[LiveRequest]) -> None:
        """Fisher and Yates, from the end."""
        for last in range(len(waiting) - 1, 0, -1):
            swap = self.stream.next() % (last + 1)
            waiting[last], waiting[swap] = waiting[swap], waiting[last]

    def _longest_prefix_first(self, waiting: list[LiveRequest]) -> None:
        """Sort by cached prefix; requests that share an earlier one's uncached prefix go last."""
        order: dict[LiveRequest, float] = {}
        earlier: list[tuple[Content, int]] = []
        for live in waiting:
            content, tokens = live.request.content, live.known
            matched, on_host, _ = self.cache.match_all(live)
            order[live] = -matched
            if self.config.holds("matches_less_than_all"):
                order[live] = -min(matched + on_host, tokens - 1)
            if matched <= IN_BATCH_PREFIX_TOKENS:
                shared = max((_shared_tokens(content, tokens, *candidate) for candidate in earlier), default=0)
                if shared >= IN_BATCH_PREFIX_TOKENS:
                    order[live] = float("inf")
                else:
                    earlier.append((content, tokens))
        waiting.sort(key=lambda live: order[live])

    def _depth_first(self, waiting: list[LiveRequest]) -> None:
        ending: dict[RadixNode, list[LiveRequest]] = {}
        for live in waiting:
            ending.setdefault(self.cache.match_all(live)[2], []).append(live)
        weights: dict[RadixNode, int] = {}
        for end, requests in ending.items():
            node: RadixNode | None = end
            while node is not None:
                weights[node] = weights.get(node, 0) + len(requests)
                node = node.parent
        ordered: list[LiveRequest] = []

        def visit(node: RadixNode) -> None:
            for child in sorted(node.children.values(), key=lambda child: -weights.get(child, 0)):
                visit(child)
            ordered.extend(ending.get(node, []))

        assert self.cache.tree
        visit(self.cache.tree.root)
        waiting[:] = ordered


def _shared_tokens(content: Content, tokens: int, other_content: Content, other_tokens: int) -> int:
    """Length of the common prefix of two token sequences."""
    length = 0
    while length < min(tokens, other_tokens) and content.token(length) == other_content.token(length):
        length += 1
    return length
