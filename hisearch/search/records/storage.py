"""Trials in an Optuna database, so that ``optuna-dashboard sqlite:///study.db`` opens a study.

A run has three Optuna studies, in an SQLite file of its own or in a PostgreSQL database of several runs. ``<name>``
holds the deployments simulated on the complete trace, with the study's objectives. ``<name>/slices`` holds those
simulated on a slice, and ``<name>/other-loads`` those at another load; compare their figures only with each other.
Trials are written in bulk, behind the search: every few seconds while it runs, and at the ends of its stages. A killed
study resumes from the journal, not from the database.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from hisearch.search.model.deployments import describe, starting_memory_fraction
from hisearch.search.model.problem import Problem
from hisearch.search.model.trial import Trial, is_maximised
from hisearch.search.records.bulk_trials import add_finished
from hisearch.search.records.notices import quiet_optuna
from hisearch.search.records.pool_dimensions import POOLS, pool_dimensions
from hisearch.search.select.pareto import INFINITE_OBJECTIVE
from hisearch.specs.deployments.tiers import KV_CONNECTORS
from hisearch.specs.machines.hardware import ScopeName
from hisearch.specs.storage_url import checked_storage_url, mask_passwords, without_secrets

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.storages import RDBStorage

#: Seconds between two writes during a search: the longest wait of a reader who follows it, apart from the write itself.
LIVE_S = 3.0
#: Seconds within which a database server must answer.
CONNECT_S = 10


class StorageError(ValueError):
    """A database that cannot be written. Its address is shown without the password."""


class NoDriverError(StorageError):
    """The extra with PostgreSQL's driver is not installed."""

    def __init__(self) -> None:
        super().__init__("psycopg is not installed; pip install 'hisearch[postgres]'")


class StudyDatabase:
    """Optuna studies of one run. Studies left by an earlier part of the run are replaced, from its journal."""

    def __init__(self, place: Path | str, name: str, problem: Problem) -> None:
        """Prepare the SQLite file or the PostgreSQL database at ``place``.

        Args:
            place: a path, whose folder must exist, or an address.
            name: name of the studies; in a database of several runs, unique to the run.
            problem: the question.

        Raises:
            StorageError: the database cannot be reached.
        """
        self._shown = str(place) if isinstance(place, Path) else without_secrets(place)
        self._name = name
        self._objectives = problem.objectives
        self._distributions = _distributions(problem)
        #: Trials by study.
        self._written: dict[str, int] = {}
        self._writer = ThreadPoolExecutor(1, "study database")
        self._pending: Future[None] | None = None
        self._began_s = -math.inf
        with self._errors_reported():
            self._storage = _sqlite(place) if isinstance(place, Path) else _postgresql(place, name)

    def write(self, trials: Sequence[Trial]) -> None:
        """Add those of ``trials`` (the complete study so far, in order) that are not yet stored.

        Raises:
            StorageError: the database cannot be written.
        """
        by_study: dict[str, list[Trial]] = {self._name: []}
        for trial in trials:
            by_study.setdefault(self._study_name(trial), []).append(trial)
        with quiet_optuna(), self._errors_reported():
            for name, study_trials in by_study.items():
                first = self._create(name)
                rows = [self._frozen(trial) for trial in study_trials[first:]]
                add_finished(self._storage, name, first, rows)
                self._written[name] = len(study_trials)

    def write_behind(self, trials: Sequence[Trial]) -> None:
        """As ``write``, while the caller goes on; an error of the previous write is raised now.

        Raises:
            StorageError: the database could not be written.
        """
        self._settle()
        self._began_s = time.monotonic()
        self._pending = self._writer.submit(self.write, tuple(trials))

    def keep_up(self, trials: Sequence[Trial]) -> None:
        """As ``write_behind``, but nothing if a write is running or began less than ``LIVE_S`` ago.

        Raises:
            StorageError: the database could not be written.
        """
        writing = self._pending is not None and not self._pending.done()
        if not writing and time.monotonic() - self._began_s >= LIVE_S:
            self.write_behind(trials)

    def close(self) -> None:
        """Finish writing, and close all connections.

        Raises:
            StorageError: the database could not be written.
        """
        try:
            self._settle()
        finally:
            self._writer.shutdown()
            self._storage.engine.dispose()

    def _settle(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    @contextlib.contextmanager
    def _errors_reported(self) -> Iterator[None]:
        """Report database errors in a line, without a password."""
        from optuna.exceptions import StorageInternalError
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except (SQLAlchemyError, StorageInternalError) as error:
            why = error.__cause__ if isinstance(error, StorageInternalError) and error.__cause__ else error
            first = mask_passwords(" ".join(str(getattr(why, "orig", None) or why).split()))
            raise StorageError(f"{self._shown}: {first}; what has finished is kept in the run's journal") from None

    def _study_name(self, trial: Trial) -> str:
        if trial.slice_fraction < 1.0:
            return f"{self._name}/slices"
        return self._name if trial.load == 1.0 else f"{self._name}/other-loads"

    def _create(self, name: str) -> int:
        """Create the study called ``name`` unless it is there; return how many trials it has."""
        import optuna
        from optuna.study import StudyDirection

        if name not in self._written:
            directions = [
                StudyDirection.MAXIMIZE if is_maximised(objective) else StudyDirection.MINIMIZE
                for objective in self._objectives
            ]
            study = optuna.create_study(
                storage=self._storage, study_name=name, directions=directions, load_if_exists=True
            )
            study.set_metric_names(list(self._objectives))
            self._written[name] = 0
        return self._written[name]

    def _frozen(self, trial: Trial) -> optuna.trial.FrozenTrial:
        import optuna
        from optuna.trial import TrialState

        params = {key: value for key, value in trial.parameters.items() if key in self._distributions}
        distributions = {key: self._distributions[key] for key in params}
        attributes = {
            "number": trial.number,
            "stage": trial.stage,
            "deployment": describe(trial.deployment),
            "feasible": trial.feasible,
            "slice_fraction": trial.slice_fraction,
            "load": trial.load,
        }
        if trial.error:
            attributes["error"] = trial.error
            return optuna.trial.create_trial(
                state=TrialState.FAIL, params=params, distributions=distributions, user_attrs=attributes
            )
        attributes["metrics"] = {key: _finite(value) for key, value in trial.metrics.items() if not math.isnan(value)}
        return optuna.trial.create_trial(
            values=[_finite(trial.objective(name)) for name in self._objectives],
            params=params,
            distributions=distributions,
            user_attrs=attributes,
            constraints={check.label: _finite(check.violation) for check in trial.slo},
        )


def _sqlite(path: Path) -> RDBStorage:
    from optuna.storages import RDBStorage

    # A killed run may leave a rollback journal, which SQLite would apply to the new file.
    for name in (path.name, f"{path.name}-journal", f"{path.name}-wal", f"{path.name}-shm"):
        path.with_name(name).unlink(missing_ok=True)
    return RDBStorage(f"sqlite:///{path}")


def _postgresql(url: str, name: str) -> RDBStorage:
    """Connect and delete the studies of that name and those below it."""
    import optuna
    from optuna.storages import RDBStorage
    from sqlalchemy.engine import make_url

    address = make_url(checked_storage_url(url)).set(drivername="postgresql+psycopg")
    options = {"connect_args": {"connect_timeout": CONNECT_S}, "pool_pre_ping": True}
    try:
        with quiet_optuna():
            storage = RDBStorage(address.render_as_string(hide_password=False), engine_kwargs=options)
    except ImportError:
        raise NoDriverError from None
    for study in optuna.get_all_study_names(storage):
        if study == name or study.startswith(f"{name}/"):
            optuna.delete_study(study_name=study, storage=storage)
    return storage


def _finite(value: float) -> float:
    """SQLite and JSON know no infinity; an undefined figure counts as the worst one."""
    return INFINITE_OBJECTIVE if math.isnan(value) else min(max(value, -INFINITE_OBJECTIVE), INFINITE_OBJECTIVE)


def _distributions(problem: Problem) -> dict[str, BaseDistribution]:
    """Every searched dimension with its full range, by the names of ``parameters_of``."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    execution, cache = problem.space.execution, problem.space.cache
    low, high = cache.memory_fraction
    start = starting_memory_fraction(cache)
    categories: dict[str, Sequence[str | int | float]] = {
        "kv_connector": sorted(
            {kv_connector for engine in execution.engines for kv_connector in KV_CONNECTORS[engine]}
        ),
        "write_policy": ["write_through", *cache.movement.write_policy],
        "prefetch": ["best_effort", *cache.movement.prefetch],
        "prefetch_threshold_tokens": sorted({256, *cache.movement.prefetch_threshold_tokens}),
        "hierarchy": ["inclusive", *cache.movement.hierarchy],
        "eviction": sorted({"lru", *cache.eviction}),
    }
    if cache.agents is not None:
        categories |= {
            "agent_policy": cache.agents.policies,
            "agent_slots": sorted({slots for slots in cache.agents.slots if slots is not None}),
            "agent_host_gib": sorted({gib for gib in cache.agents.host_gib if gib is not None}),
            "agent_ahead_s": cache.agents.ahead_s,
        }
    for number, tier in enumerate(cache.tiers, 1):
        categories |= {
            f"tier_{number}_gib": sorted({0.0, *tier.sizes()}),
            f"tier_{number}_medium": tier.media,
            f"tier_{number}_scope": list(get_args(ScopeName)),
            f"tier_{number}_eviction": sorted({"lru", *tier.eviction}),
            f"tier_{number}_ttl_s": sorted({ttl_s for ttl_s in tier.ttl_s if ttl_s is not None}),
        }
    distributions: dict[str, BaseDistribution] = {
        name: CategoricalDistribution(tuple(dict.fromkeys(choices))) for name, choices in categories.items() if choices
    }
    distributions["replicas"] = IntDistribution(1, execution.max_replicas)
    distributions["memory_fraction"] = FloatDistribution(min(low, start), max(high, start))
    others = pool_dimensions(problem.space)
    distributions |= {name: CategoricalDistribution(values) for name, values in others.items()}
    distributions |= {name: IntDistribution(1, max(v)) for name, v in others.items() if name.endswith("replicas")}
    return distributions | {
        f"{name}.memory_fraction": distributions["memory_fraction"] for name in POOLS if f"{name}.replicas" in others
    }
