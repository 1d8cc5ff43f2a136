"""Grammars for vLLM: the engine's own manager of structured output, whose compilations take time alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from hisearch.record.grammars import CompileThreads, draw_structured
from hisearch.record.vllm_random import random_case
from hisearch.record.workload import Row

_BACKEND = "xgrammar"


def structured_parameters(grammar: int | None) -> Any:
    """What a request with a grammar asks for; None for free text."""
    if grammar is None:
        return None
    from vllm.sampling_params import StructuredOutputsParams

    parameters = StructuredOutputsParams(json=str(grammar))
    parameters._backend = _BACKEND
    return parameters


class _Backend:
    """A compiler of grammars that accept all tokens; time passes in ``CompileThreads``."""

    def compile_grammar(self, kind: Any, text: str, **others: Any) -> _Backend:
        return self

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        return True


class Grammars:
    """A scheduler's grammars.

    Attributes:
        threads: that compile.
    """

    def __init__(self, laws: dict[str, Any], manager: Any, clock: Callable[[], float]) -> None:
        self._sequence_s, self._manager = laws["sequence_s"], manager
        self.threads = CompileThreads(laws, lambda request: int(request.structured_output_request.params.json), clock)
        manager.executor, manager.backend, manager.backend_name = self.threads, _Backend(), _BACKEND

    def begin(self, request: Any, arrival_s: float) -> None:
        """Begin to compile the grammar of a request that has come; the engine does so beside its scheduler."""
        self.threads.now_s = arrival_s
        if request.use_structured_output:
            self._manager.grammar_init(request)

    def host_s(self, requests: list[Any]) -> float:
        """Seconds that the host takes for the grammars of a step."""
        masked = [each for each in requests if each.use_structured_output and not each.is_prefill_chunk]
        return float(len(masked) * self._sequence_s)


def random_grammar_case(rng: random.Random) -> tuple[dict[str, Any], list[Row], int]:
    """Draw a case with grammars, most of them new to the engine."""
    settings, rows, block = random_case(rng)
    settings["structured"] = draw_structured(rng, rows)
    return settings, rows, block
