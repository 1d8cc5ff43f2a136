"""Standby of a worker: its accelerators draw less once they have been idle for long, and take time to wake.

FFN accelerators that stand apart are idle when attention's are, and have a delay and a wake-up time of their own. State
is that of the worker's ``first`` scheduler, its leader.
"""

from __future__ import annotations

from hisearch.base.jit import kernel


@kernel
def awake_at(sim, first, start):
    """When a step that is due at ``start`` begins: once all accelerators that are in standby then have woken."""
    front = sim.workers[first]
    idle_s = start - front.awake_until_s
    wake_s = 0.0
    if idle_s > sim.config.standby_after_s:
        front.wakes += 1
        wake_s = sim.config.wake_s
    if idle_s > sim.config.ffn_standby_after_s:
        front.ffn_wakes += 1
        wake_s = max(wake_s, sim.config.ffn_wake_s)
    return start + wake_s


@kernel
def note_idle(sim, first, until):
    """The worker gets work at ``until``: count its standby time before.

    Must be called in order of time.
    """
    front = sim.workers[first]
    idle_s = until - front.awake_until_s
    front.standby_s += max(idle_s - sim.config.standby_after_s, 0.0)
    front.ffn_standby_s += max(idle_s - sim.config.ffn_standby_after_s, 0.0)


@kernel
def stay_awake(sim, first, until):
    """Note that the worker has work up to ``until``."""
    front = sim.workers[first]
    front.awake_until_s = max(front.awake_until_s, until)
