"""Input of an estimator: one worker, and its largest steps."""

from __future__ import annotations

from dataclasses import dataclass

from hisearch.latency.sharding import Parallelism
from hisearch.specs.base import DType
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.machines.hardware import AcceleratorSpec
from hisearch.specs.models.draft_head import DraftHeadSpec
from hisearch.specs.models.model import ModelSpec


@dataclass(frozen=True)
class AcrossHosts:
    """Placement of a stage's ranks on several hosts.

    ranks_per_host: ranks on each host.
    bytes_per_s: between hosts, per rank, one direction.
    exchange_s: fixed seconds of an inter-host step of a collective.
    """

    ranks_per_host: int
    bytes_per_s: float
    exchange_s: float


@dataclass(frozen=True)
class PricedWorker:
    """A worker to price: one of its attention groups.

    model: architecture.
    accelerator: what each rank runs on.
    split: how the model is split over ranks.
    weight_dtype: format of the weights; None is the model's own.
    kv_dtype: format of the KV cache.
    engine: serving engine; its name chooses the host overhead.
    max_tokens, max_sequences: most of a step.
    max_context_tokens: most tokens of context that a step's decodes read together.
    hosts: placement of its ranks on several hosts; None: one host.
    prompt_ranks: attention groups that share the tokens of one batch, as sets of ranks of a single group do
        (``workers.prompts``); 1: none.
    """

    model: ModelSpec
    accelerator: AcceleratorSpec
    split: Parallelism
    weight_dtype: DType | None
    kv_dtype: DType
    engine: EngineSpec
    max_tokens: int
    max_sequences: int
    max_context_tokens: int
    hosts: AcrossHosts | None = None
    prompt_ranks: int = 1

    @property
    def loaded_dtype(self) -> DType:
        """Format of the weights as they are loaded."""
        return self.weight_dtype if self.weight_dtype is not None else self.model.weight_dtype

    @property
    def rereads_windows(self) -> bool:
        """Whether every query head reads its KV head from memory by itself, in decodes behind a sliding window.

        FlashAttention 2 stacks query heads of a KV head into one tile where attention has no window; else each reads it
        (``mha_varlen_fwd`` in ``csrc/flash_attn/flash_api.cpp``; measured: Dao-AILab/flash-attention, issue 1564). In
        its order of tiles, a batch lies between two heads: caches of few megabytes do not keep it. vLLM 0.19 runs it
        but for capability 9 (FlashAttention 3), 10 (FlashInfer) and attention sinks (Triton).
        """
        capability, model = self.accelerator.compute_capability, self.model
        if self.engine.name != "vllm" or capability is None or int(capability) in (9, 10):
            return False
        return not model.attention_sinks and model.mla is None

    @property
    def is_head(self) -> bool:
        """Whether the model is a head that drafts for another one, of which no measurement has its name."""
        return isinstance(self.model, DraftHeadSpec)

    @property
    def limits(self) -> tuple[int, int, int]:
        """Most tokens and sequences of a step, and most context that its decodes read."""
        return (self.max_tokens, self.max_sequences, self.max_context_tokens)
