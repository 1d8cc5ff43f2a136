"""First visible tokens: of a request that thinks, the first token behind its thinking.

A decoding request makes a token per tick of its worker's clock, so that the clock of its first visible token is known
when it begins to decode. A heap of these clocks tells whose token a step makes, without a look at the others. A request
that loses its KV leaves the heap; if its first visible token was lost too, it is made again, and noted again.

A first visible token that is the request's last is not noted: it comes with the request's end.
"""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import inlined_kernel, kernel
from hisearch.kernels.core.heap import indexed_heap


@inlined_kernel
def _sooner(first_visible, a, b):
    return first_visible[a].clock < first_visible[b].clock


@inlined_kernel
def _note_slot(first_visible, r, slot):
    first_visible[r].heap_slot = slot


_, _push, _remove = indexed_heap(_sooner, _note_slot)


@kernel
def join_decode(sim, w, r):
    """Note the clock of the first visible token of ``r``, which decodes from the next step on."""
    thinking = sim.thinking
    if thinking.tokens[r] == 0:
        return
    clock = sim.requests[r].finish_clock - sim.trace.output_tokens[r] + thinking.tokens[r] + 1
    if sim.workers[w].clock < clock < sim.requests[r].finish_clock:
        thinking.first_visible[r].clock = clock
        thinking.heap_size[w] = _push(thinking.first_visible, thinking.heap[w], thinking.heap_size[w], r)


@kernel
def leave_decode(sim, w, r):
    """Forget that clock: ``r`` no longer decodes."""
    thinking = sim.thinking
    slot = thinking.first_visible[r].heap_slot
    if slot >= 0:
        thinking.heap_size[w] = _remove(thinking.first_visible, thinking.heap[w], thinking.heap_size[w], slot)


@kernel
def next_clock(sim, w, limit):
    """The earliest clock of a first visible token on worker ``w``, ``limit`` at most."""
    thinking = sim.thinking
    if thinking.heap_size[w] == 0:
        return limit
    return min(thinking.first_visible[thinking.heap[w, 0]].clock, limit)


@kernel
def note_decoded(sim, w, clock, at_s):
    """Note the first visible tokens among those that the ``clock``-th decode step makes at ``at_s``."""
    thinking = sim.thinking
    while next_clock(sim, w, clock + 1) <= clock:
        r = thinking.heap[w, 0]
        thinking.first_visible[r].at_s = at_s
        thinking.first_visible[r].batch_mates = sim.workers[w].decoding - 1
        leave_decode(sim, w, r)


@kernel
def note_sampled(sim, r, before, at_s, batch_mates):
    """Note that ``r``, which had made ``before`` tokens, has made all of its present ones at ``at_s``."""
    thinking = sim.thinking
    if thinking.tokens[r] > 0 and before <= thinking.tokens[r] < sim.requests[r].generated:
        thinking.first_visible[r].at_s = at_s
        thinking.first_visible[r].clock = sim.workers[sim.requests[r].worker].clock
        thinking.first_visible[r].batch_mates = batch_mates


@kernel
def forget(sim, r):
    """Reset request ``r`` as if it had not arrived."""
    if sim.config.thinks:
        sim.thinking.first_visible[r].at_s = np.nan
        sim.thinking.first_visible[r].heap_slot = -1


@kernel
def forget_after(sim, end_s):
    """Clear what was noted of steps that end after ``end_s``."""
    first_visible = sim.thinking.first_visible
    for r in range(first_visible.shape[0]):
        if first_visible[r].at_s > end_s:
            first_visible[r].at_s = np.nan


@kernel
def delay(sim, w, r, until_s):
    """Let the first visible token of ``r``, if the newest step of worker ``w`` makes it, come at ``until_s``.

    The time alone does not tell: a token that was delayed may have come when the next step ended.
    """
    if not sim.config.thinks:
        return
    first_visible = sim.thinking.first_visible[r]
    if first_visible.clock == sim.workers[w].clock and first_visible.at_s >= sim.workers[w].newest_end_s:
        first_visible.at_s = until_s
