"""Output of what workers did with LoRA adapters."""

from __future__ import annotations

from hisearch.api.deployments.deployment import SimulatedDeployment
from hisearch.score.quantities import percent, significant
from hisearch.specs.wording import counted
from hisearch.traces.adapter_tree import adapter_count


def adapters_line(simulated: SimulatedDeployment) -> str:
    """Slots, loads, reads, and what adapters add to steps; of all workers together."""
    uses, adapters = simulated.result.adapters, adapter_count(simulated.trace)
    first = uses[0]
    requests, loads, reads, over, steps, members = (
        sum(getattr(use, name) for use in uses)
        for name in ("requests", "loads", "reads", "passed_over", "steps", "step_adapters")
    )
    load_s, read_s, added_s = (sum(getattr(use, name) for use in uses) for name in ("load_s", "read_s", "step_s"))
    busy_s = float(simulated.result.workers.busy_s.sum())
    line = (
        f"{counted(requests, 'request')} for {counted(adapters, 'adapter')} in {counted(first.slots, 'slot')} "
        f"({significant(first.slot_bytes / 2**30)} GiB of device memory a worker)"
    )
    if steps:
        line += f"; a step with adapters has {significant(members / steps)} of them on average"
        line += f"; their kernels take {percent(added_s / busy_s)} of the workers' busy time"
    line += f"; {counted(loads, 'copy', 'copies')} into slots, {significant(load_s)} s"
    if reads:
        line += f"; {counted(reads, 'read')} from disk, {significant(read_s)} s"
    if over:
        line += f"; {counted(over, 'time')} a request waited as its adapter had no place, counted in each pass "
        line += "of the scheduler"
    return line
