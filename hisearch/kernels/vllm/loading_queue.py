"""Requests that wait for loads from host memory, or for those of others: a queue beside the waiting one."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.core.linked_list import linked_list
from hisearch.kernels.layout import tiers as tl
from hisearch.kernels.traffic import lists
from hisearch.kernels.vllm import step

# Verdicts on a request; a positive verdict is the tokens scheduled.
NO_PAGES, SKIPPED = 0, -1


@kernel
def more_urgent(sim, a, b):
    """Whether request ``a`` goes before ``b`` by urgency."""
    urgency_a, urgency_b = lists.urgency(sim, a), lists.urgency(sim, b)
    if urgency_a != urgency_b:
        return urgency_a < urgency_b
    arrival_a = sim.requests[a].arrival_s
    arrival_b = sim.requests[b].arrival_s
    return arrival_a < arrival_b or (arrival_a == arrival_b and a < b)


_insert, _remove = linked_list()


@kernel
def skip(sim, w, r):
    """Append ``r`` to the skipped requests; where these go by urgency, insert it in order."""
    connector = sim.connectors[w]
    before = connector.skipped_tail
    if lists.goes_by_urgency(sim):
        while before >= 0 and more_urgent(sim, r, before):
            before = sim.requests[before].prev
    head, tail = _insert(sim.requests, connector.skipped_head, connector.skipped_tail, before, r)
    connector.skipped_head = head
    connector.skipped_tail = tail
    connector.skipped += 1


@kernel
def _stop_skipping(sim, w, r):
    connector = sim.connectors[w]
    head, tail = _remove(sim.requests, connector.skipped_head, connector.skipped_tail, r)
    connector.skipped_head = head
    connector.skipped_tail = tail
    connector.skipped -= 1


@kernel
def _leave_queue(sim, w, r, skipped):
    if skipped:
        _stop_skipping(sim, w, r)
    else:
        lists.stop_waiting(sim, w, r)


@kernel
def run(sim, w, r, now, share, held, skipped):
    """Run ``r`` with ``share`` tokens; it holds ``held`` pages. Returns ``share``."""
    connector = sim.connectors[w]
    _leave_queue(sim, w, r, skipped)
    on_device = sim.offloaded[r].on_device
    sim.offloaded[r].loading = tl.NOT_LOADING
    lists.note_scheduled(sim, r, now, on_device, sim.requests[r].computed - on_device)
    step.run(sim, w, r, share, held)
    if connector.first_admitted < 0:
        connector.first_admitted = r
    return share


@kernel
def resume(sim, w, r, now, budget, skipped):
    """Try to run ``r``, which has been loaded. Returns tokens scheduled, or ``NO_PAGES``."""
    cached = sim.requests[r].computed
    held = sim.offloaded[r].dealt_with * sim.offloading.block_tokens // sim.config.page_tokens
    share = step.share_of(sim, w, r, cached, budget)
    if share == 0 or not step.fits_admission(sim, w, r, 0, w, held, cached + share):
        return NO_PAGES
    return run(sim, w, r, now, share, held, skipped)


@kernel
def begin(sim, w, r, now, budget, skipped, look):
    """Try to run ``r``, of which nothing is to be loaded. Returns tokens scheduled, or ``NO_PAGES``.

    look: what ``step.look_up`` returned.
    """
    trace_node, limit, hit_tokens, d = look
    share = step.share_of(sim, w, r, hit_tokens, budget)
    if share == 0 or not step.fits_admission(sim, w, r, hit_tokens, d, 0, hit_tokens + share):
        return NO_PAGES
    step.hold(sim, w, r, trace_node, limit, hit_tokens)
    sim.offloaded[r].on_device = hit_tokens
    return run(sim, w, r, now, share, lists.pages(sim, hit_tokens), skipped)
