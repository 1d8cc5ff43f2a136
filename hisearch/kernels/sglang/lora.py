"""LoRA adapters under SGLang (``lora.mem_pool.LoRAMemoryPool``, ``lora.lora_drainer``, ``lora.lora_overlap_loader``).

The base model counts as an adapter, and takes a slot. A pass counts the adapters of the running batch and of what it
admits. A step brings its own adapters into slots, those of other running requests left out: they may lose theirs, and
the next step with them copies them again.

With ``overlaps`` a pass copies the adapter of a waiting request beside the steps that run, one after another, and
admits the request once it is there. With ``drain_wait_s`` an adapter that waits that long makes a running one drain:
of that one only requests are admitted that end about as early as its others.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.engine import lora
from hisearch.kernels.layout import sim as la
from hisearch.kernels.sglang import memory, running

#: Most tokens of a request that an adapter which drains still takes, over the most that one of its others has to go.
_DRAIN_TOLERANCE = 1.2


@kernel
def note_queued(sim, w):
    """Begin a pass: note when the waiting requests that it takes in entered the queue."""
    if sim.lora.policy.drain_wait_s == 0.0:
        return
    r = sim.workers[w].waiting_head
    while r >= 0:
        if sim.lora.queued_s[r] < 0.0:
            sim.lora.queued_s[r] = sim.workers[w].moment_s
        r = sim.requests[r].next


@kernel
def enqueue(sim, w, r, moment):
    """``r`` enters the queue: in the present pass, or with the next one (see ``WORKER.moments``)."""
    if sim.lora.policy.drain_wait_s > 0.0:
        worker = sim.workers[w]
        sim.lora.queued_s[r] = worker.moment_s if moment == worker.moments else -1.0


@kernel
def begin_pass(sim, w):
    """Count the adapters of the running batch and of the prompt in chunks, and settle which ones drain."""
    worker = sim.workers[w]
    lora.begin_count(sim, w)
    r = worker.running_head
    while r >= 0:
        if sim.requests[r].outcome != la.FINISHED or not sim.config.counts_chunked_lora:
            lora.count(sim, w, r)
        r = sim.requests[r].next
    if sim.config.counts_chunked_lora:
        for k in range(worker.batch_size):
            lora.count(sim, w, sim.prompts[running.newest(sim, w) ^ 1, k])
    if sim.lora.policy.drain_wait_s > 0.0:
        _settle_draining(sim, w)


@kernel
def _note_demand(sim, w):
    """Note of each adapter who waits for it, since when, and how far its running requests have to go.

    Returns the adapters of the running batch, which has requests that have ended too.
    """
    places = sim.lora.places[w]
    for a in range(sim.lora.policy.adapters + 1):
        places[a].since_s = la.FOREVER_S
        places[a].runs = 0
        places[a].tokens_to_go = 0
    r = sim.workers[w].waiting_head
    while r >= 0:
        place = places[sim.lora.adapter[r]]
        place.since_s = min(place.since_s, sim.lora.queued_s[r])
        r = sim.requests[r].next
    adapters = 0
    r = sim.workers[w].running_head
    while r >= 0:
        place = places[sim.lora.adapter[r]]
        finished = sim.requests[r].outcome == la.FINISHED
        generated = sim.trace.output_tokens[r] if finished else running.known_generated(sim, w, r)
        adapters += 1 - place.runs
        place.runs = 1
        place.tokens_to_go = max(place.tokens_to_go, memory.max_new(sim, r) - generated)
        r = sim.requests[r].next
    return adapters


@kernel
def _note_starving(sim, w):
    """Mark adapters that have waited too long, but for those that another drains for."""
    places = sim.lora.places[w]
    count = sim.lora.policy.adapters + 1
    for a in range(count):
        places[a].starves = 1 if sim.workers[w].moment_s - places[a].since_s > sim.lora.policy.drain_wait_s else 0
    for a in range(count):
        if places[a].drains_for >= 0:
            places[places[a].drains_for].starves = 0


@kernel
def _settle_draining(sim, w):
    """Let a running adapter drain for each that starves, and end what has drained.

    The longest wait comes first, and the adapter that is done first drains. Of equal ones the base model comes first,
    then the lowest number. Nothing ever drains for the base model, which takes the place of one that could.
    """
    places = sim.lora.places[w]
    base = sim.lora.policy.adapters
    if _note_demand(sim, w) >= sim.lora.policy.slots:
        _note_starving(sim, w)
        for a in range(base + 1):
            places[a].may_drain = 1 if places[a].runs and places[a].drains_for < 0 else 0
        while True:
            starving = base if places[base].starves else -1
            drained = base if places[base].may_drain else -1
            for a in range(base):
                if places[a].starves and (starving < 0 or places[a].since_s < places[starving].since_s):
                    starving = a
                if places[a].may_drain and (drained < 0 or places[a].tokens_to_go < places[drained].tokens_to_go):
                    drained = a
            if starving < 0 or drained < 0:
                break
            places[starving].starves = 0
            places[drained].may_drain = 0
            if starving != base:
                places[drained].drains_for = starving
    for a in range(base + 1):
        if not places[a].runs:
            places[a].drains_for = -1


@kernel
def may_admit(sim, w, r, now):
    """Whether this pass may admit ``r``; with ``overlaps`` it may begin to copy its adapter."""
    a = sim.lora.adapter[r]
    place = sim.lora.places[w, a]
    if place.drains_for >= 0 and memory.max_new(sim, r) > place.tokens_to_go * _DRAIN_TOLERANCE:
        return False
    if place.counted_in == sim.lora.states[w].count_number:
        return True
    if sim.lora.policy.overlaps:
        return _try_copy(sim, w, a, now)
    return lora.may_join(sim, w, r)


@kernel
def _note_copied(sim, w, now):
    """Note the copies that have ended."""
    for a in range(sim.lora.policy.adapters + 1):
        if sim.lora.places[w, a].ready_s <= now:
            sim.lora.places[w, a].ready_s = -1.0


@kernel
def _try_copy(sim, w, a, now):
    """Whether adapter ``a`` is in its slot; if not, begin to copy it where running ones and copies leave a slot."""
    state = sim.lora.states[w]
    place = sim.lora.places[w, a]
    keeps = sim.config.counts_chunked_lora
    if keeps:
        _note_copied(sim, w, now)
    if place.ready_s >= 0.0:
        if keeps or place.ready_s > now:
            return False
        place.ready_s = -1.0
        return True
    if keeps and place.slot >= 0:
        return True
    wanted = sim.lora.members[sim.config.workers + w]
    size = 0
    for b in range(sim.lora.policy.adapters + 1):
        other = sim.lora.places[w, b]
        if b == a or other.counted_in == state.count_number or other.ready_s >= 0.0:
            wanted[size] = b
            size += 1
    if size > sim.lora.policy.slots:
        return False
    state.stream_s = max(state.stream_s, now) + _bring(sim, w, wanted, size)
    place.ready_s = state.stream_s
    if not keeps:
        return False
    _note_copied(sim, w, now)
    return place.ready_s < 0.0


@kernel
def next_ready_s(sim, w, now):
    """When the next copy ends after ``now``; FOREVER_S: none does.

    One that has ended may still be noted, and keep others out, until a request of its adapter comes.
    """
    ready_s = la.FOREVER_S
    if sim.lora.policy.overlaps:
        for a in range(sim.lora.policy.adapters + 1):
            if sim.lora.places[w, a].ready_s > now:
                ready_s = min(ready_s, sim.lora.places[w, a].ready_s)
    return ready_s


@kernel
def _victim(sim, w):
    """The adapter that loses its slot to those that are wanted: the base model only where no other can."""
    state = sim.lora.states[w]
    victim = -1
    for slot in range(sim.lora.policy.slots):
        a = sim.lora.slots[w, slot]
        if sim.lora.places[w, a].wanted == state.fetches or a == sim.lora.policy.adapters:
            continue
        if victim < 0 or sim.lora.places[w, a].used < sim.lora.places[w, victim].used:
            victim = a
    return victim if victim >= 0 else sim.lora.policy.adapters


@kernel
def _bring_adapter(sim, w, a):
    if sim.lora.places[w, a].slot >= 0:
        return 0.0
    if sim.lora.states[w].resident == sim.lora.policy.slots:
        victim = _victim(sim, w)
        lora.take_slot(sim, w, victim)
        sim.lora.places[w, victim].used = 0
        sim.lora.states[w].evicted += 1
    return lora.give_slot(sim, w, a, lora.empty_slot(sim, w))


@kernel
def _bring(sim, w, wanted, size):
    """Bring the first ``size`` adapters of ``wanted``, in rising order, into slots; returns their copies' seconds."""
    state = sim.lora.states[w]
    base = sim.lora.policy.adapters
    state.fetches += 1
    for k in range(size):
        place = sim.lora.places[w, wanted[k]]
        place.wanted = state.fetches
        if wanted[k] != base and not (sim.lora.policy.fifo and place.used > 0):
            state.tick += 1
            place.used = state.tick
    seconds = 0.0
    if sim.lora.places[w, base].wanted == state.fetches:
        seconds += _bring_adapter(sim, w, base)
    for k in range(size):
        seconds += _bring_adapter(sim, w, wanted[k])
    return seconds


@kernel
def prepare_step(sim, w, kind):
    """Bring the adapters of the step of ``kind`` into their slots, and set what they add to it.

    Returns whether it waits for any. Faults where it has more of them than there are slots, as releases before
    ``counts_chunked_lora`` may.
    """
    worker = sim.workers[w]
    base = sim.lora.policy.adapters
    lora.begin_count(sim, w)
    tokens = 0
    if kind != la.DECODE_STEP:
        for k in range(worker.batch_size):
            r = sim.prompts[running.newest(sim, w) ^ 1, k]
            lora.count(sim, w, r)
            if sim.lora.adapter[r] != base:
                tokens += sim.requests[r].chunk
    if kind != la.PREFILL_STEP:
        r = worker.running_head
        while r >= 0:
            lora.count(sim, w, r)
            if sim.lora.adapter[r] != base:
                tokens += 1
            r = sim.requests[r].next
    size = lora.sort_members(sim, w)
    lora.price(sim, w, tokens)
    if sim.lora.policy.overlaps:
        return False
    if size > sim.lora.policy.slots:
        sim.counters[la.FAULT] = la.OUT_OF_SLOTS
        return True
    sim.lora.states[w].stall_s = _bring(sim, w, sim.lora.members[w], size)
    return sim.lora.states[w].stall_s > 0.0
