"""vLLM's scheduler with several groups of KV blocks: layers with full attention, and layers with a sliding window.

All groups take blocks of one pool. A group of window layers gives blocks back once they are out of the window; it finds
a cached prefix if the blocks of the window before its end are cached. Source: ``v1/core/kv_cache_coordinator.py``,
``single_type_kv_cache_manager.py`` and ``kv_cache_manager.py`` of the modelled releases, and recordings of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hisearch.specs.deployments.engine_rules import rules_of
from tests.reference.restatement.content import page
from tests.reference.restatement.recording import Cost, Recording, Request
from tests.reference.restatement.vllm import GROUP_SETTINGS, VllmConfig, VllmWorker, drive
from tests.reference.restatement.vllm_state import LiveRequest

#: A page of a group that holds no block: it is out of the window.
_NULL = 0


@dataclass(frozen=True)
class GroupsConfig(VllmConfig):
    """Settings, and the groups of KV blocks.

    Attributes:
        windows: window of each group in tokens, at least 2; 0: full attention. Groups of full attention come first,
            and all windows are equal.
        retention_tokens: which of the window groups' blocks become findable. None: all; 0: those in the window before
            the prompt's last token, or before the end of a prefix that the full group has further than this one; a
            multiple of the block size: also those in the window before each multiple of it.
        max_model_len: longest request, tokens.
    """

    windows: tuple[int, ...] = (0,)
    retention_tokens: int | None = None
    max_model_len: int = 65536

    @classmethod
    def from_recording(cls, config: dict[str, Any], version: str = "") -> GroupsConfig:
        """As ``VllmConfig.from_recording``; ``sliding_window`` is one group, ``hybrid_window`` two."""
        if config.get("offload") is not None:
            raise ValueError("offload: the connector is not restated")
        settings = {
            key: value for key, value in config.items() if key not in ("offload", "speculation", *GROUP_SETTINGS)
        }
        alone = config.get("sliding_window", 0)
        return cls(
            **settings,
            windows=(alone,) if alone else (0, config.get("hybrid_window", 0)),
            retention_tokens=config.get("prefix_cache_retention_interval"),
            rules=rules_of("vllm", version),
        )

    @property
    def max_in_flight_tokens(self) -> int:
        """Tokens that may be scheduled without their results being known."""
        steps = 2 if self.async_scheduling and "frees_processed" in self.rules else 1
        return self.max_tokens * steps


@dataclass
class _Table:
    """A request's blocks of one group, ``_NULL`` where it holds none; the cache was offered the first ``hashed``."""

    blocks: list[int] = field(default_factory=list)
    hashed: int = 0


class GroupsWorker(VllmWorker):
    """One engine with groups of KV blocks; ``hits`` of its methods are blocks of all groups, page by page."""

    config: GroupsConfig

    def __init__(self, config: GroupsConfig, cost: Cost) -> None:
        super().__init__(config, cost)
        self._tables: dict[LiveRequest, list[_Table]] = {}
        self._junction: dict[LiveRequest, int] = {}

    def rejection(self, request: Request) -> str | None:
        """Why the request can never be served, or None; its windows' blocks are the business of ``max_model_len``."""
        total = request.input_tokens + request.max_output_tokens - 1
        if not self.config.chunked_prefill and total > self.config.max_tokens:
            return f"{total} tokens exceed the step budget of {self.config.max_tokens} and chunked prefill is off"
        needed = self._least_needed(-(-total // self.config.block_size))
        if needed > self.pool.usable_blocks:
            return f"{total} tokens need {needed} blocks, more than the pool's {self.pool.usable_blocks}"
        return None

    def _least_needed(self, pages: int) -> int:
        """Blocks that a request of ``pages`` pages holds at its end, at least."""
        return sum(1 if window else pages for window in self.config.windows)

    # ---- blocks ----------------------------------------------------------------------------------------------------

    def _required(self, tokens: int, window: int, *, cap: bool) -> int:
        """Blocks of a group for ``tokens`` tokens; ``cap``: as the check of a whole request counts them."""
        size = self.config.block_size
        required = -(-tokens // size)
        if cap and window and "caps_windows" in self.config.rules:
            most = min(window - 1 + self.config.max_in_flight_tokens, self.config.max_model_len)
            required = min(required, -(-most // size) + 1)
        return required

    def _skipped(self, window: int, computed: int) -> int:
        """Leading blocks of a group that are out of the window once ``computed`` tokens are computed."""
        return max(computed - window + 1, 0) // self.config.block_size if window else 0

    def _freed_behind(self, live: LiveRequest) -> int:
        """Tokens by which blocks of ``live`` leave its windows."""
        if "frees_processed" not in self.config.rules:
            return live.computed
        outstanding = [entry for done in self.outstanding for entry in done.step.batch]
        return live.computed - sum(entry.new for entry in outstanding if entry.id == live.request.id)

    def _free_skipped(self, live: LiveRequest) -> None:
        """Give back blocks that are out of the window, the one nearest to it first."""
        computed = self._freed_behind(live)
        for window, table in zip(self.config.windows, self._tables.get(live, ()), strict=False):
            removed = []
            for index in range(min(self._skipped(window, computed), len(table.blocks)) - 1, -1, -1):
                if table.blocks[index] == _NULL:
                    break
                removed.append(table.blocks[index])
                table.blocks[index] = _NULL
            self.pool.release(removed[::-1])

    def _blocks_missing(self, live: LiveRequest, share: int) -> int:
        self._free_skipped(live)
        needed = -(-(live.computed + share) // self.config.block_size)
        return sum(max(needed - len(table.blocks), 0) for table in self._tables[live])

    # ---- cached prefixes -------------------------------------------------------------------------------------------

    def _find(self, live: LiveRequest, group: int, index: int) -> int | None:
        return self.pool.find((group, page(live.request.content, index, self.config.block_size)))

    def _find_spec(self, live: LiveRequest, window: int, index: int) -> list[int] | None:
        """The page's blocks in all groups with this window, if all have it."""
        groups = [group for group, other in enumerate(self.config.windows) if other == window]
        blocks = [self._find(live, group, index) for group in groups]
        return None if None in blocks else [block for block in blocks if block is not None]

    def _lookup(self, live: LiveRequest) -> list[Any]:
        """Blocks of the longest prefix that all groups find, by page; at least one known token is left to compute."""
        self._junction[live] = 0
        if not self.config.prefix:
            return []
        most = (live.known - 1) // self.config.block_size
        windows = sorted(set(self.config.windows))
        length, longest = most, 0
        for window in windows:
            length = self._hit_pages(live, window, length)
            longest = max(longest, length)
        if longest > length and len(windows) > 1:
            self._junction[live] = longest * self.config.block_size
        first = [self._skipped(window, length * self.config.block_size) for window in self.config.windows]
        return [
            tuple(
                self._cached_block(live, group, index) if index >= first[group] else _NULL
                for group in range(len(self.config.windows))
            )
            for index in range(length)
        ]

    def _cached_block(self, live: LiveRequest, group: int, index: int) -> int:
        block = self._find(live, group, index)
        assert block is not None
        return block

    def _hit_pages(self, live: LiveRequest, window: int, most: int) -> int:
        """Pages of the longest prefix, ``most`` at most, that the groups with this window find."""
        if not window:
            length = 0
            while length < most and self._find_spec(live, window, length) is not None:
                length += 1
            return length
        needed = -(-(window - 1) // self.config.block_size)
        run = 0
        for index in range(most - 1, -1, -1):
            run = run + 1 if self._find_spec(live, window, index) is not None else 0
            if run == needed:
                return index + run
        return run

    def _fits_whole(self, live: LiveRequest, hits: list[Any]) -> bool:
        return self._fits(live, hits, live.known, cap=True)

    def _fits(self, live: LiveRequest, hits: list[Any], tokens: int, *, cap: bool = False) -> bool:
        reserved = int(self.config.watermark * self.config.num_blocks) if self.running else 0
        return self._needed(live, hits, tokens, cap=cap) + reserved <= len(self.pool.free)

    def _needed(self, live: LiveRequest, hits: list[Any], tokens: int, *, cap: bool) -> int:
        """Blocks that leave the free queue for ``tokens`` tokens with ``hits`` reused."""
        needed = 0
        for group, window in enumerate(self.config.windows):
            skipped = self._skipped(window, len(hits) * self.config.block_size)
            required = self._required(tokens, window, cap=cap)
            needed += max(required - max(skipped, len(hits)), 0)
            needed += sum(self.pool.is_free(row[group]) for row in hits[skipped:])
        return needed

    def _hold(self, live: LiveRequest, hits: list[Any], cached: int) -> None:
        groups = range(len(self.config.windows))
        self._tables[live] = [_Table([row[group] for row in hits], len(hits)) for group in groups]
        for table in self._tables[live]:
            for block in table.blocks:
                if block != _NULL:
                    self.pool.hold(block)
        live.computed = cached

    # ---- blocks of a share -----------------------------------------------------------------------------------------

    def _compute(self, live: LiveRequest, share: int) -> None:
        self._take(live, live.computed + share)
        self._shares[live] = share
        self._publish(live, min(live.computed + share, live.known))

    def _take(self, live: LiveRequest, tokens: int) -> None:
        """Take the blocks that ``live`` lacks for its first ``tokens`` tokens, of one group after another."""
        needed = -(-tokens // self.config.block_size)
        for table in self._tables[live]:
            while len(table.blocks) < needed:
                table.blocks.append(self.pool.take())

    def _publish(self, live: LiveRequest, tokens: int) -> None:
        if not self.config.prefix:
            return
        full = tokens // self.config.block_size
        for group, table in enumerate(self._tables[live]):
            for index in range(table.hashed, full):
                block = table.blocks[index]
                if block != _NULL and self._retains(live, group, index):
                    self.pool.publish(block, (group, page(live.request.content, index, self.config.block_size)))
            table.hashed = max(table.hashed, full)

    def _retains(self, live: LiveRequest, group: int, index: int) -> bool:
        """Whether the block is one that a later prompt may need, as ``retention_tokens`` says."""
        window, interval, size = self.config.windows[group], self.config.retention_tokens, self.config.block_size
        if not window or interval is None:
            return True
        needed = -(-(window - 1) // size)
        if interval and (needed >= interval // size or index % (interval // size) >= interval // size - needed):
            return True
        ends = [live.request.input_tokens - 1, self._junction[live]]
        return any(end // size - needed <= index < end // size for end in ends if end)

    def _release(self, live: LiveRequest) -> None:
        for table in self._tables.pop(live, ()):
            self.pool.release([block for block in table.blocks if block != _NULL])
        live.hashed = 0


def replay(config: GroupsConfig, requests: list[Request], cost: Cost) -> Recording:
    """Run one worker over ``requests`` until all have finished; raises as ``vllm.replay``."""
    return drive(GroupsWorker(config, cost), requests)
