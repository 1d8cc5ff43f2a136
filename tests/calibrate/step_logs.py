"""Logs of steps with a known law."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from hisearch.calibrate.step_fit import COEFFICIENTS, StepLaw, _matrix, _sums
from hisearch.calibrate.step_log import StepLog
from hisearch.latency.costs import StepCosts
from hisearch.latency.step_cost import step_seconds

Step = tuple[list[tuple[int, int]], list[int]]


def drawn_steps(count: int, seed: int = 0) -> list[Step]:
    """(chunks as (new, cached), decodes by the tokens before the new one): one step in six with prompts."""
    rng = np.random.default_rng(seed)
    steps: list[Step] = []
    for k in range(count):
        running = int(rng.integers(1, 65))
        decodes = [int(x) for x in rng.integers(100, 4000, running)]
        chunks = [(int(rng.integers(16, 1500)), int(rng.integers(0, 3000))) for _ in range(int(rng.integers(1, 4)))]
        steps.append((chunks, []) if k % 12 == 0 else (chunks, decodes) if k % 12 == 6 else ([], decodes))
    return steps


def timed(costs: StepCosts, steps: list[Step]) -> np.ndarray:
    """Seconds of each step."""
    return np.array([step_seconds(costs, chunks, [tokens + 1 for tokens in decodes]) for chunks, decodes in steps])


def log_of(steps: list[Step], latency_s: np.ndarray) -> StepLog:
    """The log of one worker."""
    rows = [
        (number, new, cached, decode)
        for number, (chunks, decodes) in enumerate(steps)
        for new, cached, decode in [*((*chunk, False) for chunk in chunks), *((1, tokens, True) for tokens in decodes)]
    ]
    step, new, cached, decode = (np.array(column) for column in zip(*rows, strict=True))
    return StepLog(latency_s, np.zeros(len(steps), np.int64), step, new, cached, decode)


def law_seconds(law: StepLaw, log: StepLog) -> np.ndarray:
    """What a fitted law says of each step."""
    coefficients = [law.coefficients[name] for name in COEFFICIENTS]
    return _matrix(_sums(log), np.array(law.tokens, dtype=np.float64)) @ [*coefficients, *np.diff(law.token_s)]


def write_jsonl(path: Path, steps: list[Step], latency_s: np.ndarray) -> Path:
    with path.open("w") as file:
        for (chunks, decodes), seconds in zip(steps, latency_s, strict=True):
            shares = [*chunks, *((1, tokens) for tokens in decodes)]
            requests = [{"new_tokens": new, "cached_tokens": cached} for new, cached in shares]
            file.write(json.dumps({"latency_s": float(seconds), "requests": requests}) + "\n")
    return path


def write_csv(path: Path, steps: list[Step], latency_s: np.ndarray) -> Path:
    lines = ["step,latency_s,new_tokens,cached_tokens,kind"]
    for number, ((chunks, decodes), seconds) in enumerate(zip(steps, latency_s, strict=True)):
        lines += [f"{number},{float(seconds)!r},{new},{cached},prefill" for new, cached in chunks]
        lines += [f"{number},{float(seconds)!r},1,{cached},decode" for cached in decodes]
    path.write_text("\n".join(lines) + "\n")
    return path
