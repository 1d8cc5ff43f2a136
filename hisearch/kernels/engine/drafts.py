"""Drafted tokens, of any engine: how many are accepted, and what a scheduler knows of a step that is in flight.

``REQUEST.generated`` is what holds once the newest step has ended. While that step runs, its scheduler knows less of it
by the tokens that the step makes (``made``).
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.core import rng


@kernel
def in_flight(sim, w, r):
    """Whether the step that makes ``r``'s newest tokens is outstanding."""
    worker = sim.workers[w]
    return sim.requests[r].sampled_step > worker.launched_step - worker.outstanding


@kernel
def known_generated(sim, w, r):
    """Output tokens of ``r`` as far as results are known."""
    request = sim.requests[r]
    return request.generated - request.made if in_flight(sim, w, r) else request.generated


@kernel
def accepted(sim, r, offered):
    """How many of the ``offered`` drafts behind ``r``'s newest token are accepted: drawn by request and place."""
    unit = rng.unit_at(sim.config.draft_seed, r, sim.requests[r].generated)
    count = 0
    while count < offered and unit < sim.accepted[count]:
        count += 1
    return count


@kernel
def ends_with(sim, r, step_number):
    """Whether the results of the step numbered ``step_number`` show the end of ``r``."""
    request = sim.requests[r]
    later = request.made if request.sampled_step > step_number else 0
    return request.generated - later == sim.trace.output_tokens[r]
