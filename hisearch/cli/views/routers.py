"""Output of ``hisearch validate router``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hisearch.cli import output
from hisearch.specs.wording import counted

if TYPE_CHECKING:
    from hisearch.validate.router.replay import RouterCase


def show(cases: Sequence[RouterCase]) -> None:
    """A row per recording, then the first difference of each that has one."""
    columns = ("recording", "policy", "choices", "equal", "drawn", "trimmings equal", "ranges equal", "verdict")
    output.table(columns, [_row(case) for case in cases], numbers=(2, 3, 4, 5, 6))
    for case in cases:
        if case.first_difference is not None:
            first = case.first_difference
            output.say(
                f"{case.file}: event {first.event} sends prompt {first.prompt} to worker {first.recorded}, "
                f"simulated to {first.simulated}"
            )
    by_chance = [case for case in cases if case.choices and case.drawn == case.choices]
    if by_chance:
        output.say(
            f"Of {counted(len(by_chance), 'recording')} every choice was left to chance: equal says there that the "
            "recorded worker was a possible one"
        )
    exact = sum(case.ok for case in cases)
    output.say()
    output.say(
        f"{exact} of {counted(len(cases), 'recording')} replayed as the router chose, choice by choice", bold=True
    )


def _row(case: RouterCase) -> tuple[str, ...]:
    if case.error is not None:
        return (case.file, "", "", "", "", "", "", "not compared")
    return (
        case.file,
        case.policy,
        f"{case.choices:,}",
        f"{case.equal:,}",
        f"{case.drawn:,}",
        _share(case.equal_trimmings, case.trimmings),
        _share(case.equal_redrawings, case.redrawings),
        "equal" if case.ok else "differs",
    )


def _share(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,}" if whole else ""
