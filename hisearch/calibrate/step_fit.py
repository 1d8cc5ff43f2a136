"""The law of engine steps, fitted to a log of them.

Notation
    T, S     tokens and sequences (chunks and decodes) of a step
    P, Q     of its prompt chunks: tokens, and pairs ``new * (cached + (new + 1) / 2)`` of a token and one it attends to
    H        tokens before its chunks
    c, m, n  of its decodes: context read together (tokens before the new one, plus one), longest context, number

    step_s + per_sequence_s * S + token_s(T)
           + (prompt_s where P > 0) + pair_s * Q + cached_token_s * H
           + context_token_s * c + (skew_token_s * (m - c / n) where P = 0)

``token_s`` is linear between knots and rises; no coefficient is negative. Reweighted non-negative least squares
minimise the Huber loss of relative errors. Beyond ``HUBER`` times the spread of its regime (prefill, decode, mixed) a
step's pull no longer grows: a pause of the process does not bend the law. A regime's steps count by the root of their
number, since a log has a hundred decode steps for each prompt. Errors are shares of the law in the end, since shares of
what was logged would draw it below the mean, by about the variance.

Noise on one side. A pause, another process or a slow copy only lengthens a step. Where many steps have one, the median
step is a disturbed one, and the law would follow the load of that hour. A regime whose residuals lean to the long side
(``LEAN``) is fitted to its mode instead: steps beyond ``TRIM`` spreads above it count for nothing. The spread is that
of the short side, which no such noise reaches. A lower quantile would need to know how many steps are disturbed; the
mode does not, and is the median where noise has two sides. What is set aside is stated (``RegimeNoise``).

Pauses come back, though, and means of loads have their share. All logged time beyond the law is kept beside it
(``StepExcess``): with it, the law's sums over decode steps and over steps with prompts are those that were logged.

Errors are those of held-out steps: runs of consecutive steps, a fifth of the log at a time. A step nearly repeats the
one before it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hisearch.base.dtypes import BOOL, F8, I8
from hisearch.base.one_thread import on_one_thread
from hisearch.calibrate.step_log import StepLog
from hisearch.specs.machines.regression import Regime, RegimeError, StepExcess, StepRanges

#: Coefficients besides the knots of ``token_s``, in the order of the matrix's first columns.
COEFFICIENTS = (
    "step_s", "per_sequence_s", "prompt_s", "pair_s", "cached_token_s", "context_token_s", "skew_token_s",
)  # fmt: skip
REGIMES: tuple[Regime, ...] = ("prefill", "decode", "mixed")
#: Fewest steps of a log, and between two knots of ``token_s``: the mean of 16 is known to a quarter of their spread.
LEAST_STEPS, LEAST_BETWEEN = 50, 16
#: Spreads beyond which the loss is linear: 95 % efficiency on normal errors (Huber, 1981).
HUBER = 1.345
#: Standard deviations of a normal distribution in one median absolute deviation.
NORMAL_MAD = 1.4826
#: Quantiles of residuals, and from which lean on noise counts as one-sided: ``(high + low - 2 median) / (high - low)``.
#: It is 0 of symmetric residuals and 0.46 of exponential ones.
LEAN_AT, LEAN = (0.1, 0.5, 0.9), 0.3
#: Spreads above the law beyond which a step is set aside as disturbed, where noise is one-sided; and the least share of
#: a regime's steps that are kept.
TRIM, LEAST_KEPT = 2.5, 0.2
#: Fewest steps of a regime whose lean counts.
LEAST_LEANING = 50
#: Least spread of relative errors, most rounds of reweighting, and largest logarithm of a ratio that counts in them.
LEAST_SPREAD, ROUNDS, MOST_LOG = 1e-6, 30, 3.0
#: Folds of the log, held out in turn, and runs of consecutive steps in each.
FOLDS, RUNS = 5, 8


class StepLaw(NamedTuple):
    """Fitted coefficients by name, and ``token_s`` on its knots."""

    coefficients: dict[str, float]
    tokens: list[int]
    token_s: list[float]


class RegimeNoise(NamedTuple):
    """What a fit set aside as one-sided noise.

    share: of the regime's steps. excess: the logged time of all its steps over the law's, minus 1.
    """

    share: float
    excess: float


class StepFit(NamedTuple):
    """A law, logged time beyond it, its errors on held-out steps, the logged ranges, regimes with one-sided noise."""

    law: StepLaw
    excess: StepExcess
    errors: dict[Regime, RegimeError]
    ranges: StepRanges
    noise: dict[Regime, RegimeNoise]


class _Sums(NamedTuple):
    """A law's inputs by step, each (N,)."""

    tokens: F8
    sequences: F8
    prompt_tokens: F8
    pairs: F8
    cached: F8
    decodes: F8
    context: F8
    longest: F8


@on_one_thread
def fit_steps(log: StepLog, seed: int = 0) -> StepFit:
    """Fit the law to all steps, and state its errors on held-out steps.

    Raises:
        ValueError: too few steps, or none with prompt chunks, or none with decodes.
    """
    count = len(log.latency_s)
    if count < LEAST_STEPS:
        raise ValueError(f"{count} steps are too few to fit: at least {LEAST_STEPS} are needed")
    for present, missing in ((~log.decode, "prompt chunks"), (log.decode, "decodes")):
        if not present.any():
            raise ValueError(f"no step of the log has {missing}: steps that have them could not be priced")
    sums = _sums(log)
    knots = _knots(sums.tokens)
    matrix, regime = _matrix(sums, knots), _regimes(sums)
    solution = _solve(matrix, log.latency_s, regime)
    held_out = np.full(count, np.nan)
    fold = _folds(log, seed)
    for index in range(FOLDS):
        inside, outside = fold != index, fold == index
        if outside.any():
            theta = _solve(matrix[inside], log.latency_s[inside], regime[inside])
            held_out[outside] = np.abs(matrix[outside] @ theta / log.latency_s[outside] - 1.0)
    fixed = len(COEFFICIENTS)
    rises = np.concatenate(([0.0], np.cumsum(solution[fixed:])))
    law = StepLaw(
        {name: _rounded(value) for name, value in zip(COEFFICIENTS, solution[:fixed], strict=True)},
        [int(knot) for knot in knots],
        [_rounded(value) for value in rises],
    )
    errors = {
        name: _regime_error(held_out[regime == index]) for index, name in enumerate(REGIMES) if (regime == index).any()
    }
    ranges = StepRanges(
        tokens=int(sums.tokens.max()),
        sequences=int(sums.sequences.max()),
        context_tokens=int(sums.context.max()),
        cached_tokens=int(log.cached[~log.decode].max()),
    )
    logs = _log_ratios(matrix, solution, log.latency_s)
    seconds = matrix @ solution
    noise = {}
    for index, name in enumerate(REGIMES):
        of_regime = regime == index
        if _leans(logs[of_regime]):
            beyond = logs[of_regime] > TRIM * _short_spread(logs[of_regime])
            excess = log.latency_s[of_regime].sum() / seconds[of_regime].sum() - 1.0
            noise[name] = RegimeNoise(_percent(beyond.mean()), _percent(excess))
    return StepFit(law, _excess(law, sums, seconds, log.latency_s), errors, ranges, noise)


def _excess(law: StepLaw, sums: _Sums, seconds: F8, latency_s: F8) -> StepExcess:
    """What was logged beyond the law's ``seconds``: of all steps, and besides of those with prompts."""
    prompts = sums.prompt_tokens > 0
    share = _percent(latency_s[~prompts].sum() / seconds[~prompts].sum() - 1.0) if not prompts.all() else 0.0
    left_s = (latency_s - (1.0 + share) * seconds)[prompts].sum()
    own_s = law.coefficients["step_s"] + np.interp(sums.prompt_tokens[prompts], law.tokens, law.token_s)
    return StepExcess(share=share, prompt_share=_percent(left_s / max(own_s.sum(), LEAST_SPREAD)))


def step_features(log: StepLog, tokens: F8) -> F8:
    """Factors of each coefficient, and of each rise of ``token_s`` between ``tokens``: (N, coefficients + rises)."""
    return _matrix(_sums(log), tokens)


def _sums(log: StepLog) -> _Sums:
    count = len(log.latency_s)

    def per_step(values: F8 | I8 | BOOL) -> F8:
        return np.bincount(log.step, weights=values, minlength=count).astype(np.float64)

    new, cached, prompt = log.new.astype(np.float64), log.cached.astype(np.float64), ~log.decode
    read = np.where(log.decode, cached + 1.0, 0.0)
    longest = np.zeros(count)
    np.maximum.at(longest, log.step, read)
    return _Sums(
        tokens=per_step(new),
        sequences=per_step(np.ones(len(new))),
        prompt_tokens=per_step(new * prompt),
        pairs=per_step(new * (cached + (new + 1.0) / 2.0) * prompt),
        cached=per_step(cached * prompt),
        decodes=per_step(log.decode),
        context=per_step(read),
        longest=longest,
    )


def _knots(tokens: F8) -> F8:
    """0, powers of two and one and a half times these, with enough steps between them, and the most tokens logged.

    Decode steps have one to some dozen tokens, where libraries change their kernels from one number to the next.
    """
    most = tokens.max()
    powers = 2.0 ** np.arange(np.ceil(np.log2(max(most, 2.0))))
    knots = [0.0]
    for knot in np.unique(np.concatenate([powers, 1.5 * powers[1:]])):
        between = np.count_nonzero((tokens > knots[-1]) & (tokens <= knot))
        beyond = np.count_nonzero(tokens > knot)
        if between >= LEAST_BETWEEN and beyond >= LEAST_BETWEEN:
            knots.append(float(knot))
    return np.array([*knots, most])


def _matrix(sums: _Sums, knots: F8) -> F8:
    """Factors of each coefficient, and of each rise between two knots: (N, coefficients + rises)."""
    prompts = sums.prompt_tokens > 0
    mean = sums.context / np.maximum(sums.decodes, 1.0)
    columns = [
        np.ones_like(sums.tokens),
        sums.sequences,
        prompts.astype(np.float64),
        sums.pairs,
        sums.cached,
        sums.context,
        np.where(prompts, 0.0, sums.longest - mean),
    ]
    rises = [np.clip((sums.tokens - low) / (high - low), 0.0, 1.0) for low, high in itertools.pairwise(knots)]
    return np.stack([*columns, *rises], axis=-1)


def _regimes(sums: _Sums) -> I8:
    """Index into ``REGIMES`` of each step."""
    return np.where(sums.decodes == 0, 0, np.where(sums.prompt_tokens == 0, 1, 2))


def _folds(log: StepLog, seed: int) -> I8:
    """Fold of each step: runs of consecutive steps of one file, dealt at random."""
    count = len(log.latency_s)
    run = np.arange(count) * (FOLDS * RUNS) // count
    pieces = np.unique(np.stack([log.run, run]), axis=1, return_inverse=True)[1].ravel()
    return np.random.default_rng(seed).permutation(int(pieces.max()) + 1)[pieces] % FOLDS


def _solve(matrix: F8, latency_s: F8, regime: I8) -> F8:
    """Coefficients with the least Huber loss of relative errors, none negative; see the module on one-sided noise."""
    relative = matrix / latency_s[:, None]
    present = np.bincount(regime, minlength=len(REGIMES))
    share = np.asarray(present[regime] ** -0.25, dtype=np.float64)
    solution = _reweighted(relative, share, lambda logs: _huber_weights(np.abs(np.expm1(-logs)), regime))
    logs = _log_ratios(matrix, solution, latency_s)
    leaning = [index for index in range(len(REGIMES)) if _leans(logs[regime == index])]

    def weights(logs: F8, middles: dict[int, float] | None = None) -> F8:
        ratio = np.exp(np.clip(logs, -MOST_LOG, MOST_LOG))
        values = ratio * _huber_weights(np.abs(ratio - 1.0), regime)
        for index in leaning:
            of_regime = regime == index
            values[of_regime] = _one_sided_weights(logs[of_regime] - (middles or {}).get(index, 0.0))
        return np.asarray(values)

    modes = {index: _half_sample_mode(logs[regime == index]) for index in leaning}
    return _reweighted(relative, share, weights, weights(logs, modes))


def _reweighted(relative: F8, share: F8, weights_of: Callable[[F8], F8], first: F8 | None = None) -> F8:
    """The fit whose weights follow from its own residuals; ``first``: weights to begin with."""
    weights = np.ones(len(relative)) if first is None else first
    solution = np.zeros(relative.shape[1])
    for _ in range(ROUNDS):
        before, solution = solution, _non_negative(relative, weights * share)
        weights = weights_of(-np.log(np.maximum(relative @ solution, LEAST_SPREAD)))
        if np.allclose(solution, before, rtol=1e-6, atol=0.0):
            break
    return solution


def _log_ratios(matrix: F8, solution: F8, latency_s: F8) -> F8:
    """log(logged / law) of each step."""
    return np.asarray(np.log(latency_s / np.maximum(matrix @ solution, LEAST_SPREAD * latency_s)))


def _huber_weights(errors: F8, regime: I8) -> F8:
    """Square roots of the weights by which Huber's loss of relative errors, none negative, is a weighted square."""
    spread = np.array([
        np.median(errors[regime == index]) if (regime == index).any() else 1.0 for index in range(len(REGIMES))
    ])  # fmt: skip
    limit = HUBER * np.maximum(NORMAL_MAD * spread, LEAST_SPREAD)[regime]
    return np.asarray(np.sqrt(np.minimum(1.0, limit / np.maximum(errors, LEAST_SPREAD))))


def _one_sided_weights(logs: F8) -> F8:
    """The same of one regime with noise on the long side: nothing beyond ``TRIM`` spreads of the short side."""
    spread = _short_spread(logs)
    weights = np.sqrt(np.minimum(1.0, HUBER * spread / np.maximum(-logs, LEAST_SPREAD)))
    return np.asarray(np.where(logs > 0, logs <= TRIM * spread, weights))


def _short_spread(logs: F8) -> float:
    """Standard deviation of the residuals below 0, as if they were normal; enough to keep ``LEAST_KEPT`` of all."""
    below = -logs[logs < 0]
    spread = NORMAL_MAD * float(np.median(below)) if len(below) else 0.0
    return max(spread, float(np.quantile(np.abs(logs), LEAST_KEPT)) / TRIM, LEAST_SPREAD)


def _leans(logs: F8) -> bool:
    """Whether the residuals of a regime lean to the long side."""
    if len(logs) < LEAST_LEANING:
        return False
    low, middle, high = np.quantile(logs, LEAN_AT)
    return bool(high + low - 2.0 * middle > LEAN * max(high - low, LEAST_SPREAD))


def _half_sample_mode(values: F8) -> float:
    """The mode: the densest half of the values, the densest half of that, and so on (Bickel and Fruehwirth, 2006)."""
    kept = np.sort(values)
    while len(kept) > 2:
        half = -(-len(kept) // 2)
        start = int(np.argmin(kept[half - 1 :] - kept[: len(kept) - half + 1]))
        kept = kept[start : start + half]
    return float(kept.mean())


def _non_negative(relative: F8, weights: F8) -> F8:
    """``x >= 0`` with the least ``|weights * (relative @ x - 1)|``."""
    from scipy.optimize import nnls

    weighted = np.hstack([relative, np.ones((len(relative), 1))]) * weights[:, None]
    # QR leaves the residuals and as many rows as columns. Columns differ by ten orders of magnitude.
    triangle = np.asarray(np.linalg.qr(weighted, mode="r"))
    scale = np.linalg.norm(triangle[:, :-1], axis=0)
    scale[scale == 0] = 1.0
    solution, _ = nnls(triangle[:, :-1] / scale, triangle[:, -1])
    return np.asarray(solution / scale)


def _regime_error(errors: F8) -> RegimeError:
    median, p90 = np.quantile(errors, [0.5, 0.9])
    return RegimeError(
        steps=len(errors), median=_percent(median), p90=_percent(p90), mean=_percent(float(errors.mean()))
    )


def _percent(share: float) -> float:
    return round(float(share), 4)


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
