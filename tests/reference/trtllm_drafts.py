"""TensorRT-LLM's scheduler with drafted tokens (PyTorch backend), restated in its own terms.

The KV manager counts the tokens of each sequence (``kv_tokens``): a prompt's, ``num_extra_kv_tokens`` behind it, and
1 + ``py_draft_tokens`` for each step. When results are processed, ``rewind_kv_cache`` takes rejected drafts off again.

Sources: ``_torch/pyexecutor/resource_manager.py`` (``prepare_resources``, ``update_resources``),
``_torch/pyexecutor/py_executor.py`` (``_executor_loop_overlap``, ``_update_request_states_tp``, ``_handle_responses``),
``_torch/speculative/spec_sampler_base.py`` (``sample_async``, ``update_requests``), ``_torch/speculative/utils.py``
(``get_num_extra_kv_tokens``), ``cpp/tensorrt_llm/batch_manager/microBatchScheduler.cpp`` (``operator()``) and
``kvCacheManager.cpp`` (``getRemainingBlocksToCompletion``, ``releaseLastBlock``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hisearch.record.drafts import unit_at
from tests.reference.restatement.recording import BatchEntry, Request, Step
from tests.reference.restatement.sglang_cache import OutOfMemoryError

from .trtllm import Share, TrtllmWorker
from .trtllm_state import LiveRequest, TrtllmConfig

#: ``(chunks (new, cached), tokens that each decode reads, sequences that sample, drafts checked) -> seconds``.
DraftCost = Callable[[list[tuple[int, int]], list[int], int, int], float]


@dataclass(frozen=True)
class DraftsConfig(TrtllmConfig):
    """Settings, and the drafts.

    Attributes:
        draft_tokens: ``max_draft_len``.
        extra_kv_tokens: ``num_extra_kv_tokens``.
        accepted: probability that the first 1, 2, … drafts are all accepted.
        draft_seed: of the draws.
    """

    draft_tokens: int = 1
    extra_kv_tokens: int = 0
    accepted: tuple[float, ...] = (0.5,)
    draft_seed: int = 0

    @property
    def step_tokens(self) -> int:
        """Tokens that a decode computes."""
        return 1 + self.draft_tokens


@dataclass
class _Outstanding:
    """A step on the device: its contexts, its decodes, and tokens that it makes, drafts behind an end too."""

    step: Step
    contexts: list[LiveRequest]
    generations: list[LiveRequest]
    made: dict[LiveRequest, int]


class DraftsWorker(TrtllmWorker):
    """One engine with drafted tokens; ``places``: of the requests, by id, by which draws are made.

    Attributes:
        priced: arguments of ``cost`` of every step.
    """

    config: DraftsConfig
    outstanding: list[_Outstanding]  # type: ignore[assignment]

    def __init__(self, config: DraftsConfig, cost: DraftCost, places: dict[Any, int]) -> None:
        super().__init__(config, lambda _chunks, _decodes, _sampling: 0.0)
        self._draft_cost = cost
        self._places = places
        self.priced: list[tuple[list[tuple[int, int]], list[int], int, int]] = []
        self.kv_tokens: dict[LiveRequest, int] = {}
        #: Output tokens by all launched steps; requests whose ``py_draft_tokens`` the C++ scheduler has been told.
        self._drawn: dict[LiveRequest, int] = {}
        self._told: set[LiveRequest] = set()
        self._generation_tokens = 0

    def rejection(self, request: Request) -> str | None:
        """As of ``TrtllmWorker``; nor may the drafts of a request's last step exceed the pool."""
        steps = 2 if self.config.overlap_scheduler else 1
        last = request.input_tokens + request.max_output_tokens - 2 + self.config.extra_kv_tokens
        if self._blocks(last + steps * self.config.step_tokens) > self.config.num_blocks:
            return f"drafts behind {last} tokens exceed the pool's {self.config.num_blocks} blocks"
        return super().rejection(request)

    # ---- forming the batch ------------------------------------------------------------------------------------------

    def choose(self) -> tuple[list[Share], list[LiveRequest]]:
        """As of ``TrtllmWorker``: the first decode that exceeds the budget ends the micro-batch scheduler's pass."""
        contexts = self._fitting_contexts()
        generations: list[LiveRequest] = []
        self._generation_tokens = 0
        for position, live in enumerate(self.active):
            if not self._generates(live):
                continue
            tokens = self.config.step_tokens if live in self._told else 1
            if self._generation_tokens + tokens > self.config.max_num_tokens:
                contexts = [context for context in contexts if context in self.active[:position]]
                break
            self._generation_tokens += tokens
            generations.append(live)
        return self._share_out(contexts, self._generation_tokens), generations

    def _generates(self, live: LiveRequest) -> bool:
        """Not in state GENERATION_TO_COMPLETE: the step in flight makes one token at least."""
        if not live.started or live.is_context:
            return False
        completes = live.in_flight > 0 and live.generated + 1 >= live.request.max_output_tokens
        return not (completes and "ends_by_length" in self.config.rules)

    def _hold_back(self, shares: list[Share], generations: int) -> list[Share]:
        del generations
        return super()._hold_back(shares, self._generation_tokens)

    def _start_contexts(
        self, chosen: list[Share], generations: int, now: float
    ) -> tuple[list[LiveRequest], list[BatchEntry]]:
        del generations
        return super()._start_contexts(chosen, self._generation_tokens, now)

    def _start(self, live: LiveRequest, now: float) -> None:
        super()._start(live, now)
        self._add_tokens(live, live.known + self.config.extra_kv_tokens)

    def _decode(self, live: LiveRequest) -> BatchEntry:
        self._add_tokens(live, self.config.step_tokens)
        computed = live.request.input_tokens + max(live.generated, 1) - 1
        return BatchEntry(live.request.id, computed, self.config.step_tokens, True, True)

    def _add_tokens(self, live: LiveRequest, tokens: int) -> None:
        self.kv_tokens[live] = self.kv_tokens.get(live, 0) + tokens
        self._allocate(live, self.kv_tokens[live])

    def _allocate(self, live: LiveRequest, tokens: int) -> None:
        if self._blocks(tokens) - len(live.blocks) > len(self.pool.free):
            raise OutOfMemoryError("Can't allocate new blocks. No free blocks left.")
        super()._allocate(live, tokens)

    def _launch(
        self, now: float, batch: list[BatchEntry], contexts: list[LiveRequest], generations: list[LiveRequest]
    ) -> Step:
        chunks = [(entry.new, entry.computed) for entry in batch if not entry.decode]
        # Drafts in flight that will have been rejected are not read.
        reads = [
            live.request.input_tokens + self._drawn[live] - 1 + self.config.step_tokens for live in generations
        ]  # fmt: skip
        drafted = len(generations) * self.config.draft_tokens
        self.priced.append((chunks, reads, sum(entry.samples for entry in batch), drafted))
        start_s = max(now, self.device_free_s)
        self.device_free_s = start_s + self._draft_cost(*self.priced[-1])
        step = Step(start_s, self.device_free_s, now, batch)
        made: dict[LiveRequest, int] = {}
        for live, entry in zip(contexts, batch, strict=False):
            live.computed += entry.new
            if entry.samples:
                made[live] = 1
        for live in generations:
            made[live] = 1 + self._accepted(live, self._drawn[live])
        for live, tokens in made.items():
            live.in_flight += 1
            self._drawn[live] = min(self._drawn.get(live, 0) + tokens, live.request.output_tokens)
        self.outstanding.append(_Outstanding(step, contexts, generations, made))
        return step

    def _accepted(self, live: LiveRequest, generated: int) -> int:
        unit = unit_at(self.config.draft_seed, self._places[live.request.id], generated)
        return sum(unit < share for share in self.config.accepted)

    # ---- results ----------------------------------------------------------------------------------------------------

    def process(self) -> list[Request]:
        """Take in the results of the oldest outstanding step, at its end; returns the requests that finished."""
        done = self.outstanding.pop(0)
        end_s = done.step.end_s
        running = {live for live in done.made if live in self.active}
        for live in running:
            tokens = min(done.made[live], live.request.output_tokens - live.generated)
            live.in_flight -= 1
            live.generated += tokens
            self.first_token_s.setdefault(live.request.id, end_s)
            self.token_s[live.request.id] += [end_s] * tokens
        finished = [live for live in self.active if live.generated == live.request.output_tokens]
        self.respond()
        for live in finished:
            self._release(live, live.known - 1)
            del self.kv_tokens[live]
            self.active.remove(live)
            self.finish_s[live.request.id] = end_s
        for live in done.generations:
            if live in self.active:
                self._rewind(live, self.config.step_tokens - done.made[live])
        self._store_contexts(done.contexts)
        return [live.request for live in finished]

    def respond(self) -> None:
        """Responses tell the scheduler the drafts of all active requests, of the newest step's contexts too."""
        self._told.update(live for live in self.active if live.started and not live.is_context)

    def _rewind(self, live: LiveRequest, tokens: int) -> None:
        """Blocks of rejected drafts alone go to the front of the free queue."""
        self.kv_tokens[live] -= tokens
        while len(live.blocks) > self._blocks(self.kv_tokens[live]):
            block = live.blocks.pop()
            self.pool.release([block])
            self.pool.free.move_to_end(block, last=False)
