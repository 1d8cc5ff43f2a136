"""First visible tokens within a fast-forward (see ``traffic.thinking``)."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.engine.cost import fast_forward
from hisearch.kernels.traffic import lists, thinking


@kernel
def note_fast_forward(sim, w, steps):
    """Note those that the first ``steps`` steps of the fast-forward that ends now make, before it is accounted for.

    The steps are run again up to each, from the one before it, so that the result equals stepping to the last bit.
    """
    worker = sim.workers[w]
    end_s = worker.fast_forward_from_s if sim.config.overlap else worker.newest_start_s
    excess = lists.excess_tokens(sim, w)
    ahead = 0
    while True:
        clock = thinking.next_clock(sim, w, worker.clock + steps + 1)
        if clock > worker.clock + steps:
            return
        context = worker.context_tokens + ahead * worker.decoding
        more = clock - worker.clock - ahead
        end_s = fast_forward(
            sim.seconds, end_s, 1e300, more, worker.decoding, context, excess, worker.more_s, worker.grammar_s
        )[1]
        ahead += more
        thinking.note_decoded(sim, w, clock, end_s)
