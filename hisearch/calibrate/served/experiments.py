"""Which requests to send for a law of steps, and what their times say of steps.

Choosing. Every experiment leads to steps of known make-up, rows of the law's matrix (``step_fit``). Relative errors are
alike, so that a row counts divided by its step's seconds. The next experiment is the one with the greatest growth of
the information's determinant for its duration (D-optimal design; Fedorov, 1972), among experiments within bounds.

Reading. Of one request alone the engine tells the seconds of its prompt's step, and of its decodes together. Of
several, their client sees the time between tokens while all of them write. A prompt that comes late is one step among
``SPAN`` of them: what these take beyond decodes alone is its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.calibrate.served.front_end import FrontEndSample
from hisearch.calibrate.step_fit import StepLaw, step_features
from hisearch.calibrate.step_log import StepLog
from hisearch.observe.driver import Experiment, Outcome

#: Tokens of each answer: alone, and of several.
ALONE, TOGETHER = 9, 24
#: Steps around a late prompt's, and steps whose mean is one row of the law: a client sees single ones late by turns.
SPAN, PIECE = 4, 4
#: Share of the engine's mean time between an experiment's tokens below which they came in a bunch.
BUNCHED = 0.25
#: Shares of the largest prompt, context and batch that are tried.
_LEVELS = (1.0, 0.5, 0.25, 0.12, 0.06, 0.03)
#: Information before any experiment, so that the determinant is positive.
_PRIOR = 1e-6

#: (new tokens, cached tokens, is a decode) of each request in a step.
Share = tuple[int, int, bool]


class LoggedStep(NamedTuple):
    """A step as an experiment tells it."""

    latency_s: float
    shares: tuple[Share, ...]


class Bounds(NamedTuple):
    """Of a server. chunk_tokens: of a step. running: requests. context_tokens: of one. kv_tokens: of all."""

    chunk_tokens: int
    running: int
    context_tokens: int
    kv_tokens: int


def candidates(bounds: Bounds) -> list[Experiment]:
    """Experiments within bounds: alone, behind a cached prefix, several at once, and with a late prompt."""
    longest = max(min(bounds.chunk_tokens, bounds.context_tokens) - TOGETHER - 1, 2)
    lengths = sorted({max(int(longest * level), 2) for level in _LEVELS})
    batches = sorted({max(int(bounds.running * level), 2) for level in _LEVELS})
    experiments = [Experiment((length,), ALONE) for length in lengths]
    for cached, fresh in itertools.product(lengths, lengths):
        if cached + fresh + ALONE < bounds.context_tokens and cached >= 64:
            experiments.append(Experiment((fresh,), ALONE, cached=cached))
    for batch, length in itertools.product(batches, lengths):
        if batch * (length + TOGETHER) > 0.8 * bounds.kv_tokens:
            continue
        experiments.append(Experiment((length,) * batch, TOGETHER))
        experiments += [
            Experiment((length,) * (batch - 1), TOGETHER, late=late)
            for late in lengths
            if late + batch <= bounds.chunk_tokens and batch * length + late < 0.8 * bounds.kv_tokens
        ]
    return experiments


def first_ones(bounds: Bounds) -> list[Experiment]:
    """Experiments before there is a law: the corners, and a middle."""
    known = candidates(bounds)
    alone = [each for each in known if len(each.prompts) == 1 and not each.cached and not each.late]
    several = [each for each in known if len(each.prompts) > 1 and not each.late]
    late = [each for each in known if each.late]
    cached = [each for each in known if each.cached]
    return [
        *alone,
        *(several[index] for index in sorted({0, len(several) // 3, 2 * len(several) // 3, len(several) - 1})),
        *(late[index] for index in sorted({0, len(late) // 2, len(late) - 1}) if late),
        *(cached[index] for index in sorted({0, len(cached) - 1}) if cached),
    ]


def expected_steps(experiment: Experiment) -> list[tuple[Share, ...]]:
    """Make-up of the steps that an experiment tells of."""
    count, length = len(experiment.prompts), experiment.prompts[0]
    if count == 1 and not experiment.late:
        prompt = (length, experiment.cached, False)
        return [(prompt,), ((1, experiment.cached + length + ALONE // 2, True),)]
    decodes = ((1, length + TOGETHER // 2, True),) * count
    return [decodes, (*decodes, (experiment.late, 0, False))] if experiment.late else [decodes]


def next_experiments(law: StepLaw, done: Iterable[LoggedStep], bounds: Bounds, count: int) -> list[Experiment]:
    """The most telling ``count`` experiments after ``done``, by ``law``."""
    information = _PRIOR * np.eye(_width(law))
    rows = _rows(law, [step.shares for step in done])
    scale = np.maximum(np.abs(rows).max(axis=0, initial=0.0), 1e-12)
    rows = rows / scale
    information += rows.T @ rows
    options = []
    for experiment in candidates(bounds):
        steps = expected_steps(experiment)
        seconds = _seconds(law, steps)
        duration_s = float(seconds.sum()) + experiment.outputs * float(seconds[min(1, len(seconds) - 1)])
        options.append((experiment, _rows(law, steps) / scale, max(duration_s, 1e-6)))
    chosen: list[Experiment] = []
    for _ in range(min(count, len(options))):
        _, base = np.linalg.slogdet(information)
        gains = [
            (np.linalg.slogdet(information + own.T @ own)[1] - base) / duration_s**0.5 for _, own, duration_s in options
        ]
        experiment, own, _ = options[int(np.argmax(gains))]
        information += own.T @ own
        chosen.append(experiment)
    return chosen


def steps_of(outcome: Outcome, chunk_tokens: int) -> list[LoggedStep]:
    """Steps that an experiment tells of."""
    experiment, requests = outcome.experiment, outcome.requests
    if len(requests) == 1 and outcome.late is None:
        return _alone(outcome, chunk_tokens)
    begin = max(request.when(2) for request in requests)
    end = min(request.last_s for request in requests)
    # Tokens of the first request while all write, less the late prompt's steps.
    inside = [(at_s, count) for at_s, count in requests[0].tokens if begin <= at_s <= end]
    if len(inside) < 3:
        return []
    late = outcome.late
    pieces, mixed_s = [inside], math.nan
    if late is not None:
        pieces, mixed_s = _around(inside, late.sent_s)
    steps: list[LoggedStep] = []
    for piece in (part[start : start + PIECE + 1] for part in pieces for start in range(0, len(part), PIECE)):
        if len(piece) > 2 and piece[-1][1] > piece[0][1]:
            per_step_s = (piece[-1][0] - piece[0][0]) / (piece[-1][1] - piece[0][1])
            middle = (piece[0][1] + piece[-1][1]) // 2
            shares = tuple((1, experiment.cached + length + middle, True) for length in experiment.prompts)
            steps.append(LoggedStep(per_step_s, shares))
    # A client that was late finds several tokens at once: these come in no time, and the ones before them took long.
    engine_s = outcome.engine.decode_s / (len(requests) + (late is not None)) / (experiment.outputs - 1)
    steps = [step for step in steps if step.latency_s > BUNCHED * engine_s]
    decode_s = float(np.median([step.latency_s for step in steps])) if steps else math.nan
    if late is not None and steps and mixed_s > 0:
        own_s = mixed_s - (SPAN - 1) * decode_s
        if own_s > decode_s / 2.0:
            steps.append(LoggedStep(own_s, (*steps[-1].shares, (experiment.late, 0, False))))
    return [step for step in steps if step.latency_s > 0]


def front_end_of(outcome: Outcome) -> FrontEndSample:
    """What the client waited for beside the server: beside its engine of one request, else beside its own stamps.

    While a step runs, a request that comes waits before the engine counts its queue: of a burst, or beside others, the
    engine's seconds are not all that passes there.
    """
    requests, engine, late = outcome.requests, outcome.engine, outcome.late
    if late is not None:
        return FrontEndSample(1, len(requests), 0.0, late.first_s - late.sent_s - engine.late_first_s, None)
    count = len(requests)
    first_s = float(np.mean([request.first_s - request.sent_s for request in requests]))
    last_s = float(np.mean([request.last_s - request.sent_s for request in requests]))
    if count > 1:
        return FrontEndSample(count, 0, 0.0, first_s - engine.first_s / count, last_s - engine.end_s / count)
    inside_s = engine.queue_s + engine.prefill_s
    return FrontEndSample(1, 0, engine.prompt_tokens, first_s - inside_s, last_s - inside_s - engine.decode_s)


def log_of(steps: Sequence[LoggedStep]) -> StepLog:
    """Steps as a log."""
    rows = [(index, *share) for index, step in enumerate(steps) for share in step.shares]
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    latency = np.array([step.latency_s for step in steps])
    run = np.zeros(len(steps), dtype=np.int64)
    return StepLog(latency, run, table[:, 0], table[:, 1], table[:, 2], table[:, 3] != 0)


def _alone(outcome: Outcome, chunk_tokens: int) -> list[LoggedStep]:
    """Steps of one request, by the engine's own times; a prompt that was cut is left out."""
    experiment, engine = outcome.experiment, outcome.engine
    hit, total = int(engine.hit_tokens), int(engine.prompt_tokens)
    steps = []
    if 0 < total - hit <= chunk_tokens:
        steps.append(LoggedStep(engine.prefill_s, ((total - hit, hit, False),)))
    decode_s = engine.decode_s / (experiment.outputs - 1)
    steps.append(LoggedStep(decode_s, ((1, total + experiment.outputs // 2, True),)))
    return [step for step in steps if step.latency_s > 0]


def _around(tokens: list[tuple[float, int]], late_s: float) -> tuple[list[list[tuple[float, int]]], float]:
    """Tokens before and behind the ``SPAN`` steps around the longest gap after ``late_s``, and their seconds."""
    gaps = [
        (later[0] - earlier[0], index)
        for index, (earlier, later) in enumerate(itertools.pairwise(tokens))
        if later[0] > late_s and later[1] == earlier[1] + 1
    ]
    if not gaps:
        return [tokens], math.nan
    longest = max(gaps)[1]
    start = max(longest - 1, 0)
    end = start + SPAN
    if end >= len(tokens) or tokens[end][1] - tokens[start][1] != SPAN:
        return [tokens[: start + 1], tokens[longest + 2 :]], math.nan
    return [tokens[: start + 1], tokens[end:]], tokens[end][0] - tokens[start][0]


def _width(law: StepLaw) -> int:
    return len(law.coefficients) + len(law.tokens) - 1


def _theta(law: StepLaw) -> F8:
    return np.array([*law.coefficients.values(), *np.diff(law.token_s)])


def _features(law: StepLaw, steps: Sequence[Sequence[Share]]) -> F8:
    log = log_of([LoggedStep(1.0, tuple(shares)) for shares in steps])
    return step_features(log, np.array(law.tokens, dtype=np.float64))


def _seconds(law: StepLaw, steps: Sequence[Sequence[Share]]) -> F8:
    """Seconds of steps by the law; at least a microsecond."""
    return np.maximum(_features(law, steps) @ _theta(law), 1e-6)


def _rows(law: StepLaw, steps: Sequence[Sequence[Share]]) -> F8:
    """Rows of the information: features over seconds, (N, coefficients)."""
    if not steps:
        return np.zeros((0, _width(law)))
    features = _features(law, steps)
    return features / np.maximum(features @ _theta(law), 1e-6)[:, None]
