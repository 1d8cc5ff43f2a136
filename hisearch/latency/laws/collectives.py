"""Collectives of one worker: measured curves where available, else alpha-beta, and their sequence in a step.

Without a curve, ``n`` ranks take the law of a switch with ports of the peer link's latency ``l`` and attained bandwidth
``B``, by halving and doubling as on a switch whose algorithm is not stated (``hardware.topology``):

    all-reduce                     alpha + 2 ceil(log2 n) l + 2 (n - 1) / n * b / B
    all-gather, reduce-scatter     alpha + ceil(log2 n) l + (n - 1) / n * b / B
    send                           alpha + l + b / B

Curves are linear between knots in log-log. They were measured within a host, or over hosts whose accelerators share
peer links. Across other hosts, collectives have two stages as hierarchical ones do (``hardware.topology``): within each
host, and between the ranks of equal position in all hosts, each over its own port.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hisearch.base.dtypes import F8
from hisearch.hardware.collectives import all_gather_volume, all_reduce_volume
from hisearch.latency.operators import ACTIVATION_BYTES, NORM_SUMS_BYTES, residual_blocks, sets_reached
from hisearch.latency.priced import AcrossHosts
from hisearch.latency.sharding import Parallelism, dense_layers, expert_hidden, moe_layers
from hisearch.specs.machines.laws import CollectiveCurve, CollectiveCurves
from hisearch.specs.models.model import ModelSpec

#: Bytes of a token to its experts in 8 bits and back in 16, over those of 16 bits.
SENT_AND_BACK = 1.5


def curve_s(curve: CollectiveCurve, payload_bytes: F8) -> F8:
    """Seconds at each size; flat below the first knot, at the slope of the last two knots (at most 1) beyond them."""
    sizes, seconds = np.log(np.asarray(curve.payload_bytes)), np.log(np.maximum.accumulate(curve.seconds))
    at = np.log(np.maximum(payload_bytes, 1.0))
    slope = min((seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2]), 1.0)
    return np.asarray(np.exp(np.interp(at, sizes, seconds) + slope * np.maximum(at - sizes[-1], 0.0)))


def curve_for(curves: Sequence[CollectiveCurve], ranks: int) -> CollectiveCurve:
    """The curve for ``ranks``: of the next larger measured number of ranks, else of the largest."""
    known = sorted(curves, key=lambda curve: curve.ranks)
    return next((curve for curve in known if curve.ranks >= ranks), known[-1])


def latent_reduced_s(model: ModelSpec, tokens: F8, reduce_s: Callable[[F8], F8]) -> F8:
    """Seconds in which a layer's experts are added up in their latent, where a norm follows; else 0.

    ``reduce_s``: seconds of an all-reduce, by its bytes. Without the norm the sum behind the projection is all there
    is. Source: vLLM 0.33.0, ``models/kimi_k3/nvidia/latent_moe_runner.py``, ``fc2_latent_proj.reduce_commutative``.
    """
    if model.moe is None or not model.moe.latent_norm:
        return np.zeros_like(tokens)
    return reduce_s(ACTIVATION_BYTES * model.moe.latent_size * tokens)


@dataclass(frozen=True)
class Collectives:
    """Collectives between ranks; methods take payloads in bytes and return seconds.

    curves: measured ones; None: alpha-beta only.
    link_bytes_per_s, link_latency_s: of the peer link, attained. alpha_s: start of a collective without a curve.
    hosts: of the ranks, where there are several.
    fused, fused_bytes: curves of the fused all-reduce and norm, and the largest payload that uses it; 0: none.
    exchange: all-to-all to the experts' ranks and back, by bytes of a rank's token copies (one per expert).
    """

    curves: CollectiveCurves | None
    link_bytes_per_s: float
    alpha_s: float
    hosts: AcrossHosts | None = None
    fused: Sequence[CollectiveCurve] = ()
    fused_bytes: float = 0.0
    exchange: Sequence[CollectiveCurve] = ()
    link_latency_s: float = 0.0

    def spans_hosts(self, ranks: int) -> bool:
        """Whether ``ranks`` ranks do not lie in one host."""
        return self.hosts is not None and ranks > self.hosts.ranks_per_host

    def beyond(self, split: Parallelism) -> Iterator[tuple[str, int, int]]:
        """Collectives on more ranks than measured: their name, ranks, and most measured ranks."""
        if self.curves is None:
            return
        gathering = split.tensor if split.attention_data == 1 else split.stage_ranks
        checks = (
            ("all-reduce", split.tensor, self.curves.all_reduce),
            ("all-gather", gathering, self.curves.all_gather),
            ("reduce-scatter", gathering if split.attention_data > 1 else 1, self.curves.reduce_scatter),
        )
        for name, ranks, known in checks:
            joined = min(ranks, self.hosts.ranks_per_host) if self.hosts is not None else ranks
            most = max((curve.ranks for curve in known), default=joined)
            if joined > most:
                yield name, joined, most

    def all_reduce_s(self, payload_bytes: F8, ranks: int) -> F8:
        """Every rank ends with the sum of all ranks' ``payload_bytes``."""
        if self.spans_hosts(ranks):
            return self.reduce_scatter_s(payload_bytes, ranks) + self.all_gather_s(payload_bytes, ranks)
        known = self.curves.all_reduce if self.curves is not None else []
        return self._seconds(known, payload_bytes, ranks, all_reduce_volume(1.0, ranks), 2)

    def normalises(self, payload_bytes: F8) -> npt.NDArray[np.bool_]:
        """Which all-reduces are fused with the norm behind them."""
        return np.asarray(payload_bytes <= self.fused_bytes)

    def normed_s(self, payload_bytes: F8, ranks: int) -> F8:
        """``all_reduce_s`` where a norm follows."""
        plain_s = self.all_reduce_s(payload_bytes, ranks)
        if not self.fused_bytes:
            return plain_s
        fused = self._seconds(self.fused, payload_bytes, ranks, all_reduce_volume(1.0, ranks), 2)
        return np.where(self.normalises(payload_bytes), fused, plain_s)

    def all_gather_s(self, payload_bytes: F8, ranks: int) -> F8:
        """Every rank ends with all parts of ``payload_bytes``."""
        if self.hosts is not None and ranks > self.hosts.ranks_per_host:
            within = self.all_gather_s(payload_bytes, self.hosts.ranks_per_host)
            return within + self._between_s(self.hosts, payload_bytes, ranks)
        known = self.curves.all_gather if self.curves is not None else []
        return self._seconds(known, payload_bytes, ranks, all_gather_volume(1.0, ranks), 1)

    def reduce_scatter_s(self, payload_bytes: F8, ranks: int) -> F8:
        """Every rank ends with its part of the sum of ``payload_bytes``."""
        if self.hosts is not None and ranks > self.hosts.ranks_per_host:
            within = self.reduce_scatter_s(payload_bytes, self.hosts.ranks_per_host)
            return within + self._between_s(self.hosts, payload_bytes, ranks)
        known = self.curves.reduce_scatter if self.curves is not None else []
        return self._seconds(known, payload_bytes, ranks, all_gather_volume(1.0, ranks), 1)

    def send_s(self, payload_bytes: F8) -> F8:
        """Seconds from one rank to another."""
        return np.asarray(self.alpha_s + self.link_latency_s + payload_bytes / self.link_bytes_per_s)

    def step_s(self, split: Parallelism, model: ModelSpec, tokens: F8) -> F8:
        """All collectives of one pass of a group's ``tokens``, without the logits."""
        payload = ACTIVATION_BYTES * model.hidden_size * tokens
        reduced = self.normed_s(payload, split.tensor)
        total = (model.layers + 1) * reduced
        handed = payload * (1.0 + residual_blocks(model) / 2.0)
        if model.qk_norm_per_layer:
            total = total + model.layers * self.all_reduce_s(NORM_SUMS_BYTES * tokens, split.tensor)
        if split.attention_data == 1:
            # Sets of ranks with equal tokens add up the FFNs' parts over all of them.
            within = reduced if split.prefill_context == 1 else self.all_reduce_s(payload, split.stage_ranks)
            latent_s = latent_reduced_s(model, tokens, lambda moved: self.all_reduce_s(moved, split.tensor))
            total = total + model.ffn_count * within + moe_layers(model) * latent_s
            if model.moe is not None and model.moe.separate_shared:
                total = total + moe_layers(model) * reduced
        else:
            total = total + self.shared_s(split, model, payload)
        return np.asarray(total + (split.pipeline - 1) * self.send_s(handed))

    def shared_s(self, split: Parallelism, model: ModelSpec, payload_bytes: F8) -> F8:
        """Collectives of all attention groups around the FFNs of all layers; ``payload_bytes``: of each group."""
        if not split.all_to_all or model.moe is None:
            alone = dense_layers(model) if split.own_ffn else 0
            gathered = (model.ffn_count - alone) * self.gathered_s(split, payload_bytes)
            return np.asarray(gathered + alone * self.normed_s(payload_bytes, split.tensor))
        width = expert_hidden(model) / model.hidden_size
        return moe_layers(model) * self.exchanged_s(split, model, width * payload_bytes)

    def tokens_shared_s(self, split: Parallelism, model: ModelSpec, tokens: F8) -> F8:
        """``shared_s`` of ``tokens`` tokens of each group."""
        return self.shared_s(split, model, ACTIVATION_BYTES * model.hidden_size * tokens)

    def gathered_s(self, split: Parallelism, payload_bytes: F8) -> F8:
        """Every rank gathers the tokens of all groups; the ranks' results are reduce-scattered."""
        total_bytes = payload_bytes * split.attention_data
        return self.all_gather_s(total_bytes, split.stage_ranks) + self.reduce_scatter_s(total_bytes, split.stage_ranks)

    def exchanged_s(self, split: Parallelism, model: ModelSpec, payload_bytes: F8) -> F8:
        """A rank's tokens go to the ranks of their experts and come back.

        Without curves, two all-to-alls, all messages at once: a copy to each set of ranks with any of a token's
        experts; choices are even.
        Between hosts a token crosses once to each other host with any of its experts, in 8 bits, and comes back in 16
        (DeepEP's normal kernels); ranks of the host pass it on.
        """
        assert model.moe is not None
        chosen = model.moe.experts_per_token
        if self.hosts is not None and split.stage_ranks > self.hosts.ranks_per_host:
            within = replace(self, hosts=None)
            count = split.stage_ranks / self.hosts.ranks_per_host
            others = sets_reached(count, chosen) * (1.0 - 1.0 / count)
            crossing = SENT_AND_BACK * others * payload_bytes / split.tensor / self.hosts.bytes_per_s
            return within.exchanged_s(split, model, payload_bytes) + 2.0 * self.hosts.exchange_s + crossing
        if self.exchange:
            return curve_s(curve_for(self.exchange, split.stage_ranks), payload_bytes / split.tensor * chosen)
        copies = sets_reached(float(split.expert), chosen)
        if self.curves is not None and self.curves.all_to_all:
            curve = curve_for(self.curves.all_to_all, split.stage_ranks)
            return 2.0 * curve_s(curve, payload_bytes / split.tensor * copies)
        return 2.0 * self.send_s(all_gather_volume(1.0, split.stage_ranks) * payload_bytes / split.tensor * copies)

    @staticmethod
    def _between_s(hosts: AcrossHosts, payload_bytes: F8, ranks: int) -> F8:
        """The inter-host part of a gather or scatter: each rank's share of its host, by recursive halving."""
        count = -(-ranks // hosts.ranks_per_host)
        share = all_gather_volume(1.0, count) * payload_bytes / hosts.ranks_per_host
        return np.asarray(np.ceil(np.log2(count)) * hosts.exchange_s + share / hosts.bytes_per_s)

    def _seconds(
        self, known: Sequence[CollectiveCurve], payload_bytes: F8, ranks: int, volume: float, passes: int
    ) -> F8:
        """passes: over all ranks, of halving or doubling."""
        if ranks == 1:
            return np.zeros_like(payload_bytes)
        if known:
            return curve_s(curve_for(known, ranks), payload_bytes)
        latency_s = passes * (ranks - 1).bit_length() * self.link_latency_s
        return np.asarray(self.alpha_s + latency_s + volume * payload_bytes / self.link_bytes_per_s)
