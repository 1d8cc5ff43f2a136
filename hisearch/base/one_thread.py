"""Linear algebra on one thread.

OpenBLAS starts as many threads as there are cores. They fight with the simulations for these, which makes a study's
Gaussian processes several times slower, and sums in another order would let the number of cores decide what a search
tries next.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

_P = ParamSpec("_P")
_R = TypeVar("_R")


def on_one_thread(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The function with NumPy's and SciPy's linear algebra on one thread while it runs, whoever imported them.

    The limit is the process's. Calls in several threads share it: the first sets it, the last one to end takes it back.
    It costs 15 us, so this is for a whole fit, not for a product.
    """

    @functools.wraps(function)
    def limited(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with _LIMIT:
            return function(*args, **kwargs)

    return limited


class _SharedLimit:
    """One thread for linear algebra while anybody is within."""

    def __init__(self) -> None:
        self._lock, self._within = threading.Lock(), 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._within:
                self._limit = _controller().limit(limits=1, user_api="blas")
            self._within += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._within -= 1
            if not self._within:
                self._limit.restore_original_limits()


_LIMIT = _SharedLimit()


@functools.cache
def _controller() -> ThreadpoolController:
    import scipy.linalg  # noqa: F401 - brings an OpenBLAS of its own, and what is not loaded cannot be limited
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
