"""Linear algebra on one thread.

OpenBLAS starts as many threads as there are cores. They compete with the simulations, which makes a study's Gaussian
processes several times slower. The order of summation would also let the number of cores decide what a search tries
next.
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

    The limit applies to the process. Calls in several threads share it: the first sets it, the last to end lifts it.
    It costs 15 us: use it around a fit, not around a single product.
    """

    @functools.wraps(function)
    def limited(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with _LIMIT:
            return function(*args, **kwargs)

    return limited


class _SharedLimit:
    """Limits linear algebra to one thread while any call is active."""

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
    import scipy.linalg  # noqa: F401 - brings an OpenBLAS of its own; a library that is not loaded cannot be limited
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
