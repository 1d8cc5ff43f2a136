"""From a trace's grammars and a worker's plan for them to the kernels' arrays."""

from __future__ import annotations

import numpy as np

from hisearch.kernels.layout import grammars as gr
from hisearch.simulate.arrays.records import record, records
from hisearch.simulate.plans.grammar_plan import GrammarPlan
from hisearch.traces.adapters import RequestGrammars


def handle(
    plan: GrammarPlan | None, grammars: RequestGrammars | None, requests: int, workers: int, *, polls: bool
) -> gr.Grammars:
    """All arrays; those of workers that know of no grammars where ``plan`` or ``grammars`` is None.

    Args:
        plan: of a worker.
        grammars: which each request's output follows; None: all are free text.
        requests: how many.
        workers: how many.
        polls: whether passes poll grammars, as SGLang's do.
    """
    if plan is None or grammars is None:
        plan, requests, workers = GrammarPlan(0), 0, 0
        grammars = RequestGrammars((), np.empty(0), np.empty(0, np.int32))
    # A set of so many places never has a larger table (see ``kernels.core.python_set``).
    asked = int((grammars.grammar >= 0).sum()) if polls else 0
    slots = max(8, 1 << (4 * asked).bit_length())
    return gr.Grammars(
        policy=record(
            gr.POLICY, fill_s=plan.fill_s, accept_s=plan.accept_s, fill_threads=plan.fill_threads, look_s=plan.look_s
        ),
        grammar=grammars.grammar.astype(np.int32),
        compile_s=np.where(np.isnan(grammars.compile_s), plan.compile_s, grammars.compile_s),
        places=records(workers * len(grammars.names), gr.PLACE).reshape(workers, len(grammars.names)),
        states=records(workers, gr.STATE),
        threads=np.zeros((workers, plan.threads)),
        asked_s=np.full(requests, np.nan),
        ready_s=np.full(requests, np.nan),
        queued=np.empty(asked, np.int32),
        table=np.empty((2, slots if polls else 0), np.int32),
    )
