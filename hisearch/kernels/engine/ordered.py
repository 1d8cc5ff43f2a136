"""Lists in order of ``REQUEST.order``: of admission (vLLM) or arrival (TensorRT-LLM); most requests go to the ends."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.core.linked_list import linked_list
from hisearch.kernels.traffic import lists

_insert_prompt, _remove_prompt = linked_list("prev_aside", "next_aside")


@kernel
def run(sim, w, r):
    """Put ``r`` into the running list."""
    requests = sim.requests
    before = sim.workers[w].running_tail
    while before >= 0 and requests[before].order > requests[r].order:
        before = requests[before].prev
    lists.run_after(sim, w, before, r)


@kernel
def wait(sim, w, r):
    """Put ``r`` back into the waiting list."""
    requests = sim.requests
    worker = sim.workers[w]
    after = worker.waiting_head
    while after >= 0 and requests[after].order < requests[r].order:
        after = requests[after].next
    lists.wait_after(sim, w, requests[after].prev if after >= 0 else worker.waiting_tail, r)


@kernel
def add_prompt(sim, w, r):
    """Put ``r`` among the unfinished prompts."""
    requests = sim.requests
    worker = sim.workers[w]
    before = worker.prompts_tail
    while before >= 0 and requests[before].order > requests[r].order:
        before = requests[before].prev_aside
    head, tail = _insert_prompt(requests, worker.prompts_head, worker.prompts_tail, before, r)
    worker.prompts_head = head
    worker.prompts_tail = tail


@kernel
def remove_prompt(sim, w, r):
    """Take ``r`` out of the unfinished prompts."""
    worker = sim.workers[w]
    head, tail = _remove_prompt(sim.requests, worker.prompts_head, worker.prompts_tail, r)
    worker.prompts_head = head
    worker.prompts_tail = tail


@kernel
def add_ending(sim, w, r):
    """Put ``r`` among the requests whose last token the newest step makes."""
    requests = sim.requests
    worker = sim.workers[w]
    before = -1
    after = worker.endings_new
    while after >= 0 and requests[after].order < requests[r].order:
        before = after
        after = requests[after].next_aside
    requests[r].next_aside = after
    if before >= 0:
        requests[before].next_aside = r
    else:
        worker.endings_new = r
