"""How requests come into SGLang's waiting queue: at once, from the inbox, or once their grammars are compiled.

With grammars a pass takes all requests from the inbox: only then does the scheduler ask for theirs.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.engine import device, engine_calls
from hisearch.kernels.hicache import storage
from hisearch.kernels.layout import agents as al
from hisearch.kernels.layout import sim as la
from hisearch.kernels.sglang import grammar as sglang_grammar
from hisearch.kernels.sglang import inbox, order
from hisearch.kernels.traffic import heaps


@kernel
def enter(sim, w, r, now, moment):
    """Queue request ``r`` (see ``order.enqueue``)."""
    sim.requests[r].node = sim.workers[w].cache_id
    order.enqueue(sim, w, r, moment)
    if sim.tiers.storage:
        storage.enter(sim, w, r)
    if sim.config.objects:
        engine_calls.call_engine(sim.config.objects, sim, al.ARRIVES, w, r, now)


@kernel
def poll_inbox(sim, w, now):
    """Begin a pass: queue the requests in the inbox, if the pass polls it."""
    if not inbox.looks(sim, w):
        return
    r = inbox.take(sim, w)
    while r >= 0:
        if not (sim.config.compiles_grammars and sglang_grammar.queue(sim, w, r, now)):
            enter(sim, w, r, now, sim.workers[w].moments)
        r = inbox.take(sim, w)


@kernel
def take_compiled(sim, w, now):
    """Queue the requests whose grammars the pass at ``now`` finds compiled; returns when it goes on."""
    if not sglang_grammar.some_wait(sim, w):
        return now
    worker = sim.workers[w]
    until_s, count = sglang_grammar.poll(sim, w, now)
    if until_s > worker.moment_s:
        worker.moment_s = until_s
        worker.moments += 1
    for k in range(count):
        enter(sim, w, sim.grammars.queued[k], until_s, worker.moments)
    return until_s


@kernel
def receive(sim, w, r, now):
    """Receive request ``r`` at ``now``; end a fast-forward early if a pass would poll or try a prefill."""
    worker = sim.workers[w]
    waits = sim.config.receive_interval > 1 or sim.config.compiles_grammars
    if waits:
        inbox.hold(sim, w, r)
    else:
        enter(sim, w, r, now, worker.moments + 1)
    if worker.phase == la.IDLE:
        heaps.form_at(sim, w, now)
    elif waits:
        if worker.phase == la.FAST_FORWARDING:
            inbox.cut_fast_forward(sim, w, now)
    elif worker.phase == la.FAST_FORWARDING and (
        sim.tiers.storage or not order.closed(sim, w) or sim.lora.policy.drain_wait_s > 0.0
    ):
        device.cut_fast_forward(sim, w, now)
