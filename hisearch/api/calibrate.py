"""Latency profiles from measurements: ``hisearch.api.calibrate.calibrate_own(...)``, all that ``calibrate`` does."""

from hisearch.calibrate.profiles import Calibrated, LoggedWorker, calibrate_own, calibrate_steps

__all__ = ["Calibrated", "LoggedWorker", "calibrate_own", "calibrate_steps"]
