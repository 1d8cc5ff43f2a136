"""Settings of a TensorRT-LLM worker, and its state of a request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hisearch.specs.deployments.engine_rules import rules_of
from tests.reference.restatement.recording import Request
from tests.reference.restatement.transfers import CopyLaw

#: A copy that takes no time.
AT_ONCE = CopyLaw(0.0, 0.0)


@dataclass(frozen=True)
class TrtllmConfig:
    """Executor settings, by TensorRT-LLM's names where it has one.

    Attributes:
        max_batch_size: most active requests.
        max_num_tokens: tokens per step.
        num_blocks: pool size.
        tokens_per_block: tokens per block.
        policy: ``capacity_scheduler_policy``.
        chunking_policy: ``context_chunking_policy``.
        waiting_queue_policy: which queued requests become active first.
        batch_wait_timeout_ms: every pass waits for ``max_batch_size`` new requests.
        batch_wait_timeout_iters, batch_wait_max_tokens_ratio: contexts wait for a larger batch.
        enable_balance, timeout_iters, batching_wait_iters: of ``attention_dp_config``, see ``trtllm_lockstep``.
        enable_block_reuse: reuse the blocks of shared prefixes.
        enable_chunked_prefill: False: a prompt is never cut by the budget.
        overlap_scheduler: a batch is formed while the one before it runs.
        host_blocks: blocks of the host cache, ``kv_cache_config.host_cache_size``.
        to_host, to_device: time to copy one block there and back.
        rules: the dated rules that hold (``hisearch.base.engine_rules``).
    """

    max_batch_size: int
    max_num_tokens: int
    num_blocks: int
    tokens_per_block: int = 32
    policy: Literal["guaranteed_no_evict", "max_utilization", "static_batch"] = "guaranteed_no_evict"
    chunking_policy: Literal["first_come_first_served", "equal_progress"] = "first_come_first_served"
    waiting_queue_policy: Literal["fcfs", "priority"] = "fcfs"
    batch_wait_timeout_ms: float = 0.0
    batch_wait_timeout_iters: int = 0
    batch_wait_max_tokens_ratio: float = 0.0
    enable_balance: bool = False
    timeout_iters: int = 50
    batching_wait_iters: int = 10
    enable_block_reuse: bool = True
    enable_chunked_prefill: bool = True
    overlap_scheduler: bool = True
    host_blocks: int = 0
    to_host: CopyLaw = AT_ONCE
    to_device: CopyLaw = AT_ONCE
    rules: frozenset[str] = field(default_factory=lambda: rules_of("trtllm"))

    def urgency(self, request: Request) -> int:
        """The lowest of what waits becomes active first, of equals the one that came first."""
        return request.priority if self.waiting_queue_policy == "priority" else 0


@dataclass(eq=False)
class LiveRequest:
    """A request that the engine has and has not finished.

    Attributes:
        number: position in order of arrival.
        started: it holds blocks.
        prompt_tokens: tokens that its context computes: the prompt, after a pause all known tokens.
        computed: tokens that have their KV, or will have it once the outstanding batches have run.
        blocks: held blocks, first to last; the first ``stored`` of them are in the reuse tree.
    """

    request: Request
    number: int
    started: bool = False
    prompt_tokens: int = 0
    generated: int = 0
    computed: int = 0
    in_flight: int = 0
    blocks: list[int] = field(default_factory=list)
    stored: int = 0

    @property
    def known(self) -> int:
        return self.request.input_tokens + self.generated

    @property
    def declared(self) -> int:
        """Prompt and declared output: all that the engine may know of its length."""
        return self.request.input_tokens + self.request.max_output_tokens

    @property
    def is_context(self) -> bool:
        """Its prompt is not all computed."""
        return self.computed < self.prompt_tokens

    @property
    def waits_for_last_token(self) -> bool:
        """Its last output token is being made: nothing is left to schedule."""
        return self.in_flight > 0 and self.generated + self.in_flight >= self.request.output_tokens
