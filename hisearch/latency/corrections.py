"""Compiled step costs, corrected by factors on host work, prefill and decode.

Token-wise operators serve both phases. What a step of one token takes is the reading of weights and the launching of
kernels: it is what decodes wait for, and a floor under every step. What a step takes beyond it grows with its tokens
and is what prompts wait for. With ``token_s`` as in ``costs``:

    token_s'[T] = decode * token_s[1] + prefill * (token_s[T] - token_s[1])   for T >= 1

``chunk_rate`` is scaled by prefill; ``decode_s``, ``skew_s`` and ``sequence_s`` by decode; ``mixed_decode_s``, what
decodes add to a step with prompts, by mixed, which is decode where nothing else is said; host work, that of launching
prompts among it (``prompt_s``), by host. Energy stays: it is work done, whatever time it takes.
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
        costs: of a worker; those of several attention groups are corrected with the rest.
        factors: on host work, prefill and decode.
        mixed: on what decodes add to steps with prompts, where that has a table of its own; None: as decode.
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
    found = token_s.copy()
    found[1:] = factors.decode * floor_s + factors.prefill * (token_s[1:] - floor_s)
    return found


def _corrected_lockstep(lockstep: LockstepCosts, factors: CorrectionSpec) -> LockstepCosts:
    """Both parts of ``token_s``, each with its own floor, so that they add up to the corrected whole.

    One token is padded to the smallest graph in what the groups do together.
    """
    least = lockstep.graph_batches[0] if lockstep.graph_batches else 1
    floor_s = float(np.interp(least, np.arange(len(lockstep.shared_s)), lockstep.shared_s))
    shared_s = np.maximum(_corrected_tokens(lockstep.shared_s, floor_s, factors), 0.0)
    return lockstep._replace(
        own_s=_corrected_tokens(lockstep.own_s, float(lockstep.own_s[1]), factors), shared_s=shared_s
    )
