"""Collectives of a worker on its devices: over the peer link, or over a network of several dimensions.

Two all-reduces per layer, one for the embedding, and an all-gather of the logits. With attention groups that share
their FFNs, an all-gather and a reduce-scatter of all groups' tokens replace the second (``docs/latency.md``). On a
network, with experts dealt to sets of ranks, an all-to-all each way does. A network states how far and how wide its
hops are; what software takes to start a collective, and the share of a link that it attains, stay the profile's. Its
joules are those of the same collectives, by the bytes that cross each hop (``hisearch.hardware.topology``); without a
network the worker's power has them by the token (``hisearch.hardware.power``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.hardware.topology import Network
from hisearch.latency.devices.work import Measure
from hisearch.latency.laws.collectives import Collectives, latent_reduced_s
from hisearch.latency.operators import ACTIVATION_BYTES, NORM_SUMS_BYTES, sets_reached
from hisearch.latency.sharding import Parallelism, expert_hidden, moe_layers
from hisearch.specs.models.model import ModelSpec


@dataclass(frozen=True)
class CollectiveLaw:
    """Seconds of collectives, and joules of a rank on average, by tokens of one attention group.

    peers: over the peer link, where no ``network`` takes precedence.
    fitted: ``peers`` are those of the profile's fitted laws, not alpha-beta alone.
    once: FFNs are elsewhere: a layer has only attention's all-reduce.
    """

    model: ModelSpec
    split: Parallelism
    peers: Collectives
    fitted: bool = False
    network: Network | None = None
    once: bool = False

    def layer(self, tokens: F8, measure: Measure = "seconds") -> F8:
        """The mean layer; joules: of the network, 0 without."""
        split = self.split
        total = self._normed(self._payload(tokens), split.tensor, measure)
        if self.model.qk_norm_per_layer:
            total = total + self._all_reduce(NORM_SUMS_BYTES * tokens, split.tensor, measure)
        if self.once:
            return np.asarray(total)
        share = self.model.ffn_count / self.model.layers
        return np.asarray(total + share * self.shared_layer(tokens, measure))

    def shared_layer(self, tokens: F8, measure: Measure = "seconds") -> F8:
        """One layer around its FFN: all attention groups take part."""
        split = self.split
        if self.network is not None and split.expert > 1:
            width = expert_hidden(self.model) / self.model.hidden_size
            return 2.0 * self._all_to_all(self.network, width * self._payload(tokens) / split.tensor, measure)
        if split.attention_data == 1:
            latent = latent_reduced_s(
                self.model, tokens, lambda payload: self._all_reduce(payload, split.tensor, measure)
            )
            share = moe_layers(self.model) / self.model.ffn_count
            return self._normed(self._payload(tokens), split.tensor, measure) + share * latent
        if split.all_to_all and self.fitted and measure == "seconds":
            return self.peers.exchanged_s(split, self.model, self._payload(tokens))
        return 2.0 * self._gather(self._payload(tokens) * split.attention_data, split.stage_ranks, measure)

    def embedding(self, tokens: F8, measure: Measure = "seconds") -> F8:
        """The embedding, and transfers between pipeline stages."""
        payload = self._payload(tokens)
        stages = self.split.pipeline - 1
        handed = stages * self._handed(payload, measure) if stages else np.zeros(np.shape(payload))
        return np.asarray(self._normed(payload, self.split.tensor, measure) + np.where(tokens > 0, handed, 0.0))

    def logits(self, sequences: F8, measure: Measure = "seconds") -> F8:
        """The logits' all-gather."""
        return self._gather(ACTIVATION_BYTES * self.model.vocab_size * sequences, self.split.tensor, measure)

    def _all_to_all(self, network: Network, payload: F8, measure: Measure) -> F8:
        """Of a rank's tokens to the sets of ranks with their experts: each set once, choices are even."""
        assert self.model.moe is not None
        copies = sets_reached(float(self.split.expert), self.model.moe.experts_per_token)
        if measure == "joules":
            return network.all_to_all_j(payload * copies, self.split.stage_ranks)
        return self.peers.alpha_s + network.all_to_all_s(payload * copies, self.split.stage_ranks)

    def _handed(self, payload: F8, measure: Measure) -> F8:
        """From a pipeline stage to the next; joules: the payload goes over once, a part from each rank."""
        if self.network is None:
            return self.peers.send_s(payload) if measure == "seconds" else np.zeros(np.shape(payload))
        if measure == "joules":
            return self.network.send_j(payload / self.split.tensor, self.split.stage_ranks)
        return self.peers.alpha_s + self.network.send_s(payload, self.split.stage_ranks)

    def _payload(self, tokens: F8) -> F8:
        return np.asarray(ACTIVATION_BYTES * self.model.hidden_size * tokens)

    def _normed(self, payload: F8, ranks: int, measure: Measure) -> F8:
        """An all-reduce before a norm."""
        if self.network is None and measure == "seconds":
            return self.peers.normed_s(payload, ranks)
        return self._all_reduce(payload, ranks, measure)

    def _all_reduce(self, payload: F8, ranks: int, measure: Measure) -> F8:
        if ranks == 1 or (self.network is None and measure == "joules"):
            return np.zeros(np.shape(payload))
        if self.network is None:
            return self.peers.all_reduce_s(payload, ranks)
        if measure == "joules":
            return self.network.all_reduce_j(payload, ranks)
        return self.peers.alpha_s + self.network.all_reduce_s(payload, ranks)

    def _gather(self, payload: F8, ranks: int, measure: Measure) -> F8:
        if ranks == 1 or (self.network is None and measure == "joules"):
            return np.zeros(np.shape(payload))
        if self.network is None:
            return self.peers.all_gather_s(payload, ranks)
        if measure == "joules":
            return self.network.all_gather_j(payload, ranks)
        return self.peers.alpha_s + self.network.all_gather_s(payload, ranks)
