"""Results made of a log that was written by hand, by a reference, or by an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.layout import sim as la
from hisearch.simulate import Outcome, Result
from hisearch.simulate.results.tables import RequestTable, StepLog, WorkerTable

KINDS = {"": la.ANY_STEP, "prefill": la.PREFILL_STEP, "decode": la.DECODE_STEP, "mixed": la.MIXED_STEP}


@dataclass
class LoggedStep:
    """A step: its batch as (request, computed, tokens), and the requests lost while it was formed."""

    scheduled_s: float
    start_s: float
    end_s: float
    batch: Sequence[tuple[int, int, int]]
    lost: Sequence[int] = field(default=())
    kind: str = ""
    worker: int = 0


def step_log(steps: Sequence[LoggedStep], lost_between: Sequence[tuple[int, int]] = ()) -> StepLog:
    """The log of ``steps``; ``lost_between``: (step, request) lost before that step in a pass without a batch."""
    records = np.zeros(len(steps), la.STEP_LOG)
    entries: list[tuple[int, int, int]] = []
    lost: list[int] = []
    for k, step in enumerate(steps):
        lost += [request for before, request in lost_between if before == k]
        record = records[k]
        record["scheduled_s"], record["start_s"], record["end_s"] = step.scheduled_s, step.start_s, step.end_s
        record["worker"], record["kind"] = step.worker, KINDS[step.kind]
        record["first_entry"], record["entries"] = len(entries), len(step.batch)
        record["first_lost"], record["lost"] = len(lost), len(step.lost)
        entries += [(computed, tokens, request) for request, computed, tokens in step.batch]
        lost += step.lost
    return StepLog(records, np.array(entries, la.ENTRY_LOG), np.array(lost, np.int32), np.zeros(0, hl.FETCH_LOG))


def logged_result(
    steps: Sequence[LoggedStep],
    input_tokens: Sequence[int],
    output_tokens: Sequence[int],
    *,
    lost_between: Sequence[tuple[int, int]] = (),
    **columns: Any,
) -> Result:
    """A result with that log; requests have finished and been on worker 0 where ``columns`` does not say otherwise."""
    count = len(input_tokens)
    workers = 1 + max((step.worker for step in steps), default=0)
    table: dict[str, Any] = {
        "arrival_s": np.zeros(count),
        **{name: np.full(count, np.nan) for name in ("scheduled_s", "first_token_s", "finish_s")},
        **{name: np.zeros(count, np.int64) for name in ("hit_tokens", "host_hit_tokens", "storage_hit_tokens")},
        **{name: np.zeros(count, np.int32) for name in ("worker", "prefill_worker", "preemptions")},
        "outcome": np.full(count, Outcome.FINISHED, np.int32),
        "input_tokens": np.asarray(input_tokens, np.int64),
        "output_tokens": np.asarray(output_tokens, np.int64),
    }
    return Result(
        requests=RequestTable(**table | {name: np.asarray(values) for name, values in columns.items()}),
        workers=WorkerTable(**{name: np.zeros(workers, np.int64) for name in WorkerTable.__dataclass_fields__}),
        makespan_s=0.0,
        kv_capacity_tokens=1000,
        idle_w=0.0,
        log=step_log(steps, lost_between),
    )


def assert_first_visible(result: Result, token_s: Mapping[Any, Sequence[float]], atol: float = 0.0) -> None:
    """Check the first visible token of every finished request; ``token_s``: times of all tokens, by request."""
    table = result.requests
    if table.thinking_tokens is None or table.first_visible_s is None:
        return
    for k in np.flatnonzero(table.finished).tolist():
        visible = token_s[k][table.thinking_tokens[k] :]
        expected = visible[0] if visible else np.nan
        assert np.isclose(table.first_visible_s[k], expected, rtol=0.0, atol=atol, equal_nan=True), f"request {k}"


def slow_token_times(result: Result) -> list[list[float]]:
    """When each request got its tokens, by walking through the log as an engine does, step by step."""
    log, table = result.log, result.requests
    assert log is not None
    tokens: list[list[float]] = [[] for _ in table.outcome]
    in_flight: dict[int, list[int]] = {}  # by worker: steps launched whose results have not been taken in
    makers: dict[int, list[int]] = {}  # by step: requests that it makes a token for

    def take_in(step: int) -> None:
        for request in makers[step]:
            tokens[request].append(float(log.steps["end_s"][step]))

    for k, step in enumerate(log.steps):
        batches = in_flight.setdefault(int(step["worker"]), [])
        while batches and log.steps["end_s"][batches[0]] <= step["scheduled_s"]:
            take_in(batches.pop(0))
        if step["kind"] != la.ANY_STEP:
            for earlier in batches:
                makers[earlier] = [request for request in makers[earlier] if request not in log.lost_in(k)]
        makers[k] = []
        for computed, new, request in log.batch(k).tolist():
            made = len(tokens[request]) + sum(request in makers[earlier] for earlier in batches)
            known = int(table.input_tokens[request]) + made
            if computed + new == known and made < table.output_tokens[request]:
                makers[k].append(request)
        batches.append(k)
    for batches in in_flight.values():
        for step in batches:
            take_in(step)
    return tokens
