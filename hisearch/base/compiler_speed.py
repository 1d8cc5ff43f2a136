"""Make numba's own work while compiling cheaper, without a change of what it compiles.

What is replaced in numba differs in its speed alone; ``tests/kernels/test_linking.py`` holds one against the other.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba.core.targetconfig import TargetConfig

_equal = TargetConfig.__eq__


def _hash(self: Any) -> int:
    """Numba hashes the names of all options, which are the same for all objects of a class."""
    return hash(type(self))


def _is_equal(self: Any, other: Any) -> Any:
    """Compare what was set before all options, which takes a hundred look-ups."""
    if type(self) is type(other) and self._values == other._values:
        return True
    return _equal(self, other)


TargetConfig.__hash__ = _hash
TargetConfig.__eq__ = _is_equal


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collect no garbage within: compiling makes millions of objects that stay, and looks at them again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
