"""Grammars of structured output in recordings: a row's ``grammar`` is a number from 1 on; rows without one are free.

``config.structured`` has laws: seconds that each grammar takes to compile (``compile_s``, that of grammar 1 first), and
the threads that compile. The host takes ``sequence_s`` in a step for each of its sequences with a grammar, vLLM's for
each that it samples. A step takes the longer of that and of the law of all steps.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from hisearch.record.cases import CaseError
from hisearch.record.workload import Row

#: Keys of ``config.structured``, with their defaults; None: required.
KEYS: dict[str, Any] = {"compile_s": None, "threads": None, "sequence_s": 0.0}


def checked_structured(given: dict[str, Any], rows: list[Row]) -> dict[str, Any]:
    """``config.structured`` with defaults filled in.

    Raises:
        CaseError: an unknown key, one missing, or a row's grammar that has no time.
    """
    for key in given:
        if key not in KEYS:
            raise CaseError(f"structured: {key}: unknown key; expected one of {', '.join(KEYS)}")
    laws = {**KEYS, **given}
    for key, value in laws.items():
        if value is None:
            raise CaseError(f"structured: {key}: missing")
    grammars = len(laws["compile_s"])
    for row in rows:
        if not 1 <= row.get("grammar", 1) <= grammars:
            raise CaseError(
                f"request {row['id']}: grammar {row['grammar']}: structured.compile_s has {grammars} entries"
            )
    return laws


class _Compilation(Future):  # type: ignore[type-arg]
    """A grammar that is there from ``ready_s`` on."""

    def __init__(self, ready_s: float, clock: Callable[[], float], make: Callable[[], Any]) -> None:
        super().__init__()
        self.ready_s, self._clock, self._make = ready_s, clock, make

    def done(self) -> bool:
        """Whether it is there by now."""
        return self._clock() >= self.ready_s

    def result(self, timeout: float | None = None) -> Any:
        """The grammar, for which nobody waits.

        Raises:
            TimeoutError: it is not there.
        """
        if not self.done():
            raise TimeoutError
        return self._make()


class CompileThreads:
    """Stands in for the engine's thread pool: compilations in their order, each by the first thread that is free.

    The compiler keeps what it has compiled: the same grammar again is there as soon as it is there for the first.

    Attributes:
        now_s: when the next compilation is asked for.
    """

    def __init__(self, laws: dict[str, Any], number: Callable[..., int], clock: Callable[[], float]) -> None:
        self.now_s = 0.0
        self._laws, self._number, self._clock = laws, number, clock
        self._free_s = [0.0] * laws["threads"]
        self._compiled: dict[int, float] = {}
        self._pending: list[float] = []

    def submit(self, make: Callable[..., Any], *arguments: Any) -> _Compilation:
        """Compile the grammar that the arguments name."""
        grammar = self._number(*arguments)
        thread = self._free_s.index(min(self._free_s))
        start_s = max(self.now_s, self._free_s[thread])
        if grammar not in self._compiled:
            self._compiled[grammar] = start_s + self._laws["compile_s"][grammar - 1]
        end_s = self._free_s[thread] = max(start_s, self._compiled[grammar])
        self._pending.append(end_s)
        return _Compilation(end_s, self._clock, lambda: make(*arguments))

    def next_s(self, now_s: float) -> float | None:
        """When the next compilation ends after ``now_s``."""
        self._pending = [end_s for end_s in self._pending if end_s > now_s]
        return min(self._pending, default=None)


def draw_structured(rng: random.Random, rows: list[Row]) -> dict[str, Any]:
    """Give rows grammars, in place, some none; returns ``config.structured``."""
    count = rng.choice((1, 2, 5, 12, 40, 400))
    share = rng.choice((0.1, 0.5, 0.9, 1.0))
    slowest_s = rng.choice((0.0005, 0.005, 0.03, 0.2, 1.0))
    for row in rows:
        row.pop("grammar", None)
        if rng.random() < share:
            row["grammar"] = rng.randint(1, count)
    if not any("grammar" in row for row in rows):
        rows[0]["grammar"] = 1
    return {
        "compile_s": [round(rng.choice((0.0, 0.1, 0.5, 1.0)) * slowest_s * rng.random(), 6) for _ in range(count)],
        "threads": rng.choice((1, 1, 2, 8)), "sequence_s": rng.choice((0.0, 3e-5, 1e-3)),
    }  # fmt: skip
