"""Random draws for workloads: streams, lengths, think times, arrivals.

Every subsystem draws from a stream of its own (law L6): changing one distribution leaves the others' draws alone.
"""

from __future__ import annotations

import math
import zlib

import numpy as np
import numpy.typing as npt

from hisearch.base.dtypes import F8, I8
from hisearch.specs.workloads.distributions import LengthSpec, ThinkSpec
from hisearch.specs.workloads.workload import ArrivalSpec

#: 90th percentile of the standard normal distribution.
_NORMAL_P90 = 1.2815515655446004


def stream(subsystem: str, *seeds: int) -> np.random.Generator:
    """The random stream of ``subsystem`` under ``seeds`` (whole numbers, at least 0)."""
    return np.random.default_rng(np.random.SeedSequence([*seeds, zlib.crc32(subsystem.encode())]))


def draw_lengths(spec: LengthSpec, count: int, rng: np.random.Generator) -> I8:
    """``count`` token counts, rounded and clipped to the distribution's bounds; shape (count,)."""
    if spec.distribution == "lognormal":
        values = np.exp(_given(spec.mean_log) + _given(spec.sigma_log) * rng.standard_normal(count))
    elif spec.distribution == "pareto":
        values = _given(spec.scale_tokens) * (1.0 - rng.random(count)) ** (-1.0 / _given(spec.shape))
    elif spec.distribution == "empirical":
        knots = np.array(spec.quantiles)
        values = np.interp(rng.random(count), knots[:, 0], knots[:, 1])
    else:
        values = np.full(count, _given(spec.scale_tokens))
    return np.clip(np.rint(values), spec.min_tokens, spec.max_tokens).astype(np.int64)


def _given(value: float | None) -> float:
    """A parameter whose presence the spec's own check ensures."""
    if value is None:
        raise ValueError("a parameter of the distribution is missing")
    return value


def draw_think_s(spec: ThinkSpec | None, count: int, rng: np.random.Generator) -> F8:
    """``count`` think times in seconds, 0 without a distribution; shape (count,)."""
    if spec is None:
        return np.zeros(count)
    sigma = math.log(spec.p90_s / spec.p50_s) / _NORMAL_P90
    values = spec.p50_s * np.exp(sigma * rng.standard_normal(count))
    return np.minimum(values, spec.max_s)


def weibull_shape(cv: float) -> float:
    """Shape of the Weibull distribution with this coefficient of variation, by bisection.

    cv^2 = Gamma(1 + 2/k) / Gamma(1 + 1/k)^2 - 1 falls as the shape k rises.
    """

    def cv_squared(shape: float) -> float:
        return math.exp(math.lgamma(1 + 2 / shape) - 2 * math.lgamma(1 + 1 / shape)) - 1

    low, high = 0.05, 200.0
    if not cv_squared(high) <= cv * cv <= cv_squared(low):
        raise ValueError(f"arrivals.cv: {cv:g} is out of a Weibull distribution's range here (0.0065 to 1e5)")
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if cv_squared(middle) > cv * cv else (low, middle)
    return math.sqrt(low * high)


def unit_gaps(spec: ArrivalSpec, count: int, rng: np.random.Generator) -> F8:
    """``count`` gaps between arrivals with mean 1; shape (count,)."""
    if spec.process == "gamma":
        shape = 1.0 / spec.cv**2
        return rng.gamma(shape, 1.0 / shape, count)
    if spec.process == "weibull":
        shape = weibull_shape(spec.cv)
        return rng.weibull(shape, count) / math.gamma(1 + 1 / shape)
    return rng.exponential(1.0, count)


def arrival_times_s(spec: ArrivalSpec, count: int, begin_s: float, rng: np.random.Generator) -> F8:
    """The first ``count`` arrivals from ``begin_s`` on, rising; shape (count,).

    The rate is rate_rps * (1 + amplitude * sin(2 pi t / period)). A renewal process of mean gap 1 runs in operational
    time, the integral of the rate (so that its burstiness is kept at every rate), and is mapped back to seconds.
    """
    if spec.rate_rps is None:
        raise ValueError(f"arrivals.rate_rps: {spec.process} has no arrival times")
    operational = np.cumsum(unit_gaps(spec, count, rng)) / spec.rate_rps
    return np.asarray(_invert_rate(operational, begin_s, spec.diurnal_amplitude, spec.diurnal_period_s))


def _invert_rate(operational: F8, begin_s: float, amplitude: float, period_s: float) -> F8:
    """Times t at which the integral of 1 + amplitude sin(2 pi x / period) from ``begin_s`` reaches ``operational``."""
    if amplitude == 0.0:
        return begin_s + operational
    omega = 2 * math.pi / period_s

    def integral(t: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        waves = np.cos(omega * begin_s) - np.cos(omega * t)
        return np.asarray((t - begin_s) + amplitude / omega * waves)

    # The integral differs from t - begin_s by at most 2 amplitude / omega, which brackets the root.
    low = begin_s + operational - 2 * amplitude / omega
    high = begin_s + operational + 2 * amplitude / omega
    for _ in range(60):
        middle = 0.5 * (low + high)
        below = integral(middle) < operational
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.maximum(0.5 * (low + high), begin_s)
