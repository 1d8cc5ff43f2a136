"""The queue of a worker's front end, where tokens come faster than it sends them (law: ``simulate.front_end``)."""

from __future__ import annotations

import numpy as np

from hisearch.base.jit import kernel


@kernel
def _catch_up(sim, w, now, first):
    """Bring the queue of scheduler ``w`` up to ``now``, with ``first`` tokens beside the decoded ones.

    Returns, in seconds, (a round over all streams, 0 unless the process has no time left; the tokens that are ahead in
    line beyond this step's own).
    """
    worker = sim.workers[w]
    # A decode's tokens, drafts among them, go out in one message.
    messages = (worker.decode_tokens - worker.sent_tokens) / (1 + sim.config.draft_tokens) + first
    work_s = sim.config.message_s * messages
    passed_s = max(now - worker.front_end_at_s, 0.0)
    worker.sent_tokens = worker.decode_tokens
    worker.front_end_at_s += passed_s
    step_s = sim.config.message_s * worker.decoding
    queued_s = max(worker.queued_s + sim.config.unmerged * work_s - passed_s, 0.0)
    # Messages of a stream that wait are merged: beside this step's, at most a round of them is behind the queue.
    pending_s = min(max(worker.pending_s + work_s - passed_s, 0.0), queued_s + 2.0 * step_s)
    worker.queued_s = queued_s
    worker.pending_s = pending_s
    return max(pending_s - queued_s - step_s, 0.0), max(queued_s - step_s, 0.0)


@kernel
def note_in_vain(sim, w, tokens):
    """Of the tokens decoded on scheduler ``w``, so many are thrown away: no client gets them."""
    sim.workers[w].sent_tokens += tokens


@kernel
def note_first_token(sim, w, r, at_s):
    """The first token of ``r`` is made at ``at_s``: how long its prompt and that token wait in line."""
    round_s, waiting_s = _catch_up(sim, w, at_s, 1)
    sim.requests[r].first_waits_s = np.float32(sim.config.rounds * round_s + waiting_s)


@kernel
def note_last_token(sim, w, r, now):
    """The last token of ``r`` is made at ``now``; returns how much later it comes for what waits in line."""
    request = sim.requests[r]
    round_s, waiting_s = _catch_up(sim, w, now, 0)
    waits_s = sim.config.rounds * round_s + waiting_s
    request.last_waits_s = np.float32(waits_s)
    return waits_s
