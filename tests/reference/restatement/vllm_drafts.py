"""vLLM's scheduler with drafted tokens, restated in its own terms, by the rules of any modelled release.

``LiveRequest.computed`` counts drafts in flight as accepted, and ``LiveRequest.in_flight`` is vLLM's
``num_output_placeholders``: tokens that outstanding steps make at most. Results take back what was rejected. Source:
``v1/core/sched/scheduler.py``, ``v1/core/sched/async_scheduler.py``, ``v1/core/kv_cache_manager.py`` and
``v1/core/single_type_kv_cache_manager.py`` of the modelled releases, and recordings of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hisearch.record.drafts import unit_at
from hisearch.specs.deployments.engine_rules import rules_of
from tests.reference.restatement.recording import BatchEntry, Request, Step
from tests.reference.restatement.vllm import GROUP_SETTINGS, VllmConfig, VllmWorker
from tests.reference.restatement.vllm_state import LiveRequest

#: ``(chunks (new, cached), tokens that each decode reads, sequences that sample, drafts checked) -> seconds``.
DraftCost = Callable[[list[tuple[int, int]], list[int], int, int], float]


@dataclass(frozen=True)
class DraftsConfig(VllmConfig):
    """Settings, and the drafts.

    Attributes:
        draft_tokens: drafted for each request in a step.
        drafter_has_kv: EAGLE's or MTP's: slots are taken for its tokens, and hits lose their last block.
        accepted: probability that the first 1, 2, … drafts are all accepted.
        seed: of the draws.
        max_model_len: longest request, tokens.
    """

    draft_tokens: int = 1
    drafter_has_kv: bool = True
    accepted: tuple[float, ...] = (0.5,)
    seed: int = 0
    max_model_len: int = 65536

    @classmethod
    def from_recording(cls, config: dict[str, Any], version: str = "") -> DraftsConfig:
        """As ``VllmConfig.from_recording``."""
        others = ("offload", "speculation", *GROUP_SETTINGS)
        settings = {key: value for key, value in config.items() if key not in others}
        drafts = config["speculation"]
        return cls(
            **settings, draft_tokens=drafts["draft_tokens"], drafter_has_kv=drafts["method"] == "eagle",
            accepted=tuple(drafts["accepted"]), seed=drafts["seed"], rules=rules_of("vllm", version),
        )  # fmt: skip


@dataclass
class _Made:
    """What a step does for a request: drafts that it rejects, and tokens that it makes."""

    rejected: int
    tokens: int


class DraftsWorker(VllmWorker):
    """One engine with drafted tokens; ``places``: of the requests, by id, by which draws are made."""

    config: DraftsConfig

    def __init__(self, config: DraftsConfig, cost: DraftCost, places: dict[Any, int]) -> None:
        super().__init__(config, lambda _chunks, _decodes, _sampling: 0.0)
        self._draft_cost = cost
        self._places = places
        self._drafts: dict[LiveRequest, int] = {}
        self._lookahead = 0
        self._mixed_with_decodes = self._mixed_with_prompts = False
        #: By request: tokens made by all steps launched, and what each outstanding step does for it.
        self._generated: dict[LiveRequest, int] = {}
        self._made: list[dict[LiveRequest, _Made]] = []

    # ---- forming a batch -------------------------------------------------------------------------------------------

    def _schedule_running(self) -> None:
        self._lookahead = self.config.draft_tokens if self.config.drafter_has_kv else 0
        super()._schedule_running()

    def _share(self, live: LiveRequest) -> int:
        if live.in_flight > 0 and live.generated + 1 >= live.request.max_output_tokens:
            return 0
        wanted = live.known + self._drafts.get(live, 0) + live.in_flight - live.computed
        return max(min(self._cut(wanted), self._budget, self.config.max_model_len - 1 - live.computed), 0)

    def _blocks_missing(self, live: LiveRequest, share: int) -> int:
        slots = min(live.computed + share + self._lookahead, self.config.max_model_len)
        return max(-(-slots // self.config.block_size) - len(live.blocks), 0)

    def _lookup(self, live: LiveRequest) -> list[int]:
        hits = super()._lookup(live)
        return hits[:-1] if self.config.drafter_has_kv and not self._hashes_ahead else hits

    @property
    def _hashes_ahead(self) -> bool:
        return self.config.drafter_has_kv and "hashes_ahead" in self.config.rules

    def _page(self, live: LiveRequest, index: int) -> Any:
        own = super()._page(live, index)
        if not self._hashes_ahead:
            return own
        return own, live.request.content.token((index + 1) * self.config.block_size)

    def _publish(self, live: LiveRequest, tokens: int) -> None:
        super()._publish(live, min(tokens, live.known - 1) if self._hashes_ahead else tokens)

    def _start(self, live: LiveRequest, hits: list[int], loaded: int, now: float) -> bool:
        at_once = "looks_ahead_at_once" in self.config.rules and self.config.drafter_has_kv
        self._lookahead = self.config.draft_tokens if at_once else 0
        return super()._start(live, hits, loaded, now)

    def _admit(self, now: float) -> None:
        running = list(self._shares)
        self._mixed_with_decodes = bool(running)
        self._mixed_with_prompts = any(not self._drafts.get(live) for live in running)
        super()._admit(now)

    def _wanted_at_first(self, live: LiveRequest, cached: int) -> int | None:
        padded = 1 + self.config.draft_tokens
        alone = not self._mixed_with_decodes and cached == 0
        if (
            "pads_new_decodes" not in self.config.rules or live.known - cached != 1 or self._mixed_with_prompts or alone
            or cached + padded + 1 > self.config.max_model_len
        ):  # fmt: skip
            return live.known - cached
        return padded if padded <= self._budget else None

    def _fits(self, live: LiveRequest, hits: list[int], tokens: int) -> bool:
        return super()._fits(live, hits, min(tokens + self._lookahead, self.config.max_model_len))

    def _fits_whole(self, live: LiveRequest, hits: list[int]) -> bool:
        return super()._fits(live, hits, live.known)

    # ---- a step and its results ------------------------------------------------------------------------------------

    def _entry(self, live: LiveRequest, share: int) -> BatchEntry:
        known_tokens = live.known + live.in_flight
        samples = live.computed + share >= known_tokens
        decode = (
            samples and live.computed == known_tokens - 1 and (share > 1 or known_tokens > live.request.input_tokens)
        )
        return BatchEntry(live.request.id, live.computed, share, decode, samples)

    def _launch(self, now: float) -> Step:
        self._made.append({})
        return super()._launch(now)

    def _price(self, batch: list[BatchEntry]) -> float:
        chunks, decodes, drafted = [], [], 0
        for live, entry in zip(self._shares, batch, strict=True):
            if not entry.decode:
                chunks.append((entry.new, entry.computed))
                continue
            # Drafts in flight that will have been rejected are not read.
            computed = entry.computed - sum(made[live].rejected for made in self._made[:-1] if live in made)
            decodes.append(computed + entry.new)
            drafted += entry.new - 1
        return self._draft_cost(chunks, decodes, sum(entry.samples for entry in batch), drafted)

    def _advance(self, sampled: list[LiveRequest]) -> None:
        for live, share in self._shares.items():
            offered = live.computed + share - (live.known + live.in_flight) if live in sampled else 0
            padded = not self._drafts.get(live)
            live.computed += share
            self._drafts[live] = 0
            if live in sampled:
                generated = self._generated.setdefault(live, 0)
                accepted = 0 if padded else self._accepted(live, generated, offered)
                made = min(accepted + 1, live.request.output_tokens - generated)
                self._generated[live] = generated + made
                self._made[-1][live] = _Made(offered - accepted, made)
                live.in_flight += 1 + offered
                self._drafts[live] = self.config.draft_tokens

    def _accepted(self, live: LiveRequest, generated: int, offered: int) -> int:
        unit = unit_at(self.config.seed, self._places[live.request.id], generated)
        return sum(unit < self.config.accepted[place] for place in range(offered))

    def process(self) -> list[Request]:
        """Take in the results of the oldest outstanding batch, at its end; returns the requests that finished."""
        done, made = self.outstanding.pop(0), self._made.pop(0)
        finished = []
        for live in done.live:
            if live.request.id in self.finish_s or live not in made:
                continue
            result = made[live]
            if live.computed > 0:
                live.computed -= result.rejected
            live.in_flight -= result.rejected
            if live.generated == 0:
                self.first_token_s[live.request.id] = done.step.end_s
            self.token_s[live.request.id] += [done.step.end_s] * result.tokens
            live.generated += result.tokens
            live.in_flight -= result.tokens
            if live in self.running and "publishes_accepted" in self.config.rules:
                scheduled = [entry for later in self.outstanding for entry in later.step.batch]
                unknown = sum(entry.new for entry in scheduled if entry.id == live.request.id)
                # What is trimmed behind an output's end does not count as computed either.
                self._publish(live, min(live.computed - unknown, live.known - 1))
            elif live in self.running and self.config.async_scheduling:
                self._publish(live, live.computed - live.in_flight)
            if live.generated == live.request.output_tokens:
                self._finish(live, done.step.end_s)
                finished.append(live.request)
        return finished

    def _preempt(self, victim: LiveRequest) -> None:
        super()._preempt(victim)
        self._drafts[victim] = 0
