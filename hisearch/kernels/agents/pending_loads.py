"""Agents with pending loads, and the queues in which they wait: see ``agents.loads``."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.agents import disk
from hisearch.kernels.agents import fetch as agents_fetch
from hisearch.kernels.agents import kv as agents_kv
from hisearch.kernels.cache import load_queue
from hisearch.kernels.layout import agents as al

#: Kinds of pending loads, each with a queue.
OBJECTS, KV, FETCH, READ = 0, 1, 2, 3
#: Where predictions are tested, nothing is loaded ahead while they order a smaller share of pairs right. Assumed.
RIGHT_SHARE = 0.55


@kernel
def missing_object(sim, w, a, where):
    """The first object of agent ``a`` that is ``where`` at worker ``w``, or -1."""
    agents = sim.agents
    for k in range(agents.uses_begin[a], agents.uses_begin[a + 1]):
        if agents.objects[w, agents.uses[k]].where == where:
            return agents.uses[k]
    return -1


@kernel
def _absent(sim, w, a, copy):
    """The first object of agent ``a`` absent from worker ``w``'s HBM with ``on_host`` equal to ``copy``, or -1."""
    agents = sim.agents
    for k in range(agents.uses_begin[a], agents.uses_begin[a + 1]):
        obj = agents.objects[w, agents.uses[k]]
        if obj.where == al.ABSENT and obj.on_host == copy:
            return agents.uses[k]
    return -1


@kernel
def to_load(sim, w, a):
    """The first object of agent ``a`` that can be loaded at worker ``w``, or -1."""
    return _absent(sim, w, a, al.COPIED)


@kernel
def to_read(sim, w, a):
    """The first object of agent ``a`` that only the disk has, or -1."""
    return _absent(sim, w, a, al.DROPPED)


@kernel
def _foreseen(sim, w, a):
    """Whether worker ``w`` may load ahead of agent ``a``'s call."""
    policy = sim.agents.policy
    agent = sim.agents.agents[a]
    if policy.loading != al.AHEAD or agent.worker != w or agent.predicted_call >= al.NOBODY:
        return False
    population = sim.agents.population
    return policy.tested == 0 or (population.trusted != 0 and population.right >= RIGHT_SHARE)


@kernel
def wants(sim, w, a):
    """Whether agent ``a`` has an object to load at worker ``w``: for its call, or ahead of it."""
    if sim.agents.policy.loading == al.AT_LAUNCH or to_load(sim, w, a) < 0:
        return False
    return sim.agents.agents[a].calls > 0 or _foreseen(sim, w, a)


@kernel
def wants_read(sim, w, a):
    """Whether agent ``a`` has an object to read from the disk: for its call, or ahead of it."""
    if sim.agents.policy.loading == al.AT_LAUNCH or to_read(sim, w, a) < 0:
        return False
    return sim.agents.agents[a].calls > 0 or _foreseen(sim, w, a)


@kernel
def wants_kv(sim, w, a):
    """Whether agent ``a`` has KV to load at worker ``w`` ahead of its call."""
    if sim.agents.policy.kv_budget_pages == 0 or sim.agents.agents[a].calls > 0 or not _foreseen(sim, w, a):
        return False
    return agents_kv.missing(sim, w, a)[0] > 0


@kernel
def wants_fetch(sim, w, a):
    """Whether agent ``a`` has KV to fetch from storage ahead of its call."""
    if not agents_fetch.on(sim) or sim.agents.agents[a].calls > 0 or not _foreseen(sim, w, a):
        return False
    return agents_fetch.missing(sim, w, a) > 0


@kernel
def _has_pending(sim, w, a, what):
    if what == KV:
        return wants_kv(sim, w, a)
    if what == FETCH:
        return wants_fetch(sim, w, a)
    return wants_read(sim, w, a) if what == READ else wants(sim, w, a)


@kernel
def _queue_count(sim):
    """Queues of a worker."""
    return READ + 1 if disk.on(sim) else FETCH + 1


@kernel
def _row(sim, w, what):
    return what * sim.config.workers + w


@kernel
def line_up(sim, a):
    """Put agent ``a`` into its worker's queues for which it has a pending load, and take it out of the others."""
    w = sim.agents.agents[a].worker
    if w < 0:
        return
    for what in range(_queue_count(sim)):
        if _has_pending(sim, w, a, what):
            load_queue.stand(sim, _row(sim, w, what), a)
        else:
            load_queue.step_out(sim, _row(sim, w, what), a)


@kernel
def step_out(sim, w, a):
    """Take agent ``a`` out of worker ``w``'s queues."""
    for what in range(_queue_count(sim)):
        load_queue.step_out(sim, _row(sim, w, what), a)


@kernel
def first(sim, w, what):
    """The first agent with a pending load in worker ``w``'s queue of kind ``what``, or -1."""
    row = _row(sim, w, what)
    while sim.agents.line_size[row] > 0:
        a = sim.agents.line[row, 0]
        if _has_pending(sim, w, a, what):
            return a
        load_queue.step_out(sim, row, a)
    return -1
