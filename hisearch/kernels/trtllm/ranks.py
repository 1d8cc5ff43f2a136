"""TensorRT-LLM's attention data parallelism: DP ranks with one queue, which choose together and step together.

Sources: ``pyexecutor/scheduler/adp_router.py`` (``DefaultADPRouter``), ``py_executor.py`` (``_balance_adp_requests``,
``_can_queue``, ``_pad_attention_dp_dummy_request``).

Before each pass the ranks take as many requests from the queue as they have places. Of these the longest prompt goes
first, to the rank with the fewest prompt tokens, then requests, then the first; no rank gets more than an equal share
of all requests. A rank without requests takes part with a decode of no one. Where one with requests has nothing to run,
none runs, unless all would stand still.

With ``balances_ranks`` contexts are held back until every rank has one and a place for it; not where a rank would have
no decode to run meanwhile, and for ``balance_timeout_steps`` at most. From then on ``balance_wait_steps`` more pass to
collect others.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.core.linked_list import fifo
from hisearch.kernels.engine import schedulers
from hisearch.kernels.trtllm import memory

_enqueue = fifo()


@kernel
def reset(sim, w):
    """Empty the queue of leader ``w``."""
    worker = sim.workers[w]
    worker.undealt_head = -1


@kernel
def receive(sim, w, r):
    """Queue ``r`` before the ranks of ``w``'s worker."""
    front = sim.workers[schedulers.leader(sim, w)]
    front.undealt_head, front.undealt_tail = _enqueue(sim.requests, front.undealt_head, front.undealt_tail, r)
    front.undealt += 1


@kernel
def _active(sim, w):
    """Requests of rank ``w``."""
    return sim.workers[w].running + sim.workers[w].waiting


@kernel
def _take_longest_first(sim, first, count):
    """Take ``count`` requests from the queue. Returns the first of their list (``next``), longest prompt first."""
    front = sim.workers[first]
    requests = sim.requests
    head = -1
    for _ in range(count):
        r = front.undealt_head
        front.undealt_head = requests[r].next
        before = -1
        after = head
        while after >= 0 and sim.trace.input_tokens[after] >= sim.trace.input_tokens[r]:
            before = after
            after = requests[after].next
        requests[r].next = after
        if before >= 0:
            requests[before].next = r
        else:
            head = r
    front.undealt -= count
    return head


@kernel
def _least_loaded(sim, first, most):
    """The rank with the fewest prompt tokens, then requests, of those with less than ``most`` requests."""
    chosen = -1
    for w in range(first, first + sim.config.schedulers):
        if _active(sim, w) >= most:
            continue
        more_tokens = 0 if chosen < 0 else sim.workers[w].active_tokens - sim.workers[chosen].active_tokens
        if chosen < 0 or more_tokens < 0 or (more_tokens == 0 and _active(sim, w) < _active(sim, chosen)):
            chosen = w
    return chosen


@kernel
def _deal(sim, first):
    """Deal requests of the queue to the ranks."""
    ranks = sim.config.schedulers
    active = 0
    most = 0
    for w in range(first, first + ranks):
        active += _active(sim, w)
        most = max(most, _active(sim, w))
    count = min(sim.workers[first].undealt, ranks * sim.config.max_running - active)
    most = max(most, (active + count + ranks - 1) // ranks)
    r = _take_longest_first(sim, first, count)
    while r >= 0:
        behind = sim.requests[r].next
        w = _least_loaded(sim, first, most)
        sim.workers[sim.requests[r].worker].requests -= 1
        sim.requests[r].worker = w
        sim.workers[w].requests += 1
        memory.queue_up(sim, w, r)
        r = behind


@kernel
def _runs(sim, w):
    """Whether rank ``w`` has something to run in the pass."""
    worker = sim.workers[w]
    return worker.batch_size + worker.decoding + worker.late > 0


@kernel
def _holds_contexts_back(sim, first):
    """Whether the ranks hold their contexts back in this pass."""
    front = sim.workers[first]
    all_have_places = True
    all_have_contexts = True
    all_have_decodes = True
    for w in range(first, first + sim.config.schedulers):
        worker = sim.workers[w]
        decodes = worker.decoding + worker.late
        if _active(sim, w) == 0:
            decodes = 1
        all_have_places = all_have_places and decodes < sim.config.max_running
        all_have_contexts = all_have_contexts and worker.batch_size > 0
        all_have_decodes = all_have_decodes and decodes > 0
    if all_have_places and all_have_contexts:
        front.unequal_steps = 0
        if not all_have_decodes:
            return False
        if front.batching_steps < sim.config.balance_wait_steps:
            front.batching_steps += 1
            return True
        front.batching_steps = 0
        return False
    front.unequal_steps += 1
    if front.unequal_steps >= sim.config.balance_timeout_steps or not all_have_decodes:
        front.unequal_steps = 0
        return False
    return True


@kernel
def _agree(sim, first):
    """Hold contexts back, or let all ranks skip the pass, by what each has chosen."""
    last = first + sim.config.schedulers
    if sim.config.balances_ranks and _holds_contexts_back(sim, first):
        for w in range(first, last):
            sim.workers[w].batch_size = 0
    waits = False
    outstanding = 0
    for w in range(first, last):
        outstanding += sim.workers[w].outstanding
        waits = waits or (_active(sim, w) > 0 and not _runs(sim, w))
    if waits and outstanding > 0:
        for w in range(first, last):
            sim.workers[w].skips_pass = 1


def chosen_together(choose):
    """The pass of all ranks, each of which chooses by ``choose(sim, w)``."""

    @kernel
    def choose_together(sim, first):
        """Deal new requests to the ranks of leader ``first``, and choose what each computes next."""
        _deal(sim, first)
        active = 0
        for w in range(first, first + sim.config.schedulers):
            sim.workers[w].skips_pass = 0
            sim.workers[w].batch_size = 0
            sim.workers[w].late = 0
            active += _active(sim, w)
            if _active(sim, w) > 0:
                choose(sim, w)
        if active > 0:
            _agree(sim, first)

    return choose_together
