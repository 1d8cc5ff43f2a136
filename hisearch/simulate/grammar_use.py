"""What workers did with grammars of structured output, and what to know of a workload's grammars."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hisearch.base.dtypes import I4
from hisearch.kernels.layout import sim as la
from hisearch.simulate.plans.plan import WorkerPlan
from hisearch.simulate.results.uses import GrammarUse
from hisearch.specs.wording import counted
from hisearch.traces.compiled import CompiledTrace


def caveats(plans: Sequence[WorkerPlan], trace: CompiledTrace) -> tuple[str, ...]:
    """What is doubtful about grammars: of a workload whose deployment serves none, or the other way round."""
    without = [plan for plan in plans if plan.grammars is None]
    if trace.grammars is None:
        if len(without) < len(plans):
            return (
                "the deployment serves structured output (structured_output), and no request of the workload has a "
                "grammar; give them one (docs/how-to/structured-output.md)",
            )
        return ()
    if without:
        count = counted(int((trace.grammars.grammar >= 0).sum()), "request")
        pools = "the deployment" if len(without) == len(plans) else "a pool"
        return (
            f"outputs of {count} follow a grammar, and {pools} takes them for free text: without "
            "pools[].structured_output nobody waits for grammars, and masks take no time",
        )
    return ()


def grammar_uses(
    plan: WorkerPlan, sim: la.Sim, trace: CompiledTrace, worker: I4, first_worker: int
) -> tuple[GrammarUse, ...]:
    """What each worker of a pool did; empty where grammars are not simulated, or none are asked for.

    Args:
        plan: of a worker.
        sim: the pool's arrays.
        trace: the workload.
        worker: of each request, among all pools' workers; -1: none. Shape (N,).
        first_worker: the pool's first.
    """
    if plan.grammars is None or trace.grammars is None:
        return ()
    waited_s = sim.grammars.ready_s - sim.grammars.asked_s
    uses = []
    for w, state in enumerate(sim.grammars.states):
        mine = (worker == first_worker + w) & np.isfinite(waited_s)
        uses.append(
            GrammarUse(
                requests=int(mine.sum()),
                grammars=len(np.unique(trace.grammars.grammar[mine])),
                compilations=int(state.compilations),
                compile_s=float(state.compile_s),
                waited=int((waited_s[mine] > 0).sum()),
                wait_s=float(waited_s[mine].sum()),
                steps=int(state.steps),
                sequences=int(state.sequences),
                host_s=float(state.host_s),
                polled_s=float(state.polled_s),
            )
        )
    return tuple(uses)
