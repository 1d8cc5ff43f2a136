"""SGLang's scheduler with drafted tokens, restated in its own terms, by the rules of 0.5.23.

A decoding request has ``committed`` tokens with KV by the results that are known (``kv_committed_len``), and slots for
more (``kv_allocated_len``): each decode step allocates for two steps of drafts. Source:
``speculative/eagle_utils.py: eagle_prepare_for_decode``, ``managers/schedule_batch.py``,
``managers/scheduler_components/batch_result_processor.py``, ``mem_cache/common.py: release_kv_cache``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from hisearch.record.drafts import unit_at
from tests.reference.restatement.content import Content
from tests.reference.restatement.recording import BatchEntry, Request, Step
from tests.reference.restatement.sglang import SglangWorker
from tests.reference.restatement.sglang_cache import KvCache, OutOfMemoryError
from tests.reference.restatement.sglang_order import WaitingOrder
from tests.reference.restatement.sglang_state import Batch, LiveRequest, SglangConfig
from tests.reference.restatement.sglang_tree import RadixNode, RadixTree

#: ``(chunks (new, cached), tokens that each decode reads, sequences that sample, drafts checked) -> seconds``.
DraftCost = Callable[[list[tuple[int, int]], list[int], int, int], float]


@dataclass(frozen=True)
class DraftsConfig(SglangConfig):
    """Settings, and the drafts.

    Attributes:
        draft_tokens: drafted for each request in a step.
        keys_pairs: EAGLE's or MTP's: the radix tree is keyed by pairs of tokens.
        accepted: probability that the first 1, 2, … drafts are all accepted.
        draft_seed: of the draws.
    """

    draft_tokens: int = 1
    keys_pairs: bool = True
    accepted: tuple[float, ...] = (0.5,)
    draft_seed: int = 0

    @classmethod
    def from_recording(cls, config: dict[str, Any], version: str = "0.5.23") -> DraftsConfig:
        """As ``SglangConfig.from_recording``."""
        settings = {key: value for key, value in config.items() if key not in ("block_ids_size", "speculation")}
        drafts = config["speculation"]
        return cls(
            **settings, version=version, draft_tokens=drafts["draft_tokens"], keys_pairs=drafts["method"] == "eagle",
            accepted=tuple(drafts["accepted"]), draft_seed=drafts["seed"],
        )  # fmt: skip

    @property
    def reserve(self) -> int:
        """Slots behind the committed tokens that a decode step allocates."""
        return 2 * (1 + self.draft_tokens)


@dataclass(frozen=True)
class Pairs:
    """A request's pairs of neighbouring tokens, one less than it has tokens."""

    content: Content

    def token(self, position: int) -> Hashable:
        """Identity of the pair that begins at ``position``."""
        return self.content.token(position + 1)


class PairTree(RadixTree):
    """A radix tree over pairs of tokens: of n tokens, n - 1 can be kept or found."""

    def __init__(self, *arguments: Any, **rules: bool) -> None:
        super().__init__(*arguments, **rules)
        self._pairs: dict[int, tuple[Content, Pairs]] = {}

    def _pairs_of(self, content: Content) -> Pairs:
        return self._pairs.setdefault(id(content), (content, Pairs(content)))[1]

    def match(self, content: Content, tokens: int) -> tuple[int, RadixNode]:
        """As of ``RadixTree``."""
        return super().match(self._pairs_of(content), max(tokens - 1, 0))

    def insert(self, content: Content, tokens: int, priority: int, *, counted_from: int | None = 0) -> int:
        """As of ``RadixTree``."""
        return super().insert(self._pairs_of(content), max(tokens - 1, 0), priority, counted_from=counted_from)


class DraftsCache(KvCache):
    """Pool and tree; ``allocated``: tokens that each request has slots for, of more than its committed ones."""

    config: DraftsConfig

    def __init__(self, config: DraftsConfig) -> None:
        super().__init__(config)
        self.allocated: dict[LiveRequest, int] = {}
        if self.tree and config.keys_pairs:
            rules = {rule: config.holds(rule) for rule in ("keeps_creation", "counts_hits")}
            self.tree = PairTree(config.page_size, config.radix_eviction_policy, **rules)

    def _keys(self, tokens: int) -> int:
        """Tokens, in whole pages, that the tree can have of ``tokens``."""
        return (tokens - self.config.keys_pairs) // self.page_size * self.page_size

    def _allocated(self, live: LiveRequest) -> int:
        return self.allocated.get(live, live.committed)

    def _wanted(self, live: LiveRequest) -> int:
        return max(self._allocated(live), self.pages_of(live.committed + self.config.reserve))

    def decode_fits(self, batch: list[LiveRequest]) -> bool:
        """Whether (after evicting) each request can have slots for two steps."""
        needed = sum(self.pages_of(self._wanted(live)) - self.pages_of(self._allocated(live)) for live in batch)
        self.ensure_free_pages(needed)
        return self.free_tokens >= needed

    def take_decode(self, batch: list[LiveRequest], *, mixed: bool = False) -> None:
        """Take these slots; with pages, one more page per request is freed."""
        del mixed
        tokens = sum(self._wanted(live) - self._allocated(live) for live in batch)
        if tokens == 0:
            return
        self.ensure_free_pages(tokens + (self.page_size * len(batch) if self.page_size > 1 else 0))
        for live in batch:
            wanted = self._wanted(live)
            self.free_tokens -= self.pages_of(wanted) - self.pages_of(self._allocated(live))
            self.allocated[live] = wanted
        if self.free_tokens < 0:
            raise OutOfMemoryError("no KV slots for drafts")

    def keep_finished(self, live: LiveRequest) -> None:
        """As of ``KvCache``."""
        if self.tree:
            self._insert(live, live.committed)
            live.protected = self._keys(live.committed)
        self.drop(live)

    def drop(self, live: LiveRequest) -> None:
        """As of ``KvCache``; slots for drafts go too."""
        slots = self.allocated.pop(live, live.committed)
        self.free_tokens += self.pages_of(slots) - self.pages_of(live.committed)
        super().drop(live)

    def check(self, holders: list[LiveRequest]) -> None:
        """As of ``KvCache``."""
        more = sum(self.pages_of(self._allocated(live)) - self.pages_of(live.committed) for live in holders)
        self.free_tokens += more
        super().check(holders)
        self.free_tokens -= more

    def _insert(self, live: LiveRequest, tokens: int, *, chunk: bool = False) -> None:
        assert self.tree is not None
        content, priority, counted_from = live.request.content, live.request.priority, live.inserted
        live.inserted = max(live.inserted, self._keys(tokens))
        present = self.tree.insert(content, tokens, priority, counted_from=counted_from)
        prompt = self._keys(live.request.input_tokens)
        if 0 < prompt < self._keys(tokens):
            self.tree.insert(content, prompt + self.config.keys_pairs, priority + 1, counted_from=None)
        assert present >= live.protected
        self.free_tokens += present - live.protected


class DraftsWorker(SglangWorker):
    """One engine with drafted tokens; ``places``: of the requests, by id, by which draws are made."""

    config: DraftsConfig
    cache: DraftsCache

    def __init__(self, config: DraftsConfig, cost: DraftCost, places: dict[Any, int]) -> None:
        super().__init__(config, lambda _chunks, _decodes, _sampling: 0.0)
        self._draft_cost = cost
        self._draft_places = places
        self.cache = DraftsCache(config)
        self.order = WaitingOrder(config, self.cache)
        #: Output tokens by all launched steps; by outstanding step, the tokens that it makes, drafts past an end too.
        self._generated: dict[LiveRequest, int] = {}
        self._runs: list[dict[LiveRequest, int]] = []

    def rejection(self, request: Request) -> str | None:
        """As of ``SglangWorker``; the engine gives up a request whose last step does not fit."""
        last = request.input_tokens + request.max_output_tokens - 2 + self.config.reserve
        if request.max_output_tokens > 1 and self.cache.pages_of(last) > self.config.capacity_tokens:
            return f"{last} tokens of its last step do not fit {self.config.capacity_tokens}"
        return super().rejection(request)

    def _release(self, live: LiveRequest, left: int) -> None:
        super()._release(live, left)
        self._generated[live] = live.generated

    def _entry(self, batch: Batch, live: LiveRequest) -> BatchEntry:
        entry = super()._entry(batch, live)
        return entry if batch.prefill else replace(entry, computed=live.committed, new=1 + self.config.draft_tokens)

    def _launch(self, batch: Batch) -> Step:
        step = super()._launch(batch)
        end_s = step.start_s + self._price(batch, step)
        step.end_s = self.device_free_s = end_s
        self._runs.append(dict(self._drawn(batch)))
        return step

    def _price(self, batch: Batch, step: Step) -> float:
        if batch.prefill:
            chunks = [(entry.new, entry.computed) for entry in step.batch]
            return self._draft_cost(chunks, [], sum(entry.samples for entry in step.batch), 0)
        new = 1 + self.config.draft_tokens
        reads = [live.request.input_tokens + self._generated[live] - 1 + new for live in batch.requests]
        return self._draft_cost([], reads, len(reads), len(reads) * self.config.draft_tokens)

    def _drawn(self, batch: Batch) -> Iterable[tuple[LiveRequest, int]]:
        for live in batch.requests:
            if live is batch.partial:
                continue
            generated = self._generated.get(live, 0)
            left = live.request.output_tokens - generated
            run = 1 if batch.prefill or left == 0 else 1 + self._accepted(live, generated)
            self._generated[live] = generated + min(run, left)
            yield live, run

    def _accepted(self, live: LiveRequest, generated: int) -> int:
        unit = unit_at(self.config.draft_seed, self._draft_places[live.request.id], generated)
        return sum(unit < share for share in self.config.accepted)

    def process(self) -> list[Request]:
        """Take in the results of the oldest outstanding batch, at its end; returns the requests that finished."""
        done, runs = self.outstanding.pop(0), self._runs.pop(0)
        self.clock.now_s = max(self.clock.now_s, done.step.end_s)
        finished = []
        for live, run in runs.items():
            if live.finished or live.retracted:
                continue
            if not done.prefill:
                live.committed += run
            live.generated += run
            self.first_token_s.setdefault(live.request.id, self.clock.now_s)
            self.token_s[live.request.id] += [self.clock.now_s] * run
            if live.generated >= live.request.output_tokens:
                # What an output's last step makes behind its end is not kept.
                live.generated = live.request.output_tokens
                live.committed = min(live.committed, live.known)
                live.finished = True
                self.cache.keep_finished(live)
                self.finish_s[live.request.id] = self.clock.now_s
                self.unfinished -= 1
                finished.append(live.request)
            elif done.prefill:
                self.cache.keep_unfinished(live)
        return finished
