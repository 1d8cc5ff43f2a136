"""Where a worker's single rank runs in the scheduler's process: what it waits for holds the scheduler too."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.layout import fleet as fl
from hisearch.kernels.traffic import thinking


@kernel
def _delay_token(sim, w, r, until_s):
    """Let the first token of ``r``, or the first visible one, if the newest step made it, come at ``until_s``."""
    request = sim.requests[r]
    thinking.delay(sim, w, r, until_s)
    if request.generated != 1 or request.sampled_step != sim.workers[w].launched_step:
        return
    from_s = request.first_token_s
    request.first_token_s = until_s
    late_s = sim.fleet.config.late_s
    arrival_s = sim.fleet.arrival_s[r]
    if from_s - arrival_s <= late_s < until_s - arrival_s and sim.config.role != fl.PREFILL:
        sim.fleet.counters[fl.LATE] += 1


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
