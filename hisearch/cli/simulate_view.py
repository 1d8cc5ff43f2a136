"""What ``hisearch simulate`` prints."""

from __future__ import annotations

import math

from hisearch.api.deployment import SimulatedDeployment
from hisearch.cli import output
from hisearch.cli.terms import LATENCY_POINTS, TERM_COLUMNS, latency_rows, term_rows
from hisearch.report.quantities import HOURS_PER_MONTH, percent, significant, usd
from hisearch.score.terms import notes
from hisearch.search.deployments import describe
from hisearch.specs.wording import counted

#: Workers that are printed; all are in the JSON form.
WORKER_ROWS = 32


def show(simulated: SimulatedDeployment) -> None:
    """Print one simulated deployment for people."""
    trace = simulated.trace
    output.say(f"{simulated.resolved.name}: {describe(simulated.resolved.deployment)}", bold=True)
    at_load = "" if simulated.load == 1.0 else f" at {simulated.load:g} times its load"
    output.say(
        f"{simulated.resolved.model.spec.huggingface_id} on {trace.name}, {counted(len(trace), 'request')}{at_load}"
    )
    output.heading("Latency of requests")
    output.table(("", *LATENCY_POINTS), latency_rows(simulated.metrics), numbers=range(1, 6))
    if simulated.slo is not None:
        output.heading("Against the SLO: " + ("met" if simulated.feasible else "missed"))
        output.table(TERM_COLUMNS, term_rows(simulated.score.slo), numbers=(1, 2, 3))
        for note in notes(simulated.score.slo):
            output.say(note)
    output.heading("Figures")
    output.pairs(_figures(simulated))
    output.heading("Workers")
    _show_workers(simulated)
    costs = simulated.plan.costs
    output.say()
    output.say(f"Step times: profile {costs.profile}, {costs.evidence}, error about {percent(costs.relative_error)}.")


def _figures(simulated: SimulatedDeployment) -> dict[str, str]:
    metrics, cost, outcomes = simulated.metrics, simulated.cost, simulated.outcomes()
    figures = {
        "requests": ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in outcomes.items() if count)
    }
    if simulated.slo is not None:
        good = percent(metrics["attainment"])
        figures["goodput"] = f"{significant(metrics['goodput_rps'])} requests/s ({good} of requests meet every term)"
    figures |= {
        "throughput": f"{significant(metrics['throughput_rps'])} requests/s, "
        f"{significant(metrics['output_tokens_per_s'])} output tokens/s, "
        f"{significant(metrics['total_tokens_per_s'])} tokens/s in all",
        "prefix cache hits": f"{percent(metrics['hit_rate'])} of prompt tokens"
        + (f", {percent(metrics['host_hit_rate'])} from the host tier" if metrics["host_hit_rate"] else ""),
        "preemptions": f"{significant(metrics['preemptions'])} per request",
        "utilisation": percent(metrics["utilisation"]),
        "simulated time": f"{significant(metrics['makespan_s'])} s",
        "price": f"{usd(cost.total)} per hour, {usd(cost.total * HOURS_PER_MONTH)} per month ({HOURS_PER_MONTH:g} "
        f"hours) for {counted(cost.accelerators, 'accelerator')}",
        "per million tokens": f"{usd(metrics['usd_per_million_tokens'])} (prompt and output)",
        "energy": f"{significant(metrics['joules_per_token'])} J per token",
        "KV memory": f"{counted(simulated.plan.kv_capacity_tokens, 'token')} per worker"
        + (f", {simulated.plan.host_capacity_tokens:,} in its host tier" * bool(simulated.plan.host_capacity_tokens)),
    }
    if math.isfinite(simulated.horizon_s):
        reached = "was reached" if simulated.result.horizon_reached else "was not reached"
        figures["horizon"] = f"{simulated.horizon_s:g} s, {reached}"
    return figures


def _show_workers(simulated: SimulatedDeployment) -> None:
    workers = simulated.workers()
    columns = (
        "worker",
        "requests",
        "steps",
        "utilisation",
        "hit tokens",
        "host hits",
        "preemptions",
        "peak KV",
        "watts",
    )
    rows = [
        (
            row["worker"],
            f"{row['requests']:,}",
            f"{row['steps']:,}",
            percent(row["utilisation"]),
            f"{row['hit_tokens']:,}",
            f"{row['host_hit_tokens']:,}",
            f"{row['preemptions']:,}",
            percent(row["peak_kv_tokens"] / row["kv_capacity_tokens"]),
            significant(row["mean_w"]),
        )
        for row in workers[:WORKER_ROWS]
    ]
    output.table(columns, rows, numbers=range(9))
    if len(workers) > WORKER_ROWS:
        output.say(f"and {len(workers) - WORKER_ROWS} more (--json lists all)")
