"""The simulated scheduler against recordings of the engines' schedulers, step by step.

A step is equal if its batch (requests, their order, tokens computed before and in it), the requests preempted or
retracted meanwhile, its kind (SGLang) and its times (within 1e-6 s) are equal. Steps are compared by number: missing
and extra ones differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from hisearch.base.engine_rules import MODELLED
from hisearch.specs.base import EngineName
from hisearch.validate.difference import TOLERANCE_S, FirstDifference, equal_steps, first_difference
from hisearch.validate.recording import EngineRecording, RecordingError, read_recording
from hisearch.validate.replay import Run, recorded_law, recorded_run, simulated_run

#: Passes of an idle SGLang scheduler with requests waiting and copies under way: the engine repeats them at once, the
#: clock of the first recordings skipped them up to the next event. A recording does not say which.
IdlePasses = Literal["repeated", "skipped"]


@dataclass(frozen=True)
class SchedulerCase:
    """One recording against the simulation.

    Attributes:
        file: path of the recording. engine: whose it is. version: release by whose rules it was replayed.
        mean_ttft_s, simulated_mean_ttft_s: means over all requests, seconds; NaN where one never gets its first token.
        steps: the engine's. simulated_steps: the simulation's. equal_steps: how many are equal.
        first_difference: the first unequal step; None where all are equal.
        first_token_max_error_s, finish_max_error_s: largest error over all requests, seconds; None where one of them
            never makes it in the simulation.
        copied_equal: whether as many tokens are copied to host memory and back; None where not recorded.
        reused_equal: whether every request hits the same tokens in the cache; None where not recorded.
        preempted, simulated_preempted: requests that lost their KV, counted once for each time.
        ignored: keys of the recording's requests that the replay does not use.
        idle_passes: how it was replayed (see ``IdlePasses``).
        error: why the recording cannot be used or simulated; everything else is then None or 0.
        ok: no difference at all.
    """

    file: str
    engine: EngineName | None = None
    version: str = ""
    requests: int = 0
    steps: int | None = None
    simulated_steps: int | None = None
    equal_steps: int = 0
    first_difference: FirstDifference | None = None
    first_token_max_error_s: float | None = None
    finish_max_error_s: float | None = None
    reused_equal: bool | None = None
    copied_equal: bool | None = None
    preempted: int = 0
    simulated_preempted: int = 0
    ignored: tuple[str, ...] = ()
    idle_passes: IdlePasses = "repeated"
    mean_ttft_s: float = math.nan
    simulated_mean_ttft_s: float = math.nan
    error: str | None = None
    ok: bool = False


def validate_recording(path: Path, *, idle_passes: IdlePasses = "repeated") -> SchedulerCase:
    """Replay a recording and compare every step and every request.

    Args:
        path: a recording, ``.json`` or ``.json.gz``.
        idle_passes: the clock of its recorder (see ``IdlePasses``).

    Raises:
        RecordingError: the file cannot be used, or has settings that are not simulated.
        OSError: the file cannot be read.
    """
    recording = _read(path, idle_passes)
    law = recorded_law(recording)
    return _compare(recording, recorded_run(recording), simulated_run(recording, law))


def _read(path: Path, idle_passes: IdlePasses) -> EngineRecording:
    return replace(read_recording(path), jumps=idle_passes == "skipped")


def validate_recordings(paths: Iterable[Path], *, idle_passes: IdlePasses = "repeated") -> Iterator[SchedulerCase]:
    """``validate_recording`` for several; an unusable one yields a case with its ``error``, and the others go on.

    Yields:
        One case for each path, in order.
    """
    for path in paths:
        try:
            yield validate_recording(path, idle_passes=idle_passes)
        except (RecordingError, OSError) as error:
            yield _unusable(path, error)


def validate_by_release(paths: Iterable[Path], *, idle_passes: IdlePasses = "repeated") -> Iterator[SchedulerCase]:
    """Replay recordings by the rules of each modelled release of their engine, oldest first.

    How far off the others are is what it costs to simulate with the rules of another release.

    Yields:
        A case for each release, of each path in order; one with an ``error`` for an unusable recording.
    """
    for path in paths:
        try:
            recording = _read(path, idle_passes)
            engine, law = recorded_run(recording), recorded_law(recording)
        except (RecordingError, OSError) as error:
            yield _unusable(path, error)
            continue
        for version in MODELLED[recording.engine]:
            by_rules = replace(recording, version=version)
            try:
                yield _compare(by_rules, engine, simulated_run(by_rules, law))
            except RecordingError as error:
                yield replace(_unusable(path, error), engine=recording.engine, version=version)


def _unusable(path: Path, error: RecordingError | OSError) -> SchedulerCase:
    message = f"{path}: {error.strerror}" if isinstance(error, OSError) else str(error)
    return SchedulerCase(str(path), error=message)


def _compare(recording: EngineRecording, engine: Run, simulated: Run) -> SchedulerCase:
    equal = equal_steps(engine, simulated)
    first_token, finish = (
        _max_error(getattr(engine, name), getattr(simulated, name)) for name in ("first_token_s", "finish_s")
    )
    arrival_s = np.array([row.arrival_s for row in recording.requests])
    reused = _reused_equal(engine, simulated)
    copied = None if engine.copied_tokens is None else engine.copied_tokens == simulated.copied_tokens
    same_steps = equal == len(engine.steps) == len(simulated.steps)
    in_time = all(error is not None and error <= TOLERANCE_S for error in (first_token, finish))
    return SchedulerCase(
        str(recording.path),
        recording.engine,
        recording.version,
        len(recording.requests),
        len(engine.steps),
        len(simulated.steps),
        equal,
        first_difference(recording, engine, simulated),
        first_token,
        finish,
        reused,
        copied,
        sum(len(step.lost) for step in engine.steps),
        sum(len(step.lost) for step in simulated.steps),
        recording.ignored,
        "skipped" if recording.jumps else "repeated",
        float(np.mean(engine.first_token_s - arrival_s)),
        float(np.mean(simulated.first_token_s - arrival_s)),
        ok=same_steps and in_time and reused is not False and copied is not False,
    )


def _max_error(engine: np.ndarray, simulated: np.ndarray) -> float | None:
    largest = float(np.abs(engine - simulated).max())
    return largest if math.isfinite(largest) else None


def _reused_equal(engine: Run, simulated: Run) -> bool | None:
    if engine.reused_tokens is None or simulated.reused_tokens is None:
        return None
    return bool(np.array_equal(engine.reused_tokens, simulated.reused_tokens))
