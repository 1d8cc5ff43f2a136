"""The LoRA adapters that a trace names: which one each request asks for.

Requests of different adapters share no KV, whatever their prompts say: an adapter changes what keys and values are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hisearch.base.dtypes import F8, I4, I8
from hisearch.specs.workloads.workload import GeneratedAdaptersSpec


class RequestAdapters(NamedTuple):
    """Names of adapters, each used, their ranks, and the index of each request's adapter among them.

    rank (K,): 0: as the deployment says. adapter (N,): -1: the request asks for the base model.
    """

    names: tuple[str, ...]
    rank: I4
    adapter: I4


def adapters_of(requested: Sequence[str | None], ranks: Sequence[int] = ()) -> RequestAdapters | None:
    """From each request's name of an adapter, None for the base model; None where none asks for any.

    Args:
        requested: names.
        ranks: of each request's adapter; 0, or empty: as the deployment says.
    """
    numbers: dict[str, int] = {}
    codes = [-1 if name is None else numbers.setdefault(name, len(numbers)) for name in requested]
    if not numbers:
        return None
    rank = np.zeros(len(numbers), np.int32)
    for code, given in zip(codes, ranks, strict=False):
        if code >= 0:
            rank[code] = given
    return RequestAdapters(tuple(numbers), rank, np.array(codes, np.int32))


def draw_adapters(spec: GeneratedAdaptersSpec, session: I8, draws: Sequence[F8]) -> RequestAdapters | None:
    """The adapter of each session's requests, by a Zipf law; None where none asks for any.

    Args:
        spec: the law.
        session: number of each request's session; shape (N,).
        draws: of each source, in the order of their sessions, an even draw from 0 to 1 for each session.
    """
    popularity = np.arange(1, spec.count + 1, dtype=np.float64) ** -spec.zipf
    edges = spec.base_share + (1 - spec.base_share) * np.cumsum(popularity) / popularity.sum()
    drawn = np.concatenate(draws)
    of_session = np.where(
        drawn < spec.base_share, -1, np.minimum(np.searchsorted(edges, drawn, "right"), spec.count - 1)
    )
    digits = len(str(spec.count))
    # Of equal length, so that they sort by popularity.
    names = tuple(f"adapter-{number:0{digits}}" for number in range(1, spec.count + 1))
    rank = np.resize(np.array(spec.ranks or [0], np.int32), spec.count)
    adapter = of_session[session].astype(np.int32)
    return chosen(RequestAdapters(names, rank, adapter), np.arange(len(session)))


def chosen(adapters: RequestAdapters | None, indices: np.ndarray) -> RequestAdapters | None:
    """Of the requests with these indices, in their order; only adapters that they ask for. None: they ask for none."""
    if adapters is None:
        return None
    adapter = adapters.adapter[indices]
    left, codes = np.unique(adapter[adapter >= 0], return_inverse=True)
    if not len(left):
        return None
    renumbered = np.full(len(adapter), -1, np.int32)
    renumbered[adapter >= 0] = codes
    return frozen(RequestAdapters(tuple(adapters.names[k] for k in left.tolist()), adapters.rank[left], renumbered))


def frozen(adapters: RequestAdapters) -> RequestAdapters:
    """Read-only, of the documented types."""
    rank, adapter = (np.array(column, np.int32) for column in (adapters.rank, adapters.adapter))
    for column in (rank, adapter):
        column.flags.writeable = False
    return RequestAdapters(tuple(adapters.names), rank, adapter)


def check_adapters(adapters: RequestAdapters, requests: int) -> None:
    """Check what everything downstream relies on.

    Raises:
        ValueError: a broken rule of the class's documentation.
    """
    count = len(adapters.names)
    if len(adapters.adapter) != requests:
        raise ValueError(f"adapters: column adapter has {len(adapters.adapter)} rows, not {requests}")
    if ((adapters.adapter < -1) | (adapters.adapter >= count)).any():
        raise ValueError("adapters: adapter: one of the names, or -1")
    if len(adapters.rank) != count or (adapters.rank < 0).any():
        raise ValueError("adapters: rank: of each adapter, at least 0")
    if len(set(adapters.names)) != count:
        raise ValueError("adapters: names: none twice")
