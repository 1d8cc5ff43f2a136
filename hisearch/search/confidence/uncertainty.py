"""Uncertain inputs of a study: step times, traffic and prices, drawn together.

Notation
    e_r    stated error of regime r: prefill, decode, mixed steps or host work
    z_0, z_r   independent standard normal numbers of a draw
    rho    correlation of the regimes on the device

    y_r  = sqrt(rho) * z_0 + sqrt(1 - rho) * z_r
    log factor_r = sigma_r * y_r, for prefill, decode and mixed steps; with measured serving runs, the quantile at
        y_r of log(measured / simulated) over the runs without a fitted constant: of prompts for prefill, else of steps
    log factor_ttft = quantile at y_prefill of TTFT, less log factor_prefill: on the TTFT of requests, not on steps
    log factor_host = sigma_host * z_host
    sigma_r = log(1 + e_r) / 0.6745

A profile's stated error is the median of absolute errors on held-out steps or operators. Half of a normal law's mass
lies within 0.6745 of its deviation, which gives sigma. The error is taken to be common to all steps of a regime: random
errors of single steps average out over a run and would not move a percentile. Compared with measured serving runs,
median errors of complete runs are indeed no smaller than stated ones (docs/accuracy.md). Regimes share errors with a
common cause (a clock, the attained bandwidth) and differ as far as kernels are fitted one by one. The degree is not
known; the study sets ``rho``. Host work runs on another machine and errs independently. What TTFT errs by more than
prompts makes no step slower: without load, TTFT errs as measured, and throughput errs as steps do.

Factors scale compiled step-cost tables; nothing is compiled again. Prices are triangular between the ends of their
range, with the price itself as the most likely value.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.latency.corrections import corrected
from hisearch.latency.costs import CompiledCosts
from hisearch.specs.machines.profile import CorrectionSpec
from hisearch.traces.changes.bootstrap import Scheme, SessionTable, resample
from hisearch.traces.compiled import CompiledTrace

#: Regimes with independent errors, in the order of a draw's numbers after the common one.
REGIMES = ("prefill", "decode", "mixed", "host")
#: What else a draw puts a factor on, where served runs were measured.
TTFT = "ttft"

#: Median of the absolute value of a standard normal number.
NORMAL_MEDIAN = 0.6744897501960817

#: Streams of random numbers besides the study's own seed.
_TRACES, _PRICES, _SCHEMES, _FRESH = 1, 2, 3, 4


@dataclass(frozen=True)
class PriceRange:
    """An uncertain price. item: priced thing. unit: USD/hour or USD/GiB/hour. source: origin of the range."""

    item: str
    usd: float
    low: float
    high: float
    unit: str = "USD/hour"
    source: str = ""

    def draw(self, share: float) -> float:
        """The quantile of the price at ``share``: triangular, ``usd`` the most likely."""
        if self.high <= self.low:
            return self.usd
        width, rise = self.high - self.low, self.usd - self.low
        if share * width < rise:
            return self.low + math.sqrt(share * width * rise)
        return self.high - math.sqrt((1.0 - share) * width * (self.high - self.usd))


@dataclass(frozen=True)
class Draw:
    """One draw of the uncertain inputs.

    number: from 0. normal: z_0, then one for each of ``REGIMES``; shape (5,). trace: the traffic. prices: by item.
    """

    number: int
    normal: F8
    trace: CompiledTrace
    prices: Mapping[str, float] = field(default_factory=dict)

    def disturbed(self, costs: CompiledCosts, correlation: float) -> CompiledCosts:
        """Step costs under this draw."""
        return with_factors(costs, factors_of(costs, self.normal, correlation))


@dataclass(frozen=True)
class Uncertainty:
    """All uncertain inputs; see the module.

    normal: shape (draws, 5); zeros leave step times as they are. sessions: of the trace, None leaves it as it is.
    """

    trace: CompiledTrace
    seed: int
    normal: F8
    prices: tuple[PriceRange, ...] = ()
    sessions: SessionTable | None = None
    correlation: float = 0.5

    def __len__(self) -> int:
        return len(self.normal)

    @cached_property
    def digest(self) -> str:
        """Digest of everything that decides a numbered draw, besides the trace and the study's other inputs."""
        content = {
            "seed": self.seed,
            "prices": [astuple(price) for price in self.prices],
            "sessions": self.sessions is not None,
            "correlation": self.correlation,
            "normal": self.normal[:1].tolist(),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def draw(self, number: int) -> Draw:
        """The draw of that number: independent of other draws and of their order."""
        trace = self.trace
        if self.sessions is not None and len(self.sessions) > 1:
            rng = self._stream(_TRACES, number)
            trace = resample(self.sessions, self._scheme(self.sessions, number), rng)
        shares = self._stream(_PRICES, number).uniform(size=len(self.prices))
        drawn = {price.item: price.draw(float(share)) for price, share in zip(self.prices, shares, strict=True)}
        return Draw(number, self.normal[number], trace, drawn)

    def fresh(self, count: int) -> Uncertainty:
        """``count`` draws of the same inputs that are independent of these.

        They do not continue the same sequence, whose next points fill the gaps of the first ones.
        """
        sequence = np.random.SeedSequence(entropy=self.seed, spawn_key=(_FRESH,))
        seed = int(sequence.generate_state(1, np.uint64)[0])
        return replace(self, seed=seed, normal=normal_draws(count, seed))

    def _scheme(self, table: SessionTable, number: int) -> Scheme:
        """The table's schemes in turn, in an order drawn anew for every round.

        A fixed order would correlate with the parity of ``number``, a digit of the normal numbers' Sobol points.
        """
        turn, place = divmod(number, len(table.schemes))
        order = self._stream(_SCHEMES, turn).permutation(len(table.schemes))
        return table.schemes[int(order[place])]

    def _stream(self, kind: int, number: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(entropy=self.seed, spawn_key=(kind, number)))


def normal_draws(count: int, seed: int) -> F8:
    """Standard normal numbers of ``count`` draws, shape (count, 5): scrambled Sobol points, more even than random ones.

    The first k of them do not depend on ``count``.
    """
    from scipy.special import ndtri
    from scipy.stats import qmc

    if count < 1:
        return np.zeros((0, 1 + len(REGIMES)))
    sobol = qmc.Sobol(1 + len(REGIMES), scramble=True, seed=np.random.default_rng(seed))
    points = sobol.random_base2(max(math.ceil(math.log2(count)), 0))[:count]
    return np.asarray(ndtri(np.clip(points, 1e-12, 1.0 - 1e-12)), dtype=np.float64)


def stated_errors(costs: CompiledCosts) -> dict[str, float]:
    """Stated error by regime: the profile's own if it has one, else its error of any step."""
    return {regime: costs.regime_errors.get(regime, costs.relative_error) for regime in REGIMES}


def deviations(costs: CompiledCosts) -> dict[str, float]:
    """Standard deviation of the logarithm of each regime's factor."""
    return {regime: math.log1p(error) / NORMAL_MEDIAN for regime, error in stated_errors(costs).items()}


def factors_of(costs: CompiledCosts, normal: F8, correlation: float) -> dict[str, float]:
    """Factor on step times by regime, and on ``TTFT``, from a draw's normal numbers of shape (5,)."""
    common, independent = math.sqrt(correlation), math.sqrt(1.0 - correlation)
    factors = {}
    for place, (regime, sigma) in enumerate(deviations(costs).items(), start=1):
        z = float(normal[place] if regime == "host" else common * normal[0] + independent * normal[place])
        served = costs.served
        if served is None or regime == "host" or not normal.any():
            factors[regime] = math.exp(sigma * z)
        elif regime == "prefill":
            factors[regime] = served.prompts.measured(1.0, z)
            factors[TTFT] = served.ttft.measured(1.0, z) / factors[regime]
        else:
            factors[regime] = served.step.measured(1.0, z)
    return factors


def drawn_ranges(costs: CompiledCosts, uncertainty: Uncertainty, level: float) -> dict[str, tuple[float, float]]:
    """The interval that holds ``level`` of the factors which the draws put on step times and TTFT; {} without any."""
    if not len(uncertainty):
        return {}
    factors = [factors_of(costs, normal, uncertainty.correlation) for normal in uncertainty.normal]
    shares = [(1.0 - level) / 2.0, (1.0 + level) / 2.0]
    ends = {name: np.quantile([drawn[name] for drawn in factors], shares) for name in factors[0]}
    return {regime: (float(low), float(high)) for regime, (low, high) in ends.items()}


def with_factors(costs: CompiledCosts, factors: Mapping[str, float]) -> CompiledCosts:
    """Step costs scaled by regime, and ``TTFT``; what is left out stays.

    If the tables have no separate mixed steps, these err as their prompts and decodes do, and ``mixed`` has no effect.
    """
    plain = CorrectionSpec(
        host=factors.get("host", 1.0), prefill=factors.get("prefill", 1.0), decode=factors.get("decode", 1.0)
    )
    if TTFT in factors:
        front = costs.front_end
        costs = replace(costs, front_end=front._replace(ttft_factor=front.ttft_factor * factors[TTFT]))
    return corrected(costs, plain, factors.get("mixed", 1.0) if "mixed" in factors else None)
