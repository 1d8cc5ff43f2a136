"""vLLM's scheduler with linear attention's states: groups of them take blocks of the pool beside full attention's.

A state stands for all tokens before it. Without prefix caching a request has one block in each group of states (mode
``none``). With it (``align``), chunks end at the ends of blocks, the state there is kept, and a running request moves
on to a new block for each chunk; it gives those behind it back. Source: ``MambaManager`` of
``v1/core/single_type_kv_cache_manager.py``, ``Scheduler._mamba_block_aligned_split`` of ``v1/core/sched/scheduler.py``,
and recordings of the modelled releases.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hisearch.specs.deployments.engine_rules import rules_of
from tests.reference.restatement.content import page
from tests.reference.restatement.recording import Cost, Recording, Request
from tests.reference.restatement.vllm import drive
from tests.reference.restatement.vllm_groups import GroupsConfig, GroupsWorker
from tests.reference.restatement.vllm_state import LiveRequest

#: More blocks than any pool has.
_NEVER = 10**9


@dataclass(frozen=True)
class StatesConfig(GroupsConfig):
    """Settings, and groups of states beside those of full attention.

    Attributes:
        states: groups of states.
        checkpoints: the attention backend exports the state at the prompt's last full block from within a chunk, which
            needs not end there then.
        retention_tokens: which states become findable. None: all at the ends of blocks; 0: the last before the prompt's
            last token, and that at the end of a prefix that the full groups have further than the states; a multiple of
            the block size: also those at each multiple of it.
    """

    states: int = 1
    checkpoints: bool = False

    @classmethod
    def from_recording(cls, config: dict[str, Any], version: str = "") -> StatesConfig:
        """As ``GroupsConfig.from_recording``: one group of full attention, and ``mamba_groups`` of states."""
        groups = GroupsConfig.from_recording(
            {key: value for key, value in config.items() if not key.startswith("mamba_")}, version
        )
        stated = {
            "windows": (0,),
            "states": config["mamba_groups"],
            "checkpoints": config.get("mamba_prefill_checkpoints", False),
            "rules": rules_of("vllm", version),
        }
        return cls(**vars(groups) | stated)


@dataclass
class _States:
    """A request's blocks of one group of states, by page; those of its first ``pages`` pages were taken or not needed.

    The cache was offered the first ``hashed`` pages.
    """

    blocks: dict[int, int] = field(default_factory=dict)
    pages: int = 0
    hashed: int = 0


class StatesWorker(GroupsWorker):
    """One engine with groups of states."""

    config: StatesConfig

    def __init__(self, config: StatesConfig, cost: Cost) -> None:
        super().__init__(config, cost)
        self._states: dict[LiveRequest, list[_States]] = {}
        self._state_hits: dict[LiveRequest, list[int]] = {}
        self._published_now: set[Any] = set()

    def _least_needed(self, pages: int) -> int:
        return super()._least_needed(pages) + self.config.states

    # ---- where chunks end ------------------------------------------------------------------------------------------

    def _aligned(self, live: LiveRequest, start: int, share: int) -> int:
        size, known = self.config.block_size, live.known
        prefill_end = max(live.request.input_tokens, known - 1)
        if not self.config.prefix or start >= prefill_end:
            return share
        end = start + share
        if "stops_at_states" not in self.config.rules:
            last = known // size * size
            if end < last:
                return share // size * size
            return last - start if start < last < end else share
        last = (known - 1 if "leaves_state_token" in self.config.rules else known) // size * size
        inside = end >= prefill_end and self._exports(start, prefill_end)
        if end < prefill_end:
            threshold = self.config.long_prefill_token_threshold
            longest = min(self.config.max_tokens, threshold) if threshold else self.config.max_tokens
            if end // size * size > start or size <= longest:
                end = end // size * size
        stops = [] if inside else [last]
        if start % size and not inside:
            stops.append((start // size + 1) * size)
        if start < (junction := self._junction[live]) < end:
            stops.append(start + (junction - start) // size * size)
        return max(min((stop for stop in stops if start < stop < end), default=end) - start, 0)

    def _exports(self, start: int, end: int) -> bool:
        """Whether a chunk from ``start`` to ``end`` exports the state at its last full block's end."""
        size = self.config.block_size
        return self.config.checkpoints and start % size == 0 and start + size <= (end - 1) // size * size

    # ---- blocks ----------------------------------------------------------------------------------------------------

    def _new_blocks(self, live: LiveRequest, start: int, end: int, pages: int) -> int:
        """Blocks of each group that a chunk takes where ``pages`` pages were taken."""
        if not self.config.prefix:
            return int(pages == 0)
        if -(-end // self.config.block_size) <= pages:
            return 0
        # Where all states are kept each chunk exports one.
        ends = self.config.retention_tokens != 0 or end >= max(live.request.input_tokens, live.known - 1)
        return 1 + (ends and self._exports(start, end))

    def _free_skipped(self, live: LiveRequest) -> None:
        super()._free_skipped(live)
        if not self.config.prefix:
            return
        first = (self._freed_behind(live) - 1) // self.config.block_size
        for states in self._states[live]:
            behind = sorted(index for index in states.blocks if index < first)
            self.pool.release([states.blocks.pop(index) for index in behind])

    def _blocks_missing(self, live: LiveRequest, share: int) -> int:
        missing = super()._blocks_missing(live, share)
        states = self._states[live][0]
        end = live.computed + share
        return missing + self.config.states * self._new_blocks(live, live.computed, end, states.pages)

    def _lookup(self, live: LiveRequest) -> list[Any]:
        """As of ``GroupsWorker``, up to the last page whose state all groups have."""
        rows = super()._lookup(live)
        size, first = self.config.block_size, len(self.config.windows)
        groups = range(first, first + self.config.states)
        for length in range(len(rows), 0, -1):
            blocks = [self._find(live, group, length - 1) for group in groups]
            if None not in blocks:
                break
        else:
            length, blocks = 0, []
        self._state_hits[live] = [block for block in blocks if block is not None]
        self._junction[live] = len(rows) * size if len(rows) > length else 0
        return rows[:length]

    def _needed(self, live: LiveRequest, hits: list[Any], tokens: int, *, cap: bool) -> int:
        needed = super()._needed(live, hits, tokens, cap=cap)
        if hits:
            if self._key(live, 0, len(hits) - 1) in self._published_now:
                # The state is not computed yet: another request of this pass computes it.
                return _NEVER
            needed += sum(map(self.pool.is_free, self._state_hits[live]))
        start = len(hits) * self.config.block_size
        return needed + self.config.states * self._new_blocks(live, start, tokens, len(hits))

    def _hold(self, live: LiveRequest, hits: list[Any], cached: int) -> None:
        super()._hold(live, hits, cached)
        self._states[live] = [_States(pages=len(hits), hashed=len(hits)) for _ in range(self.config.states)]
        for states, block in zip(self._states[live], self._state_hits[live], strict=False):
            self.pool.hold(block)
            states.blocks[len(hits) - 1] = block

    def _take(self, live: LiveRequest, tokens: int) -> None:
        super()._take(live, tokens)
        pages = -(-tokens // self.config.block_size)
        for states in self._states[live]:
            count = self._new_blocks(live, live.computed, tokens, states.pages)
            for index in range(pages - count, pages):
                states.blocks[index] = self.pool.take()
            states.pages = max(states.pages, pages)

    # ---- what look-ups find ----------------------------------------------------------------------------------------

    def _schedule(self, now: float) -> None:
        self._published_now = set()
        super()._schedule(now)

    def _key(self, live: LiveRequest, group: int, index: int) -> Any:
        """What names the state of a page in the ``group``-th group of states."""
        return len(self.config.windows) + group, page(live.request.content, index, self.config.block_size)

    def _publish(self, live: LiveRequest, tokens: int) -> None:
        super()._publish(live, tokens)
        if not self.config.prefix:
            return
        full = tokens // self.config.block_size
        for group, states in enumerate(self._states[live]):
            for index in range(states.hashed, full):
                if index in states.blocks and self._retains_state(live, index):
                    self.pool.publish(states.blocks[index], self._key(live, group, index))
                    self._published_now.add(self._key(live, group, index))
            states.hashed = max(states.hashed, full)

    def _retains_state(self, live: LiveRequest, index: int) -> bool:
        interval, size = self.config.retention_tokens, self.config.block_size
        if interval is None or (interval and (index + 1) % (interval // size) == 0):
            return True
        ends = (live.request.input_tokens - 1, self._junction[live])
        return index + 1 in [end // size for end in ends]

    def _release(self, live: LiveRequest) -> None:
        super()._release(live)
        for states in self._states.pop(live, ()):
            self.pool.release([states.blocks[index] for index in sorted(states.blocks)])


def replay(config: StatesConfig, requests: list[Request], cost: Cost) -> Recording:
    """Run one worker over ``requests`` until all have finished; raises as ``vllm.replay``."""
    return drive(StatesWorker(config, cost), requests)
