"""All requests."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import AdmissionPolicy

ADMISSION = AdmissionPolicy("All.")


@kernel
def admits(fleet, r, now):
    """Every one."""
    return True
