"""Output of what workers did with LoRA adapters."""

from __future__ import annotations

from hisearch.score.quantities import percent, significant
from hisearch.simulate.results.result import Result
from hisearch.specs.wording import counted


def adapters_line(result: Result) -> str:
    """Slots, loads, reads, and what adapters add to steps; of all workers together."""
    uses = result.adapters
    first = uses[0]
    loads, reads, over, steps, members = (
        sum(getattr(use, name) for use in uses) for name in ("loads", "reads", "passed_over", "steps", "step_adapters")
    )
    load_s, read_s, added_s = (sum(getattr(use, name) for use in uses) for name in ("load_s", "read_s", "step_s"))
    busy_s = float(result.workers.busy_s.sum())
    line = (
        f"{first.requests:,} requests for {counted(first.adapters, 'adapter')} in {counted(first.slots, 'slot')} "
        f"({significant(first.slot_bytes / 2**30)} GiB of device memory a worker)"
    )
    if steps:
        line += f"; {significant(members / steps)} in a step that has any, "
        line += f"which costs {percent(added_s / busy_s)} of all time"
    line += f"; {counted(loads, 'copy', 'copies')} into slots, {significant(load_s)} s"
    if reads:
        line += f"; {counted(reads, 'read')} from disk, {significant(read_s)} s"
    if over:
        line += f"; requests passed over {over:,} times"
    return line
