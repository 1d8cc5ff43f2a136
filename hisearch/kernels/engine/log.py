"""The log of steps: the requests of each batch, and those that lost their KV while it was formed. Off in a search.

A step is logged when it is launched: ``lost`` for each request that loses its KV meanwhile, ``entry`` for each request
in the batch, in batch order, then ``step``. If an array is full the run is void (``LOG_FULL``), and the caller repeats
it with larger arrays.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import block_table, host_runs
from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.layout import sim as la
from hisearch.kernels.layout import tiers as tl


@kernel
def forget_lost(sim):
    """A pass begins: losses of earlier passes without a batch belong to no step."""
    sim.counters[la.LOG_LOST_TAKEN] = sim.counters[la.LOG_LOST]


@kernel
def lost(sim, r):
    """Log that request ``r`` loses its KV."""
    if not sim.config.log:
        return
    k = sim.counters[la.LOG_LOST]
    if k >= sim.log_lost.shape[0]:
        sim.counters[la.FAULT] = la.LOG_FULL
        return
    sim.log_lost[k] = r
    sim.counters[la.LOG_LOST] = k + 1


@kernel
def entry(sim, r, computed, tokens):
    """Log that the next step computes ``tokens`` tokens of ``r`` after ``computed``."""
    k = sim.counters[la.LOG_ENTRIES]
    if k >= sim.log_entries.shape[0]:
        sim.counters[la.FAULT] = la.LOG_FULL
        return
    record = sim.log_entries[k]
    record.request = r
    record.computed = computed
    record.tokens = tokens
    sim.counters[la.LOG_ENTRIES] = k + 1


@kernel
def output(sim, position, made, decodes):
    """Log what came of entry ``position`` of the step logged last: tokens ``made``, and whether it is a decode."""
    if sim.counters[la.FAULT]:
        return
    record = sim.log_outputs[sim.log_steps[sim.counters[la.LOG_STEPS] - 1].first_entry + position]
    record.made = made
    record.decodes = decodes


@kernel
def _held(sim, v):
    return (sim.trees[v].capacity_pages - sim.trees[v].free_pages) * sim.config.page_tokens


@kernel
def _held_in(sim, w, t):
    """Tokens in worker ``w``'s store of storage tier ``t``; 0 without such a tier."""
    if t >= sim.tiers.storage:
        return 0
    tier = sim.store_tiers[t]
    return _held(sim, tier.first + (w if tier.scope == hl.OF_WORKER else sim.hosts[w].place) // tier.workers_per_store)


@kernel
def _chunks_in(sim, w, tier):
    """Tokens that look-ups find in worker ``w``'s store of LMCache's ``tier``, behind host memory; 0 without one."""
    if tier >= sim.worker_stores.shape[1]:
        return 0
    return block_table.size(sim, sim.worker_stores[w, tier], tl.RECENT) * sim.offloading.block_tokens


@kernel
def _tier_tokens(sim, w):
    """Tokens held by the stores of ``w``'s worker: of the first, the second and the third tier."""
    host = 0
    storage = 0
    farther = 0
    if sim.config.hicache or sim.config.store_pool >= 0:
        first = w - w % sim.config.schedulers
        for scheduler in range(first, first + sim.config.schedulers):
            host += _held(sim, sim.trees.shape[0] - sim.config.workers + scheduler)
        storage = _held_in(sim, w, 0)
        farther = _held_in(sim, w, 1)
    elif sim.config.host_pages > 0:
        host = sim.trees[sim.config.workers + w].evictable_pages * sim.config.page_tokens
    elif sim.offloading.kv_connector == tl.OFFLOAD:
        sharing = sim.offloading.workers_per_store
        first = w - w % sim.config.schedulers
        for v in range(first // sharing, (first + sim.config.schedulers - 1) // sharing + 1):
            blocks = host_runs.size(sim, v, tl.RECENT) + host_runs.size(sim, v, tl.FREQUENT)
            host += blocks * sim.offloading.block_tokens
    elif sim.offloading.kv_connector == tl.CHUNK_OFFLOAD:
        host = sim.stores[w // sim.offloading.workers_per_store].held * sim.offloading.block_tokens
    elif sim.offloading.kv_connector == tl.LMCACHE:
        host = sim.block_tables[sim.worker_stores[w, 0]].used * sim.offloading.block_tokens
        storage = _chunks_in(sim, w, 1)
        farther = _chunks_in(sim, w, 2)
    return host, storage, farther


@kernel
def step(sim, w, kind, scheduled_s, start_s, end_s):
    """Log the step to which all entries and losses since the last step belong."""
    k = sim.counters[la.LOG_STEPS]
    if k >= sim.log_steps.shape[0]:
        sim.counters[la.FAULT] = la.LOG_FULL
        return
    record = sim.log_steps[k]
    first = 0
    if k > 0:
        first = sim.log_steps[k - 1].first_entry + sim.log_steps[k - 1].entries
    record.worker = w
    record.kind = kind
    record.scheduled_s = scheduled_s
    record.start_s = start_s
    record.end_s = end_s
    record.known_s = 0.0
    record.ratio = sim.workers[w].ratio
    record.free_tokens = sim.trees[w].free_pages * sim.config.page_tokens
    record.evictable_tokens = sim.trees[w].evictable_pages * sim.config.page_tokens
    record.host_tokens, record.storage_tokens, record.farther_tokens = _tier_tokens(sim, w)
    record.first_entry = first
    record.entries = sim.counters[la.LOG_ENTRIES] - first
    record.first_lost = sim.counters[la.LOG_LOST_TAKEN]
    record.lost = sim.counters[la.LOG_LOST] - sim.counters[la.LOG_LOST_TAKEN]
    sim.counters[la.LOG_LOST_TAKEN] = sim.counters[la.LOG_LOST]
    sim.counters[la.LOG_STEPS] = k + 1


@kernel
def spend(sim, pages):
    """Subtract ``pages`` from the free pages of the step logged last: a fast-forward takes its pages at its end."""
    k = sim.counters[la.LOG_STEPS] - 1
    if k >= 0 and not sim.counters[la.FAULT]:
        sim.log_steps[k].free_tokens -= pages * sim.config.page_tokens
