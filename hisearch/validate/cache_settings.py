"""Settings of the policies of ``validate cache``: their defaults, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.specs.wording import unknown
from hisearch.traces.compiled import CompiledTrace

#: Ways of reclaiming what has expired; the first is taken where nothing is said.
RECLAIMS = ("lazy", "periodic", "pressure")
#: Depth in tokens at which a token's attention costs as much as all else: seconds per token are then in proportion to
#: 1 + depth / 23,000. From the shipped roofline profile: Qwen3-32B in bf16 on one H100 SXM in chunks of 8,192 tokens
#: takes 97.7 us a token and 4.24 ns a token and token before it. An assumption, as that profile is; both are bound by
#: arithmetic, so that the ratio hardly depends on the accelerator.
ATTENTION_TOKENS = 23_000.0


class SettingError(ValueError):
    """A setting that makes no sense; ``key``: which."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")
        self.key = key
        self.reason = reason


@dataclass(frozen=True)
class CacheSettings:
    """Settings of the policies that have any; None: not said.

    Attributes:
        tail_tokens: tlru: what may be uncached of a prompt for it to be fast enough; must be given.
        turn_tokens: tlru: new tokens expected in a sequence's next prompt; ``mean_turn_tokens`` where not given.
        attention_tokens: gdsf: depth at which a token's attention costs as much as all else; ``ATTENTION_TOKENS``.
        ttl_s: ttl: seconds after its last use at which a page expires; must be given.
        reclaim: ttl: one of ``RECLAIMS``.
        reclaim_period_s: ttl: seconds between two periodic reclaims; must be given with them.
    """

    tail_tokens: int | None = None
    turn_tokens: int | None = None
    attention_tokens: float | None = None
    ttl_s: float | None = None
    reclaim: str | None = None
    reclaim_period_s: float | None = None

    def given(self) -> dict[str, int | float | str]:
        """Those that are not None."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


#: Policy of each setting.
_POLICY_OF = {
    "tail_tokens": "tlru", "turn_tokens": "tlru", "attention_tokens": "gdsf",
    "ttl_s": "ttl", "reclaim": "ttl", "reclaim_period_s": "ttl",
}  # fmt: skip


def check_settings(policies: Sequence[str], settings: CacheSettings) -> None:
    """Refuse settings that make no sense, are missing, or are of a policy that is not asked for.

    Raises:
        SettingError: with the key and the reason.
    """
    for key in settings.given():
        if _POLICY_OF[key] not in policies:
            raise SettingError(key, f"goes with policy {_POLICY_OF[key]}, which is not asked for")
    if "tlru" in policies:
        _check_tlru(settings)
    depth = settings.attention_tokens
    if depth is not None and not 0 < depth < math.inf:
        raise SettingError("attention_tokens", f"expected a positive number of tokens, not {depth:g}")
    if "ttl" in policies:
        _check_ttl(settings)


def _check_tlru(settings: CacheSettings) -> None:
    if settings.tail_tokens is None:
        raise SettingError("tail_tokens", "policy tlru needs it: what may be uncached of a prompt that is fast enough")
    for key in ("tail_tokens", "turn_tokens"):
        value = getattr(settings, key)
        if value is not None and value < 0:
            raise SettingError(key, f"expected a number of tokens from 0, not {value}")


def _check_ttl(settings: CacheSettings) -> None:
    ttl, reclaim, period = settings.ttl_s, settings.reclaim, settings.reclaim_period_s
    if ttl is None:
        raise SettingError("ttl_s", "policy ttl needs it: seconds after its last use at which a page expires")
    if not 0 < ttl < math.inf:
        why = ": a page would expire as it is stored, and nothing ever be hit" if ttl <= 0 else ""
        raise SettingError("ttl_s", f"expected a positive number of seconds, not {ttl:g}{why}")
    if reclaim is not None and reclaim not in RECLAIMS:
        raise SettingError("reclaim", f"no way of reclaiming '{reclaim}'{unknown(reclaim, RECLAIMS)}")
    if reclaim == "periodic":
        if period is None:
            raise SettingError("reclaim_period_s", "reclaim periodic needs it: seconds between two reclaims")
        if not 0 < period < math.inf:
            raise SettingError("reclaim_period_s", f"expected a positive number of seconds, not {period:g}")
    elif period is not None:
        raise SettingError("reclaim_period_s", f"goes with reclaim periodic, not {reclaim or RECLAIMS[0]}")


def complete_settings(
    trace: CompiledTrace, policies: Sequence[str], settings: CacheSettings, *, include_outputs: bool = False
) -> CacheSettings:
    """The settings with everything that these policies take where nothing is said.

    Raises:
        SettingError: see ``check_settings`` and ``mean_turn_tokens``.
    """
    check_settings(policies, settings)
    if "tlru" in policies and settings.turn_tokens is None:
        settings = replace(settings, turn_tokens=mean_turn_tokens(trace, include_outputs=include_outputs))
    if "gdsf" in policies and settings.attention_tokens is None:
        settings = replace(settings, attention_tokens=ATTENTION_TOKENS)
    if "ttl" in policies and settings.reclaim is None:
        settings = replace(settings, reclaim=RECLAIMS[0])
    return settings


def mean_turn_tokens(trace: CompiledTrace, *, include_outputs: bool = False) -> int:
    """Mean new tokens in the prompt of a follow-up, rounded: those that the request which it follows did not store.

    A follow-up follows the request that it waits for, or, replayed at recorded times, the one before it in its session.

    Raises:
        SettingError: the trace has no follow-ups.
    """
    from hisearch.kernels.core.turns import new_tokens

    arrays = trace.arrays
    stored = arrays.output_node if include_outputs else arrays.prompt_node
    new = new_tokens(arrays.parent, arrays.end_tokens, arrays.prompt_node, stored, _followed(trace))
    new = new[new >= 0]
    if not len(new):
        raise SettingError("turn_tokens", "this trace has no follow-ups to take it from: state it")
    return round(float(new.mean()))


def _followed(trace: CompiledTrace) -> np.ndarray:
    """Index of the request that each request follows, or -1; shape (N,)."""
    arrays = trace.arrays
    by_session = np.argsort(arrays.session, kind="stable")
    sessions = arrays.session[by_session]
    before = np.full(len(trace), -1, dtype=np.int64)
    before[by_session[1:]] = np.where(sessions[1:] == sessions[:-1], by_session[:-1], -1)
    return np.where(arrays.previous >= 0, arrays.previous, before)


def earliest_arrivals_s(trace: CompiledTrace) -> F8:
    """The times that order a trace: recorded ones, or a predecessor's and the think time, never falling; shape (N,)."""
    from hisearch.traces._tree import arrival_keys

    arrays = trace.arrays
    times: F8 = arrival_keys(arrays.arrival_s, arrays.previous, arrays.think_s)
    return times
