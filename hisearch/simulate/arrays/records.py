"""Records as kernels read them."""

from __future__ import annotations

from typing import Any

import numpy as np


def records(count: int, dtype: np.dtype[Any]) -> Any:
    """``count`` records of zeros."""
    return np.zeros(count, dtype).view(np.recarray)


def record(dtype: np.dtype[Any], **values: float) -> Any:
    """One record with exactly these values, shape (1,).

    Raises:
        TypeError: a field is missing or unknown.
    """
    if set(values) != set(dtype.names or ()):
        raise TypeError(f"fields differ: {sorted(set(values) ^ set(dtype.names or ()))}")
    # All at once: fields of a record array are slow to set one by one.
    return np.array([tuple(values[name] for name in dtype.names or ())], dtype).view(np.recarray)
