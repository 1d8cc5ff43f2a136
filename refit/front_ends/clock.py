"""A scheduler that makes tokens by the clock."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

#: Tokens that prompts and answers are drawn from.
TOKENS = range(1000, 100_000)
#: A step computes at most so many prompts, each in so many seconds.
MOST_PROMPTS, PROMPT_S = 16, 2e-3
#: Environment of the server: seconds of a decode step, and the file that ``Clock`` writes.
STEP_S, LOG = "STEP_S", "SCHEDULER_LOG"


@dataclass
class Job:
    """A request: its name, how many tokens it is to make, and when the scheduler got it."""

    name: str
    tokens: int
    at_s: float
    first_s: float = 0.0
    made: int = 0

    @property
    def ended(self) -> bool:
        """Whether it has made all its tokens."""
        return self.made >= self.tokens


class Clock:
    """Prompts first; else a token for every request each step.

    Writes a line of JSON for each request: its name, when it came, when it had its first token, and its last.
    """

    def __init__(self) -> None:
        self._step_s = float(os.environ[STEP_S])
        self._log = Path(os.environ[LOG]).open("w", encoding="utf-8")  # noqa: SIM115  Open until the server is killed.
        self._waiting: list[Job] = []
        self._running: list[Job] = []
        self._ends_s = time.time()
        self._draw = random.Random(1)

    def add(self, job: Job) -> None:
        """Let ``job`` wait for its prompt."""
        self._waiting.append(job)

    def drop(self, names: Container[str]) -> None:
        """Forget jobs whose clients have left."""
        self._waiting = [job for job in self._waiting if job.name not in names]
        self._running = [job for job in self._running if job.name not in names]

    def token(self) -> int:
        """Any token."""
        return self._draw.choice(TOKENS)

    def step(self) -> list[Job]:
        """Wait for the end of the next step; the jobs that made a token in it."""
        prompts, self._waiting = self._waiting[:MOST_PROMPTS], self._waiting[MOST_PROMPTS:]
        takes_s = PROMPT_S * len(prompts) if prompts else self._step_s
        self._running += prompts
        self._ends_s = max(self._ends_s, time.time() - 2e-3) + takes_s
        while (left_s := self._ends_s - time.time()) > 0:
            time.sleep(min(left_s, 1e-3))
        made, now = prompts or self._running, time.time()
        for job in made:
            job.made += 1
            job.first_s = job.first_s or now
            if job.ended:
                self._log.write(json.dumps([job.name, job.at_s, job.first_s, now]) + "\n")
        self._log.flush()
        self._running = [job for job in self._running if not job.ended]
        return made
