"""Settings, requests and batches of the SGLang reference."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from hisearch.specs.deployments.engine_rules import rules_in_force
from hisearch.validate.hicache_settings import HostTierConfig
from tests.reference.restatement.recording import Request
from tests.reference.restatement.sglang_copies import Copy
from tests.reference.restatement.sglang_tree import EvictionPolicy, RadixNode

#: Output tokens that admission reserves per request at most (SGLang's ``CLIP_MAX_NEW_TOKENS``).
CLIP_OUTPUT_TOKENS = 4096


#: Settings of models with sliding windows, and of those with linear attention.
WINDOW_KEYS = ("sliding_window_size", "swa_max_total_num_tokens")
STATE_KEYS = (
    "max_mamba_cache_size", "mamba_radix_cache_strategy", "mamba_track_interval", "mamba_chunk_size",
    "mamba_max_states_per_path",
)  # fmt: skip
SchedulePolicy = Literal["fcfs", "lpm", "lof", "dfs-weight", "random", "srpt", "edf", "vtc", "deficit"]


@cache
def _rules(version: str) -> dict[str, bool]:
    return rules_in_force("sglang", version)


@dataclass(frozen=True)
class SglangConfig:
    """Server arguments by their own names.

    ``page_size`` is the radix cache's page, of all ranks that share a sequence's KV (``dcp_size``).

    In addition: ``ignore_eos``, a request's argument (of those that do not say), the seed of random orders, and the
    release whose rules hold (``hisearch.base.engine_rules``). ``hicache`` is the host tier, None if off. ``jumps``: an
    idle scheduler beside copies under way passes again at the next event, not at once (see ``MovementPlan.jumps``).
    ``ttft_targets_s`` and ``quantum`` are of queue orders that no release has (``edf``, ``deficit``).
    """

    max_running_requests: int
    max_total_tokens: int
    page_size: int = 1
    dcp_size: int = 1
    chunked_prefill_size: int = 8192
    max_prefill_tokens: int = 16384
    schedule_policy: SchedulePolicy = "fcfs"
    schedule_conservativeness: float = 1.0
    radix_eviction_policy: EvictionPolicy = "lru"
    disable_radix_cache: bool = False
    enable_mixed_chunk: bool = False
    scheduler_recv_interval: int = 1
    disable_overlap_schedule: bool = True
    enable_priority_scheduling: bool = False
    schedule_low_priority_values_first: bool = True
    priority_scheduling_preemption_threshold: int = 10
    prefill_max_requests: int | None = None
    ignore_eos: bool = True
    seed: int = 0
    hicache: HostTierConfig | None = None
    version: str = "0.5.9"
    jumps: bool = False
    ttft_targets_s: tuple[float | None, ...] = ()
    quantum: int = 8192

    def __post_init__(self) -> None:
        if self.hicache and self.disable_radix_cache:
            raise ValueError("hicache: the host tier needs the radix cache, which is off")

    @classmethod
    def from_recording(cls, config: dict[str, Any], version: str = "0.5.9") -> SglangConfig:
        """Settings of a recorded case (``block_ids_size`` describes the file, not the engine).

        Raises:
            ValueError: the host tier's settings are not understood, or it is on without radix cache.
        """
        not_taken = ("block_ids_size", "hicache", "speculation", "lora", "structured", *WINDOW_KEYS, *STATE_KEYS)
        settings = {key: value for key, value in config.items() if key not in not_taken}
        settings["page_size"] *= settings.get("dcp_size", 1)
        hicache = config.get("hicache")
        tier = None if hicache is None else HostTierConfig.from_recording(hicache)
        return cls(**settings, hicache=tier, version=version)

    def holds(self, rule: str) -> bool:
        """Whether the release decides by ``rule``."""
        return _rules(self.version)[rule]

    @property
    def rank_page(self) -> int:
        """Tokens of a page on one rank, in which admission counts."""
        return self.page_size // self.dcp_size

    def charged(self, tokens: int) -> int:
        """``tokens`` in full pages of one rank."""
        return -(-tokens // self.rank_page) * self.rank_page

    @property
    def priority_sign(self) -> int:
        """1 where lower priority values are more urgent, else -1."""
        return 1 if self.schedule_low_priority_values_first else -1

    @property
    def chunk_tokens(self) -> int | None:
        """Tokens per prefill pass, None without chunked prefill."""
        return self.chunked_prefill_size if self.chunked_prefill_size > 0 else None

    @property
    def mixed(self) -> bool:
        """Whether prefills are mixed steps; the flag has no effect without chunked prefill."""
        return self.enable_mixed_chunk and self.chunk_tokens is not None

    @property
    def plays_out_ends(self) -> bool:
        """Whether admission follows the rule for pinned outputs without radix cache, where outputs are pinned."""
        return self.disable_radix_cache and self.ignore_eos

    @property
    def capacity_tokens(self) -> int:
        """KV pool in whole pages."""
        return self.max_total_tokens // self.page_size * self.page_size

    @property
    def initial_ratio(self) -> float:
        """New-token ratio at the start and after every idle pass."""
        return min(0.7 * self.schedule_conservativeness, 1.0)

    @property
    def least_ratio(self) -> float:
        """Lower limit of the new-token ratio."""
        return min(0.14 * self.initial_ratio, 1.0)

    @property
    def ratio_decay(self) -> float:
        """Decrease of the new-token ratio per decode pass."""
        return (self.initial_ratio - self.least_ratio) / 600


@dataclass(eq=False)
class LiveRequest:
    """An unfinished request of the engine.

    Attributes:
        max_new: output limit as the engine clips it.
        generated: output tokens whose results have been processed.
        committed: tokens that have a KV slot.
        protected: leading committed tokens that belong to the tree.
        prefix: tokens before the next prefill chunk, all committed.
        extend: tokens that the next chunk computes.
        node: last tree node of the request's cached prefix, locked while the request holds KV.
        host_hit: tokens after ``prefix`` that the last match hit on the host alone.
        host_node: the deepest node of that match with a host copy.
        retracted: since its last prefill.
        pinned: whether it ignores end-of-sequence tokens.
        inserted: tokens that it has put into the tree since its admission.
        missing: tokens that its last attempt at admission had to compute, as the engine notes them.
        moment: number of the time at which it entered the queue.
    """

    request: Request
    max_new: int
    generated: int = 0
    committed: int = 0
    protected: int = 0
    prefix: int = 0
    extend: int = 0
    node: RadixNode | None = None
    host_hit: int = 0
    host_node: RadixNode | None = None
    finished: bool = False
    retracted: bool = False
    pinned: bool = True
    inserted: int = 0
    missing: int = 0
    moment: int = 0

    @property
    def known(self) -> int:
        """Prompt and processed output tokens."""
        return self.request.input_tokens + self.generated


@dataclass(eq=False)
class Batch:
    """Requests that run together.

    Attributes:
        full: no admission is tried while this is set on the running batch (``batch_is_full``).
        partial: the request of a prefill batch whose prompt continues in the next one.
        decoding: the requests that a mixed batch decodes.
        loading: the host-to-device copy that a prefill batch waits for.
    """

    requests: list[LiveRequest] = field(default_factory=list)
    full: bool = False
    prefill: bool = False
    partial: LiveRequest | None = None
    decoding: list[LiveRequest] = field(default_factory=list)
    loading: Copy | None = None

    def drop_finished(self, also: tuple[LiveRequest | None, ...] = ()) -> None:
        """Remove finished requests, and those in ``also``."""
        self.requests = [live for live in self.requests if not live.finished and live not in also]
