"""Where a worker's single rank runs in the scheduler's process: what it waits for holds the scheduler too."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.traffic import lists, thinking


@kernel
def newest_makes_first(sim, w, r):
    """Whether the step launched last makes the first token of ``r``."""
    return sim.requests[r].generated == 1 and sim.requests[r].sampled_step == sim.workers[w].launched_step


@kernel
def _delay_token(sim, w, r, until_s):
    """Let the first token of ``r``, or the first visible one, if the newest step made it, come at ``until_s``."""
    thinking.delay(sim, w, r, until_s)
    if newest_makes_first(sim, w, r):
        lists.delay_first_token(sim, r, until_s)


@kernel
def delay_results(sim, w, until_s):
    """Let the results of the outstanding step, which the scheduler takes in next, wait until ``until_s``."""
    worker = sim.workers[w]
    if worker.outstanding == 0 or until_s <= worker.oldest_end_s:
        return
    r = worker.running_head
    while r >= 0:
        _delay_token(sim, w, r, until_s)
        r = sim.requests[r].next
    r = worker.lost_head
    while r >= 0:
        _delay_token(sim, w, r, until_s)
        r = sim.requests[r].prev_aside
