"""SGLang's prefill budget: which waiting requests (or chunks of them) fit into one prefill batch."""

from __future__ import annotations

import enum

from tests.reference.restatement.sglang_cache import KvCache
from tests.reference.restatement.sglang_state import CLIP_OUTPUT_TOKENS, LiveRequest, SglangConfig


class Verdict(enum.Enum):
    """Result of an admission test."""

    CONTINUE = enum.auto()
    NO_TOKEN = enum.auto()  #: memory: the running batch is marked full
    OTHER = enum.auto()  #: the pass's input or chunk budget


class Admission:
    """The budget of one prefill pass.

    Attributes:
        admitted: the batch so far, in order.
        partial: the newly admitted request that was chunked, if any.
    """

    def __init__(
        self, config: SglangConfig, cache: KvCache, running: list[LiveRequest], ratio: float, mixed_tokens: int
    ) -> None:
        self.cache = cache
        self.config = config
        self.running = running
        self.ratio = ratio
        self.input_left = config.max_prefill_tokens - mixed_tokens
        self.chunk_left = None if config.chunk_tokens is None else config.chunk_tokens - mixed_tokens
        self.held_now = mixed_tokens
        # Tokens are summed before the ratio is applied; the engine multiplies first, which may round differently.
        sure, to_come = (sum(map(_to_come, kind)) for kind in self._kinds(running))
        self.reserved = mixed_tokens + sure + to_come * ratio
        self.admitted: list[LiveRequest] = []
        self.partial: LiveRequest | None = None
        self._ends: list[tuple[float, int]] | None = None

    def _kinds(self, running: list[LiveRequest]) -> tuple[list[LiveRequest], list[LiveRequest]]:
        """Requests of whose outputs to come all are reserved, and those of which the ratio is."""
        sure = [live for live in running if live.pinned and self.config.holds("reserves_pinned")]
        return sure, [live for live in running if live not in sure]

    def reserved_for(self, live: LiveRequest) -> float:
        """Tokens reserved for the output to come of a running request."""
        return _to_come(live) * (1 if self._kinds([live])[0] else self.ratio)

    @property
    def budget_is_spent(self) -> bool:
        """Whether a budget of the pass other than memory is spent."""
        return self._budget_verdict() is Verdict.OTHER

    @property
    def total_left(self) -> float:
        """Tokens free or evictable beyond what is reserved for outputs to come."""
        return self.cache.free_tokens + self.cache.evictable_tokens - self.reserved

    @property
    def now_left(self) -> int:
        """Tokens free or evictable beyond what this pass takes."""
        return self.cache.free_tokens + self.cache.evictable_tokens - self.held_now

    def go_on(self, live: LiveRequest) -> LiveRequest | None:
        """Add the next chunk of a chunked request in any case; returns the request if prompt remains."""
        assert self.chunk_left is not None
        budget = min(self.chunk_left, int(self.total_left))
        return self._go_on_within(live, budget if budget > 0 else self.chunk_left)

    def _go_on_within(self, live: LiveRequest, budget: int) -> LiveRequest | None:
        cut = live.extend > budget
        live.extend = min(live.extend, budget)
        self.admitted.append(live)
        self._charge(live.extend, 0 if cut else min(live.max_new, CLIP_OUTPUT_TOKENS))
        return live if cut else None

    def try_admit(self, live: LiveRequest) -> Verdict:
        """Test the waiting request and, if it fits, add it (or its first chunk)."""
        live.missing = live.extend
        if self.config.prefill_max_requests is not None and len(self.admitted) >= self.config.prefill_max_requests:
            return Verdict.OTHER
        by_ends = self.config.disable_radix_cache and live.pinned
        return self._try_without_radix(live) if by_ends else self._try_with_radix(live)

    def _try_with_radix(self, live: LiveRequest) -> Verdict:
        total = live.extend + min(max(live.max_new - live.generated, 0), CLIP_OUTPUT_TOKENS)
        if self.config.holds("needs_page"):
            total += self.config.rank_page
        if not self.config.holds("bounds_uncut_input"):
            if total >= self.total_left:
                return Verdict.NO_TOKEN
            if self._exceeds_input(self.config.charged(live.extend - live.host_hit)):
                return Verdict.OTHER
        self.cache.lock(live)
        verdict = self._try_locked(live, total)
        if not self.admitted or self.admitted[-1] is not live:
            self.cache.unlock(live)
        return verdict

    def _goes(self, tokens: int) -> bool:
        """Whether the pass's limits let in a prompt of which so many tokens are missing, or a first chunk of it."""
        cuts = self.chunk_left is not None and self.chunk_left >= self.config.rank_page
        return not self._exceeds_input(tokens) and (self.chunk_left is None or tokens <= self.chunk_left or cuts)

    def _exceeds_input(self, tokens: int) -> bool:
        if self.config.holds("bounds_uncut_input") and self.chunk_left is not None:
            return False
        return tokens >= self.input_left and bool(self.admitted)

    def _try_locked(self, live: LiveRequest, total: int) -> Verdict:
        """Test again with the matched prefix locked, because its tokens are no longer evictable.

        The prompt's host hits are loaded back before the chunk is cut, and stay on the device if the input budget then
        ends the pass. From release 0.5.20 on the pass's limits are looked at before, too.
        """
        if total >= self.total_left:
            return Verdict.NO_TOKEN
        early = not self.config.holds("bounds_uncut_input")
        if not early and not self._goes(self.config.charged(live.extend - live.host_hit)):
            return Verdict.OTHER
        if live.host_hit:
            self.cache.load_back(live)
            live.missing = live.extend if early else live.missing
        tokens = self.config.charged(live.extend)
        if self._exceeds_input(tokens):
            return Verdict.OTHER
        if self.chunk_left is None or tokens <= self.chunk_left:
            self.admitted.append(live)
            self._charge(tokens, min(live.max_new, CLIP_OUTPUT_TOKENS))
        else:
            cut = self.chunk_left // self.config.rank_page * self.config.rank_page
            if cut <= 0:
                return Verdict.OTHER
            self._add_first_chunk(live, cut)
        return self._budget_verdict()

    def _try_without_radix(self, live: LiveRequest) -> Verdict:
        """Radix cache off and output lengths pinned (``ignore_eos``): simulate the requests' ends.

        At each end, in order of tokens left, the free tokens must exceed (left + 1) * still running.
        """
        tokens = self.config.charged(live.extend) + (self.config.rank_page if self.config.holds("needs_page") else 0)
        if tokens > min(self.now_left, self.total_left):
            return Verdict.NO_TOKEN
        self._note_end(live)
        assert self._ends is not None
        free = self.now_left - tokens
        for position, (tokens_left, occupied) in enumerate(self._ends):
            alive = len(self._ends) - position
            if free - tokens_left * alive <= alive:
                return Verdict.NO_TOKEN
            free += occupied
        # The engine compares whole pages. That differs only in mixed mode, where it would cut behind the prompt's end.
        if self.chunk_left is None or live.extend <= self.chunk_left:
            self.admitted.append(live)
            self._charge(live.extend, min(live.max_new, CLIP_OUTPUT_TOKENS))
        elif self.chunk_left <= 0:
            return Verdict.OTHER
        else:
            self._add_first_chunk(live, self.chunk_left)
        return self._budget_verdict()

    def _note_end(self, live: LiveRequest) -> None:
        """Keep ``(tokens left, tokens occupied)`` of all affected requests, by tokens left."""
        if self._ends is None:
            ends = [self._end(request) for request in [live, *self.running, *self.admitted]]
            self._ends = sorted((end for end in ends if end[0] > 0), key=lambda end: end[0])
            return
        end = self._end(live)
        if end[0] <= 0:
            return
        # The engine's insertion stops at the last position even if the new end has most tokens left.
        position = next((at for at, listed in enumerate(self._ends) if end[0] <= listed[0]), len(self._ends) - 1)
        self._ends.insert(max(position, 0), end)

    def _add_first_chunk(self, live: LiveRequest, cut: int) -> None:
        live.extend = cut
        self.admitted.append(live)
        self.partial = live
        self._charge(cut, 0)

    def _charge(self, extend: int, output: int) -> None:
        tokens = self.config.charged(extend)
        spare = self.cache.page_size if self.config.holds("charges_page") else 0
        self.reserved += self.cache.pages_of(tokens) + spare + output
        self.held_now += self.cache.pages_of(tokens) + spare
        self.input_left -= tokens
        if self.chunk_left is not None:
            self.chunk_left -= tokens

    def _budget_verdict(self) -> Verdict:
        if self.total_left <= 0 or self.now_left <= 0:
            return Verdict.NO_TOKEN
        if self.input_left <= 0 or (self.chunk_left is not None and self.chunk_left <= 0):
            return Verdict.OTHER
        return Verdict.CONTINUE

    def _end(self, live: LiveRequest) -> tuple[float, int]:
        """Tokens that a request has left (of one that is not pinned: by the ratio), and those that it holds."""
        return live.max_new * (1.0 if live.pinned else self.ratio) - live.generated, live.known


def _to_come(live: LiveRequest) -> int:
    return min(live.max_new - live.generated, CLIP_OUTPUT_TOKENS)
