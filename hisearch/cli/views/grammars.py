"""Output of what workers did with grammars of structured output."""

from __future__ import annotations

from hisearch.api.deployments.deployment import SimulatedDeployment
from hisearch.cli.views.adapters import adapters_line
from hisearch.score.quantities import percent, significant
from hisearch.specs.wording import counted


def served_figures(simulated: SimulatedDeployment) -> dict[str, str]:
    """What workers did with adapters and grammars, where they serve any."""
    figures = {}
    if simulated.result.adapters:
        figures["adapters"] = adapters_line(simulated)
    if simulated.result.grammars:
        figures["structured output"] = _grammars_line(simulated)
    return figures


def _grammars_line(simulated: SimulatedDeployment) -> str:
    """Compilations, waits for them, and what masks take; of all workers together."""
    uses = simulated.result.grammars
    requests, compiled, waited, sequences = (
        sum(getattr(use, name) for use in uses) for name in ("requests", "compilations", "waited", "sequences")
    )
    compile_s, wait_s, host_s, polled_s = (
        sum(getattr(use, name) for use in uses) for name in ("compile_s", "wait_s", "host_s", "polled_s")
    )
    line = f"{counted(requests, 'request')} with a grammar; {counted(compiled, 'compilation')}"
    if compiled:
        line += f", {significant(1e3 * compile_s / compiled)} ms each"
    if waited:
        line += f"; {counted(waited, 'request')} waited for theirs, {significant(1e3 * wait_s / waited)} ms each"
    if sequences:
        busy_s = float(simulated.result.workers.busy_s.sum())
        line += f"; the host takes {significant(1e6 * host_s / sequences)} us for a sequence and step, in all "
        line += f"{percent(host_s / busy_s)} of the workers' busy time, most of it beside the device"
    if polled_s:
        line += f"; the scheduler polls compilations for {significant(polled_s)} s"
    return line
