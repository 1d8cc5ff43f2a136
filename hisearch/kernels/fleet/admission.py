"""Admission of arriving requests by a router, by the deployment's policy (``fleet.admissions``)."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import ADMISSIONS
from hisearch.kernels.core.dispatch import dispatcher
from hisearch.kernels.fleet import admissions  # noqa: F401  (kernels are compiled from all of them)

_admits = dispatcher(ADMISSIONS, "admits", "fleet, r, now")


@kernel
def admits(fleet, r, now):
    """Whether request ``r``, which arrives at ``now``, is admitted."""
    return _admits(fleet.config.admission, fleet, r, now)
