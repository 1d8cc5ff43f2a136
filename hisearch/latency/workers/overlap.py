"""Two-batch overlap: a step in two halves, the experts' all-to-all of one behind the computing of the other.

Notation (T tokens of each group, h = T / 2; all layers with routed experts together)
    own(x)       what a group computes by itself: attention's products, shared experts, norms, launches
    routed(x)    its routed experts
    e(x)         its tokens to the experts' ranks and back
    f            share of the layers that have routed experts; the others are not halved
    step(T)      = own(T) + routed(T) + e(T)                                              one batch
    halves(T)    = (1 - f) own(T) + 2 max(s f own(h), e(h) / 2) + 2 max(s routed(h), e(h) / 2)
    saved_s[T] = halves(T) - step(T); 0 below two tokens

Halves take turns: while one computes, the other's dispatch or combine, half of e(h), is under way; the longer of both
counts. So max(2 c, 2 e(h)) <= halves - (1 - f) own(T) <= 2 c + 2 e(h), with c = s (f own(h) + routed(h)).

Attention to KV, which tables price by its contexts, hides nothing: a step is at most as much too long as that attention
takes. It is priced as one batch, though halves launch twice.

s: in steps with prompts, kernels that send tokens keep ``COMMUNICATION_SMS`` multiprocessors, which products lack: s is
the ratio of all to the rest. Decodes send without any; s is 1.

Source: SGLang 0.5.23, ``srt/batch_overlap/operations_strategy.py`` (stages, ``deep_gemm_num_sms``) and
``two_batch_overlap.py``; layers without experts are run whole (``models/deepseek_v2.py``). Laws of the parts: those of
``workers``. No recording or fit stands behind the form.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.latency.costs import LockstepCosts
from hisearch.latency.laws.collectives import Collectives
from hisearch.latency.sharding import Parallelism, moe_layers
from hisearch.specs.models.model import ModelSpec

#: Multiprocessors that DeepEP's normal kernels keep: ``Buffer.num_sms`` of deepseek-ai/DeepEP (2025-05), 20; tuned
#: configurations have 20 to 24.
COMMUNICATION_SMS = 20
#: Multiprocessors of an accelerator that states none: an H100's.
MULTIPROCESSORS = 132


def with_overlap(
    lockstep: LockstepCosts,
    model: ModelSpec,
    split: Parallelism,
    routed_s: Callable[[F8], F8],
    collectives: Collectives,
    multiprocessors: int | None,
) -> LockstepCosts:
    """``lockstep`` with what two halves save, by tokens of each group.

    Args:
        lockstep: of one batch.
        model: whose layers have routed experts.
        split: with an all-to-all to them.
        routed_s: seconds of routed experts, by tokens of each group, at least 1.
        collectives: which have the all-to-all.
        multiprocessors: of the accelerator; None: not known.
    """
    tokens = np.arange(float(len(lockstep.own_s)))
    half, share = tokens / 2.0, moe_layers(model) / model.layers
    own_s = np.interp(half, tokens, lockstep.own_s)
    (routed, sent), (routed_half, sent_half) = (
        (routed_s(units), collectives.tokens_shared_s(split, model, units))
        for units in (np.maximum(tokens, 1.0), np.maximum(half, 1.0))
    )
    known = MULTIPROCESSORS if multiprocessors is None else multiprocessors
    saved = []
    for slower in (1.0, known / (known - COMMUNICATION_SMS)):
        hidden = [np.maximum(slower * part, sent_half / 2.0) for part in (share * own_s, routed_half)]
        halves = 2.0 * (hidden[0] + hidden[1])
        saved.append(np.where(tokens < 2.0, 0.0, halves - share * lockstep.own_s - routed - sent))
    return lockstep._replace(by_kind_s=np.array([*saved, np.zeros_like(tokens)]))
