"""Collectives of one worker: measured curves where there are any, else alpha-beta, and their sequence in a step.

The curves are straight between knots in both logarithms. They were measured within a host, or over hosts whose
accelerators peer links join; ranks in other hosts go about it in two stages, as hierarchical collectives do
(``hardware.topology``): within each host, and between the ranks of the same place in all hosts, each over a port of
its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hisearch.base.dtypes import F8
from hisearch.hardware.collectives import all_gather_volume, all_reduce_volume
from hisearch.latency.operators import ACTIVATION_BYTES, NORM_SUMS_BYTES
from hisearch.latency.priced import AcrossHosts
from hisearch.latency.sharding import Parallelism, dense_layers, moe_layers
from hisearch.specs.machines.laws import CollectiveCurve, CollectiveCurves
from hisearch.specs.models.model import ModelSpec


def curve_s(curve: CollectiveCurve, payload_bytes: F8) -> F8:
    """Seconds at each size; flat below the first knot, at the slope of the last two knots (at most 1) beyond them."""
    sizes, seconds = np.log(np.asarray(curve.payload_bytes)), np.log(np.maximum.accumulate(curve.seconds))
    at = np.log(np.maximum(payload_bytes, 1.0))
    slope = min((seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2]), 1.0)
    return np.asarray(np.exp(np.interp(at, sizes, seconds) + slope * np.maximum(at - sizes[-1], 0.0)))


def curve_for(curves: Sequence[CollectiveCurve], ranks: int) -> CollectiveCurve:
    """The curve that stands for ``ranks``: that of the next larger measured number of them, else of the largest."""
    known = sorted(curves, key=lambda curve: curve.ranks)
    return next((curve for curve in known if curve.ranks >= ranks), known[-1])


@dataclass(frozen=True)
class Collectives:
    """Collectives between ranks; methods take payloads in bytes and return seconds.

    curves: measured ones; None leaves alpha-beta alone.
    link_bytes_per_s, alpha_s: of a link as attained, and the fixed cost of a collective without a curve.
    hosts: where ranks lie in several.
    fused, fused_bytes: of the kernel that normalises on the way, and the largest all-reduce that takes it; 0: none.
    exchange: to the ranks of experts and back, by bytes of the copies that a rank's tokens are (one for each expert).
    """

    curves: CollectiveCurves | None
    link_bytes_per_s: float
    alpha_s: float
    hosts: AcrossHosts | None = None
    fused: Sequence[CollectiveCurve] = ()
    fused_bytes: float = 0.0
    exchange: Sequence[CollectiveCurve] = ()

    def spans_hosts(self, ranks: int) -> bool:
        """Whether ``ranks`` ranks do not lie in one host."""
        return self.hosts is not None and ranks > self.hosts.ranks_per_host

    def beyond(self, split: Parallelism) -> Iterator[tuple[str, int, int]]:
        """Collectives of more ranks than were measured: their name, ranks, and the most that were."""
        if self.curves is None:
            return
        gathering = split.tensor if split.attention_data == 1 else split.stage_ranks
        asked = (
            ("all-reduce", split.tensor, self.curves.all_reduce),
            ("all-gather", gathering, self.curves.all_gather),
            ("reduce-scatter", gathering if split.attention_data > 1 else 1, self.curves.reduce_scatter),
        )
        for name, ranks, known in asked:
            joined = min(ranks, self.hosts.ranks_per_host) if self.hosts is not None else ranks
            most = max((curve.ranks for curve in known), default=joined)
            if joined > most:
                yield name, joined, most

    def all_reduce_s(self, payload_bytes: F8, ranks: int) -> F8:
        """Every rank ends with the sum of all ranks' ``payload_bytes``."""
        if self.spans_hosts(ranks):
            return self.reduce_scatter_s(payload_bytes, ranks) + self.all_gather_s(payload_bytes, ranks)
        known = self.curves.all_reduce if self.curves is not None else []
        return self._seconds(known, payload_bytes, ranks, all_reduce_volume(1.0, ranks))

    def normalises(self, payload_bytes: F8) -> npt.NDArray[np.bool_]:
        """Which all-reduces do the norm behind them on the way."""
        return np.asarray(payload_bytes <= self.fused_bytes)

    def normed_s(self, payload_bytes: F8, ranks: int) -> F8:
        """``all_reduce_s`` where a norm follows."""
        own = self.all_reduce_s(payload_bytes, ranks)
        if not self.fused_bytes:
            return own
        fused = self._seconds(self.fused, payload_bytes, ranks, all_reduce_volume(1.0, ranks))
        return np.where(self.normalises(payload_bytes), fused, own)

    def all_gather_s(self, payload_bytes: F8, ranks: int) -> F8:
        """Every rank ends with all parts of ``payload_bytes``."""
        if self.hosts is not None and ranks > self.hosts.ranks_per_host:
            within = self.all_gather_s(payload_bytes, self.hosts.ranks_per_host)
            return within + self._between_s(self.hosts, payload_bytes, ranks)
        known = self.curves.all_gather if self.curves is not None else []
        return self._seconds(known, payload_bytes, ranks, all_gather_volume(1.0, ranks))

    def reduce_scatter_s(self, payload_bytes: F8, ranks: int) -> F8:
        """Every rank ends with its part of the sum of ``payload_bytes``."""
        if self.hosts is not None and ranks > self.hosts.ranks_per_host:
            within = self.reduce_scatter_s(payload_bytes, self.hosts.ranks_per_host)
            return within + self._between_s(self.hosts, payload_bytes, ranks)
        known = self.curves.reduce_scatter if self.curves is not None else []
        return self._seconds(known, payload_bytes, ranks, all_gather_volume(1.0, ranks))

    def send_s(self, payload_bytes: F8) -> F8:
        """One rank to another."""
        return np.asarray(self.alpha_s + payload_bytes / self.link_bytes_per_s)

    def step_s(self, split: Parallelism, model: ModelSpec, tokens: F8) -> F8:
        """All collectives of one pass of a group's ``tokens``, but the logits'."""
        payload = ACTIVATION_BYTES * model.hidden_size * tokens
        reduced = self.normed_s(payload, split.tensor)
        total = (model.layers + 1) * reduced
        if model.qk_norm_per_layer:
            total = total + model.layers * self.all_reduce_s(NORM_SUMS_BYTES * tokens, split.tensor)
        if split.attention_data == 1:
            total = total + model.layers * reduced
        else:
            total = total + self.shared_s(split, model, payload)
        return np.asarray(total + (split.pipeline - 1) * self.send_s(payload))

    def shared_s(self, split: Parallelism, model: ModelSpec, payload_bytes: F8) -> F8:
        """What all attention groups do around the FFNs of all layers; ``payload_bytes`` of one, the others alike."""
        if not split.all_to_all:
            alone = dense_layers(model) if split.own_ffn else 0
            gathered = (model.layers - alone) * self.gathered_s(split, payload_bytes)
            return np.asarray(gathered + alone * self.normed_s(payload_bytes, split.tensor))
        return moe_layers(model) * self.exchanged_s(split, model, payload_bytes)

    def gathered_s(self, split: Parallelism, payload_bytes: F8) -> F8:
        """Every rank gets the tokens of all groups, and sums what all ranks made of them."""
        whole = payload_bytes * split.attention_data
        return self.all_gather_s(whole, split.stage_ranks) + self.reduce_scatter_s(whole, split.stage_ranks)

    def exchanged_s(self, split: Parallelism, model: ModelSpec, payload_bytes: F8) -> F8:
        """A rank's tokens go to the ranks of their experts and come back.

        Without curves two all-to-alls: a copy for each set of ranks that holds any of a token's experts, choices even.
        """
        assert model.moe is not None
        chosen, sets = model.moe.experts_per_token, float(split.expert)
        if self.exchange:
            return curve_s(curve_for(self.exchange, split.stage_ranks), payload_bytes / split.tensor * chosen)
        copies = sets * (1.0 - (1.0 - 1.0 / sets) ** chosen)
        known = self.curves.all_to_all if self.curves is not None else []
        volume = all_gather_volume(1.0, split.stage_ranks)
        return 2.0 * self._seconds(known, payload_bytes / split.tensor * copies, split.stage_ranks, volume)

    @staticmethod
    def _between_s(hosts: AcrossHosts, payload_bytes: F8, ranks: int) -> F8:
        """Of a gathering or a scattering, the part between hosts: each rank's share of its host, by halves."""
        count = ranks // hosts.ranks_per_host
        share = all_gather_volume(1.0, count) * payload_bytes / hosts.ranks_per_host
        return np.asarray(np.ceil(np.log2(count)) * hosts.exchange_s + share / hosts.bytes_per_s)

    def _seconds(self, known: Sequence[CollectiveCurve], payload_bytes: F8, ranks: int, volume: float) -> F8:
        if ranks == 1:
            return np.zeros_like(payload_bytes)
        if known:
            return curve_s(curve_for(known, ranks), payload_bytes)
        return np.asarray(self.alpha_s + volume * payload_bytes / self.link_bytes_per_s)
