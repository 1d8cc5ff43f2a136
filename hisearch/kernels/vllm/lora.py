"""LoRA adapters under vLLM (``lora.worker_manager.LRUCacheWorkerLoRAManager``).

A worker has two caches of adapters, both by last use: slots in HBM (``max_loras``), and copies in host memory
(``max_cpu_loras``). Before a step its adapters are touched in turn. What host memory lacks is read from the disk; what
goes from it leaves its slot too. An adapter of the step that was not touched yet may lose its slot to an earlier one,
and is then copied again.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.engine import lora
from hisearch.kernels.layout import sim as la


@kernel
def count_running(sim, w):
    """Count the adapters of running requests; before ``counts_idle_loras`` those that its step has so far."""
    lora.begin_count(sim, w)
    forming_step = sim.workers[w].launched_step + 1
    r = sim.workers[w].running_head
    while r >= 0:
        request = sim.requests[r]
        if sim.config.counts_idle_loras or request.scheduled_step == forming_step or request.status == la.DECODING:
            lora.count(sim, w, r)
        r = request.next


@kernel
def _oldest(sim, w, copies):
    """The adapter whose copy, or whose slot, was used least recently."""
    oldest = -1
    for a in range(sim.lora.policy.adapters):
        place = sim.lora.places[w, a]
        if copies:
            if place.copied > 0 and (oldest < 0 or place.copied < sim.lora.places[w, oldest].copied):
                oldest = a
        elif place.slot >= 0 and (oldest < 0 or place.used < sim.lora.places[w, oldest].used):
            oldest = a
    return oldest


@kernel
def _bring_copy(sim, w, a):
    """Bring adapter ``a`` into host memory; returns the seconds that it takes."""
    state = sim.lora.states[w]
    place = sim.lora.places[w, a]
    seconds = 0.0
    if place.copied == 0:
        if state.copies + 1 > sim.lora.policy.copies:
            oldest = _oldest(sim, w, True)
            sim.lora.places[w, oldest].copied = 0
            state.copies -= 1
            if sim.lora.places[w, oldest].slot >= 0:
                lora.take_slot(sim, w, oldest)
                state.evicted += 1
        state.copies += 1
        state.reads += 1
        seconds = sim.lora.adapters[a].read_s
        state.read_s += seconds
    state.tick += 1
    place.copied = state.tick
    return seconds


@kernel
def _touch(sim, w, a):
    """Bring adapter ``a`` into a slot; returns the seconds that the step waits for it."""
    policy = sim.lora.policy
    state = sim.lora.states[w]
    place = sim.lora.places[w, a]
    seconds = 0.0
    if policy.copies > 0:
        seconds += _bring_copy(sim, w, a)
    if place.slot < 0:
        if state.resident >= policy.slots:
            lora.take_slot(sim, w, _oldest(sim, w, False))
            state.evicted += 1
        seconds += lora.give_slot(sim, w, a, lora.empty_slot(sim, w))
    state.tick += 1
    place.used = state.tick
    return seconds


@kernel
def prepare_step(sim, w):
    """Bring the adapters of the step just formed into their slots, and set what they add to it.

    Returns whether it waits for any. Faults where it has more of them than there are slots, as releases before
    ``counts_idle_loras`` may.
    """
    worker = sim.workers[w]
    lora.begin_count(sim, w)
    base = sim.lora.policy.adapters
    tokens = 0
    for k in range(worker.batch_size):
        r = sim.batch[w, k]
        lora.count(sim, w, r)
        if sim.lora.adapter[r] != base:
            tokens += sim.requests[r].chunk
    if worker.decoding > 0:
        r = worker.running_head
        while r >= 0:
            if sim.requests[r].status == la.DECODING:
                lora.count(sim, w, r)
                if sim.lora.adapter[r] != base:
                    tokens += 1
            r = sim.requests[r].next
    size = lora.sort_members(sim, w)
    if size > sim.lora.policy.slots:
        sim.counters[la.FAULT] = la.OUT_OF_SLOTS
        return True
    for k in range(size):
        sim.lora.states[w].stall_s += _touch(sim, w, sim.lora.members[w, k])
    lora.price(sim, w, tokens)
    return sim.lora.states[w].stall_s > 0.0
