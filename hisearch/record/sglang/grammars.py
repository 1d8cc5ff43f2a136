"""Grammars for SGLang's scheduler: the engine's own manager and cache of grammars, whose compilations take time alone.

A pass that polls compilations takes as long as the engine sleeps between two looks at them, and no longer.
"""

# mypy: allow-untyped-defs, no-warn-unused-ignores, disable-error-code="has-type,var-annotated,func-returns-value"

from __future__ import annotations

import random
from typing import Any

from hisearch.record.cases import CaseError, EngineError
from hisearch.record.grammars import CompileThreads, checked_structured, draw_structured
from hisearch.record.sglang.random_cases import draw_case
from hisearch.record.sglang.timeline import Timeline
from hisearch.record.workload import Row


def check_grammars(config: dict[str, Any], requests: list[Row]) -> None:
    """Refuse what is not recorded.

    Raises:
        EngineError: names the setting.
    """
    if any("grammar" in row for row in requests) != bool(config.get("structured")):
        raise EngineError("structured: expected with requests that name a grammar, and with them alone")
    if not config.get("structured"):
        return
    try:
        checked_structured(config["structured"], requests)
    except CaseError as error:
        raise EngineError(str(error)) from None
    for key in (
        "hicache", "speculation", "lora", "sliding_window_size", "max_mamba_cache_size", "enable_priority_scheduling",
    ):  # fmt: skip
        if config.get(key):
            raise EngineError(f"structured beside {key} is not recorded")
    for key in ("scheduler_recv_interval", "dcp_size"):
        if config.get(key, 1) > 1:
            raise EngineError(f"structured beside {key} is not recorded")


def schema_of(grammar: int | None) -> str | None:
    """The engine's key of a grammar."""
    return None if grammar is None else str(grammar)


class _PassClock:
    """Stands in for the module ``time`` of the engine's manager: seconds since the pass began to poll, in whole sleeps.

    Sums of seconds would be off by roundings, of which the number of looks must not depend.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._begin_s, self._sleeps, self._sleep_s = 0.0, 0, 0.0

    def begin(self) -> None:
        """A pass begins to poll."""
        self._begin_s, self._sleeps = self._timeline.clock, 0

    def perf_counter(self) -> float:
        """Seconds since then."""
        return self._sleeps * self._sleep_s

    def sleep(self, seconds: float) -> None:
        """The scheduler waits."""
        self._sleep_s = seconds
        self._sleeps += 1
        self._timeline.clock = self._begin_s + self._sleeps * seconds


class _Grammar:
    """A grammar that accepts all tokens."""

    def copy(self) -> _Grammar:
        return self

    def maybe_init_reasoning(self, reasoning: bool) -> None:
        pass

    def accept_token(self, token: int) -> None:
        pass

    def is_terminated(self) -> bool:
        return False


class Grammars:
    """A scheduler's grammars.

    Attributes:
        manager: the engine's ``GrammarManager``.
        entering: requests whose grammars the pass found ready, by id, until they are in the queue.
    """

    def __init__(self, laws: dict[str, Any], scheduler: Any, timeline: Timeline) -> None:
        from sglang.srt.constrained import base_grammar_backend, grammar_manager

        grammars = self
        self.entering: set[Any] = set()
        self._sequence_s = checked_structured(laws, [])["sequence_s"]
        self._threads = CompileThreads(laws, lambda key, reasoning: int(key[1]), lambda: timeline.clock)
        self._timeline = timeline
        clock = grammar_manager.time = _PassClock(timeline)

        class Backend(base_grammar_backend.BaseGrammarBackend):  # type: ignore[misc]
            """The engine's cache of grammars."""

            def __init__(self) -> None:
                self.executor, self.cache = grammars._threads, {}

            def _init_value_dispatch(self, key: Any, require_reasoning: bool) -> Any:
                return _Grammar()

        class Manager(grammar_manager.GrammarManager):  # type: ignore[misc]
            """The engine's, on one rank."""

            def __init__(self) -> None:
                self.scheduler, self.grammar_queue = scheduler, []
                self.grammar_backend, self._enable_strict_thinking = Backend(), False
                self.grammar_sync_size, self.pp_rank, self.pp_size, self.pp_group = 1, 0, 1, None
                self.SGLANG_GRAMMAR_POLL_INTERVAL = grammar_manager.envs.SGLANG_GRAMMAR_POLL_INTERVAL.get()
                self.SGLANG_GRAMMAR_MAX_POLL_ITERATIONS = grammar_manager.envs.SGLANG_GRAMMAR_MAX_POLL_ITERATIONS.get()

            def get_ready_grammar_requests(self) -> list[Any]:
                clock.begin()
                ready = super().get_ready_grammar_requests()
                grammars.entering = {request.rid for request in ready}
                return list(ready)

        self.manager = Manager()

    @property
    def waiting(self) -> bool:
        """Whether requests wait for their grammars."""
        return len(self.manager.grammar_queue) > 0

    def queues(self, request: Any) -> bool:
        """Whether a request that has come waits for its grammar."""
        self._threads.now_s = self._timeline.clock
        return bool(self.manager.process_req_with_grammar(request))

    def host_s(self, batch: Any) -> float:
        """Seconds that the host takes for the grammars of a step."""
        return float(sum(request.grammar is not None for request in batch.reqs) * self._sequence_s)


def random_grammar_case(rng: random.Random, version: str) -> tuple[dict[str, Any], list[Row], int]:
    """Draw a case with grammars, most of them new to the engine."""
    config, rows, block = draw_case(rng, version)
    for key in ("hicache", "enable_priority_scheduling", "schedule_low_priority_values_first"):
        config.pop(key, None)
    config.pop("priority_scheduling_preemption_threshold", None)
    config.pop("scheduler_recv_interval", None)
    if config["radix_eviction_policy"] == "priority":
        config["radix_eviction_policy"] = "lru"
    for row in rows:
        row.pop("priority", None)
    config["structured"] = draw_structured(rng, rows)
    return config, rows, block
