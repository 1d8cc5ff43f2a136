"""SGLang's passes without a batch: what an idle engine waits for."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.hicache import copies as hicache_copies
from hisearch.kernels.hicache import servers, storage
from hisearch.kernels.layout import sim as la
from hisearch.kernels.sglang import grammar as sglang_grammar
from hisearch.kernels.traffic import heaps

#: Passes of an engine with requests waiting that form no batch, after which nothing changes by another.
PASSES = 3


@kernel
def has_pending_events(sim, w):
    """Whether a copy, a server or a deadline will cause another pass of an idle worker."""
    if not sim.config.hicache:
        return False
    if hicache_copies.next_copy_s(sim, w) < la.FOREVER_S:
        return True
    if not sim.tiers.storage:
        return False
    servers.advance(sim, w)
    return servers.busy(sim, w) or storage.next_deadline_s(sim, w) < la.FOREVER_S


@kernel
def is_empty(sim, w):
    """Whether no request waits or runs, and nothing is under way in HiCache."""
    worker = sim.workers[w]
    if worker.waiting > 0 or worker.running > 0 or sglang_grammar.some_wait(sim, w):
        return False
    if not sim.config.hicache:
        return True
    host = sim.hosts[w]
    if host.to_host_head >= 0 or host.to_hbm_head >= 0:
        return False
    return sim.tiers.storage == 0 or not servers.busy(sim, w)


@kernel
def _loads(sim, w):
    """Whether objects are being loaded or read, or can be after another worker's calls: all of these are events."""
    if sim.config.objects == 0:
        return False
    loader = sim.agents.loaders[w]
    return loader.object >= 0 or loader.reading >= 0 or sim.config.workers > 1


@kernel
def next_retry_s(sim, w):
    """When an idle worker with waiting requests retries: at the end of a copy or after a deadline.

    FOREVER_S: only an event retries, an arrival or the end of a server's batch. NEVER_S: no server is at work.
    """
    time = hicache_copies.next_copy_s(sim, w)
    if sim.tiers.storage:
        time = min(time, storage.next_deadline_s(sim, w))
    if time < la.FOREVER_S or (sim.tiers.storage and servers.busy(sim, w)) or _loads(sim, w):
        return time
    # The next batch's load-backs may lock all the memory that it needs.
    return la.NEVER_S


@kernel
def schedule_retry(sim, w):
    """Set the event of an idle worker with requests waiting."""
    time = next_retry_s(sim, w)
    if time < la.FOREVER_S:
        heaps.event_set(sim, w, time)
    elif time == la.NEVER_S:
        sim.counters[la.FAULT] = la.STUCK
