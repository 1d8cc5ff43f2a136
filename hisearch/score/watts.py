"""Watts over time, from the log of steps."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pandas as pd

from hisearch.base.dtypes import F8
from hisearch.hardware.power import Standby
from hisearch.latency.costs import StepCosts
from hisearch.score.components import step_joules
from hisearch.score.energy import pools_of
from hisearch.simulate.results.result import Result


def watts_series(result: Result, joules: StepCosts, interval_s: float) -> pd.DataFrame:
    """Power of each worker over time: a row per interval and worker.

    Columns: ``time_s`` (start of the interval), ``worker``, ``accelerators_w``, ``host_w``, and the components of the
    latter, ``cpu_w``, ``dram_w``, ``links_w``, ``nics_w``, ``storage_w``, ``rest_w``.

    A step's joules above idle are spread evenly over its duration. They are priced with ``joules``, the tables of the
    simulation. Idle time draws idle power, and standby power from ``standby_after_s`` of idleness on. ``host_w``: base
    load and CPUs. Links and media are left out, but for links between a worker's devices and its ``network``, which
    ``accelerators_w`` has; so are joules of waking. The other sums equal those of ``score.energy``. The exception is
    CPU energy of several DP ranks or micro-batches, whose steps overlap.

    Raises:
        ValueError: the result has no log, or ``interval_s`` is not positive.
    """
    if result.log is None:
        raise ValueError("watts over time need the log: simulate with log=True")
    if not interval_s > 0:
        raise ValueError(f"interval_s must be a positive number of seconds, not {interval_s:g}")
    first_s = float(np.nanmin(result.requests.arrival_s))
    edges = np.append(np.arange(first_s, first_s + result.makespan_s, interval_s), first_s + result.makespan_s)
    width_s = np.diff(edges)
    active_j = step_joules(result, {"all": joules})["all"]
    frames = []
    for pool in pools_of(result):
        power = pool.power
        parts = asdict(power.base_parts)
        for worker in range(pool.first_worker, pool.first_worker + pool.workers):
            mine = result.log.steps["worker"] == worker
            start_s, stop_s = result.log.steps["start_s"][mine], result.log.steps["end_s"][mine]
            kinds = (power.own, power.ffn or Standby())
            saved_w = sum(_asleep(edges, start_s, stop_s, of.after_s) / width_s * of.saving_w for of in kinds)
            busy = np.minimum(_over(edges, start_s, stop_s, stop_s - start_s) / width_s, 1.0)
            columns: dict[str, object] = {
                "time_s": edges[:-1],
                "worker": worker,
                "accelerators_w": pool.idle_w - saved_w + _over(edges, start_s, stop_s, active_j[mine]) / width_s,
                "host_w": power.host_w + power.cpu_w * busy,
                **parts,
                "cpu_w": parts["cpu_w"] + power.cpu_w * busy,
                "rest_w": power.host_w - sum(parts.values()),
            }
            frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True)


def _over(edges: F8, start_s: F8, stop_s: F8, amounts: F8) -> F8:
    """Sum ``amounts``, each spread evenly over its span, into the intervals between ``edges``."""
    total = np.zeros(len(edges))
    spans = np.maximum(stop_s - start_s, 1e-300)
    for k, edge in enumerate(edges):
        total[k] = float((np.clip((edge - start_s) / spans, 0.0, 1.0) * amounts).sum())
    return np.diff(total)


def _asleep(edges: F8, start_s: F8, stop_s: F8, delay_s: float) -> F8:
    """Seconds of each interval in which the worker had been idle for longer than ``delay_s``."""
    order = np.argsort(start_s, kind="stable")
    starts = np.append(start_s[order], edges[-1])
    awake_until = np.maximum.accumulate(np.append(edges[0], stop_s[order]))
    since = awake_until + delay_s
    asleep = since < starts
    return _over(edges, since[asleep], starts[asleep], (starts - since)[asleep])
