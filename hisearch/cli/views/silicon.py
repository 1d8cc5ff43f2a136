"""Output of ``hisearch validate silicon``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hisearch.cli import output
from hisearch.specs.wording import counted, format_percent

if TYPE_CHECKING:
    from hisearch.validate.silicon.report import Errors, SiliconReport

_COLUMNS = ("", "rows", "TTFT median", "MAPE", "bias", "TPOT median", "MAPE", "bias")


def show(report: SiliconReport) -> None:
    """Errors over all rows, by engine and by group, then what was skipped and why."""
    output.say(
        f"{report.file}: {counted(report.rows, 'row')}, {report.priced:,} simulated with the profile {report.profile}",
        bold=True,
    )
    overall = [report.all, report.dense, report.drafted]
    if report.beyond_reach:
        overall.append(report.within_reach)
    overall += report.engines
    if report.start_up.n:
        overall.append(report.start_up)
    if report.disaggregated.n:
        overall += [report.disaggregated, report.disaggregated_stated, report.disaggregated_known]
    output.table(_COLUMNS, map(_row, overall), numbers=range(1, 8))
    if report.start_up.n:
        output.say()
        output.say("TTFT of the start-up rows is in their own line alone; see docs/accuracy-details.md.")
    if report.beyond_reach:
        lines = f"Line{'s' if len(report.beyond_reach) > 1 else ''} {', '.join(map(str, report.beyond_reach))}"
        output.say(f"{lines}: measured with a TPOT that the GPU cannot have; docs/accuracy-details.md says why.")
    if report.peer is not None:
        output.heading(f"Compared with {report.peer.tool}, on the rows that both price")
        output.table(_COLUMNS, map(_row, (report.peer.ours, report.peer.theirs)), numbers=range(1, 8))
    output.heading("By engine, version, GPU, model and mode")
    output.table(_COLUMNS, map(_row, report.groups), numbers=range(1, 8))
    if report.skipped:
        output.heading("Skipped")
        output.table(("rows", "reason"), ((f"{n:,}", reason) for reason, n in report.skipped.items()), numbers=(0,))


def _row(errors: Errors) -> Sequence[str]:
    ttft = (errors.ttft_median_ape, errors.ttft_mape, errors.ttft_bias)
    tpot = (errors.tpot_median_ape, errors.tpot_mape, errors.tpot_bias)
    cells = [errors.key, f"{errors.n:,}"]
    for median, mape, bias in (ttft, tpot):
        cells += [_percent(median), _percent(mape), _percent(bias, sign=True)]
    return cells


def _percent(value: float, *, sign: bool = False) -> str:
    if math.isnan(value):
        return "-"
    return format_percent(value, 1, signed=True) if sign else format_percent(value, 1)
