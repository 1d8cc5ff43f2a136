"""Step times inferred from measured requests and their neighbours, without simulating any queue.

From its first token to its last one a request makes one token a step, together with its neighbours in the batch.
Neighbours are measured too: each decodes between its own first and last token. So measured times and the model's step
times suffice to count the steps between a request's first and last token. The count has to equal the tokens it made.
Queues do not matter here, although a thousandth of a step moves their tails by a tenth near saturation. Only the time
before the first token depends on them.

Notation
    N   measured requests of one worker
    K   spans of time between two consecutive events, an event being a first or a last token of any request
    w   seconds that a prompt adds to the steps that compute it, beyond those of the decodes in them
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hisearch.base.dtypes import F8, I8
from hisearch.latency.corrections import corrected_seconds
from hisearch.latency.costs import StepCosts
from hisearch.latency.many_steps import Stacked
from hisearch.specs.machines.profile import CorrectionSpec
from hisearch.traces.importers.measurement import PerRequest

if TYPE_CHECKING:
    from hisearch.simulate.plans.fleet import FleetPlan, PoolPlan

#: Fewest gaps between tokens of a request that is counted: the ends are only known to a step.
FEWEST_GAPS = 8
#: Fewest steps counted between two tokens, because their logarithm is taken.
_LEAST_STEPS = 1e-3
#: Tokens of a chunk where prompts are computed whole.
_WHOLE = 1 << 40
#: Names of the factors on a step's seconds, in the order of the last axis of their seconds.
FACTORS = ("host", "prefill", "decode")


class Placed(NamedTuple):
    """Workers and hits in a simulation of the same requests, shape (all requests that were sent,).

    worker: index of the worker. hit_tokens: of the prompt, found in its caches.
    """

    worker: np.ndarray
    hit_tokens: I8


@dataclass(frozen=True)
class _Worker:
    """Requests and batches of one worker; seconds by FACTORS on the last axis.

    pool: its name. rows: shape (N,), places in the measurement. first_s, last_s: shape (N,), of its tokens. gaps:
    shape (N,), tokens less one. times_s: shape (K + 1,), ascending. step_parts: shape (K, 3), of a step of the requests
    that decode then; 0 without any. prompt_parts: shape (N, 3), ``w``. chunks: shape (N,), mixed steps
    that compute a prompt.
    """

    pool: str
    rows: I8
    first_s: F8
    last_s: F8
    gaps: I8
    times_s: F8
    step_parts: F8
    prompt_parts: F8
    chunks: I8

    def steps(self, factors: F8) -> F8:
        """Steps between the first and the last token of each request, shape (N,)."""
        seconds = self.step_parts @ factors
        rate = np.divide(1.0, seconds, out=np.zeros_like(seconds), where=seconds > 0)
        passed = np.concatenate(([0.0], np.cumsum(rate * np.diff(self.times_s))))

        def steps_until(time_s: F8) -> F8:
            return np.interp(time_s, self.times_s, passed)

        work_s = self.prompt_parts @ factors
        mixed_decode_s = self.chunks * np.interp(self.first_s, self.times_s[1:], seconds)
        span_s = np.maximum(work_s + mixed_decode_s, 1e-12)
        # While a prompt is computed, steps pass at the share of the time that decodes take of them.
        begun, ended = steps_until(self.first_s - span_s), steps_until(self.first_s)

        def lost_until(time_s: F8) -> F8:
            return np.asarray(np.clip(steps_until(time_s)[:, None], begun, ended) - begun) @ (work_s / span_s)

        def counted(time_s: F8) -> F8:
            return np.asarray(steps_until(time_s) - lost_until(time_s))

        return counted(self.last_s) - counted(self.first_s)


class Neighbours:
    """Counts the steps between the first and the last token of every measured request."""

    def __init__(self, requests: PerRequest, plan: FleetPlan) -> None:
        """Prepare the counting.

        Args:
            requests: measured, with the times at which they were sent.
            plan: the deployment, uncorrected.

        Raises:
            ValueError: the measurement does not say when its requests were sent.
        """
        if requests.start_s is None:
            raise ValueError("when requests were sent is not known")
        self._requests = requests
        self._first_s, self._last_s = requests.start_s + requests.ttft_s, requests.start_s + requests.e2e_s
        self._plan = plan
        self._ends = np.cumsum([pool.slots for pool in plan.pools])
        self._pools = [_Prices(pool) for pool in plan.pools]
        self._latest: tuple[Placed, list[_Worker]] | None = None

    def of(self, requests: PerRequest) -> Neighbours:
        """The same for other requests."""
        neighbours = Neighbours(requests, self._plan)
        neighbours._pools = self._pools
        return neighbours

    def differences(self, placed: Placed, factors_of: Callable[[str], CorrectionSpec]) -> tuple[I8, F8]:
        """Differences between counted steps and measured tokens.

        Args:
            placed: of a simulation of the same requests.
            factors_of: name of a pool -> factors on the model's step times of its workers.

        Returns:
            Places in the measurement of the requests that are counted, and log(tokens made / steps counted) of each,
            above 0 where the model's steps are too long; both of one shape.
        """
        rows, logs = [np.zeros(0, np.int64)], [np.zeros(0)]
        for worker in self._workers(placed):
            factors = factors_of(worker.pool)
            by_name = np.array([getattr(factors, name) for name in FACTORS])
            several = worker.gaps >= FEWEST_GAPS
            rows.append(worker.rows[several])
            logs.append(np.log(worker.gaps[several] / np.maximum(worker.steps(by_name)[several], _LEAST_STEPS)))
        return np.concatenate(rows), np.concatenate(logs)

    def _workers(self, placed: Placed) -> list[_Worker]:
        """Batches of every worker; the latest placement's are cached because many factors are tried on it."""
        if self._latest is None or self._latest[0] is not placed:
            worker = placed.worker[self._requests.rows]
            numbers = np.unique(worker[worker >= 0]).tolist()
            self._latest = (
                placed,
                [
                    self._worker(np.flatnonzero(worker == number), placed, self._pools[self._pool_of(number)])
                    for number in numbers
                ],
            )
        return self._latest[1]

    def _pool_of(self, worker: int) -> int:
        """Workers are numbered pool by pool."""
        return int(np.searchsorted(self._ends, worker, side="right"))

    def _worker(self, places: np.ndarray, placed: Placed, prices: _Prices) -> _Worker:
        """Batches of the requests at ``places``, which one worker of a pool served."""
        requests, first_s, last_s = self._requests.keep(places), self._first_s[places], self._last_s[places]
        times_s = np.unique(np.concatenate((first_s, last_s)))
        hits = np.minimum(placed.hit_tokens[requests.rows], requests.input_tokens - 1)
        sequences, context, longest = _decoding(requests, first_s, last_s, (times_s[1:] + times_s[:-1]) / 2)
        before = np.searchsorted(times_s, first_s) - 1
        # Nobody decodes before the first event, at place -1.
        mixed = _mixed_with(*(np.append(count, 0)[before] for count in (sequences, context)))
        prompts = prices.prompts(hits, requests.input_tokens, *mixed)
        chunks = prices.steps_with_decodes(requests.input_tokens - hits)
        steps = prices.costs.decodes(sequences, context, longest)
        gaps = requests.output_tokens - 1
        return _Worker(prices.pool, requests.rows, first_s, last_s, gaps, times_s, steps, prompts, chunks)


class _Prices:
    """Costs of prompts and decodes on a pool's workers."""

    def __init__(self, pool: PoolPlan) -> None:
        self.pool, self._engine = pool.name, pool.plan.engine
        self.costs = _Parts(pool.plan.costs.seconds)

    @property
    def _separate_prefill(self) -> bool:
        """Whether prompts are computed in steps without decodes."""
        return self._engine.name == "sglang" and not self._engine.mixed_chunk

    @property
    def _chunk_tokens(self) -> int:
        return self._engine.chunk_tokens if self._engine.chunked_prefill else _WHOLE

    def steps_with_decodes(self, prompt_tokens: I8) -> I8:
        """Number of mixed steps that compute each prompt."""
        return np.zeros_like(prompt_tokens) if self._separate_prefill else self._steps(prompt_tokens)

    def prompts(self, cached: I8, tokens: I8, decoding: I8, reads: I8) -> F8:
        """``w`` of prompts by FACTORS, shape (N, 3), in mixed steps, or alone if prefill steps are separate."""
        if self._separate_prefill:
            decoding = np.zeros_like(decoding)
        chunks = self._steps(tokens - cached)
        owner = np.repeat(np.arange(len(tokens)), chunks)
        start = cached[owner] + self._chunk_tokens * (
            np.arange(len(owner)) - np.repeat(np.cumsum(chunks) - chunks, chunks)
        )
        new = np.minimum(self._chunk_tokens, tokens[owner] - start)
        chunk_parts = self.costs.chunks(new, start, decoding[owner], reads[owner])
        total = np.stack([np.bincount(owner, weights, len(tokens)) for weights in chunk_parts.T], axis=-1)
        return np.asarray(total - chunks[:, None] * self.costs.decodes(decoding, decoding * reads, reads))

    def _steps(self, prompt_tokens: I8) -> I8:
        return -(-prompt_tokens // self._chunk_tokens)


class _Parts:
    """Seconds of steps by FACTORS, in which they are linear, shape (K, 3). See ``latency.many_steps``."""

    def __init__(self, seconds: StepCosts) -> None:
        doubled = (corrected_seconds(seconds, CorrectionSpec(**{name: 2.0})) for name in FACTORS)
        self._priced = Stacked([seconds, *doubled])

    def decodes(self, sequences: I8, context: I8, longest: I8) -> F8:
        """Of steps with decodes only."""
        return self._parts(self._priced.decode_steps(sequences, context, longest))

    def chunks(self, new: I8, cached: I8, sequences: I8, reads: I8) -> F8:
        """Of steps with a prompt chunk each."""
        return self._parts(self._priced.chunk_steps(new, cached, sequences, reads))

    def _parts(self, seconds: F8) -> F8:
        """Seconds that doubling each factor adds, shape (K, 3)."""
        return seconds[:, 1:] - seconds[:, :1]


def _mixed_with(decoding: I8, context: I8) -> tuple[I8, I8]:
    """Decodes in the steps of each prompt, at least one, and tokens that each reads."""
    decoding = np.maximum(decoding, 1)
    return decoding, np.maximum(context // decoding, 1)


def _decoding(requests: PerRequest, first_s: F8, last_s: F8, at_s: F8) -> tuple[I8, I8, I8]:
    """At each time: requests that decode, tokens that they read in all, most that one reads; shape (K,) each.

    Tokens between a request's first and last are taken to be evenly spaced.
    """
    now = (first_s <= at_s[:, None]) & (last_s > at_s[:, None])
    share = (at_s[:, None] - first_s) / np.maximum(last_s - first_s, 1e-12)
    read = np.where(now, (requests.input_tokens + 1 + share * (requests.output_tokens - 1)).astype(np.int64), 0)
    return now.sum(axis=1), read.sum(axis=1), read.max(axis=1, initial=0)
