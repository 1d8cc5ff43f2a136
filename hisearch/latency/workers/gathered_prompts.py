"""SGLang's prompts under attention groups: FFNs gather and give back tokens by all-reduces.

A step in which all groups decode pads their batches to one length: an all-gather brings the tokens to every rank, and a
reduce-scatter takes the sums back (``Collectives.gathered_s``). With a prompt in any group batches are not padded. Then
each rank lays its tokens into a buffer of zeros for the tokens of all groups, and an all-reduce fills it. The experts'
sums are all-reduced too, and each rank cuts out its own. Both move twice the bytes. With an all-to-all to the experts
nothing is gathered.

    by_kind_s[T] = n (2 all_reduce(t) - all_gather(t) - reduce_scatter(t)) + n filled(t)
    t              bytes of all groups' tokens, T of each
    n              layers whose FFN gathers
    filled         the buffer is zeroed, and the sum copied into it: three passes over memory

Source: SGLang 0.5.9 and 0.5.23, ``srt/layers/dp_attention.py``: ``DpPaddingMode.get_dp_padding_mode`` (``SUM_LEN``
where any group extends), ``_dp_gather_via_all_reduce``; ``srt/models/deepseek_v2.py`` (all-reduce of the experts' sums
without ``use_reduce_scatter``). ``SGLANG_DP_USE_GATHERV`` of 0.5.23, off by default, gathers without padding. Not
simulated: that FlashInfer's CUTLASS experts gather NVFP4 instead of 16 bits.
"""

from __future__ import annotations

import numpy as np

from hisearch.latency.costs import LockstepCosts
from hisearch.latency.laws.collectives import Collectives
from hisearch.latency.operators import ACTIVATION_BYTES
from hisearch.latency.sharding import Parallelism, dense_layers
from hisearch.specs.models.model import ModelSpec

#: Zeroing the buffer, and reading and writing what was summed.
PASSES = 3


def with_gathered_prompts(
    lockstep: LockstepCosts,
    model: ModelSpec,
    split: Parallelism,
    collectives: Collectives,
    memory_bytes_per_s: float,
) -> LockstepCosts:
    """``lockstep`` with what steps with prompts add.

    Args:
        lockstep: in which every step gathers as decodes do.
        model: whose FFNs gather.
        split: of several attention groups, without an all-to-all.
        collectives: of the stage's ranks.
        memory_bytes_per_s: that passes over memory reach.
    """
    tokens = np.arange(float(len(lockstep.own_s)))
    payload_bytes = ACTIVATION_BYTES * model.hidden_size * tokens
    total_bytes = payload_bytes * split.attention_data
    layers = model.ffn_count - (dense_layers(model) if split.own_ffn else 0)
    reduced_s = 2.0 * collectives.all_reduce_s(total_bytes, split.stage_ranks)
    moved_s = reduced_s - collectives.gathered_s(split, payload_bytes)
    more_s = layers * (np.maximum(moved_s, 0.0) + PASSES * total_bytes / memory_bytes_per_s)
    more_s[0] = 0.0
    return lockstep._replace(by_kind_s=np.array([np.zeros_like(tokens), more_s, more_s]))
