"""Compiled step costs, corrected by factors on host work, prefill and decode.

Token-wise operators serve both phases. A step of one token reads the weights and launches the kernels: decodes wait for
that, and it is a floor under every step. The rest of a step grows with its tokens, and prompts wait for it. With
``token_s`` as in ``costs``:

    token_s'[T] = decode * token_s[1] + prefill * (token_s[T] - token_s[1])   for T >= 1

The prefill factor scales ``chunk_rate``; the decode factor scales ``decode_s``, ``skew_s`` and ``sequence_s``. The
mixed factor (by default the decode factor) scales ``mixed_decode_s``, the decodes' share of mixed steps. The host
factor scales host work, including the launches of prompts (``prompt_s``). Energy stays: it does not depend on time.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.latency.costs import CompiledCosts, LockstepCosts, StepCosts
from hisearch.specs.machines.profile import CorrectionSpec


def corrected(costs: CompiledCosts, factors: CorrectionSpec | None, mixed: float | None = None) -> CompiledCosts:
    """``costs`` with their seconds corrected; the same object where there is nothing to correct.

    Args:
        costs: of a worker; its ``lockstep`` costs are corrected too.
        factors: on host work, prefill and decode.
        mixed: factor on ``mixed_decode_s``; None: the decode factor.
    """
    if (factors is None or factors == CorrectionSpec()) and mixed in {None, 1.0}:
        return costs
    known = factors if factors is not None else CorrectionSpec()
    lockstep = None if costs.lockstep is None else _corrected_lockstep(costs.lockstep, known)
    return replace(costs, seconds=corrected_seconds(costs.seconds, known, mixed), lockstep=lockstep)


def corrected_seconds(seconds: StepCosts, factors: CorrectionSpec, mixed: float | None = None) -> StepCosts:
    """See the module's formula; arrays are new, of the same shapes and types."""
    mixed = factors.decode if mixed is None else mixed
    return seconds._replace(
        host_s=seconds.host_s * factors.host,
        host_per_sequence_s=seconds.host_per_sequence_s * factors.host,
        token_s=_corrected_tokens(seconds.token_s, float(seconds.token_s[1]), factors),
        sequence_s=seconds.sequence_s * factors.decode,
        chunk_rate=seconds.chunk_rate * factors.prefill,
        decode_s=seconds.decode_s * factors.decode,
        mixed_decode_s=None if seconds.mixed_decode_s is None else seconds.mixed_decode_s * mixed,
        skew_s=None if seconds.skew_s is None else seconds.skew_s * factors.decode,
        prompt_s=None if seconds.prompt_s is None else seconds.prompt_s * factors.host,
        floor=None if seconds.floor is None else seconds.floor.scaled(factors.host, factors.host),
    )


def _corrected_tokens(token_s: F8, floor_s: float, factors: CorrectionSpec) -> F8:
    corrected_s = token_s.copy()
    corrected_s[1:] = factors.decode * floor_s + factors.prefill * (token_s[1:] - floor_s)
    return corrected_s


def _corrected_lockstep(lockstep: LockstepCosts, factors: CorrectionSpec) -> LockstepCosts:
    """Both parts of ``token_s``, each with its own floor, so that they add up to the corrected sum.

    In the shared part one token is padded to the smallest CUDA graph.
    """
    least = lockstep.graph_batches[0] if lockstep.graph_batches else 1
    floor_s = float(np.interp(least, np.arange(len(lockstep.shared_s)), lockstep.shared_s))
    shared_s = np.maximum(_corrected_tokens(lockstep.shared_s, floor_s, factors), 0.0)
    return lockstep._replace(
        own_s=_corrected_tokens(lockstep.own_s, float(lockstep.own_s[1]), factors), shared_s=shared_s
    )
