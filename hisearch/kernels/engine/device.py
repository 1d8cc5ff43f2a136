"""A worker's device: steps launched one after another, and when their results are processed.

Without overlap a step is launched, ends, and its results are processed before the next pass. With overlap (vLLM's
asynchronous scheduling, SGLang's overlap schedule) the next step may be launched while a step runs. A pass forms step
k + 1 when k - 1 has ended, and the device starts it when k ends. If the step just launched is the only outstanding one,
the next pass follows at once.

A *fast-forward* advances many decode steps in one event, if nothing else happens between their passes. Without overlap
its event is the end of its last step. With overlap the pass after a fast-forward of n steps comes when the last but one
ends (for n = 1: when the step before the fast-forward ends). Its last step is then the only outstanding one.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.engine import schedulers, standby
from hisearch.kernels.engine.cost import decode_joules, fast_forward, fast_forward_bound
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import heaps, lists


@kernel
def launch(sim, w, now, seconds):
    """Launch the step formed at ``now``; it ends no sooner than the load-back that it waits for. Returns its end.

    In lockstep it runs as long as the lockstep step. In a pipeline it waits at every stage for the batches ahead of it,
    which does not count as running.
    """
    worker = sim.workers[w]
    if sim.config.scheduler_kind == la.LOCKSTEP:
        queue(sim, w, worker.lockstep_start_s, worker.lockstep_end_s)
        return worker.lockstep_end_s
    if sim.config.scheduler_kind == la.PIPE:
        end = schedulers.through_stages(sim, w, standby.awake_at(sim, schedulers.leader(sim, w), now), seconds)
        queue(sim, w, end - seconds, end)
        return end
    start = standby.awake_at(sim, schedulers.leader(sim, w), max(now, worker.newest_end_s))
    end = start + seconds
    if worker.load_back_s > end:
        end = worker.load_back_s
    queue(sim, w, start, end)
    return end


@kernel
def queue(sim, w, start, end):
    """Queue the step just formed, which runs from ``start`` to ``end``."""
    worker = sim.workers[w]
    first = schedulers.leader(sim, w)
    standby.note_idle(sim, first, start)
    standby.stay_awake(sim, first, end)
    worker.newest_start_s = start
    worker.newest_end_s = end
    if worker.outstanding == 0:
        worker.oldest_start_s = start
        worker.oldest_end_s = end
    worker.outstanding += 1
    worker.launched_step += 1


@kernel
def await_next(sim, w, now, launched):
    """Set the worker's next event after a pass at ``now`` that launched a single step, or none.

    DP ranks in lockstep have no events of their own.
    """
    if sim.config.scheduler_kind == la.LOCKSTEP:
        return
    worker = sim.workers[w]
    if worker.outstanding == 0:
        worker.phase = la.IDLE
        heaps.event_clear(sim, w)
    elif launched and worker.outstanding == 1 and sim.config.overlap:
        heaps.form_at(sim, w, now)
    else:
        worker.phase = la.STEPPING
        heaps.event_set(sim, w, worker.oldest_end_s)


@kernel
def retire(sim, w):
    """Account for the oldest outstanding step, which has ended."""
    worker = sim.workers[w]
    worker.steps += 1
    worker.busy_s += worker.oldest_end_s - worker.oldest_start_s
    worker.oldest_start_s = worker.newest_start_s
    worker.oldest_end_s = worker.newest_end_s
    worker.outstanding -= 1


@kernel
def _run(sim, w, start_s, until_s, limit, ahead):
    """Run the decodes of ``w`` from the step ``ahead`` steps after the next (see ``cost.fast_forward``)."""
    worker = sim.workers[w]
    context = worker.context_tokens + ahead * worker.decoding
    excess = lists.excess_tokens(sim, w)
    return fast_forward(
        sim.seconds, start_s, until_s, limit, worker.decoding, context, excess, worker.more_s, worker.grammar_s
    )


@kernel
def plan_fast_forward(sim, w, now, limit):
    """Plan a fast-forward of up to ``limit`` decode steps, from a pass at ``now``.

    With overlap there must be one outstanding step. Most fast-forwards are cut before their end. So the end is only
    bounded at first; ``settle_fast_forward`` computes it once no other event comes before. Where a worker has several
    schedulers, it is computed at once: they look at each other's ends.
    """
    worker = sim.workers[w]
    worker.phase = la.FAST_FORWARDING
    worker.fast_forward_steps = limit
    if sim.config.overlap:
        # The device is busy until then, unless forming the batch took longer (see ``hicache``).
        worker.fast_forward_from_s = max(now, worker.newest_end_s)
    else:
        worker.newest_start_s = max(now, worker.newest_end_s)
        standby.note_idle(sim, schedulers.leader(sim, w), worker.newest_start_s)
    if sim.config.scheduler_kind != la.SINGLE:
        settle_fast_forward(sim, w)
        return
    start, steps = _until_event(sim, w)
    worker.fast_forward_open = 1
    excess = lists.excess_tokens(sim, w)
    bound = fast_forward_bound(
        sim.seconds, start, steps, worker.decoding, worker.context_tokens, excess, worker.more_s, worker.grammar_s
    )
    heaps.event_set(sim, w, bound)


@kernel
def _until_event(sim, w):
    """Start of the planned fast-forward, and its steps that end by its event: with overlap all but the last."""
    worker = sim.workers[w]
    if sim.config.overlap:
        return worker.fast_forward_from_s, worker.fast_forward_steps - 1
    return worker.newest_start_s, worker.fast_forward_steps


@kernel
def settle_fast_forward(sim, w):
    """Set the event of the planned fast-forward to its exact end."""
    start, steps = _until_event(sim, w)
    sim.workers[w].fast_forward_open = 0
    heaps.event_set(sim, w, _run(sim, w, start, 1e300, steps, 0)[1])


@kernel
def formed_by(sim, w, until):
    """Steps of the planned fast-forward formed by passes before ``until``, and the time of the first later pass."""
    worker = sim.workers[w]
    if not sim.config.overlap:
        return _run(sim, w, worker.newest_start_s, until, worker.fast_forward_steps, 0)
    steps = 0
    event = worker.fast_forward_from_s
    if event < until:
        steps, event = _run(sim, w, event, until, worker.fast_forward_steps - 1, 0)
    return steps + 1, event


@kernel
def cut_fast_forward(sim, w, until):
    """Let the planned fast-forward end with the first pass at or after ``until``."""
    worker = sim.workers[w]
    steps, event = formed_by(sim, w, until)
    worker.fast_forward_steps = steps
    worker.fast_forward_open = 0
    heaps.event_set(sim, w, event)


@kernel
def finish_fast_forward(sim, w):
    """Account for the steps of the fast-forward at its event: all have ended, with overlap all but the last.

    Energy by the trapezoid rule, exact while the law is linear. ``context_tokens`` is still that of the first step.
    """
    worker = sim.workers[w]
    steps = worker.fast_forward_steps
    n = worker.decoding
    worker.energy_j += decode_joules(sim.joules, steps, n, worker.context_tokens)
    if sim.config.attached:
        worker.attached_j += decode_joules(sim.attached_joules, steps, n, worker.context_tokens)
    if sim.config.linked:
        worker.link_j += decode_joules(sim.link_joules, steps, n, worker.context_tokens)
    worker.decode_tokens += steps * n
    worker.launched_step += steps
    if not sim.config.overlap:
        worker.steps += steps
        worker.busy_s += worker.event_s - worker.newest_start_s
        worker.newest_end_s = worker.event_s
        standby.stay_awake(sim, schedulers.leader(sim, w), worker.newest_end_s)
        return
    # The step outstanding before the fast-forward has ended, and all its steps but the last.
    worker.steps += steps
    worker.busy_s += worker.oldest_end_s - worker.oldest_start_s
    worker.busy_s += worker.event_s - worker.oldest_end_s
    _, end = _run(sim, w, worker.event_s, 1e300, 1, steps - 1)
    worker.newest_start_s = worker.event_s
    worker.newest_end_s = end
    worker.oldest_start_s = worker.newest_start_s
    worker.oldest_end_s = end
    standby.stay_awake(sim, schedulers.leader(sim, w), end)
