"""Held-out errors: constants are refitted without each campaign, GPU or model, and judged on its cases.

For every campaign (GPU, model) the engines that it ran, and all their versions, are refitted without its cases. They
start from what was known beforehand, not from the full fit: where the others tell little, that would keep what only
the held-out cases tell. Derivatives are the full fit's. The cases are then simulated with the refitted constants. A
version that loses most of its cases is priced by its engine's constants, an engine that loses all by the prior means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from hisearch.base.dtypes import F8
from refit.host_fit.cases import Case
from refit.host_fit.fit import HostFit, evaluator, fit, vector_of

#: Kinds of held-out groups, and the key of a case.
KEYS: dict[str, Callable[[Case], str]] = {
    "campaign": lambda case: case.campaign,
    "GPU": lambda case: case.gpu,
    "model": lambda case: case.model,
}


@dataclass(frozen=True)
class LeftOut:
    """Errors of every case when its own campaign, GPU or model is held out.

    name: kind of group. errors: log(simulated / measured) of TTFT and step time, shape (N, 2), in the cases' order.
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
        full: the fit to all cases.
        note: called with lines of progress.
        pool: see ``fit.fit``.
    """
    key = KEYS[name]
    errors = np.full((len(cases), 2), np.nan)
    for out in sorted({key(case) for case in cases}):
        held_out = [index for index, case in enumerate(cases) if key(case) == out]
        engines = {cases[index].engine for index in held_out}
        training = [case for case in cases if key(case) != out and case.engine in engines]
        note(f"{name} {out}: {len(held_out)} cases left out")
        refitted = fit(training, pool=pool, slopes=full.slopes) if training else HostFit({}, {})
        chosen = [cases[index] for index in held_out]
        errors[held_out] = evaluator(pool)(chosen, [vector_of(refitted.times_of(case)) for case in chosen])
    return LeftOut(name, errors)
