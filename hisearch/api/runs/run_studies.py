"""The Optuna studies of several runs in one storage in memory, kept up with the files while the runs write them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import optuna
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, InMemoryStorage, RDBStorage

from hisearch.api.runs.run_folder import DATABASE
from hisearch.search.records.notices import quiet_optuna

#: Seconds between two looks at the files.
INTERVAL_S = 2.0


class RunStudies:
    """Copies; the files are only read. With several runs a study's name begins with its run's folder."""

    def __init__(self, runs: Sequence[Path]) -> None:
        """Copy what is there; a run whose database does not exist yet has no studies."""
        self.storage: BaseStorage = InMemoryStorage()
        self._runs = list(runs)
        self._stamps: dict[Path, tuple[int, int]] = {}
        self._looked_at = float("-inf")
        self._lock = threading.Lock()
        self.refresh()

    def refresh(self) -> None:
        """Copy what is new, at most every ``INTERVAL_S``."""
        with self._lock:
            if time.monotonic() - self._looked_at < INTERVAL_S:
                return
            for index, folder in enumerate(self._runs):
                path = folder / DATABASE
                if path.is_file():
                    self._refresh_run(path, self._prefix(index))
            self._looked_at = time.monotonic()

    def _refresh_run(self, path: Path, prefix: str) -> None:
        facts = path.stat()
        stamp = (facts.st_mtime_ns, facts.st_size)
        if self._stamps.get(path) == stamp:
            return
        with quiet_optuna():
            source = RDBStorage(f"sqlite:///{path.absolute()}", skip_compatibility_check=True, skip_table_creation=True)
            try:
                for study in source.get_all_studies():
                    self._copy(source, study, prefix + study.study_name)
            except StorageInternalError:  # its tables are being made, or it is being written: the next look will see
                return
            finally:
                source.engine.dispose()
        self._stamps[path] = stamp

    def _copy(self, source: RDBStorage, study: optuna.study._frozen.FrozenStudy, name: str) -> None:
        """Add the trials that the copy lacks; a file that was begun anew has fewer, and is copied anew."""
        trials = source.get_all_trials(study._study_id, deepcopy=False)
        known = {one.study_name: one._study_id for one in self.storage.get_all_studies()}
        if name in known and self.storage.get_n_trials(known[name]) > len(trials):
            self.storage.delete_study(known.pop(name))
        if name not in known:
            known[name] = self.storage.create_new_study(study.directions, name)
            for key, value in study.system_attrs.items():
                self.storage.set_study_system_attr(known[name], key, value)
            for key, value in study.user_attrs.items():
                self.storage.set_study_user_attr(known[name], key, value)
        for trial in trials[self.storage.get_n_trials(known[name]) :]:
            self.storage.create_new_trial(known[name], template_trial=trial)

    def best_so_far(self, run: int, study: str) -> optuna.trial.FrozenTrial | None:
        """The cheapest deployment on the whole trace that meets the SLO, of those that run has written; None of none.

        Args:
            run: its place among the runs.
            study: its study's name.
        """
        self.refresh()
        name = self._prefix(run) + study
        with self._lock:
            found = [
                trial
                for one in self.storage.get_all_studies() if one.study_name == name
                for trial in self.storage.get_all_trials(one._study_id, deepcopy=False)
                if trial.user_attrs.get("feasible") and "usd_per_hour" in trial.user_attrs.get("metrics", {})
            ]  # fmt: skip
        return min(found, key=lambda trial: float(trial.user_attrs["metrics"]["usd_per_hour"]), default=None)

    def _prefix(self, run: int) -> str:
        """What the names of a run's studies begin with."""
        return f"{run + 1} {self._runs[run].name}: " if len(self._runs) > 1 else ""
