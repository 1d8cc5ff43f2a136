"""Seconds that it takes to compute the prompts that wait for their first token."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import AutoscalerPolicy

AUTOSCALER = AutoscalerPolicy("Seconds that it takes to compute the prompts that wait for their first token.")


@kernel
def load(fleet, m):
    """Tokens that wait at the member, over those that it computes a second."""
    member = fleet.members[m]
    return member.outstanding_tokens / member.prefill_tokens_per_s
