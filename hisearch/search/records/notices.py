"""Keeping Optuna's notices off the user's screen."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


class _Quiet:
    """Silences notices while any thread asks for it; levels and filters belong to the whole process."""

    def __init__(self) -> None:
        self._lock, self._asking, self._undo = threading.Lock(), 0, ExitStack()

    def enter(self) -> None:
        with self._lock:
            self._asking += 1
            if self._asking == 1:
                self._silence()

    def leave(self) -> None:
        with self._lock:
            self._asking -= 1
            if self._asking == 0:
                self._undo.close()

    def _silence(self) -> None:
        import optuna

        self._undo.callback(optuna.logging.set_verbosity, optuna.logging.get_verbosity())
        optuna.logging.set_verbosity(logging.WARNING)
        self._undo.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)


_QUIET = _Quiet()


@contextmanager
def quiet_optuna() -> Iterator[None]:
    """Silence Optuna's log lines below warnings (such as a created study) and its warnings on experimental options."""
    _QUIET.enter()
    try:
        yield
    finally:
        _QUIET.leave()
