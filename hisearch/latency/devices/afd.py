"""Attention-FFN disaggregation (AFD): attention and FFN on separate accelerators, with micro-batches in flight between.

Notation
    M, N    attention workers that share the FFN accelerators, and FFN accelerators
    r       accelerators of an attention worker (tensor parallel)
    k       micro-batches of a worker's batch; the M workers' i-th micro-batches arrive together
    t       tokens of a micro-batch of one worker
    h       bytes of a token's hidden state
    d       FFN accelerators that a token goes to: all N for a dense FFN, split by width; for experts those that hold
            them, N (1 - (1 - 1/N)^e) for e even and independent choices
    B, l    bytes/s of each accelerator's link, one direction, and its latency

    there    l + max(t h d / (r B), M t h d / (N B))      out of a worker's links, into an FFN accelerator's
    FFN      on M t tokens; a dense one ends with a reduce-scatter among the N, over their peer link
    back     l + max(t h b / (r B), M t h b / (N B))      b = 1 for a dense FFN, summed there; d for experts

Attention and these three are separate stations (a link works in both directions at once). A step is therefore the
overlapped law of k jobs (``flow``): attention of one micro-batch overlaps the FFN of another. Attention's batch is
limited by its own KV; the FFN's is M / k times that, whatever its memory.
Source: Wang et al., "Step-3 is large yet affordable" (arXiv 2507.19427) and Zhu et al., "MegaScale-Infer" (arXiv
2504.02263).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.latency.devices.flow import Stage
from hisearch.latency.laws.collectives import Collectives
from hisearch.latency.operators import ACTIVATION_BYTES, sets_reached
from hisearch.latency.sharding import Parallelism, expert_hidden
from hisearch.specs.machines.devices import AttentionFfnSpec
from hisearch.specs.machines.hardware import LinkSpec
from hisearch.specs.models.model import ModelSpec

#: Name of the FFN accelerators in stations and energy figures.
FFN = "ffn"


@dataclass(frozen=True)
class Afd:
    """Attention-FFN disaggregation; ``ranks``: r, of an attention worker; ``peers``: among the FFN accelerators."""

    spec: AttentionFfnSpec
    model: ModelSpec
    ranks: int
    link: LinkSpec
    peers: Collectives

    @property
    def share(self) -> float:
        """FFN accelerators for each attention worker: N / M."""
        return self.spec.ffn / self.spec.attention

    @property
    def token_scale(self) -> float:
        """Tokens of one of N equal groups for each token of an attention worker."""
        return self.spec.attention / self.spec.ffn

    @property
    def split(self) -> Parallelism:
        """The N accelerators as N groups: dense FFNs are split by width, experts are dealt out."""
        n = self.spec.ffn
        return Parallelism(tensor=1, attention_data=n, expert=n if self.model.moe is not None else 1)

    def copies(self, routed: bool) -> float:
        """FFN accelerators that a token goes to."""
        n = float(self.spec.ffn)
        moe = self.model.moe
        if not routed or moe is None:
            return n
        return sets_reached(n, moe.experts_per_token)

    def there(self, tokens: F8, routed: bool) -> Stage:
        """Transfer of a micro-batch's hidden states to the FFN."""
        return Stage(f"link to {FFN}", self._over(tokens, self.copies(routed), routed))

    def back(self, tokens: F8, routed: bool) -> Stage:
        """Transfer of the FFN's results back."""
        return Stage(f"link from {FFN}", self._over(tokens, self.copies(routed) if routed else 1.0, routed))

    def reduced(self, tokens: F8, routed: bool) -> Stage:
        """Reduce-scatter of a dense FFN among the N."""
        n = self.spec.ffn
        if routed or n == 1:
            return Stage(FFN, np.zeros(np.shape(tokens)), "collectives")
        scattered_s = self.peers.reduce_scatter_s(self._bytes(tokens, routed) * self.spec.attention, n)
        return Stage(FFN, np.where(tokens > 0, scattered_s, 0.0), "collectives")

    def moved_bytes(self, tokens: F8, routed: bool) -> F8:
        """Bytes over links, both ways, for ``tokens`` of one worker."""
        back = self.copies(routed) if routed else 1.0
        return np.asarray(self._bytes(tokens, routed) * (self.copies(routed) + back))

    def _bytes(self, tokens: F8, routed: bool) -> F8:
        width = expert_hidden(self.model) if routed else self.model.hidden_size
        return np.asarray(tokens * width * ACTIVATION_BYTES)

    def _over(self, tokens: F8, copies: float, routed: bool) -> F8:
        spec, moved = self.spec, self._bytes(tokens, routed) * copies
        busiest = np.maximum(moved / self.ranks, moved * spec.attention / spec.ffn)
        return np.asarray(np.where(tokens > 0, self.link.latency_s + busiest / self.link.bandwidth_bytes_per_s, 0.0))
