"""TensorRT-LLM's ``batch_wait_timeout_ms``: every pass waits for more requests, and results wait for the pass.

Sources: ``pyexecutor/executor_request_queue.py`` (``ExecutorRequestQueue.get_from_request_queue``),
``pyexecutor/py_executor.py`` (``_executor_loop``, ``_executor_loop_overlap``); pull request 6923.

A pass first takes the requests that have come since the pass before. Are they fewer than ``max_running``, it waits for
that many, ``gather_s`` at most. It does so whether requests run or not, and whether there are places for more or not.
With overlap the results of the step in flight are taken in behind the pass: its tokens come out no sooner.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.engine import gaps
from hisearch.kernels.traffic import heaps, lists, thinking


@kernel
def receive(sim, w, now):
    """Note a request that came at ``now``; the pass that waits for it goes on if it was the last one wanted."""
    worker = sim.workers[w]
    worker.fetched += 1
    if worker.gathering and worker.fetched == sim.config.max_running:
        heaps.form_at(sim, w, now)


@kernel
def goes_on(sim, w, now):
    """Whether the pass at ``now`` has waited for requests; if it has not, it is put off."""
    worker = sim.workers[w]
    if not worker.gathering and worker.fetched < sim.config.max_running:
        worker.gathering = 1
        heaps.form_at(sim, w, now + sim.config.gather_s)
        return False
    worker.gathering = 0
    worker.fetched = 0
    if worker.outstanding > 0:
        _note_results(sim, w, max(now, worker.newest_end_s))
    return True


@kernel
def delays_results(sim):
    """Whether tokens may come out later than their step ends."""
    return sim.config.gather_s > 0.0 and sim.config.overlap


@kernel
def newest_result_s(sim, w):
    """When the tokens of the newest step come out."""
    return sim.workers[w].result_s if delays_results(sim) else sim.workers[w].newest_end_s


@kernel
def note_sampled(sim, w, r, at_s):
    """Note that the step that ended ``r``'s prompt gives out a token of it at ``at_s``."""
    request = sim.requests[r]
    if request.generated == 1:
        lists.note_first_token(sim, r, at_s)
        return
    gaps.add(sim, at_s - request.last_token_s, 1)
    if sim.config.thinks:
        thinking.note_sampled(sim, r, request.generated - 1, at_s, sim.workers[w].decoding)


@kernel
def _note_results(sim, w, at_s):
    """Note the tokens of the step in flight, which come out at ``at_s``."""
    worker = sim.workers[w]
    row = 2 * w + worker.launched_step % 2
    launch = sim.launches[row]
    gaps.add(sim, at_s - worker.result_s, launch.entries)
    worker.result_s = at_s
    if sim.config.log:
        sim.log_steps[worker.logged_step].known_s = at_s
    if sim.config.thinks:
        thinking.note_decoded(sim, w, worker.clock, at_s)
    for k in range(launch.chunks):
        r = sim.prompts[row, k]
        if sim.requests[r].ended_step == worker.launched_step:
            note_sampled(sim, w, r, at_s)
