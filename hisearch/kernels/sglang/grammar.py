"""Requests that wait for grammars under SGLang (``constrained.grammar_manager.GrammarManager``).

A request whose grammar no pass has found compiled waits in a queue of its own. A pass looks at that queue before it
admits: again and again for 5 ms, until ``stops_polling`` even if all are there. Those found enter the waiting queue.
Meanwhile the scheduler does nothing else. A server of several ranks goes by what all have found: here by one of them.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.core import python_set
from hisearch.kernels.core.linked_list import fifo
from hisearch.kernels.engine import grammar
from hisearch.kernels.layout import grammars as gr
from hisearch.kernels.layout import sim as la
from hisearch.kernels.sglang import running
from hisearch.kernels.traffic import heaps

_append = fifo()


@kernel
def queue(sim, w, r, now):
    """Whether ``r``, received at ``now``, waits for its grammar; if so, queue it there."""
    if grammar.is_free_text(sim, r):
        return False
    if sim.grammars.places[w, sim.grammars.grammar[r]].cached:
        grammar.have(sim, w, r, now, now)
        return False
    state = sim.grammars.states[w]
    grammar.ask(sim, w, r, now)
    state.head, state.tail = _append(sim.requests, state.head, state.tail, r)
    state.waiting += 1
    return True


@kernel
def some_wait(sim, w):
    """Whether requests wait for grammars: then an idle engine passes again at once."""
    return sim.config.compiles_grammars and sim.grammars.states[w].waiting > 0


@kernel
def poll(sim, w, now):
    """Look for grammars from ``now`` on, and take those requests out whose grammars are there.

    Returns the time at which the pass goes on, and how many requests these are: the first of ``grammars.queued``, in
    the order in which they enter the waiting queue. It is that of a set of their places.
    """
    grammars = sim.grammars
    state = grammars.states[w]
    tables = grammars.table
    row = 0
    size = python_set.SMALLEST
    tables[row, :size] = -1
    used = 0
    looks = 0
    before_s = -1.0
    at_s = now
    while looks < gr.LOOKS:
        at_s = now + looks * gr.LOOK_S
        r = state.head
        index = 0
        while r >= 0:
            if before_s < grammars.ready_s[r] <= at_s:
                row, size = python_set.add(tables, row, size, used, index)
                used += 1
            r = sim.requests[r].next
            index += 1
        if used == state.waiting and sim.config.stops_polling:
            break
        before_s = at_s
        looks += 1
    until_s = now + looks * gr.LOOK_S
    state.polled_s += until_s - now
    _take_out(sim, w, row, size, at_s, until_s)
    return until_s, used


@kernel
def _take_out(sim, w, row, size, at_s, until_s):
    """Take the requests of the set in ``row`` out, those whose grammars were there at ``at_s``; from then on cached."""
    grammars = sim.grammars
    state = grammars.states[w]
    count = state.waiting
    r = state.head
    for index in range(count):
        grammars.queued[index] = r
        r = sim.requests[r].next
    state.head = -1
    state.tail = -1
    state.waiting = 0
    for index in range(count):
        r = grammars.queued[index]
        if grammars.ready_s[r] > at_s:
            state.head, state.tail = _append(sim.requests, state.head, state.tail, r)
            state.waiting += 1
    taken = 0
    other = grammars.table[1 - row]
    for slot in range(size):
        if grammars.table[row, slot] >= 0:
            other[taken] = grammars.queued[grammars.table[row, slot]]
            taken += 1
    for k in range(taken):
        r = other[k]
        grammars.queued[k] = r
        grammars.ready_s[r] = until_s
        grammars.places[w, grammars.grammar[r]].cached = 1


@kernel
def end_pass(sim, w, now):
    """Have results wait for the pass that goes on at ``now``, and an idle worker pass again at once."""
    worker = sim.workers[w]
    if worker.phase == la.STEPPING and worker.event_s < now:
        heaps.event_set(sim, w, now)
    elif worker.phase == la.IDLE and some_wait(sim, w):
        heaps.form_at(sim, w, now)


@kernel
def price_step(sim, w, kind):
    """Set what grammars add to the step of ``kind`` just formed: masks are filled for all its requests."""
    worker = sim.workers[w]
    masked = 0
    if kind != la.DECODE_STEP:
        for k in range(worker.batch_size):
            if not grammar.is_free_text(sim, sim.prompts[running.newest(sim, w) ^ 1, k]):
                masked += 1
    if kind != la.PREFILL_STEP:
        r = worker.running_head
        while r >= 0:
            if not grammar.is_free_text(sim, r):
                masked += 1
            r = sim.requests[r].next
    grammar.price(sim, w, masked, 0)
