"""The Optuna studies of several runs in one in-memory storage, refreshed while the runs write their files."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, InMemoryStorage, RDBStorage

from hisearch.search.records.bulk_trials import StoredStudy, study_ids
from hisearch.search.records.notices import quiet_optuna

#: Least seconds between two refreshes.
INTERVAL_S = 2.0


class RunStudies:
    """Copies of the studies; files are only read. With several runs a study's name begins with its run's folder."""

    def __init__(self, databases: Sequence[Path]) -> None:
        """Copy the existing studies; ``databases``: each run's SQLite file, which need not exist yet."""
        self.storage: BaseStorage = InMemoryStorage()
        self._databases = list(databases)
        self._stamps: dict[Path, tuple[int, int]] = {}
        self._looked_at = float("-inf")
        self._lock = threading.Lock()
        self.refresh()

    def refresh(self) -> None:
        """Copy what is new, at most every ``INTERVAL_S``."""
        with self._lock:
            if time.monotonic() - self._looked_at < INTERVAL_S:
                return
            for index, path in enumerate(self._databases):
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
            except StorageInternalError:  # tables are being made or written: retried at the next refresh
                return
            finally:
                source.engine.dispose()
        self._stamps[path] = stamp

    def _copy(self, source: RDBStorage, study: StoredStudy, name: str) -> None:
        """Add the trials that the copy lacks; a file that was recreated has fewer, and is copied anew."""
        trials = source.get_all_trials(source.get_study_id_from_name(study.study_name), deepcopy=False)
        copied = study_ids(self.storage)
        if name in copied and self.storage.get_n_trials(copied[name]) > len(trials):
            self.storage.delete_study(copied.pop(name))
        if name not in copied:
            copied[name] = self.storage.create_new_study(study.directions, name)
            for key, value in study.system_attrs.items():
                self.storage.set_study_system_attr(copied[name], key, value)
            for key, value in study.user_attrs.items():
                self.storage.set_study_user_attr(copied[name], key, value)
        for trial in trials[self.storage.get_n_trials(copied[name]) :]:
            self.storage.create_new_trial(copied[name], template_trial=trial)

    def _prefix(self, run: int) -> str:
        """Prefix of the names of a run's studies."""
        return f"{run + 1} {self._databases[run].parent.name}: " if len(self._databases) > 1 else ""
