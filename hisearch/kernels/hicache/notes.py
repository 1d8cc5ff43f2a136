"""What passes note of background work while a worker fast-forwards, from release 0.5.20 on: every pass notes it.

A fast-forward skips passes, so it ends with the first pass that has something to note: a copy to the host, which begins
a write to storage, or the result of a server. See ``storage.take_note``.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.engine import device
from hisearch.kernels.layout import sim as la


@kernel
def matter(sim):
    """Whether it matters which pass notes something: with storage, if every pass does."""
    return sim.tiers.storage > 0 and sim.config.notes_every_pass != 0


@kernel
def _has_results(sim, w):
    """Whether a server of worker ``w`` has left a result."""
    host = sim.hosts[w]
    return host.hits_head >= 0 or host.done_head >= 0 or host.written >= 0


@kernel
def next_pass_acts(sim, w):
    """Whether the next pass acts whenever it comes: on results, on misses to be looked up again, or on host memory."""
    host = sim.hosts[w]
    return _has_results(sim, w) or host.retries > 0 or host.writing_tokens > 0 or host.released_pages > 0


@kernel
def end_with_copy(sim, w):
    """End the planned fast-forward with the first pass behind the next copy to the host."""
    d = sim.hosts[w].to_host_head
    if d >= 0 and sim.workers[w].fast_forward_steps > 1:
        device.cut_fast_forward(sim, w, sim.hosted[d].at_s)


@kernel
def end_with_result(sim, w, now):
    """A part of a server's work has ended at ``now``: a planned fast-forward ends with the pass that notes it."""
    if sim.workers[w].phase == la.FAST_FORWARDING and _has_results(sim, w):
        device.cut_fast_forward(sim, w, now)
