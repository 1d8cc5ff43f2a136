"""The fit: constants of an engine and of its versions, with priors.

Notation
    theta    constants of a group (an engine, or a version of it), in the order of ``CONSTANTS``; seconds
    mu, s    prior mean and standard deviation; of a version: its engine's theta, VERSION_SHARE * s
    r_i, c_i log(simulated / measured) of TTFT and step time of case i, and their scale; w_i its weight

    minimise   sum_i w_i rho(r_i / c_i)  +  |(theta - mu) / s|^2 / 2    within the ranges of ``specs.machines.host``

rho is |x| rounded at 0 (pseudo-Huber). The method is reweighted least squares (``scipy.optimize.least_squares``), in
units of s around mu. Derivatives come from simulations with each constant raised by its step, or from an earlier fit
near by. Cases of one campaign, version, GPU and model share their errors: n of them count as n ** 0.5.

No constant belongs to a case, a model or a GPU. A version gets its own constants with at least ``VERSION_CASES`` cases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context

import numpy as np
from scipy.optimize import least_squares

from hisearch.base.dtypes import F8
from hisearch.specs.machines.host import RANGES, HostTimes
from hisearch.specs.versions import nearest_version
from hisearch.validate.silicon.pricing import EngineTimes
from refit.host_fit.cases import Case


@dataclass(frozen=True)
class Prior:
    """Prior of a constant, in seconds; ``step``: by how much it is raised for a derivative."""

    mean: float
    std: float
    step: float


#: By name, in the order of a vector. docs/latency.md has the sources, ``specs.machines.host`` the ranges.
PRIORS: dict[str, Prior] = {
    "step_s": Prior(0.3e-3, 0.2e-3, 0.1e-3),
    "kernel_s": Prior(0.7e-6, 0.4e-6, 0.2e-6),
    "per_sequence_s": Prior(4e-6, 4e-6, 2e-6),
    "schedule_s": Prior(0.8e-3, 0.6e-3, 0.4e-3),
    "launch_s": Prior(22e-6, 10e-6, 5e-6),
    "request_s": Prior(6e-3, 3e-3, 2e-3),
    "prompt_token_s": Prior(2.8e-6, 0.8e-6, 1e-6),
}
#: Measured, not fitted; of vLLM, and taken to hold for the other engines too where theirs is not known;
#: docs/notes/2026-11-host-work.md.
MEASURED = {"schedule_sequence_s": 11e-6, "read_s": 1e-3, "stream_s": 50e-6}
MEASURED_OF = {"sglang": {"stream_s": 70e-6}}
CONSTANTS = tuple(PRIORS)
MEAN, STD, STEP = (np.array([getattr(prior, key) for prior in PRIORS.values()]) for key in ("mean", "std", "step"))
LOW, HIGH = (np.array([getattr(RANGES[name], key) for name in CONSTANTS]) for key in ("low", "high"))
#: Standard deviation of a version's constants around its engine's, as a share of the prior's.
VERSION_SHARE = 1.0
VERSION_CASES = 20
#: Scaled error below which rho is rounded.
ROUNDING = 0.5
#: Most simulations of all cases in a fit, derivatives aside, and the relative change at which it ends.
ROUNDS, STILL = 8, 2e-3
#: Version of a group of all cases of an engine.
ALL = "*"

ENGINES, VERSIONS = "engines", "versions"

Group = tuple[str, str]
#: Derivatives of a case's errors by constant, shape (2, constants), by ``id``.
Slopes = dict[int, F8]


@dataclass(frozen=True)
class HostFit:
    """Fitted constants by engine, and the number of cases of each group.

    slopes: derivatives of the errors at the end of the fit, of ``ENGINES`` and of ``VERSIONS``.
    """

    engines: dict[str, EngineTimes]
    cases: dict[Group, int]
    slopes: dict[str, Slopes] = field(default_factory=dict, compare=False)

    def times_of(self, case: Case) -> HostTimes:
        """Host times of a case: its version's, else its release's, else its engine's, else the prior means."""
        if case.engine not in self.engines:
            return times_of(MEAN, case.engine)
        return self.engines[case.engine].of_version(case.version)


def fit(
    cases: Sequence[Case],
    *,
    start: HostFit | None = None,
    note: Callable[[str], None] = lambda _: None,
    pool: Executor | None = None,
    rounds: int = ROUNDS,
    slopes: Mapping[str, Slopes] | None = None,
) -> HostFit:
    """Fit all engines and versions in ``cases``; ``start`` only saves rounds.

    Args:
        cases: measured runs.
        start: initial constants.
        note: called with lines of progress.
        pool: of ``workers(cases)``; simulations run in this process where None.
        rounds: most simulations of all cases of a group, derivatives aside.
        slopes: derivatives of a fit near by, reused; errors are still simulated.

    Raises:
        ValueError: there are no cases.
    """
    if not cases:
        raise ValueError("no run can be simulated: nothing to fit")
    engine_groups = _grouped(cases, lambda case: (case.engine, ALL))
    initial = {group: _begin(start, group, MEAN) for group in engine_groups}
    evaluate = evaluator(pool)
    computed: dict[str, Slopes] = {ENGINES: {}, VERSIONS: {}}
    reused = {level: (slopes or {}).get(level, {}) for level in computed}
    search = _Search(evaluate, note, rounds, STD, reused[ENGINES], computed[ENGINES])
    engine_thetas = {group: search.fit(group, of, initial[group], MEAN) for group, of in engine_groups.items()}
    groups = version_groups(cases)
    priors = {group: engine_thetas[group[0], ALL] for group in groups}
    search = _Search(evaluate, note, rounds, VERSION_SHARE * STD, reused[VERSIONS], computed[VERSIONS])
    versions = {
        group: search.fit(group, of, _begin(start, group, priors[group]), priors[group]) for group, of in groups.items()
    }
    engines = {
        engine: EngineTimes(
            times_of(theta, engine),
            {group[1]: times_of(value, engine) for group, value in versions.items() if group[0] == engine},
        )
        for (engine, _), theta in engine_thetas.items()
    }
    return HostFit(engines, {group: len(members) for group, members in {**engine_groups, **groups}.items()}, computed)


def times_of(theta: F8, engine: str) -> HostTimes:
    """Constants to four digits, within their ranges, and what was measured of ``engine``."""
    within = np.clip(theta, LOW, HIGH)
    fitted = {name: float(f"{value:.4g}") for name, value in zip(CONSTANTS, within, strict=True)}
    return HostTimes(**MEASURED | MEASURED_OF.get(engine, {}), **fitted)


def vector_of(times: HostTimes) -> F8:
    """The reverse of ``times_of``."""
    return np.array([getattr(times, name) for name in CONSTANTS])


def version_groups(cases: Iterable[Case]) -> dict[Group, list[Case]]:
    """Versions with enough cases; those with fewer join a version of their release that has enough."""
    groups = _grouped(cases, lambda case: (case.engine, case.version))
    large_groups = {group: members for group, members in groups.items() if len(members) >= VERSION_CASES}
    for (engine, version), members in groups.items():
        name = nearest_version(version, [candidate for owner, candidate in large_groups if owner == engine])
        if name is not None and name != version:
            large_groups[engine, name] = [*large_groups[engine, name], *members]
    return large_groups


#: Errors of cases, each under constants of its own, shape (N, 2).
Evaluate = Callable[[Sequence[Case], Sequence[F8]], F8]

_cases: list[Case] = []


@contextmanager
def workers(cases: Sequence[Case], processes: int):  # type: ignore[no-untyped-def]
    """A pool of processes that hold ``cases``; None for one process."""
    _cases[:] = cases
    if processes < 2:
        yield None
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("fork")) as pool:
        yield pool


def _errors_of(job: tuple[list[int], list[F8]]) -> list[F8]:
    chosen = [_cases[index] for index in job[0]]
    return [case.errors(times_of(theta, case.engine)) for case, theta in zip(chosen, job[1], strict=True)]


def evaluator(pool: Executor | None) -> Evaluate:
    """The function that simulates cases, in ``pool`` unless it is None."""
    places = {id(case): index for index, case in enumerate(_cases)}

    def in_process(cases: Sequence[Case], thetas: Sequence[F8]) -> F8:
        pairs = zip(cases, thetas, strict=True)
        return np.array([case.errors(times_of(theta, case.engine)) for case, theta in pairs])

    def in_pool(cases: Sequence[Case], thetas: Sequence[F8]) -> F8:
        assert pool is not None
        at = [places[id(case)] for case in cases]
        # Similar cases stay together, so that a process compiles their worker once; the longest take a second each.
        size = 16
        jobs = [(at[k : k + size], list(thetas[k : k + size])) for k in range(0, len(at), size)]
        return np.array([error for chunk in pool.map(_errors_of, jobs) for error in chunk])

    return in_process if pool is None else in_pool


def _grouped(cases: Iterable[Case], key: Callable[[Case], Group]) -> dict[Group, list[Case]]:
    groups: dict[Group, list[Case]] = {}
    for case in cases:
        groups.setdefault(key(case), []).append(case)
    return groups


def _begin(start: HostFit | None, group: Group, otherwise: F8) -> F8:
    if start is None or group[0] not in start.engines:
        return otherwise
    of_engine = start.engines[group[0]]
    if group[1] == ALL:
        return vector_of(of_engine.own)
    return vector_of(of_engine.versions[group[1]]) if group[1] in of_engine.versions else otherwise


def _weights(cases: Sequence[Case]) -> F8:
    """Weight of each case and figure, shape (N, 2)."""
    group_sizes = Counter((case.campaign, case.version, case.gpu, case.model) for case in cases)
    by_case = np.array([group_sizes[case.campaign, case.version, case.gpu, case.model] ** -0.5 for case in cases])
    return by_case[:, None] * np.array([case.counts for case in cases], dtype=np.float64)


@dataclass(frozen=True)
class _Search:
    """Fits of groups. std: of the priors. reused: derivatives taken as they are; new ones go into ``computed``."""

    evaluate: Evaluate
    note: Callable[[str], None]
    rounds: int
    std: F8
    reused: Slopes
    computed: Slopes

    def fit(self, group: Group, cases: Sequence[Case], start: F8, mean: F8) -> F8:
        """The constants of a group with the least loss."""
        self.note(f"{' '.join(group)}: {len(cases)} runs")
        scale, weights = np.array([case.scale for case in cases]), _weights(cases).ravel()
        simulated: dict[bytes, F8] = {}

        def theta_of(x: F8) -> F8:
            return np.clip(mean + self.std * x, LOW, HIGH)

        def errors(x: F8) -> F8:
            if x.tobytes() not in simulated:
                simulated[x.tobytes()] = self.evaluate(cases, [theta_of(x)] * len(cases))
            return simulated[x.tobytes()]

        def residuals(x: F8) -> F8:
            return np.concatenate([(errors(x) / scale).ravel(), x])

        def derivatives(x: F8) -> F8:
            slopes = self._slopes(cases, theta_of(x), errors(x)) / scale[..., None]
            return np.vstack([slopes.reshape(-1, len(STEP)) * self.std, np.eye(len(STEP))])

        def loss(squares: F8) -> F8:
            """Of the errors, then of the prior; without the curvature of rho, so that steps are those of |x|."""
            rounded = np.sqrt(squares[: weights.size] + ROUNDING**2)
            prior = squares[weights.size :]
            values = np.concatenate([2.0 * weights * (rounded - ROUNDING), prior])
            first = np.concatenate([weights / rounded, np.ones_like(prior)])
            return np.stack([values, first, np.zeros_like(values)])

        bounds = ((LOW - mean) / self.std, (HIGH - mean) / self.std)
        first = np.clip((start - mean) / self.std, *bounds)
        fitted = least_squares(
            residuals, first, derivatives, bounds, method="dogbox", loss=loss, ftol=STILL, xtol=STILL,
            max_nfev=self.rounds,
        )  # fmt: skip
        return theta_of(fitted.x)

    def _slopes(self, cases: Sequence[Case], theta: F8, errors: F8) -> F8:
        """Derivatives of the errors, shape (N, 2, constants)."""
        if all(id(case) in self.reused for case in cases):
            return np.stack([self.reused[id(case)] for case in cases])
        raised = np.where(theta + STEP <= HIGH, 1.0, -1.0) * STEP
        columns = [
            (self.evaluate(cases, [theta + step] * len(cases)) - errors) / raised[k]
            for k, step in enumerate(np.diag(raised))
        ]
        slopes = np.stack(columns, axis=-1)
        self.computed.update({id(case): slope for case, slope in zip(cases, slopes, strict=True)})
        return slopes
