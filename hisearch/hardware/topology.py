"""Collectives on networks of several dimensions, dimension by dimension.

Notation (of one dimension)
    n      ranks along it
    B      bytes/s of each rank in this dimension, one direction, over all its links together
    l      seconds of one hop
    o      oversubscription of a switch's core

Of a payload of b bytes for each rank, one dimension alone takes

    reduce-scatter, all-gather    ring, torus       (n - 1) l + (n - 1) / n * b / B      both directions of the ring
                                  fully connected   l + (n - 1) / n * b / B
                                  switch            2 l + (n - 1) / n * b * o / B
    all-to-all                    ring, torus       floor(n / 2) l + n / 4 * b / B      (odd n: n - 1 / n for n)
                                  fully connected   l + (n - 1) / n * b / B
                                  switch            2 l + (n - 1) / n * b * o / B

An all-reduce is hierarchical: a reduce-scatter along each dimension, innermost first, on the payload left by the ones
before, and all-gathers back. An all-to-all passes its whole payload along each dimension in turn.
Source: Rashidi et al., "ASTRA-SIM: Enabling SW/HW co-design exploration for distributed DL training platforms" (ISPASS
2020) and Won et al., "ASTRA-sim2.0" (ISPASS 2023) for hierarchical collectives; Dally and Towles, "Principles and
Practices of Interconnection Networks" (2004), chapter 3, for the bisection of rings.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.specs.machines.devices import DimensionSpec, NetworkSpec


class RanksDoNotFit(ValueError):  # noqa: N818
    """A group of ranks does not divide a network."""


@dataclass(frozen=True)
class Network:
    """Dimensions, innermost first."""

    dimensions: tuple[DimensionSpec, ...]

    @classmethod
    def of(cls, spec: NetworkSpec) -> Network:
        """The network of a spec."""
        return cls(tuple(spec.dimensions))

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
        return 2.0 * self.all_gather_s(payload_bytes, ranks, inner)

    def all_gather_s(self, payload_bytes: F8, ranks: int, inner: int = 1) -> F8:
        """Seconds of an all-gather to, or a reduce-scatter from, ``payload_bytes`` on each of ``ranks``."""
        total, left = np.zeros(np.shape(payload_bytes)), 1.0
        for dimension, along in self.used(ranks, inner):
            hops = along - 1 if dimension.topology in {"ring", "torus"} else 1
            total = total + self._dimension_s(dimension, hops, (along - 1) / along * payload_bytes / left)
            left *= along
        return np.asarray(total)

    def all_to_all_s(self, payload_bytes: F8, ranks: int, inner: int = 1) -> F8:
        """Seconds of an all-to-all of ``payload_bytes`` from each of ``ranks``."""
        total = np.zeros(np.shape(payload_bytes))
        for dimension, along in self.used(ranks, inner):
            ring = dimension.topology in {"ring", "torus"}
            crossing = (along - (along % 2) / along) / 4.0
            moved = payload_bytes * (crossing if ring else (along - 1) / along)
            total = total + self._dimension_s(dimension, along // 2 if ring else 1, moved)
        return np.asarray(total)

    def send_s(self, payload_bytes: F8, inner: int = 1) -> F8:
        """Seconds of sending ``payload_bytes`` to the rank at distance ``inner``."""
        skip = inner
        for dimension in self.dimensions:
            if skip < dimension.ranks:
                return self._dimension_s(dimension, 1, np.asarray(payload_bytes))
            skip //= dimension.ranks
        raise RanksDoNotFit(self._refusal(2, inner))

    @staticmethod
    def _dimension_s(dimension: DimensionSpec, hops: int, moved: F8) -> F8:
        switch = dimension.topology == "switch"
        latency_s = dimension.latency_s * (2 * hops if switch else hops)
        slower = dimension.oversubscription if switch else 1.0
        return np.asarray(latency_s + moved * slower / dimension.bandwidth_bytes_per_s)

    def _refusal(self, ranks: int, inner: int) -> str:
        sizes = " x ".join(str(dimension.ranks) for dimension in self.dimensions)
        return f"groups of {ranks} ranks, {inner} apart, are no whole part of a network of {sizes}"
