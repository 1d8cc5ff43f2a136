"""The front end's constants, from requests timed by their client and by the engine itself.

Notation
    L          mean prompt tokens of an experiment; n requests sent at once
    y_first    mean TTFT of the client, less the engine's mean seconds until its first token (queue and prefill)
    y_last     mean E2E of the client, less the engine's mean seconds until its last token
    request_s, read_s, prompt_token_s, stream_s    as in ``simulate.front_end``

    y_first = request_s + prompt_token_s * L + (n - 1) / 2 * (read_s + prompt_token_s * L) + stream_s * (1 + m / 2)
    y_last  = the same with as many tokens beside the last one

A burst is read one request after another, so that request i waits for i others; (n - 1) / 2 is the mean. A token waits
for half of the others in its step: ``m`` are n - 1 at the end, where all end together, and half as many at first, where
they come one after another.

Every constant stays within its physical range (``specs.machines.host.RANGES``). The sum of absolute errors is least, by
reweighted least squares: a pause of the machine during one experiment does not bend the law. The error stated is of
experiments left out of the fit, each in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.specs.machines.host import RANGES, FrontEndTimes

#: Fewest experiments.
LEAST = 6
_ROUNDS, _LEAST_ERROR_S = 30, 1e-5
_NAMES = ("request_s", "read_s", "prompt_token_s", "stream_s")


class FrontEndSample(NamedTuple):
    """An experiment: requests sent at once, mean tokens of their prompts, seconds beside the engine's."""

    requests: int
    prompt_tokens: float
    first_s: float
    last_s: float


class FrontEndFit(NamedTuple):
    """Constants, and the median absolute error of ``first_s`` left out, seconds."""

    times: FrontEndTimes
    error_s: float


def fit_front_end(samples: Sequence[FrontEndSample]) -> FrontEndFit:
    """Fit the law.

    Raises:
        ValueError: too few samples.
    """
    if len(samples) < LEAST:
        raise ValueError(f"{len(samples)} experiments are too few for the front end: at least {LEAST} are needed")
    matrix, seconds = _matrix(samples), _seconds(samples)
    left_out = []
    for index in range(len(samples)):
        rows = np.ones(len(seconds), dtype=bool)
        rows[[index, index + len(samples)]] = False
        theta = _solve(matrix[rows], seconds[rows])
        left_out.append(abs(float(matrix[index] @ theta - seconds[index])))
    request_s, read_s, prompt_token_s, stream_s = (float(f"{value:.4g}") for value in _solve(matrix, seconds))
    times = FrontEndTimes(
        request_s=request_s, read_s=min(read_s, request_s), prompt_token_s=prompt_token_s, stream_s=stream_s
    )
    return FrontEndFit(times, float(np.median(left_out)))


def _matrix(samples: Sequence[FrontEndSample]) -> F8:
    """Factors of the four constants: first all ``first_s``, then all ``last_s``."""
    count = np.array([sample.requests for sample in samples], dtype=np.float64)
    tokens = np.array([sample.prompt_tokens for sample in samples])
    waiting, beside = (count - 1.0) / 2.0, count - 1.0
    first = [np.ones_like(count), waiting, tokens * (1.0 + waiting), 1.0 + beside / 4.0]
    last = [*first[:3], 1.0 + beside / 2.0]
    return np.vstack([np.stack(first, axis=-1), np.stack(last, axis=-1)])


def _seconds(samples: Sequence[FrontEndSample]) -> F8:
    return np.array([sample.first_s for sample in samples] + [sample.last_s for sample in samples])


def _solve(matrix: F8, seconds: F8) -> F8:
    """Constants within their ranges with the least sum of absolute errors."""
    from scipy.optimize import lsq_linear

    low, high = np.array([(RANGES[name].low, RANGES[name].high) for name in _NAMES]).T
    weights = np.ones(len(seconds))
    solution = np.zeros(matrix.shape[1])
    for _ in range(_ROUNDS):
        scaled = matrix * high * weights[:, None]
        solution = lsq_linear(scaled, seconds * weights, (low / high, np.ones(len(high)))).x * high
        weights = 1.0 / np.sqrt(np.maximum(np.abs(matrix @ solution - seconds), _LEAST_ERROR_S))
    return np.asarray(solution)
