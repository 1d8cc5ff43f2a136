"""Energy of a run in joules, by component of its workers, over time.

Needs a logged run (``simulate(..., log=True)``) whose costs separate components (``CompiledCosts.components``). Each
component's own tables price a step's batch; they add up to the run's joules. A step's joules are spread evenly over its
seconds. Idle power is always drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.latency.costs import CompiledCosts, StepCosts
from hisearch.latency.step_cost import step_seconds
from hisearch.simulate.results.result import Result


class ComponentPower(NamedTuple):
    """Watts of all workers by component.

    edges_s: shape (n + 1,), times that bound the intervals, from 0.
    watts: component -> shape (n,), mean power in each interval, including idle power.
    """

    edges_s: F8
    watts: dict[str, F8]

    def joules(self) -> dict[str, float]:
        """Joules of the complete run, by component."""
        return {name: float((watts * np.diff(self.edges_s)).sum()) for name, watts in self.watts.items()}


def component_power(
    result: Result, costs: CompiledCosts, interval_s: float, *, constant_w: Mapping[str, float] | None = None
) -> ComponentPower:
    """Power of a logged run.

    result: of ``simulate(..., log=True)``; costs: of its workers. interval_s: length of an interval. constant_w:
    further components with constant power, watts of all workers together.

    Raises:
        ValueError: no log, or no components.
    """
    if result.log is None:
        raise ValueError("the run kept no log; simulate with log=True")
    if not costs.components:
        raise ValueError("the costs do not tell components apart; a devices block, empty too, has them told")
    steps = result.log.steps
    end_s = max(float(steps["end_s"].max()) if len(steps) else 0.0, result.makespan_s)
    edges = np.arange(0.0, end_s + interval_s, interval_s)
    joules = step_joules(result, costs.components)
    workers = len(result.workers.energy_j)
    watts = {}
    for name, step_j in joules.items():
        active_j = _spread(steps["start_s"], steps["end_s"], step_j, edges)
        watts[name] = active_j / interval_s + workers * costs.idle_w_by_component.get(name, 0.0)
    for name, constant in (constant_w or {}).items():
        watts[name] = np.full(len(edges) - 1, constant)
    return ComponentPower(edges, watts)


def step_joules(result: Result, components: Mapping[str, StepCosts]) -> dict[str, F8]:
    """Joules above idle of every logged step, by component: arrays of shape (steps,)."""
    log, prompts = result.log, result.requests.input_tokens
    assert log is not None
    joules = {name: np.zeros(len(log)) for name in components}
    for index in range(len(log)):
        batch = log.batch(index)
        computed, tokens = batch["computed"], batch["tokens"]
        decoding = (tokens == 1) & (computed >= prompts[batch["request"]])
        chunks = list(zip(tokens[~decoding].tolist(), computed[~decoding].tolist(), strict=True))
        ends = computed[~decoding] + tokens[~decoding] >= prompts[batch["request"][~decoding]]
        contexts = (computed[decoding] + 1).tolist()
        for name, tables in components.items():
            joules[name][index] = step_seconds(tables, chunks, contexts, sampling=len(contexts) + int(ends.sum()))
    return joules


def _spread(start_s: F8, end_s: F8, amounts: F8, edges: F8) -> F8:
    """Sum amounts into the intervals between ``edges``; each amount is spread evenly over its span."""
    totals = np.zeros(len(edges) - 1)
    length = np.maximum(end_s - start_s, 1e-12)
    first = np.clip(np.searchsorted(edges, start_s, side="right") - 1, 0, len(totals) - 1)
    last = np.clip(np.searchsorted(edges, end_s, side="left") - 1, 0, len(totals) - 1)
    for cell in range(int((last - first).max()) + 1 if len(first) else 0):
        at = first + cell
        inside = at <= last
        low = np.maximum(start_s[inside], edges[at[inside]])
        high = np.minimum(end_s[inside], edges[at[inside] + 1])
        np.add.at(totals, at[inside], amounts[inside] * np.maximum(high - low, 0.0) / length[inside])
    return totals
