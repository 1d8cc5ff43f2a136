"""What is left out is refitted for real: figures of campaigns, GPUs and models that had no part in the constants.

For every campaign (GPU, model) the engines that it ran, and all their versions, are fitted anew without its cases,
beginning with the full fit and its derivatives; its cases are simulated with what comes out. A version that loses most
of its cases is priced by its engine's own constants, an engine that loses all by what is known beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.validate.host_fit.cases import Case
from hisearch.validate.host_fit.fit import HostFit, evaluator, fit, vector_of

#: What is left out, and what tells it.
KEYS: dict[str, Callable[[Case], str]] = {
    "campaign": lambda case: case.campaign,
    "GPU": lambda case: case.gpu,
    "model": lambda case: case.model,
}
#: Gauss-Newton rounds from the full fit, with its derivatives.
ROUNDS = 4


@dataclass(frozen=True)
class LeftOut:
    """Errors of every case, priced without its own campaign, GPU or model.

    name: which. errors: log(simulated / measured) of TTFT and step time, shape (N, 2), in the cases' order.
    """

    name: str
    errors: F8


def leave_out(
    name: str,
    cases: Sequence[Case],
    full: HostFit,
    *,
    note: Callable[[str], None] = lambda _: None,
    pool: Executor | None = None,
) -> LeftOut:
    """Refit without each campaign, GPU or model in turn.

    Args:
        name: a key of ``KEYS``.
        cases: all of them.
        full: the fit to all.
        note: told about progress.
        pool: see ``fit.fit``.
    """
    key = KEYS[name]
    errors = np.full((len(cases), 2), np.nan)
    for out in sorted({key(case) for case in cases}):
        held = [index for index, case in enumerate(cases) if key(case) == out]
        engines = {cases[index].engine for index in held}
        kept = [case for case in cases if key(case) != out and case.engine in engines]
        note(f"{name} {out}: {len(held)} cases left out")
        refitted = fit(kept, start=full, pool=pool, rounds=ROUNDS, slopes=full.slopes) if kept else HostFit({}, {})
        chosen = [cases[index] for index in held]
        errors[held] = evaluator(pool)(chosen, [vector_of(refitted.times_of(case)) for case in chosen])
    return LeftOut(name, errors)
