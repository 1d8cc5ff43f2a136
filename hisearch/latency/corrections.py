"""Compiled step costs, corrected by factors on host work, prefill and decode.

Token-wise operators serve both phases. A step launches kernels and reads weights, which decodes wait for; with experts,
more of them the more tokens choose theirs. What each further token adds once all have been read is arithmetic, and
prompts wait for that. With ``token_s`` as in ``costs`` and c its slope over the larger half of its tokens:

    read_s[T]   = highest of token_s[t] - c (t - 1)   for 1 <= t <= T
    token_s'[T] = decode * read_s[T] + prefill * (token_s[T] - read_s[T])   for T >= 1

Of a dense model ``read_s`` is little more than ``token_s[1]``. The prefill factor scales ``chunk_rate``; the decode
factor scales ``decode_s``, ``skew_s`` and ``sequence_s``. The mixed factor (by default the decode factor) scales
``mixed_decode_s``, the decodes' share of mixed steps. The host factor scales host work, including the launches of
prompts (``prompt_s``). Energy stays: it does not depend on time.
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
        token_s=_corrected_tokens(seconds.token_s, factors),
        sequence_s=seconds.sequence_s * factors.decode,
        chunk_rate=seconds.chunk_rate * factors.prefill,
        decode_s=seconds.decode_s * factors.decode,
        mixed_decode_s=None if seconds.mixed_decode_s is None else seconds.mixed_decode_s * mixed,
        skew_s=None if seconds.skew_s is None else seconds.skew_s * factors.decode,
        prompt_s=None if seconds.prompt_s is None else seconds.prompt_s * factors.host,
        floor=None if seconds.floor is None else seconds.floor.scaled(factors.host, factors.host),
    )


def read_seconds(token_s: F8) -> F8:
    """Seconds of steps of 1, 2, … tokens that are launches and reading of weights; see the module's formula."""
    last = len(token_s) - 1
    half = (last + 1) // 2
    slope = (token_s[last] - token_s[half]) / (last - half) if last > half else 0.0
    beyond = token_s[1:] - slope * np.arange(last)
    return np.asarray(np.minimum(np.maximum.accumulate(np.maximum(beyond, 0.0)), token_s[1:]))


def _corrected_tokens(token_s: F8, factors: CorrectionSpec) -> F8:
    corrected_s, read_s = token_s.copy(), read_seconds(token_s)
    corrected_s[1:] = factors.decode * read_s + factors.prefill * (token_s[1:] - read_s)
    return corrected_s


def _corrected_lockstep(lockstep: LockstepCosts, factors: CorrectionSpec) -> LockstepCosts:
    """Both parts of ``token_s``, each by what it reads itself; what goes by a step's kind, by its factor."""
    by_kind_s = lockstep.by_kind_s
    if by_kind_s is not None:
        by_kind_s = by_kind_s * np.array([[factors.decode], [factors.prefill], [factors.prefill]])
    return lockstep._replace(
        own_s=_corrected_tokens(lockstep.own_s, factors),
        shared_s=_corrected_tokens(lockstep.shared_s, factors),
        by_kind_s=by_kind_s,
    )
