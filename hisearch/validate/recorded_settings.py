"""Settings of an engine as recordings have them: ``config``, by the engine's own names."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AliasChoices, BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from hisearch.latency.device_memory.state_pools import REQUEST_STATES
from hisearch.specs.base import NonNegative, NonNegativeInt, Positive
from hisearch.specs.deployments.deployment import EvictionName

#: Figures of a recording fit into the arrays of a compiled trace.
Tokens = Annotated[int, Field(ge=1, le=2**31 - 1)]


class Row(BaseModel):
    """A part of a recording, whose types are exact."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


class _Settings(Row):
    """Settings of an engine; unknown ones are refused, because they are not simulated."""

    model_config = ConfigDict(extra="forbid")


class CopySettings(NamedTuple):
    """Law of a copy: ``base_s + per_token_s * tokens`` seconds."""

    base_s: NonNegative
    per_token_s: NonNegative


class OffloadSettings(_Settings):
    """``config.offload``: vLLM's OffloadingConnector.

    ``own_processes``, in recordings ``worker_apart``: a preemption's flush holds the worker alone.
    """

    capacity_tokens: Tokens
    to_host: CopySettings
    to_device: CopySettings
    block_size_factor: Tokens = 1
    eviction: Literal["lru", "arc"] = "lru"
    store_threshold: NonNegativeInt = 0
    own_processes: bool = Field(False, validation_alias=AliasChoices("own_processes", "worker_apart"))


class LmcacheSettings(_Settings):
    """``config.offload`` with ``connector: lmcache``: LMCache's connector, host memory alone."""

    connector: Literal["lmcache"]
    capacity_tokens: Tokens
    to_host: CopySettings
    to_device: CopySettings
    chunk_tokens: Tokens = 256
    eviction: Literal["lru", "lfu", "fifo", "mru"] = "lru"
    save_decode: bool = False


class SpeculationSettings(_Settings):
    """``config.speculation``: drafted tokens, and how many are accepted (see ``hisearch.record.drafts``)."""

    method: Literal["eagle", "ngram"]
    draft_tokens: Tokens
    accepted: list[Annotated[float, Field(ge=0, le=1)]]
    seed: NonNegativeInt

    @model_validator(mode="after")
    def _check(self) -> SpeculationSettings:
        if len(self.accepted) != self.draft_tokens:
            raise ValueError(f"accepted has {len(self.accepted)} entries; expected draft_tokens, {self.draft_tokens}")
        return self


class _LoraLaws(_Settings):
    """What a step takes longer: for a copy into a slot, if it has adapters, for each, for each of their tokens."""

    load_s: NonNegative = 0.0
    step_s: NonNegative = 0.0
    adapter_s: NonNegative = 0.0
    token_s: NonNegative = 0.0

    @property
    def laws(self) -> dict[str, float]:
        """By name."""
        return {name: getattr(self, name) for name in _LoraLaws.model_fields}


class LoraSettings(_LoraLaws):
    """``config.lora`` of vLLM: limits of adapters, and what a step takes longer for a read from the disk."""

    max_loras: Tokens
    max_cpu_loras: NonNegativeInt = 0
    read_s: NonNegative = 0.0


class SglangLoraSettings(_LoraLaws):
    """``config.lora`` of SGLang: server arguments by their names."""

    max_loras_per_batch: Tokens
    lora_eviction_policy: Literal["lru", "fifo"] = "lru"
    lora_drain_wait_threshold: NonNegative = 0.0
    enable_lora_overlap_loading: bool = False


class StructuredSettings(_Settings):
    """``config.structured``: laws of grammars (see ``hisearch.record.grammars``)."""

    compile_s: list[NonNegative]
    threads: Tokens
    sequence_s: NonNegative = 0.0


def _connector_of(offload: Any) -> str:
    given = offload.get("connector") if isinstance(offload, dict) else getattr(offload, "connector", None)
    return "offload" if given is None else "lmcache"


class VllmSettings(_Settings):
    """``config`` of a vLLM recording; absent settings are vLLM's defaults."""

    max_num_seqs: Tokens
    max_tokens: Tokens
    num_blocks: Annotated[int, Field(ge=2, le=2**31 - 1)]
    block_size: Tokens
    decode_context_parallel_size: Tokens = 1
    prefill_context_parallel_size: Tokens = 1  # No decision depends on it.
    prefix: bool = True
    policy: Literal["fcfs", "priority"] = "fcfs"
    chunked_prefill: bool = True
    long_prefill_token_threshold: NonNegativeInt = 0
    long_prefill_token_threshold_adaptive: bool = False
    scheduler_reserve_full_isl: bool = True
    async_scheduling: bool = False
    max_model_len: Tokens = 65536
    watermark: Annotated[float, Field(ge=0, lt=1)] = 0.0
    sliding_window: NonNegativeInt = 0
    hybrid_window: NonNegativeInt = 0
    prefix_cache_retention_interval: NonNegativeInt | None = None
    mamba_groups: NonNegativeInt = 0
    mamba_prefill_checkpoints: bool = False
    offload: (
        Annotated[
            Annotated[OffloadSettings, Tag("offload")] | Annotated[LmcacheSettings, Tag("lmcache")],
            Discriminator(_connector_of),
        ]
        | None
    ) = None

    speculation: SpeculationSettings | None = None
    lora: LoraSettings | None = None
    structured: StructuredSettings | None = None

    @model_validator(mode="after")
    def _check(self) -> VllmSettings:
        if self.max_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_tokens {self.max_tokens} is less than max_num_seqs {self.max_num_seqs}: vLLM needs one token of "
                "the budget for each running request"
            )
        if self.decode_context_parallel_size > 1 and (self.offload or self.has_groups or self.speculation):
            raise ValueError("decode_context_parallel_size is simulated without offload, groups and speculation")
        if self.sliding_window and self.hybrid_window:
            raise ValueError("sliding_window is the only group of layers, hybrid_window one beside full attention")
        if self.mamba_groups and (self.sliding_window or self.hybrid_window):
            raise ValueError("mamba_groups beside sliding_window or hybrid_window is not simulated")
        if self.mamba_groups and self.prefix and not self.chunked_prefill:
            raise ValueError("mamba_groups with prefix needs chunked_prefill: states are kept at the ends of chunks")
        if self.offload is not None and self.has_groups:
            raise ValueError("offload beside sliding_window, hybrid_window or mamba_groups is not simulated")
        others = self.offload is not None or self.has_groups or self.speculation is not None
        for name in ("lora", "structured"):
            if getattr(self, name) is not None and others:
                message = "beside offload, speculation, sliding_window, hybrid_window or mamba_groups is not simulated"
                raise ValueError(f"{name} {message}")
        if self.structured is not None and (self.lora is not None or self.decode_context_parallel_size > 1):
            raise ValueError("structured beside lora or decode_context_parallel_size is not simulated")
        if self.speculation is not None and (self.offload is not None or self.has_groups):
            raise ValueError(
                "speculation beside offload, sliding_window, hybrid_window or mamba_groups is not simulated"
            )
        return self

    @property
    def has_groups(self) -> bool:
        """Whether some layers have a sliding window or linear attention, with blocks of their own."""
        return bool(self.sliding_window or self.hybrid_window or self.mamba_groups)

    @property
    def block_tokens(self) -> int:
        """Tokens of a block as the scheduler counts them."""
        return self.block_size * self.decode_context_parallel_size


class SglangSettings(_Settings):
    """``config`` of an SGLang recording; ``block_ids_size`` describes the file's ``block_ids``, not the engine.

    A random order of the queue cannot be replayed: the engine's random numbers are not recorded. With sliding windows
    ``max_total_tokens`` is the pool of the layers with full attention, ``swa_max_total_num_tokens`` that of the others.
    With linear attention ``max_mamba_cache_size`` is the pool of states; ``mamba_chunk_size`` is the model's, and its
    default that of the engine's kernels (``chunk_delta_h.CHUNK_SIZE``).
    """

    page_size: Tokens
    dcp_size: Tokens = 1
    chunked_prefill_size: int
    max_prefill_tokens: Tokens
    max_running_requests: Tokens
    max_total_tokens: Tokens
    disable_overlap_schedule: bool
    block_ids_size: Tokens
    schedule_policy: Literal["fcfs", "lpm", "lof", "dfs-weight"] = "fcfs"
    schedule_conservativeness: Positive = 1.0
    radix_eviction_policy: EvictionName = "lru"
    disable_radix_cache: bool = False
    enable_mixed_chunk: bool = False
    scheduler_recv_interval: Tokens = 1
    enable_priority_scheduling: bool = False
    schedule_low_priority_values_first: bool = False
    priority_scheduling_preemption_threshold: NonNegativeInt = 10
    prefill_max_requests: Tokens | None = None
    hicache: dict[str, Any] | None = None
    speculation: SpeculationSettings | None = None
    lora: SglangLoraSettings | None = None
    structured: StructuredSettings | None = None
    sliding_window_size: Tokens | None = None
    swa_max_total_num_tokens: Tokens | None = None
    max_mamba_cache_size: Tokens | None = None
    mamba_radix_cache_strategy: Literal["auto", "no_buffer", "extra_buffer", "extra_buffer_lazy"] = "auto"
    mamba_track_interval: Tokens = 256
    mamba_chunk_size: Tokens = 64
    mamba_max_states_per_path: Annotated[int, Field(ge=-1)] = -1

    @property
    def has_windows(self) -> bool:
        """Whether some layers have a sliding window, with a pool of their own."""
        return self.sliding_window_size is not None

    @property
    def has_states(self) -> bool:
        """Whether some layers have linear attention, with a pool of states."""
        return self.max_mamba_cache_size is not None

    @property
    def state_strategy(self) -> Literal["no_buffer", "extra_buffer", "extra_buffer_lazy"]:
        """How states get into the radix cache: ``auto`` by overlap and pages; without radix cache none does."""
        if self.disable_radix_cache:
            return "no_buffer"
        if self.mamba_radix_cache_strategy != "auto":
            return self.mamba_radix_cache_strategy
        return "no_buffer" if self.disable_overlap_schedule and self.page_size == 1 else "extra_buffer"

    @property
    def state_buffers(self) -> int:
        """States beside its own that a request takes at its admission."""
        if self.state_strategy == "no_buffer":
            return 0
        return 1 if self.state_strategy == "extra_buffer_lazy" or self.disable_overlap_schedule else 2

    @model_validator(mode="after")
    def _check(self) -> SglangSettings:
        others = {
            "hicache": self.hicache is not None,
            "enable_mixed_chunk": self.enable_mixed_chunk,
            "enable_priority_scheduling": self.enable_priority_scheduling,
        }
        for name, given in others.items():
            if self.speculation is not None and given:
                raise ValueError(f"speculation beside {name} is not simulated")
        if self.dcp_size > 1 and (self.hicache or self.speculation or self.has_windows or self.has_states):
            raise ValueError("dcp_size is simulated without hicache, speculation, windows and states")
        others |= {name: bool(getattr(self, name)) for name in ("speculation", "has_windows", "has_states")}
        del others["enable_mixed_chunk"]
        others["dcp_size"] = self.dcp_size > 1
        for name, given in others.items():
            if self.lora is not None and given:
                raise ValueError(f"lora beside {name} is not simulated")
        others |= {"lora": self.lora is not None, "scheduler_recv_interval": self.scheduler_recv_interval > 1}
        for name, given in others.items():
            if self.structured is not None and given:
                raise ValueError(f"structured beside {name} is not simulated")
        self._check_windows()
        self._check_states()
        return self

    @property
    def block_tokens(self) -> int:
        """Tokens of a page of the allocator and the radix cache."""
        return self.page_size * self.dcp_size

    def _check_windows(self) -> None:
        window, pool = self.sliding_window_size, self.swa_max_total_num_tokens
        if window is None or pool is None:
            if window is not None or pool is not None:
                raise ValueError("sliding_window_size and swa_max_total_num_tokens are given together")
            return
        for name in ("hicache", "speculation"):
            if getattr(self, name) is not None:
                raise ValueError(f"sliding_window_size beside {name} is not simulated")
        page = self.page_size
        full, pool = self.max_total_tokens // page * page, pool // page * page
        if not window + page < pool <= full:
            raise ValueError(
                f"swa_max_total_num_tokens is {pool} in whole pages; the engine needs more than {window + page} "
                f"(sliding_window_size and a page), and has no more than {full} (max_total_tokens)"
            )

    def _check_states(self) -> None:
        states = self.max_mamba_cache_size
        if states is None:
            for name in ("mamba_radix_cache_strategy", "mamba_track_interval", "mamba_chunk_size"):
                if name in self.model_fields_set:
                    raise ValueError(f"{name} is given without max_mamba_cache_size")
            return
        for name in ("hicache", "speculation", "sliding_window_size"):
            if getattr(self, name) is not None:
                raise ValueError(f"max_mamba_cache_size beside {name} is not simulated")
        if self.mamba_max_states_per_path == 0:
            raise ValueError("mamba_max_states_per_path is 0; the engine wants -1 (no limit) or a positive integer")
        self._check_state_strategy()
        # One more is in the tree and one in hand while a request's state is put there.
        slots = 1 if self.disable_radix_cache else REQUEST_STATES + self.state_buffers
        if self.max_running_requests > states // slots:
            raise ValueError(
                f"max_running_requests is {self.max_running_requests}; with max_mamba_cache_size {states} the engine "
                f"runs no more than {states // slots} requests, {slots} states each"
            )

    def _check_state_strategy(self) -> None:
        strategy, page = self.state_strategy, self.page_size
        if self.disable_radix_cache:
            return
        if strategy == "no_buffer":
            if page > 1 or not self.disable_overlap_schedule:
                raise ValueError("mamba_radix_cache_strategy no_buffer needs page_size 1 and disable_overlap_schedule")
            return
        if strategy == "extra_buffer_lazy" and self.disable_overlap_schedule:
            raise ValueError("mamba_radix_cache_strategy extra_buffer_lazy needs overlap: disable_overlap_schedule")
        if self.mamba_track_interval % page:
            raise ValueError(f"mamba_track_interval is {self.mamba_track_interval}; expected whole pages of {page}")
        if max(self.mamba_chunk_size, page) % min(self.mamba_chunk_size, page):
            raise ValueError(
                f"mamba_chunk_size is {self.mamba_chunk_size}; expected a divisor or a multiple of page_size, {page}"
            )
