"""Requests in flight."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import AutoscalerPolicy

AUTOSCALER = AutoscalerPolicy("Requests in flight.")


@kernel
def load(fleet, m):
    """Requests of the member."""
    return float(fleet.members[m].inflight_requests)
