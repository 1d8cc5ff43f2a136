"""LoRA adapters of a worker: how many a batch has, and what a step waits for and adds.

A pass *counts* adapters: those of the requests that run, then of each that it admits. A request whose adapter would be
one too many is passed over. A step's *members* are the adapters of its requests, in rising order. Engines go through
them in the order of a hash, which no recording has.
"""

from __future__ import annotations

from hisearch.base.jit import kernel


@kernel
def begin_count(sim, w):
    """Count from zero."""
    state = sim.lora.states[w]
    state.count_number += 1
    state.counted = 0


@kernel
def count(sim, w, r):
    """Count the adapter of request ``r``, if it is not counted yet."""
    a = sim.lora.adapter[r]
    policy = sim.lora.policy
    state = sim.lora.states[w]
    if (a == policy.adapters and not policy.base_slot) or sim.lora.places[w, a].counted_in == state.count_number:
        return
    sim.lora.places[w, a].counted_in = state.count_number
    sim.lora.members[w, state.counted] = a
    state.counted += 1


@kernel
def may_join(sim, w, r):
    """Whether the adapter of ``r`` is counted, or may be."""
    a = sim.lora.adapter[r]
    policy = sim.lora.policy
    state = sim.lora.states[w]
    if a == policy.adapters and not policy.base_slot:
        return True
    return sim.lora.places[w, a].counted_in == state.count_number or state.counted < policy.slots


@kernel
def sort_members(sim, w):
    """Bring the counted adapters into rising order; returns how many they are."""
    members = sim.lora.members[w]
    size = sim.lora.states[w].counted
    for k in range(1, size):
        a = members[k]
        at = k
        while at > 0 and members[at - 1] > a:
            members[at] = members[at - 1]
            at -= 1
        members[at] = a
    return size


@kernel
def give_slot(sim, w, a, slot):
    """Copy adapter ``a`` into ``slot``. Returns the seconds that the copy takes; the base model takes none."""
    state = sim.lora.states[w]
    sim.lora.places[w, a].slot = slot
    sim.lora.slots[w, slot] = a
    state.resident += 1
    if a == sim.lora.policy.adapters:
        return 0.0
    state.loads += 1
    state.load_s += sim.lora.adapters[a].load_s
    return sim.lora.adapters[a].load_s


@kernel
def take_slot(sim, w, a):
    """Take the slot of adapter ``a``, which has one."""
    place = sim.lora.places[w, a]
    sim.lora.slots[w, place.slot] = -1
    place.slot = -1
    sim.lora.states[w].resident -= 1


@kernel
def empty_slot(sim, w):
    """The first slot that no adapter has; there is one."""
    slot = 0
    while sim.lora.slots[w, slot] >= 0:
        slot += 1
    return slot


@kernel
def price(sim, w, tokens):
    """Set what the step adds, of whose tokens ``tokens`` have an adapter; its members are counted."""
    policy = sim.lora.policy
    worker = sim.workers[w]
    adapters = sim.lora.states[w].counted
    if policy.base_slot and sim.lora.places[w, policy.adapters].counted_in == sim.lora.states[w].count_number:
        adapters -= 1
    worker.lora_adapters = adapters
    worker.lora_tokens = tokens
    worker.more_s = policy.base_s
    worker.lora_j = 0.0
    if adapters > 0:
        worker.more_s = policy.step_s + adapters * policy.adapter_s + tokens * policy.token_s
        worker.lora_j = adapters * policy.adapter_j + tokens * policy.token_j


@kernel
def account(sim, w, steps):
    """Add ``steps`` steps as ``price`` set them to the totals, where adapters are served."""
    if not sim.config.serves_adapters:
        return
    worker = sim.workers[w]
    state = sim.lora.states[w]
    state.step_s += steps * worker.more_s
    if worker.lora_adapters > 0:
        state.steps += steps
        state.step_adapters += steps * worker.lora_adapters
        state.step_tokens += steps * worker.lora_tokens
        worker.energy_j += steps * worker.lora_j


@kernel
def take_stall(sim, w):
    """Seconds that the step being formed waits for its loads; they are taken from the worker."""
    state = sim.lora.states[w]
    stall_s = state.stall_s
    state.stall_s = 0.0
    return stall_s


@kernel
def reset(sim, w):
    """Empty worker ``w``'s slots and host memory; the base model has the first slot where it takes one."""
    lora = sim.lora
    if not sim.config.serves_adapters:
        return
    state = lora.states[w]
    state.resident = 0
    state.copies = 0
    lora.slots[w, :] = -1
    for a in range(lora.policy.adapters + 1):
        place = lora.places[w, a]
        place.slot = -1
        place.used = 0
        place.copied = 0
        place.ready_s = -1.0
        place.drains_for = -1
    if lora.policy.base_slot:
        give_slot(sim, w, lora.policy.adapters, 0)
