"""Output of ``hisearch validate scheduler``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hisearch.cli import output
from hisearch.specs.deployments.engine_rules import rules_note
from hisearch.specs.wording import counted

if TYPE_CHECKING:
    from hisearch.validate.difference import FirstDifference
    from hisearch.validate.scheduler import SchedulerCase

#: Requests of a queue that are named, and requests of a step that are shown in full.
_NAMED, _SHOWN = 8, 12
_ENGINES = {"vllm": "vLLM", "sglang": "SGLang"}
_LOST = {"vllm": "preempted", "sglang": "retracted"}


def show(cases: Sequence[SchedulerCase]) -> None:
    """A row per recording, then the first difference of each that has one, and of whose rules stand for others."""
    columns = ("recording", "engine", "requests", "steps", "equal", "first token off by", "finish off by", "verdict")
    output.table(columns, [_row(case) for case in cases], numbers=(2, 3, 4, 5, 6))
    for case in cases:
        if case.first_difference is not None:
            _show_difference(case, case.first_difference)
    releases = dict.fromkeys((case.engine, case.version) for case in cases if case.engine is not None)
    for note in (rules_note(engine, version) for engine, version in releases):
        if note is not None:
            output.say(f"{note}.")
    exact = sum(case.ok for case in cases)
    output.say()
    clock = ", idle passes skipped" if any(case.idle_passes == "skipped" for case in cases) else ""
    output.say(
        f"{exact} of {counted(len(cases), 'recording')} replayed as the engine decided, step by step{clock}", bold=True
    )


def show_releases(cases: Sequence[SchedulerCase]) -> None:
    """A row per recording and release: how far its rules are off what the engine did."""
    columns = ("recording", "rules of", "steps", "equal", "mean TTFT", "simulated", "off by", "verdict")
    output.table(columns, [_release_row(case) for case in cases], numbers=(2, 3, 4, 5, 6))


def _release_row(case: SchedulerCase) -> tuple[str, ...]:
    release = "" if case.engine is None else f"{_ENGINES[case.engine]} {case.version}"
    if case.error is not None:
        return (case.file, release, "", "", "", "", "", "not compared")
    engine_s, simulated_s = case.mean_ttft_s, case.simulated_mean_ttft_s
    return (
        case.file,
        release,
        f"{case.steps:,}",
        f"{case.equal_steps:,}",
        f"{engine_s:.3f} s",
        f"{simulated_s:.3f} s",
        f"{simulated_s / engine_s - 1:+.1%}" if abs(simulated_s - engine_s) > 1e-9 else "0",
        _verdict(case),
    )


def warnings(cases: Sequence[SchedulerCase]) -> list[str]:
    """Fields of recordings that were ignored."""
    return [
        f"{case.file}: requests: {', '.join(case.ignored)}: not known, left out of the replay"
        for case in cases
        if case.ignored
    ]


def _row(case: SchedulerCase) -> tuple[str, ...]:
    if case.error is not None or case.engine is None:
        return (case.file, "", "", "", "", "", "", "not compared")
    return (
        case.file,
        f"{_ENGINES[case.engine]} {case.version}".rstrip(),
        f"{case.requests:,}",
        f"{case.steps:,}",
        f"{case.equal_steps:,}",
        _error(case.first_token_max_error_s),
        _error(case.finish_max_error_s),
        _verdict(case),
    )


def _verdict(case: SchedulerCase) -> str:
    verdict = "equal" if case.ok else "different"
    return verdict if case.idle_passes == "repeated" else f"{verdict}, idle passes skipped"


def _error(error_s: float | None) -> str:
    if error_s is None:
        return "never made"
    return "0" if error_s < 1e-9 else f"{error_s:.3g} s"


def _show_difference(case: SchedulerCase, difference: FirstDifference) -> None:
    output.heading(
        f"{case.file}: step {difference.step:,} of {case.steps:,} (counted from 0) differs from the recording"
    )
    output.say(difference.what)
    output.say()
    lost = _LOST[case.engine or "vllm"]
    columns = ("", "engine (the recording)", "simulated")
    output.table(columns, list(_side_by_side(difference.engine, difference.simulated, lost)))
    output.say()
    output.pairs(dict(_state(difference.state)))


def _side_by_side(
    engine: dict[str, Any] | None, simulated: dict[str, Any] | None, lost: str
) -> Iterator[tuple[str, ...]]:
    """Times, sizes and the shares that differ; equal shares are only counted."""
    sides = (engine, simulated)
    for name, unit in (("scheduled_s", "formed at"), ("start_s", "starts at")):
        yield (unit, *(_seconds(side[name]) if side else "no such step" for side in sides))
    if any(side and side["kind"] for side in sides):
        yield ("kind", *(str(side["kind"] or "not recorded") if side else "-" for side in sides))
    yield (lost, *(_names(side["lost"]) if side else "-" for side in sides))
    yield ("requests in the batch", *(f"{len(side['batch']):,}" if side else "-" for side in sides))
    shares = [
        {entry[0]: (place, *entry[1:]) for place, entry in enumerate(side["batch"])} if side else {} for side in sides
    ]
    engine_shares, simulated_shares = shares
    unequal = [
        name
        for name in dict.fromkeys((*engine_shares, *simulated_shares))
        if engine_shares.get(name) != simulated_shares.get(name)
    ]
    for name in unequal[:_SHOWN]:
        yield (f"  {name}", _share(engine_shares.get(name)), _share(simulated_shares.get(name)))
    if len(unequal) > _SHOWN:
        yield (f"  and {len(unequal) - _SHOWN:,} more", "", "")
    yield ("free tokens then", *(_tokens(side) for side in sides))


def _share(share: tuple[int, int, int] | None) -> str:
    if share is None:
        return "not in the batch"
    place, computed, tokens = share
    return f"{computed:,} computed + {tokens:,} (place {place + 1})"


def _tokens(side: dict[str, Any] | None) -> str:
    if side is None:
        return "-"
    if side["free_tokens"] is None:
        return "not recorded"
    return f"{side['free_tokens']:,} free, {side['evictable_tokens']:,} evictable"


def _state(state: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The state before the step, on which both agree."""
    yield "clock", _seconds(state["clock_s"])
    yield "running", _queue(state["running"])
    yield "waiting", _queue(state["waiting"])
    if state["free_tokens"] is not None:
        yield "KV after the step before", _tokens(state)
    for name, request in list(state["requests"].items())[:_SHOWN]:
        words = (
            f"prompt {request['input_tokens']:,}, output {request['output_tokens']:,}, arrived "
            f"{request['arrival_s']:.6f} s; knows {request['known']:,} tokens, has computed {request['computed']:,}"
        )
        if request["in_flight"]:
            words += f", {request['in_flight']} in flight"
        if request["preemptions"]:
            words += f", lost its KV {counted(request['preemptions'], 'time')}"
        if request["priority"]:
            words += f", priority {request['priority']}"
        yield name, words


def _queue(names: list[Any]) -> str:
    return f"{len(names):,}" + (f": {_names(names)}" if names else "")


def _names(names: list[Any]) -> str:
    if not names:
        return "none"
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(map(str, names[:_NAMED])) + more


def _seconds(time_s: float | None) -> str:
    return "not recorded" if time_s is None else f"{time_s:.9f} s"
