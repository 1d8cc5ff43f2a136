"""The models that a trace names: which one each request asks for.

Requests of different models share no content, whatever their prompts say: neither tokens nor KV of one model are
usable by another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hisearch.base.dtypes import I4


class RequestModels(NamedTuple):
    """Names of models, each used, and the index of each request's model among them; shape (N,)."""

    names: tuple[str, ...]
    model: I4


def models_of(requested: Sequence[str]) -> RequestModels:
    """From each request's name of a model; numbers in order of first appearance."""
    numbers: dict[str, int] = {}
    codes = [numbers.setdefault(name, len(numbers)) for name in requested]
    return RequestModels(tuple(numbers), np.array(codes, np.int32))


def chosen(models: RequestModels | None, indices: np.ndarray) -> RequestModels | None:
    """Of the requests with these indices, in their order; only models that they name."""
    if models is None:
        return None
    model = models.model[indices]
    left, codes = np.unique(model, return_inverse=True)
    return RequestModels(tuple(models.names[k] for k in left.tolist()), _frozen(codes))


def frozen(models: RequestModels) -> RequestModels:
    """Read-only, of the documented type."""
    return RequestModels(tuple(models.names), _frozen(models.model))


def _frozen(model: np.ndarray) -> I4:
    codes = np.array(model, np.int32)
    codes.flags.writeable = False
    return codes


def check_models(models: RequestModels, shares_with: I4) -> None:
    """Check what everything downstream relies on.

    Raises:
        ValueError: a broken rule of the class's documentation.
    """
    count = len(shares_with)
    if len(models.model) != count:
        raise ValueError(f"models: column model has {len(models.model)} rows, not {count}")
    if ((models.model < 0) | (models.model >= len(models.names))).any():
        raise ValueError("models: model: one of the names")
    alike = np.where(shares_with >= 0, models.model[np.maximum(shares_with, 0)] == models.model, True)
    if not alike.all():
        raise ValueError(f"request {int(np.argmin(alike))}: shares_with: a request of the same model")


def separate_blocks(ids: np.ndarray, counts: Sequence[int], models: RequestModels) -> np.ndarray:
    """Renumber blocks so that those of requests of different models differ.

    Args:
        ids: int64, block ids of all requests, one request after another.
        counts: of each request.
        models: whose requests they are.
    """
    pairs = np.stack([np.repeat(models.model.astype(np.int64), counts), ids])
    return np.unique(pairs, axis=1, return_inverse=True)[1].reshape(-1).astype(np.int64)
