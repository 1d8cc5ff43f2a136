"""Collectives on networks of several dimensions, dimension by dimension.

Notation (of one dimension)
    n      ranks along it
    B      bytes/s of each rank in this dimension, one direction, over all its links together
    l      seconds of one hop; a switch is two hops from port to port
    h      hops of one message: 2 on a switch, else 1
    o      oversubscription of a switch's core; 1 elsewhere
    b      payload in bytes of each rank

One dimension takes ``steps * h * l + volume * o / B``:

                        reduce-scatter or all-gather         all-reduce
    algorithm           steps             volume             steps              volume
    ring                n - 1             (n - 1) / n * b    2 (n - 1)          2 (n - 1) / n * b
    halving_doubling    ceil(log2 n)      (n - 1) / n * b    2 ceil(log2 n)     2 (n - 1) / n * b
    direct              1                 (n - 1) / n * b    2                  2 (n - 1) / n * b
    in_network          1                 (n - 1) / n * b    2                  (n + 1) / n * b
    tree                ceil(log2 n)      (n - 1) / n * b    2 ceil(log2 n)     2 b

    all-to-all          ring, torus       floor(n / 2) l + n / 4 * b / B      (odd n: n - 1 / n for n)
                        others            h l + (n - 1) / n * b * o / B       all messages at once

Joules follow the bytes that cross a hop, each at the dimension's ``energy_j_per_byte``; a rank's part on average is

                        reduce-scatter or all-gather         all-reduce
    in_network          b                                    2 (n + 1) / n * b: up to the switch, and down from it
    others              h (n - 1) / n * b                    2 h (n - 1) / n * b: every part once to every other rank

    all-to-all          ring, torus       n / 4 * b           (odd n: n - 1 / n for n): the mean distance
                        others            h (n - 1) / n * b

Beyond a tree its root alone goes on, with all of the payload; elsewhere all ranks do, each with its part.

An all-reduce of several dimensions is hierarchical: a reduce-scatter along each, innermost first, on the payload left
by the ones before, and all-gathers back. A tree leaves the whole payload to the next dimension, at its root.
A switch whose ``algorithm`` is not stated has halving_doubling, whose latency grows as that of every algorithm without
help of the switch does; ``direct`` is one kernel that reads all peers' buffers, ``in_network`` a switch that reduces.
Source: Rashidi et al., "ASTRA-SIM: Enabling SW/HW co-design exploration for distributed DL training platforms" (ISPASS
2020) and Won et al., "ASTRA-sim2.0" (ISPASS 2023) for hierarchical collectives; Thakur et al., "Optimization of
collective communication operations in MPICH" (IJHPCA 2005) for halving and doubling; Sanders et al., "Two-tree
algorithms for full bandwidth broadcast, reduction and scan" (Parallel Computing 2009) for trees, NCCL's law of NVLS
(tuning.cc: a rank's port carries n + 1 parts of n) for in_network; Dally and Towles, "Principles and Practices of
Interconnection Networks" (2004), chapter 3, for the bisection of rings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.hardware.collectives import all_reduce_volume
from hisearch.specs.machines.devices import DimensionSpec, NetworkSpec


class RanksDoNotFit(ValueError):  # noqa: N818
    """A group of ranks does not divide a network."""


@dataclass(frozen=True)
class Network:
    """Dimensions, innermost first."""

    dimensions: tuple[DimensionSpec, ...]

    @classmethod
    def of(cls, spec: NetworkSpec, attained: float = 1.0, peer_j_per_byte: float = 0.0) -> Network:
        """The network of a spec.

        attained: share of its bandwidths that collectives attain. peer_j_per_byte: from rank to rank, in dimensions
        that state no energy.
        """
        dimensions = []
        for dimension in spec.dimensions:
            changes = {"bandwidth_bytes_per_s": dimension.bandwidth_bytes_per_s * attained}
            if dimension.energy_j_per_byte is None:
                changes["energy_j_per_byte"] = peer_j_per_byte / _hops(dimension)
            dimensions.append(dimension.model_copy(update=changes))
        return cls(tuple(dimensions))

    @property
    def ranks(self) -> int:
        """Ranks of all dimensions together."""
        return int(np.prod([dimension.ranks for dimension in self.dimensions]))

    def used(self, ranks: int, inner: int = 1) -> list[tuple[DimensionSpec, int]]:
        """Dimensions, and ranks along each, of a group of ``ranks`` with stride ``inner``.

        Raises:
            RanksDoNotFit: the group does not fill dimensions and an even share of the next.
        """
        dimensions: list[tuple[DimensionSpec, int]] = []
        skip, left = inner, ranks
        for dimension in self.dimensions:
            available = dimension.ranks
            if skip > 1:
                taken = min(skip, available)
                if available % taken or skip % taken:
                    raise RanksDoNotFit(self._refusal(ranks, inner))
                skip //= taken
                available //= taken
            along = min(available, left)
            if along > 1:
                if available % along or left % along:
                    raise RanksDoNotFit(self._refusal(ranks, inner))
                dimensions.append((dimension, along))
                left //= along
        if left > 1 or skip > 1:
            raise RanksDoNotFit(self._refusal(ranks, inner))
        return dimensions

    def all_reduce_s(self, payload_bytes: F8, ranks: int, inner: int = 1) -> F8:
        """Seconds of a hierarchical all-reduce of ``payload_bytes`` on each of ``ranks``."""
        total, left = np.zeros(np.shape(payload_bytes)), 1.0
        for dimension, along in self.used(ranks, inner):
            moved = _all_reduce_volume(dimension, along) * payload_bytes / left
            total = total + self._dimension_s(dimension, 2 * _steps(dimension, along), moved)
            left *= 1 if dimension.taken == "tree" else along
        return np.asarray(total)

    def all_gather_s(self, payload_bytes: F8, ranks: int, inner: int = 1) -> F8:
        """Seconds of an all-gather to, or a reduce-scatter from, ``payload_bytes`` on each of ``ranks``."""
        total, left = np.zeros(np.shape(payload_bytes)), 1.0
        for dimension, along in self.used(ranks, inner):
            moved = (along - 1) / along * payload_bytes / left
            total = total + self._dimension_s(dimension, _steps(dimension, along), moved)
            left *= along
        return np.asarray(total)

    def all_reduce_j(self, payload_bytes: F8, ranks: int, inner: int = 1) -> F8:
        """Joules of an all-reduce as in ``all_reduce_s``, of each of ``ranks`` on average."""
        return self._reduced_j(payload_bytes, ranks, inner, _all_reduce_crossings)

    def all_gather_j(self, payload_bytes: F8, ranks: int, inner: int = 1) -> F8:
        """Joules of an all-gather or a reduce-scatter as in ``all_gather_s``, of each of ``ranks`` on average."""
        return self._reduced_j(payload_bytes, ranks, inner, _gather_crossings)

    def all_to_all_j(self, payload_bytes: F8, ranks: int, inner: int = 1) -> F8:
        """Joules of an all-to-all as in ``all_to_all_s``, of each of ``ranks`` on average."""
        total = np.zeros(np.shape(payload_bytes))
        for dimension, along in self.used(ranks, inner):
            total = total + _joules(dimension, _hops(dimension) * _exchanged(dimension, along) * payload_bytes)
        return np.asarray(total)

    def send_j(self, payload_bytes: F8, inner: int = 1) -> F8:
        """Joules of sending ``payload_bytes`` to the rank at distance ``inner``."""
        dimension = self._sending(inner)
        return _joules(dimension, _hops(dimension) * payload_bytes)

    def all_to_all_s(self, payload_bytes: F8, ranks: int, inner: int = 1) -> F8:
        """Seconds of an all-to-all of ``payload_bytes`` from each of ``ranks``."""
        total = np.zeros(np.shape(payload_bytes))
        for dimension, along in self.used(ranks, inner):
            moved = payload_bytes * _exchanged(dimension, along)
            total = total + self._dimension_s(dimension, along // 2 if _is_ring(dimension) else 1, moved)
        return np.asarray(total)

    def send_s(self, payload_bytes: F8, inner: int = 1) -> F8:
        """Seconds of sending ``payload_bytes`` to the rank at distance ``inner``."""
        return self._dimension_s(self._sending(inner), 1, np.asarray(payload_bytes))

    def _sending(self, inner: int) -> DimensionSpec:
        """The dimension that joins ranks at distance ``inner``."""
        skip = inner
        for dimension in self.dimensions:
            if skip < dimension.ranks:
                return dimension
            skip //= dimension.ranks
        raise RanksDoNotFit(self._refusal(2, inner))

    def _reduced_j(
        self, payload_bytes: F8, ranks: int, inner: int, crossings: Callable[[DimensionSpec, int], float]
    ) -> F8:
        total, left = np.zeros(np.shape(payload_bytes)), 1.0
        for dimension, along in self.used(ranks, inner):
            total = total + _joules(dimension, crossings(dimension, along) * payload_bytes / left)
            left *= along
        return np.asarray(total)

    @staticmethod
    def _dimension_s(dimension: DimensionSpec, steps: int, moved: F8) -> F8:
        latency_s = dimension.latency_s * (_hops(dimension) * steps)
        slower = dimension.oversubscription if dimension.topology == "switch" else 1.0
        return np.asarray(latency_s + moved * slower / dimension.bandwidth_bytes_per_s)

    def _refusal(self, ranks: int, inner: int) -> str:
        sizes = " x ".join(str(dimension.ranks) for dimension in self.dimensions)
        return f"groups of {ranks} ranks, {inner} apart, are no whole part of a network of {sizes}"


def _hops(dimension: DimensionSpec) -> int:
    """Of a message between neighbours."""
    return 2 if dimension.topology == "switch" else 1


def _is_ring(dimension: DimensionSpec) -> bool:
    return dimension.topology in {"ring", "torus"}


def _joules(dimension: DimensionSpec, crossing_bytes: F8) -> F8:
    """Of bytes that each cross one hop."""
    return np.asarray(crossing_bytes * (dimension.energy_j_per_byte or 0.0))


def _gather_crossings(dimension: DimensionSpec, ranks: int) -> float:
    """Hops that a byte's share of a rank crosses in a reduce-scatter or an all-gather, of a byte of payload."""
    return 1.0 if dimension.taken == "in_network" else _hops(dimension) * (ranks - 1) / ranks


def _all_reduce_crossings(dimension: DimensionSpec, ranks: int) -> float:
    """Likewise of an all-reduce."""
    if dimension.taken == "in_network":
        return 2.0 * _all_reduce_volume(dimension, ranks)
    return 2.0 * _gather_crossings(dimension, ranks)


def _exchanged(dimension: DimensionSpec, ranks: int) -> float:
    """Bytes that a rank's links carry in an all-to-all of a byte from each rank; on a ring those passed on too."""
    return (ranks - (ranks % 2) / ranks) / 4.0 if _is_ring(dimension) else (ranks - 1) / ranks


def _steps(dimension: DimensionSpec, ranks: int) -> int:
    """Messages one after another of a reduce-scatter or an all-gather."""
    if dimension.taken == "ring":
        return ranks - 1
    return (ranks - 1).bit_length() if dimension.taken in {"halving_doubling", "tree"} else 1


def _all_reduce_volume(dimension: DimensionSpec, ranks: int) -> float:
    """Bytes that a rank's port carries in an all-reduce of one byte."""
    if dimension.taken == "tree":
        return 2.0
    return (ranks + 1.0) / ranks if dimension.taken == "in_network" else all_reduce_volume(1.0, ranks)
