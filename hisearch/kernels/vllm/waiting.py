"""Waiting requests that a pass goes by: those whose adapters have no place, and those whose grammars are not compiled.

Before ``one_waiting_queue`` they stand in a queue of their own, which goes before all others under fcfs; preempted
requests are the first of the others. Requests with a grammar enter that queue. Here it is the head of the only list.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.engine import device, grammar, lora
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import heaps, lists
from hisearch.kernels.vllm import lora as vllm_lora


@kernel
def begin_pass(sim, w, now):
    """Begin to look at waiting requests in the pass at ``now``."""
    if sim.config.serves_adapters:
        vllm_lora.count_running(sim, w)
    if sim.config.compiles_grammars:
        sim.grammars.states[w].pass_s = now


@kernel
def goes_by(sim, w, r, now):
    """Whether the pass at ``now`` goes by the waiting request ``r``."""
    if sim.config.compiles_grammars and grammar.waits(sim, r, now):
        sim.grammars.states[w].looks += 1
        return True
    if sim.config.serves_adapters and not lora.may_join(sim, w, r):
        sim.lora.states[w].passed_over += 1
        sim.requests[r].passed_over = 1
        return True
    return False


@kernel
def wait_behind(sim, w, r, ahead):
    """Queue ``r`` behind those that a pass went by; ``ahead``: 1 where others queue behind it likewise."""
    before = -1
    if not sim.config.one_waiting_queue:
        after = sim.workers[w].waiting_head
        while after >= 0 and sim.requests[after].passed_over:
            before = after
            after = sim.requests[after].next
    sim.requests[r].passed_over = ahead
    lists.wait_after(sim, w, before, r)


@kernel
def ask_for_grammar(sim, w, r, now):
    """Have the grammar of ``r``, which has come, compiled, and queue it where requests with grammars wait."""
    if grammar.is_free_text(sim, r):
        return
    grammar.ask(sim, w, r, now)
    if not sim.config.one_waiting_queue and not lists.goes_by_urgency(sim):
        lists.stop_waiting(sim, w, r)
        wait_behind(sim, w, r, 1)


@kernel
def first_admissible(sim, w):
    """The first waiting request that a pass as the last one would not go by, or -1."""
    r = sim.workers[w].waiting_head
    while r >= 0:
        waits = sim.config.compiles_grammars and grammar.waits(sim, r, sim.grammars.states[w].pass_s)
        if not waits and not (sim.config.serves_adapters and not lora.may_join(sim, w, r)):
            return r
        r = sim.requests[r].next
    return r


@kernel
def next_ready_s(sim, w, now):
    """When the next grammar that a waiting request waits for is there; FOREVER_S: none does."""
    ready_s = la.FOREVER_S
    r = sim.workers[w].waiting_head
    while r >= 0:
        if grammar.waits(sim, r, now):
            ready_s = min(ready_s, sim.grammars.ready_s[r])
        r = sim.requests[r].next
    return ready_s


@kernel
def pass_when_ready(sim, w, now):
    """Let an idle worker pass, or end its fast-forward, when the next grammar is there."""
    worker = sim.workers[w]
    if worker.waiting == 0 or worker.running == sim.config.max_running:
        return
    ready_s = next_ready_s(sim, w, now)
    if ready_s == la.FOREVER_S:
        return
    if worker.phase == la.FAST_FORWARDING:
        device.cut_fast_forward(sim, w, ready_s)
    elif worker.phase == la.IDLE:
        heaps.event_set(sim, w, ready_s)


@kernel
def _price_grammars(sim, w):
    """Set what grammars add to the step just formed: every sequence samples, but for prompts that go on."""
    worker = sim.workers[w]
    masked = 0
    for k in range(worker.batch_size):
        r = sim.batch[w, k]
        if sim.requests[r].chunk_kind != la.PROMPT_GOES_ON and not grammar.is_free_text(sim, r):
            masked += 1
    r = worker.running_head if worker.decoding > 0 else -1
    while r >= 0:
        if sim.requests[r].status == la.DECODING and not grammar.is_free_text(sim, r):
            masked += 1
        r = sim.requests[r].next
    grammar.price(sim, w, masked, sim.grammars.states[w].looks)
    sim.grammars.states[w].looks = 0


@kernel
def prepare_step(sim, w):
    """Set what adapters and grammars add to the step just formed; returns whether it waits for adapters."""
    if sim.config.compiles_grammars:
        _price_grammars(sim, w)
    return sim.config.serves_adapters and vllm_lora.prepare_step(sim, w)
