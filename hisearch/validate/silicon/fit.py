"""Host work of engines, fitted to measured runs: six constants of an engine, and of each version with enough runs.

    r_i = log(predicted / measured) of TTFT and TPOT of run i, simulated; w_i its weight
    minimise   sum_i w_i |r_i|  +  |RIDGE (theta - start) / unit|^2     within 0 <= theta <= BOUNDS

by Gauss-Newton steps, shortened where they miss, on reweighted least squares (weights 1 / sqrt(r^2 + ROUNDING^2)),
derivatives by simulating again with each constant raised by one unit, until a group stands still. An engine's own
constants are fitted to all its runs; a version's are drawn towards them and fitted to its own. Both begin at whatever
leaves the least errors: those, ``START``, or what the profiles at hand say. Runs that state no version count as one:
they are those of a campaign's first months. Versions with few runs count with another of their release (a post-release,
a nightly build), if that has enough. Nothing is fitted to a row, a model or a
GPU. An engine's own constants stand for versions that have none, so that no version outweighs the others there: the
runs of one count as the root of their number.

TTFT of campaigns with a start-up cost (``START_UP``) is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hisearch.specs.host import HostTimes
from hisearch.specs.versions import nearest_version
from hisearch.validate.silicon.conditions import host_version
from hisearch.validate.silicon.pricing import EngineTimes, NotPriced, Pricer
from hisearch.validate.silicon.report import START_UP, Errors, PricedRow, errors
from hisearch.validate.silicon.rows import SiliconRow

F8 = npt.NDArray[np.float64]

#: The constants, in the order of a vector of them.
CONSTANTS = ("step_s", "layer_s", "per_sequence_s", "prompt_layer_s", "request_s", "prompt_token_s")
#: By how much each is raised for a derivative: about what it commonly differs by.
UNITS = np.array([2e-4, 5e-6, 5e-6, 3e-5, 5e-3, 5e-6])
#: No engine's host work is more: 6 ms a step, 60 us a layer, 0.1 ms a sequence, 0.7 ms a layer and prompt, 0.2 s a
#: request, 40 us a token.
BOUNDS = np.array([6e-3, 6e-5, 1e-4, 7e-4, 0.2, 4e-5])
#: Where fits may begin, and where an engine's own constants are drawn to.
START = np.array([5e-4, 2e-6, 2e-6, 2e-5, 10e-3, 5e-6])
#: A version that no profile has: priced by the engine's own constants.
NO_VERSION = ""
#: Runs that a version needs for constants of its own.
VERSION_RUNS = 20
ROUNDS, RIDGE, ROUNDING = 4, 0.3, 0.03
#: Share of its errors that a step has to take off, or the group stands still.
STILL = 0.005
#: Shares of a step that are tried: queues make residuals jump, so that a whole step may miss.
SHARES = (1.0, 0.4, 0.15)

#: (engine, version), or (engine, ALL) for the engine's own constants.
Group = tuple[str, str]
ALL = "*"


@dataclass(frozen=True)
class EngineFit:
    """Fitted host work by engine, and errors of the runs that it was not fitted on.

    left_out: "model" and "GPU": errors of all rows, each simulated with constants fitted without the rows of its
    model or GPU (linearised at the full fit).
    """

    engines: dict[str, EngineTimes]
    left_out: dict[str, Errors]


def fit_engines(
    rows: Sequence[SiliconRow],
    pricer: Pricer,
    note: Callable[[str], None] = lambda _: None,
    *,
    versions_alone: bool = False,
) -> EngineFit:
    """Fit the host work of every engine in ``rows``.

    Args:
        rows: measured runs; those that cannot be priced are passed over, and those with prefill and decode apart.
        pricer: what simulates; its profile is left as it is.
        note: told about progress.
        versions_alone: the engines' own constants stay those of the profiles at hand.

    Raises:
        ValueError: no row can be priced.
    """
    known = _priced((row for row in rows if row.mode == "agg"), pricer)
    if not known:
        raise ValueError("no row can be simulated: nothing to fit")
    engines = sorted({row.backend for row in known})
    engine_wide = _Fit(pricer, {(engine, ALL): [row for row in known if row.backend == engine] for engine in engines})
    drawn_to = {(engine, ALL): START for engine in engines}
    own = {
        group: _vector(pricer.times_of(replace(rows[0], version=NO_VERSION)))
        for group, rows in engine_wide.groups.items()
    }
    if not versions_alone:
        own = {group: engine_wide.best(group, [START, at_hand]) for group, at_hand in own.items()}
        engine_wide.settle(own, drawn_to, lambda round_: note(f"engines, round {round_} of at most {ROUNDS}"))
    versions = version_groups(known)
    by_version = _Fit(pricer, versions)
    theta = {
        group: by_version.best(group, [own[group[0], ALL], START, _vector(pricer.times_of(rows[0]))])
        for group, rows in versions.items()
    }
    drawn_to_own = {group: own[group[0], ALL] for group in versions}
    by_version.settle(theta, drawn_to_own, lambda round_: note(f"versions, round {round_} of at most {ROUNDS}"))
    note("leaving out models and GPUs")
    engine_wide.linearise(own, engine_wide.groups)
    by_version.linearise(theta, by_version.groups)
    left_out = {
        name: _left_out(name, key, known, pricer, (engine_wide, own), (by_version, theta))
        for name, key in (("model", lambda row: row.model), ("GPU", lambda row: row.system))
    }
    return EngineFit(_terms(own, theta), left_out)


def write_engines(path: Path, fit: EngineFit, fitted_on: str) -> None:
    """Write the constants as YAML: engine -> its own, and ``versions``."""
    import yaml

    engines = {
        engine: times.own.model_dump() | {"versions": {name: of.model_dump() for name, of in times.versions.items()}}
        for engine, times in sorted(fit.engines.items())
    }
    about = f"# Host work of engines, fitted to {fitted_on} by `hisearch validate silicon --fit`.\n"
    path.write_text(about + yaml.safe_dump(engines, sort_keys=False), encoding="utf-8")


class _Fit:
    """Gauss-Newton over groups of rows that each have constants of their own."""

    def __init__(self, pricer: Pricer, groups: dict[Group, list[SiliconRow]]) -> None:
        self.pricer = pricer
        self.groups = groups
        self.weights = {key: _weights(rows) for key, rows in groups.items()}
        self.residuals: dict[Group, F8] = {}
        self.slopes: dict[Group, F8] = {}

    def settle(self, theta: dict[Group, F8], start: dict[Group, F8], note: Callable[[int], None]) -> None:
        """Step every group, in place, until it stands still."""
        moving = set(self.groups)
        for round_ in range(ROUNDS):
            note(round_ + 1)
            self.linearise(theta, moving)
            moving = {key for key in sorted(moving) if self._step(key, theta, start[key])}
            if not moving:
                break

    def _step(self, key: Group, theta: dict[Group, F8], start: F8) -> bool:
        """As much of a Gauss-Newton step as lowers the errors; whether it was worth it.

        Towards ``start``, or damped where it stands: constants that are far from ``start`` for a reason would not move
        at all if every step had to take them back there.
        """
        rows = self.groups[key]
        before = self._loss(key, self.residuals[key])
        used = np.ones(len(rows), bool)
        steps = [self.solve(key, theta[key], drawn_to, used) - theta[key] for drawn_to in (start, theta[key])]
        tried = [theta[key] + share * step for step in steps for share in SHARES]
        losses = [self._loss(key, _residuals(rows, self.pricer, vector)) for vector in tried]
        if min(losses) >= before:
            return False
        theta[key] = tried[int(np.argmin(losses))]
        return min(losses) < (1.0 - STILL) * before

    def best(self, key: Group, candidates: Sequence[F8]) -> F8:
        """The one of ``candidates`` that leaves a group the least errors."""
        rows = self.groups[key]
        found = min(candidates, key=lambda theta: self._loss(key, _residuals(rows, self.pricer, theta)))
        return np.clip(found, 0.0, BOUNDS)

    def linearise(self, theta: dict[Group, F8], groups: Iterable[Group]) -> None:
        """Residuals and their slopes, per unit of each constant."""
        for key in groups:
            rows = self.groups[key]
            base = _residuals(rows, self.pricer, theta[key])
            raised = [
                _residuals(rows, self.pricer, theta[key] + np.eye(len(UNITS))[k] * UNITS) - base
                for k in range(len(UNITS))
            ]
            self.residuals[key], self.slopes[key] = base, np.stack(raised, axis=-1)

    def solve(self, key: Group, theta: F8, start: F8, used: npt.NDArray[np.bool_]) -> F8:
        """Constants from the rows ``used`` of a group, by its linearisation."""
        from scipy.optimize import lsq_linear

        residuals, slopes = self.residuals[key][used], self.slopes[key][used]
        weights = (residuals**2 + ROUNDING**2) ** -0.25 * np.sqrt(self.weights[key][used, None])
        weights[np.array([_starts_up(row) for row in self.groups[key]])[used], 0] = 0.0
        matrix = np.vstack([(weights[..., None] * slopes).reshape(-1, len(UNITS)), RIDGE * np.eye(len(UNITS))])
        wanted = np.concatenate([-(weights * residuals).ravel(), RIDGE * (start - theta) / UNITS])
        low, high = -theta / UNITS, (BOUNDS - theta) / UNITS
        step = lsq_linear(matrix, wanted, (np.minimum(low, -1e-9), np.maximum(high, 1e-9))).x
        return np.asarray(np.clip(theta + UNITS * step, 0.0, BOUNDS))

    def _loss(self, key: Group, residuals: F8) -> float:
        """Weighted sum of the rounded absolute residuals that count."""
        counted = np.ones_like(residuals)
        counted[[_starts_up(row) for row in self.groups[key]], 0] = 0.0
        return float((self.weights[key][:, None] * counted * np.sqrt(residuals**2 + ROUNDING**2)).sum())


def _left_out(
    name: str,
    key_of: Callable[[SiliconRow], str],
    rows: Sequence[SiliconRow],
    pricer: Pricer,
    engine_wide: tuple[_Fit, dict[Group, F8]],
    by_version: tuple[_Fit, dict[Group, F8]],
) -> Errors:
    """Errors with each model (or GPU) priced by constants that its own rows had no part in."""
    entries: list[PricedRow] = []
    for out in sorted({key_of(row) for row in rows}):
        own = _without(engine_wide[0], engine_wide[1], engine_wide[1], key_of, out, 1)
        starts = {group: own.get((group[0], ALL), START) for group in by_version[1]}
        theta = _without(by_version[0], by_version[1], starts, key_of, out, VERSION_RUNS)
        engines = _terms(own, theta)
        for row in (row for row in rows if key_of(row) == out):
            overhead = engines[row.backend].of_version(host_version(row)) if row.backend in engines else _times(START)
            entries.append(PricedRow(row, pricer.with_times(row, overhead)))
    return errors(f"left out by {name}", entries, [entry for entry in entries if not _starts_up(entry.row)])


def _without(
    fit: _Fit,
    theta: dict[Group, F8],
    start: dict[Group, F8],
    key_of: Callable[[SiliconRow], str],
    out: str,
    least: int,
) -> dict[Group, F8]:
    """Constants of the groups that keep at least ``least`` rows without ``out``."""
    found = {}
    for key, rows in fit.groups.items():
        used = np.array([key_of(row) != out for row in rows])
        if used.sum() >= least:
            found[key] = theta[key] if used.all() else fit.solve(key, theta[key], start[key], used)
    return found


def _terms(own: dict[Group, F8], theta: dict[Group, F8]) -> dict[str, EngineTimes]:
    terms = {}
    for (engine, _), vector in own.items():
        versions = {group[1]: _times(value) for group, value in theta.items() if group[0] == engine}
        terms[engine] = EngineTimes(_times(vector), versions)
    return terms


def _times(vector: F8) -> HostTimes:
    """Constants to four digits; what is less than a tenth of its unit is nothing."""
    kept = np.where(vector < UNITS / 10.0, 0.0, vector)
    return HostTimes(**{name: float(f"{value:.4g}") for name, value in zip(CONSTANTS, kept, strict=True)})


def _residuals(rows: Iterable[SiliconRow], pricer: Pricer, theta: F8) -> F8:
    """(rows, 2) logarithms of predicted over measured TTFT and TPOT."""
    prices = [(pricer.with_times(row, _exact(theta)), row) for row in rows]
    return np.array(
        [
            (np.log(price.ttft_s / row.measured_ttft_s), np.log(price.tpot_s / row.measured_tpot_s))
            for price, row in prices
        ]
    )


def _weights(rows: Sequence[SiliconRow]) -> F8:
    """Weights of rows, 1 on average: those of a version count as the root of their number."""
    runs = Counter(host_version(row) for row in rows)
    weights: F8 = np.array([runs[host_version(row)] ** -0.5 for row in rows])
    return np.asarray(weights / weights.mean())


def _vector(times: HostTimes) -> F8:
    return np.array([getattr(times, name) for name in CONSTANTS])


def _exact(vector: F8) -> HostTimes:
    return HostTimes(**dict(zip(CONSTANTS, np.maximum(vector, 0.0).tolist(), strict=True)))


def _priced(rows: Iterable[SiliconRow], pricer: Pricer) -> list[SiliconRow]:
    found = []
    for row in rows:
        try:
            pricer.price(row)
        except NotPriced:
            continue
        found.append(row)
    return found


def _grouped(rows: Iterable[SiliconRow]) -> dict[Group, list[SiliconRow]]:
    """Runs by engine and version; those that state none count as one of their own."""
    groups: dict[Group, list[SiliconRow]] = {}
    for row in rows:
        groups.setdefault((row.backend, host_version(row)), []).append(row)
    return groups


def version_groups(rows: Iterable[SiliconRow]) -> dict[Group, list[SiliconRow]]:
    """Groups with enough runs; the runs of versions with fewer join the group of their release, where it has one."""
    groups = _grouped(rows)
    kept = {group: members for group, members in groups.items() if len(members) >= VERSION_RUNS}
    for (engine, version), members in groups.items():
        name = nearest_version(version, [known for of, known in kept if of == engine])
        if name is not None and name != version:
            kept[engine, name] = [*kept[engine, name], *members]
    return kept


def _starts_up(row: SiliconRow) -> bool:
    return (row.backend, row.version) in START_UP
