"""The front end's constants, from requests timed by their client and by the server itself.

Notation
    L          prompt tokens of a request alone; n requests sent at once; m streams beside a late request
    y_first    seconds until the first token, mean over the requests
    y_last     seconds until the last token, likewise
    request_s, read_s, prompt_token_s, stream_s    as in ``simulate.front_end``
    o          request_s less what passes between the server's stamp of an arrival and its engine, and back

A request alone: client less engine (queue, prefill, decode)

    y = request_s + prompt_token_s * L + stream_s

Several, or a late one beside streams: client less the server's own time from its stamp of the arrival on

    y_first = o + read_s * (n - 1) / 2 + stream_s * (1 + (n - 1) / 4 + m / 2)
    y_last  = o + read_s * (n - 1) / 2 + stream_s * (1 + (n - 1) / 2)

A burst is read one request after another, so that request i waits for i others; (n - 1) / 2 is the mean. A token waits
for half of the others in its step: n - 1 at the end, where all end together, and half as many at first, where they come
one after another. The engine's own seconds do not serve here: a request that comes during a step waits for its end
before the engine counts its queue.

The client belongs to request_s: a benchmark's takes its own time until it has sent a request and noted a token. Where
a benchmark ran on the server (``ClientSample``), its client takes the place of the one that calibrates: request_s grows
by what the benchmark waited beside the server's own time, less o and the streams beside, as above.

Every constant stays within its physical range (``specs.machines.host.RANGES``). Huber's loss is least, by reweighted
least squares: a pause of the machine pulls no further than ``HUBER`` spreads, those of the fit with the least absolute
errors. Within them the law is one of means. A thread of the server that wakes on a busy core waits for the slice of
another by turns, and a load's mean has its share of that. The error stated is of experiments left out of the fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.calibrate.step_log import StepLog
from hisearch.specs.machines.host import RANGES, FrontEndTimes

#: Fewest experiments with requests alone.
LEAST = 6
#: Spreads of the errors beyond which their loss is linear; and standard deviations in one median absolute error.
HUBER, NORMAL_MAD = 3.0, 1.4826
_ROUNDS, _LEAST_ERROR_S = 30, 1e-5
_NAMES = ("request_s", "read_s", "prompt_token_s", "stream_s")


class FrontEndSample(NamedTuple):
    """An experiment: requests sent at once, streams beside, tokens of the prompt, seconds beside the server's.

    prompt_tokens: of a request alone. last_s: None of a late request.
    """

    requests: int
    concurrent: int
    prompt_tokens: float
    first_s: float
    last_s: float | None

    @property
    def is_alone(self) -> bool:
        """Whether nothing else was served, so that its seconds are those beside the engine."""
        return self.requests == 1 and self.concurrent == 0


class ClientSample(NamedTuple):
    """A benchmark's requests: how many, mean seconds until the first token, by its client and by the server itself.

    concurrent: mean number of requests that wrote when another's first token came.
    """

    requests: int
    first_s: float
    server_first_s: float
    concurrent: float


def mean_decodes(log: StepLog) -> float:
    """Mean number of decodes in the steps of prompts' chunks: ``ClientSample.concurrent`` of the requests in a log."""
    decodes = np.bincount(log.step, weights=log.decode, minlength=len(log.latency_s))
    return float(decodes[log.step[~log.decode]].mean())


class FrontEndFit(NamedTuple):
    """Constants, and the median absolute error of ``first_s`` left out, seconds.

    outside_s: ``o``. client_s: by how much a benchmark's client takes longer for a request than the one that
    calibrated; 0 where none was timed.
    """

    times: FrontEndTimes
    error_s: float
    outside_s: float
    client_s: float = 0.0

    def of_client(self, samples: Sequence[ClientSample]) -> FrontEndFit:
        """As a benchmark's client sees the server.

        Raises:
            ValueError: request_s leaves its physical range.
        """
        requests = [sample.requests for sample in samples]
        own_s = [
            sample.first_s - sample.server_first_s - self.times.stream_s * (1.0 + sample.concurrent / 2.0)
            for sample in samples
        ]
        client_s = float(f"{np.average(own_s, weights=requests) - self.outside_s:.4g}")
        times = self.times.model_copy(update={"request_s": self.times.request_s + client_s})
        known = RANGES["request_s"]
        if not known.low <= times.request_s <= known.high:
            raise ValueError(
                f"the benchmark's client takes {1e3 * client_s:+.2g} ms a request beside the one that calibrates: "
                "were these requests timed by other clocks, or on another server?"
            )
        return self._replace(times=times, client_s=client_s)


def fit_front_end(samples: Sequence[FrontEndSample]) -> FrontEndFit:
    """Fit the law.

    Raises:
        ValueError: too few samples.
    """
    alone = sum(sample.is_alone for sample in samples)
    if alone < LEAST:
        raise ValueError(f"{alone} requests alone are too few for the front end: at least {LEAST} are needed")
    matrix, seconds = _matrix(samples), _seconds(samples)
    known = np.isfinite(seconds)
    left_out = []
    for index in range(len(samples)):
        rows = known.copy()
        rows[[index, index + len(samples)]] = False
        theta = _solve(matrix[rows], seconds[rows])
        left_out.append(abs(float(matrix[index] @ theta - seconds[index])))
    theta = _solve(matrix[known], seconds[known])
    request_s, read_s, prompt_token_s, stream_s = (float(f"{value:.4g}") for value in theta[: len(_NAMES)])
    times = FrontEndTimes(
        request_s=request_s, read_s=min(read_s, request_s), prompt_token_s=prompt_token_s, stream_s=stream_s
    )
    return FrontEndFit(times, float(np.median(left_out)), float(f"{theta[len(_NAMES)]:.4g}"))


def _matrix(samples: Sequence[FrontEndSample]) -> F8:
    """Factors of the four constants and of ``o``: first of all ``first_s``, then of all ``last_s``."""
    count = np.array([sample.requests for sample in samples], dtype=np.float64)
    concurrent = np.array([sample.concurrent for sample in samples], dtype=np.float64)
    tokens = np.array([sample.prompt_tokens for sample in samples])
    alone = np.array([sample.is_alone for sample in samples], dtype=np.float64)
    others = count - 1.0
    left = [alone, others / 2.0, tokens * alone]
    first = [*left, 1.0 + others / 4.0 + concurrent / 2.0, 1.0 - alone]
    last = [*left, 1.0 + others / 2.0, 1.0 - alone]
    return np.vstack([np.stack(first, axis=-1), np.stack(last, axis=-1)])


def _seconds(samples: Sequence[FrontEndSample]) -> F8:
    last_s = [math.nan if sample.last_s is None else sample.last_s for sample in samples]
    return np.array([sample.first_s for sample in samples] + last_s)


def _solve(matrix: F8, seconds: F8) -> F8:
    """Constants within their ranges with the least loss, and ``o``, which request_s's range holds."""
    from scipy.optimize import lsq_linear

    low, high = np.array(
        [(RANGES[name].low, RANGES[name].high) for name in _NAMES] + [(0.0, RANGES["request_s"].high)]
    ).T
    scaled, bounds = matrix * high, (low / high, np.ones(len(high)))

    def reweighted(solution: F8, limit_s: float) -> F8:
        for _ in range(_ROUNDS):
            errors = np.maximum(np.abs(matrix @ solution - seconds), _LEAST_ERROR_S)
            weights = np.sqrt(np.minimum(1.0, limit_s / errors))
            solution = lsq_linear(scaled * weights[:, None], seconds * weights, bounds).x * high
        return solution

    # A limit below all errors leaves the sum of absolute ones.
    absolute = reweighted(np.zeros(matrix.shape[1]), _LEAST_ERROR_S)
    spread_s = NORMAL_MAD * float(np.median(np.abs(matrix @ absolute - seconds)))
    return reweighted(absolute, max(HUBER * spread_s, _LEAST_ERROR_S))
