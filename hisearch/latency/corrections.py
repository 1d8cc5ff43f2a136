"""Compiled step costs, corrected by factors on host work, prefill and decode.

Token-wise operators serve both phases. What a step of one token takes is the reading of weights and the launching of
kernels: it is what decodes wait for, and a floor under every step. What a step takes beyond it grows with its tokens
and is what prompts wait for. With ``token_s`` as in ``costs``:

    token_s'[T] = decode * token_s[1] + prefill * (token_s[T] - token_s[1])   for T >= 1

``chunk_rate`` is scaled by prefill; ``decode_s``, ``beside_s``, ``skew_s`` and ``sequence_s`` by decode; host work,
that of launching prompts among it (``prompt_s``), by host. Energy stays: it is work done, whatever time it takes.
"""

from __future__ import annotations

from dataclasses import replace

from hisearch.latency.costs import CompiledCosts, StepCosts
from hisearch.specs.profile import CorrectionSpec


def corrected(costs: CompiledCosts, factors: CorrectionSpec | None) -> CompiledCosts:
    """``costs`` with their seconds corrected; the same object where there is nothing to correct."""
    if factors is None or factors == CorrectionSpec():
        return costs
    return replace(costs, seconds=corrected_seconds(costs.seconds, factors))


def corrected_seconds(seconds: StepCosts, factors: CorrectionSpec) -> StepCosts:
    """See the module's formula; arrays are new, of the same shapes and types."""
    token_s = seconds.token_s.copy()
    floor_s = token_s[1]
    token_s[1:] = factors.decode * floor_s + factors.prefill * (token_s[1:] - floor_s)
    return seconds._replace(
        host_s=seconds.host_s * factors.host,
        host_per_sequence_s=seconds.host_per_sequence_s * factors.host,
        token_s=token_s,
        sequence_s=seconds.sequence_s * factors.decode,
        chunk_rate=seconds.chunk_rate * factors.prefill,
        decode_s=seconds.decode_s * factors.decode,
        beside_s=None if seconds.beside_s is None else seconds.beside_s * factors.decode,
        skew_s=None if seconds.skew_s is None else seconds.skew_s * factors.decode,
        prompt_s=None if seconds.prompt_s is None else seconds.prompt_s * factors.host,
    )
