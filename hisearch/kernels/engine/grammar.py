"""Grammars of structured output: when a request's grammar is compiled, and what the host does for them in a step.

A worker's threads compile in the order in which grammars are asked for, each by the first thread that is free. The
compiler keeps what it has compiled, and gives who asks meanwhile the same compilation (xgrammar's ``GrammarCompiler``).
"""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel
from hisearch.kernels.layout import grammars as gr


@kernel
def is_free_text(sim, r):
    """Whether the output of ``r`` follows no grammar."""
    return sim.grammars.grammar[r] < 0


@kernel
def ask(sim, w, r, now):
    """Let the threads of ``w`` compile the grammar of ``r`` from ``now`` on; sets when it is there."""
    grammars = sim.grammars
    g = grammars.grammar[r]
    place = grammars.places[w, g]
    state = grammars.states[w]
    first = 0
    for k in range(1, grammars.threads.shape[1]):
        if grammars.threads[w, k] < grammars.threads[w, first]:
            first = k
    start_s = max(now, grammars.threads[w, first])
    if np.isnan(place.ready_s):
        place.ready_s = start_s + grammars.compile_s[g]
        state.compilations += 1
        state.compile_s += grammars.compile_s[g]
    grammars.threads[w, first] = max(start_s, place.ready_s)
    have(sim, w, r, now, grammars.threads[w, first])


@kernel
def have(sim, w, r, now, ready_s):
    """Note that the grammar of ``r``, asked for at ``now``, is there from ``ready_s`` on."""
    sim.grammars.states[w].requests += 1
    sim.grammars.asked_s[r] = now
    sim.grammars.ready_s[r] = ready_s


@kernel
def waits(sim, r, now):
    """Whether the grammar of ``r`` is not there at ``now``."""
    # That of free text is NaN.
    return sim.grammars.ready_s[r] > now


@kernel
def price(sim, w, masked, looks):
    """Set what a step with ``masked`` sequences takes, whose pass looked ``looks`` times for grammars not there.

    Beside the device the host takes the results of the step before it, and fills the masks of this one. Without overlap
    it takes results in when the device is done.
    """
    policy = sim.grammars.policy
    worker = sim.workers[w]
    fills = masked
    if policy.fill_threads > 0 and masked > gr.PARALLEL_FROM:
        batches = (masked + gr.PARALLEL_BATCH - 1) // gr.PARALLEL_BATCH
        fills = (batches + policy.fill_threads - 1) // policy.fill_threads * gr.PARALLEL_BATCH
    accept_s = masked * policy.accept_s
    worker.masked = masked
    worker.grammar_s = fills * policy.fill_s + looks * policy.look_s
    if sim.config.overlap:
        worker.grammar_s += accept_s
    else:
        worker.more_s = accept_s


@kernel
def account(sim, w, steps):
    """Add ``steps`` steps as ``price`` set them to the totals, where grammars are simulated."""
    worker = sim.workers[w]
    if not sim.config.compiles_grammars or worker.masked == 0:
        return
    state = sim.grammars.states[w]
    state.steps += steps
    state.sequences += steps * worker.masked
    state.host_s += steps * (worker.grammar_s + (0.0 if sim.config.overlap else worker.more_s))


@kernel
def reset(sim, w):
    """Let worker ``w`` have compiled nothing."""
    if not sim.config.compiles_grammars:
        return
    sim.grammars.threads[w, :] = 0.0
    sim.grammars.states[w].head = -1
    sim.grammars.states[w].tail = -1
    for g in range(sim.grammars.compile_s.shape[0]):
        sim.grammars.places[w, g].ready_s = np.nan
        sim.grammars.places[w, g].cached = 0
