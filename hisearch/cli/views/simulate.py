"""Output of ``hisearch simulate``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hisearch.api.deployments.deployment import SimulatedDeployment
from hisearch.api.deployments.steps_off import StepsOff
from hisearch.api.deployments.tiers import TierValue, tier_rows
from hisearch.cli import output
from hisearch.cli.views.grammars import served_figures
from hisearch.cli.views.terms import LATENCY_POINTS, TERM_COLUMNS, latency_rows, term_rows
from hisearch.report.words.terms import seconds, term_lines
from hisearch.score.energy import JOULES_PER_KWH
from hisearch.score.quantities import HOURS_PER_MONTH, UNDEFINED, notes, percent, significant, usd
from hisearch.score.stated import percentile_of, spoken_of, stated
from hisearch.search.model.deployments import describe, format_router
from hisearch.simulate.agent_use import caveats
from hisearch.simulate.plans.plan import WorkerPlan
from hisearch.simulate.results.uses import HintQuality, ObjectUse
from hisearch.specs.wording import counted, listed, per_second

#: Workers that are printed; all are in the JSON form.
WORKER_ROWS = 32


def show(simulated: SimulatedDeployment, off: StepsOff | None = None) -> None:
    """Print one simulated deployment for people; off: with its steps off by their stated error."""
    trace = simulated.trace
    output.say(f"{simulated.resolved.name}: {describe(simulated.resolved.deployment)}", bold=True)
    at_load = "" if simulated.load == 1.0 else f" at {simulated.load:g} times its load"
    models = listed([model.spec.huggingface_id for model in simulated.resolved.models])
    output.say(f"{models} on {trace.name}, {counted(len(trace), 'request')}{at_load}")
    if len(simulated.fleet.pools) > 1 or simulated.fleet.pools[0].replicas > 1:
        output.say(f"Router: {format_router(simulated.resolved.deployment)}")
    for caveat in caveats_of(simulated):
        output.say(f"Mind: {caveat}.")
    if simulated.steadiness:
        output.say(simulated.steadiness)
    output.heading("Latency of requests")
    output.table(("", *LATENCY_POINTS), latency_rows(simulated.metrics), numbers=range(1, 6))
    if simulated.slo is not None:
        output.heading("Against the SLO: " + ("met" if simulated.feasible else "missed"))
        output.table(TERM_COLUMNS, term_rows(simulated.score.slo), numbers=(1, 2, 3))
        for note in notes(simulated.score.slo):
            output.say(note)
        if off is not None:
            output.say(_steps_off(off))
    output.heading("Figures")
    output.pairs(_figures(simulated))
    if len(simulated.models) > 1:
        output.heading("Models")
        _show_models(simulated)
    if any(pool.plan.tiers for pool in simulated.fleet.pools):
        output.heading("Cache tiers")
        _show_tiers(simulated)
    if len(simulated.fleet.pools) > 1 or simulated.fleet.may_lack_workers:
        output.heading("Pools")
        _show_pools(simulated)
    output.heading("Workers")
    _show_workers(simulated)
    output.heading("Energy")
    _show_energy(simulated)
    output.say()
    for rests_on in dict.fromkeys(line for pool in simulated.fleet.pools for line in _step_times(pool.plan)):
        output.say(rests_on)


def _steps_off(off: StepsOff) -> str:
    """Whether the verdict stands with steps off by their stated error."""
    stands = off.feasible == off.slower
    verdict = f"{'still ' if stands else ''}{'met' if off.feasible else 'missed'}"
    terms = [f"{line.term} {line.value}" for line in term_lines(off.slo) if off.feasible or not line.met]
    return (
        f"With all steps {percent(off.relative_error)} {'slower' if off.slower else 'faster'}, the error of their "
        f"profile: {verdict}{': ' if terms else ''}{', '.join(terms)}."
    )


def caveats_of(simulated: SimulatedDeployment) -> tuple[str, ...]:
    """What makes the figures other than they seem."""
    return caveats([pool.plan for pool in simulated.fleet.pools], simulated.trace)


def _step_times(plan: WorkerPlan) -> list[str]:
    """The error that the profile states, and the error on served runs like this one."""
    costs = plan.costs
    lines = [f"Step times: profile {costs.profile}, {costs.evidence}, error about {percent(costs.relative_error)}."]
    if costs.served is not None:
        lines.append(str(costs.served))
    return lines


#: Figures of ``ObjectUse`` that are shown, summed over workers.
_OBJECT_COUNTS = ("calls", "object_calls", "resident_calls", "loads", "loads_ahead", "stall_s")


def _objects(uses: Sequence[ObjectUse]) -> str:
    """How often calls had their objects loaded, and how those were loaded."""
    calls, needing, hits, loads, ahead, stall_s = (sum(getattr(use, name) for use in uses) for name in _OBJECT_COUNTS)
    waited = f"; steps waited {significant(stall_s)} s for them" if stall_s else ""
    storage = f"; {significant(uses[0].host_bytes / 2**30)} GiB in host memory" if uses[0].host_bytes else ""
    reads = sum(use.disk_reads for use in uses)
    if uses[0].on_disk_bytes:
        ahead_of = sum(use.disk_reads_ahead for use in uses)
        read_gib = sum(use.disk_bytes for use in uses) / 2**30
        storage += (
            f"; {significant(uses[0].on_disk_bytes / 2**30)} GiB on the disk, {reads:,} reads "
            f"({significant(read_gib)} GiB), {ahead_of:,} ahead"
        )
    if needing:
        which = "calls" if needing == calls else f"the {needing:,} of {counted(calls, 'call')} that need any"
        shares = f"{percent(hits / needing)} of {which} found theirs loaded"
    else:
        shares = "no call needs any"
    return f"{shares}; {counted(loads, 'load')}, {ahead:,} ahead{waited}{storage}"


def _hints(hints: HintQuality) -> str:
    """What predictions of agents' next calls were worth: order, calibration, lead time."""
    if not hints.compared or not hints.samples:
        return "too few to judge"
    near = f"{significant(hints.near)} {hints.unit}"
    return (
        f"{percent(hints.ordered / hints.compared)} of pairs ordered right (last use: "
        f"{percent(hints.ordered_by_use / hints.compared)}); {percent(hints.said_near / hints.samples)} said to come "
        f"within {near}, {percent(hints.came_near / hints.samples)} came; "
        f"{percent(hints.in_time / max(hints.predicted_calls, 1))} predicted before the "
        f"{significant(hints.load_s * 1e3)} ms of a load"
    )


def _figures(simulated: SimulatedDeployment) -> dict[str, str]:
    metrics, cost, outcomes = simulated.metrics, simulated.cost, simulated.outcomes()
    figures = {
        "requests": ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in outcomes.items() if count)
    }
    if simulated.slo is not None:
        good = percent(metrics["attainment"])
        figures["goodput"] = f"{per_second(significant(metrics['goodput_rps']))} ({good} of requests meet every term)"
    figures |= {
        "throughput": f"{per_second(significant(metrics['throughput_rps']))}, "
        f"{significant(metrics['output_tokens_per_s'])} output tokens/s, "
        f"{significant(metrics['total_tokens_per_s'])} tokens/s in all",
        "prefix cache hits": f"{percent(metrics['hit_rate'])} of prompt tokens"
        + (f", {percent(metrics['host_hit_rate'])} from the host tier" if metrics["host_hit_rate"] else "")
        + (f", {percent(metrics['storage_hit_rate'])} from storage" if metrics["storage_hit_rate"] else ""),
        "preemptions": f"{significant(metrics['preemptions'])} per request",
        "simulated time": _simulated_time(metrics["makespan_s"], simulated.result.makespan_s),
        "price": f"{usd(cost.total)} per hour, {usd(cost.total * HOURS_PER_MONTH)} per month ({HOURS_PER_MONTH:g} "
        f"hours) for {_accelerators(cost.accelerators)}",
        "per million tokens": f"{usd(metrics['usd_per_million_tokens'])} (prompt and output)",
        "energy": f"{significant(metrics['joules_per_token'])} J per token",
        "KV memory": _kv_memory(simulated),
    }
    if simulated.result.objects:
        figures["agents' objects"] = _objects(simulated.result.objects)
    figures |= served_figures(simulated)
    if simulated.result.hints is not None:
        figures["predicted calls"] = _hints(simulated.result.hints)
    if math.isfinite(simulated.horizon_s):
        reached = "was reached" if simulated.result.horizon_reached else "was not reached"
        figures["horizon"] = f"{simulated.horizon_s:g} s, {reached}"
    return figures


def _simulated_time(rated_s: float, whole_s: float) -> str:
    """What rates divide by: the run, or the measured part of one that shows a steady state."""
    if rated_s == whole_s:
        return f"{significant(whole_s)} s, first arrival to last answer: what rates divide by"
    rated = f"rates are of {significant(rated_s)} s behind a warm-up"
    return f"{significant(whole_s)} s, first arrival to last answer; {rated}"


def _accelerators(bought: float) -> str:
    """The number of accelerators paid for."""
    if bought == int(bought):
        return counted(int(bought), "accelerator")
    return f"{significant(bought)} accelerators on average"


def _kv_memory(simulated: SimulatedDeployment) -> str:
    """KV capacity of a worker, or of each of its attention groups, by pool where pools differ."""
    pools = [(use, _share(pool.plan)) for use, pool in zip(simulated.result.pools, simulated.fleet.pools, strict=True)]
    if len({(use.kv_capacity_tokens, share) for use, share in pools}) > 1:
        return ", ".join(f"{use.name} {counted(use.kv_capacity_tokens, 'token')} {share}" for use, share in pools)
    host_tokens = simulated.plan.host_capacity_tokens
    host = f", {host_tokens:,} in its host tier" if host_tokens else ""
    plan = simulated.plan
    return f"{counted(plan.least_kv_tokens, 'token')} {_share(plan)}{_groups(plan)}{host}"


def _groups(plan: WorkerPlan) -> str:
    """Groups of KV blocks, and what holds more than is counted: all requests of a page each. SGLang's second pool."""
    if plan.memory.state_pools is not None:
        states = counted(plan.memory.state_pools.states, "state")
        return f", and {states}, for {counted(plan.engine.max_running_requests, 'running request')} at most"
    if plan.windows is not None:
        return f", and {counted(plan.windows.capacity_tokens, 'token')} of layers with a window"
    if plan.groups is None:
        return ""
    kv = plan.memory.kv_groups
    if kv is not None and not kv.states and kv.page_tokens is not None:
        return f" with {counted(kv.count, 'block')} to a page of {kv.page_tokens} tokens, more beyond windows"
    groups = f" in {counted(plan.groups.count, 'group')} of layers"
    if plan.groups.states:
        return f"{groups} with pages of {plan.engine.page_size} tokens, more in long requests"
    return f"{groups}, more beyond windows"


def _share(plan: WorkerPlan) -> str:
    """Whose a KV capacity is: a token's KV lies in one attention group."""
    groups = plan.split.attention_data
    return "per worker" if groups == 1 else f"per attention group, of which a worker has {groups}"


#: Components of ``score.energy.EnergyParts``, in words.
_COMPONENTS = {
    "accelerators_j": "accelerators",
    "devices_j": "attached devices",
    "cpu_j": "CPUs",
    "dram_j": "memory",
    "links_j": "links",
    "nics_j": "network adapters",
    "storage_j": "storage",
    "rest_j": "rest of the hosts",
}


def _show_energy(simulated: SimulatedDeployment) -> None:
    """Energy by component of the nodes; components without any are left out."""
    energy, span_s = simulated.energy(), simulated.result.makespan_s
    per_token = simulated.metrics["joules_per_token"] / energy["total_j"] if energy["total_j"] else math.nan
    rows = [(_COMPONENTS[name], joules) for name, joules in energy["components"].items() if joules > 0]
    rows.append(("all", energy["total_j"]))
    output.records(
        [
            {
                "component": name,
                "mean W": significant(joules / span_s if span_s else 0.0),
                "kWh": significant(joules / JOULES_PER_KWH),
                "share": percent(joules / energy["total_j"] if energy["total_j"] else 0.0),
                "J per token": significant(joules * per_token),
            }
            for name, joules in rows
        ]
    )


def _show_tiers(simulated: SimulatedDeployment) -> None:
    rows = tier_rows(simulated)
    # Columns of events that no tier of this deployment can have are left out.
    expires = any(tier.ttl_s < math.inf for pool in simulated.fleet.pools for tier in pool.plan.tiers)
    demotes = any(row["demoted_tokens"] for row in rows)
    several = len(simulated.fleet.pools) > 1
    cells = [
        {
            **({"pool": row["pool"]} if several else {}),
            "tier": row["tier"],
            "stores": f"{row['stores']} x {row['scope']}",
            "GiB": f"{row['capacity_gib']:,.0f}",
            "peak": percent(row["peak_tokens"] / row["capacity_tokens"]),
            "hits": percent(row["hit_rate"]),
            "GB in": f"{row['stored_bytes'] / 1e9:,.0f}" if "stored_bytes" in row else "",
            "GB out": f"{row['read_bytes'] / 1e9:,.0f}" if "read_bytes" in row else "",
            "evicted": _short(row["evicted_tokens"]),
            **({"expired": _short(row["expired_tokens"])} if expires else {}),
            **({"moved on": _short(row["demoted_tokens"])} if demotes else {}),
            "link busy": percent(max(row["write_utilisation"], row["read_utilisation"]))
            if "read_utilisation" in row
            else "",
            "per hour": usd(row["usd_per_hour"]) if "usd_per_hour" in row else "",
        }
        for row in rows
    ]
    output.records(cells, text=("pool", "tier", "stores"))
    output.say("Peak of hbm: what requests held at once; all the rest of it may be cached.")
    output.say(
        "Evicted tokens were dropped for lack of space" + ("; moved on: the tier behind got them." if demotes else ".")
    )
    wasted = simulated.result.wasted_fetch_tokens
    if wasted:
        output.say(f"{wasted:,} tokens were read from storage in vain: {_why_in_vain(simulated)}.")


def _why_in_vain(simulated: SimulatedDeployment) -> str:
    """Why fetches were wasted, given the prefetch policy."""
    movement = simulated.plan.movement
    waits = movement is not None and movement.prefetch == "wait_complete"
    early = "" if waits else "had started without them, or "
    return f"their request {early}found them in HBM or host memory by then, or was retracted"


def _short(tokens: int) -> str:
    """``812``, ``49.7 M``: tokens in a narrow column."""
    return f"{tokens:,}" if tokens < 100_000 else f"{tokens / 1e6:,.1f} M"


def show_tier_values(values: Sequence[TierValue]) -> None:
    """Print the value of more memory in each tier."""
    output.heading("A tenth more of each tier")
    output.records(
        [
            {
                "tier": value.tier,
                "GiB more": f"{value.added_gib:,.1f}",
                "hits (points)": f"{100 * value.hit_rate_gained:+.2f}",
                **{f"TTFT {point} saved (ms)": f"{s * 1000:,.1f}" for point, s in value.ttft_saved_s.items()},
                "frees per GiB-hour": f"${value.usd_per_hour_saved_per_gib:.6f}",
                "costs per GiB-hour": f"${value.usd_per_gib_hour:.6f}",
            }
            for value in values
        ]
    )
    output.say("Frees: accelerator time that is free then, at its price; it pays only where fewer workers will do.")


def _latency(metrics: Mapping[str, float], name: str, point: float) -> str:
    """A percentile, or UNDEFINED: another model's SLO may state one that this model's figures lack."""
    key = f"{name}_p{point:g}_s"
    return seconds(metrics[key]) if key in metrics else UNDEFINED


def _show_models(simulated: SimulatedDeployment) -> None:
    has_slo = simulated.slo is not None
    labels = stated(check.label for check in simulated.score.slo) if has_slo else ()
    points = {name: sorted({50.0, *map(percentile_of, spoken_of(name, labels))}) for name in ("ttft", "tpot")}
    rows = []
    for share in simulated.models:
        metrics = share.score.metrics
        latencies = {
            f"{name.upper()} p{point:g}": _latency(metrics, name, point)
            for name, percentiles in points.items()
            for point in percentiles
        }
        rows.append(
            {
                "model": share.model,
                "pools": ", ".join(share.pools),
                "requests": f"{len(share.result.requests.outcome):,}",
                **latencies,
                **({"meet every term": percent(metrics["attainment"])} if has_slo else {}),
                "requests/s": significant(metrics["throughput_rps"]),
                "per hour": usd(share.cost.total),
                "per million tokens": usd(metrics["usd_per_million_tokens"]),
            }
        )
    output.records(rows, text=("model", "pools"))


def _show_pools(simulated: SimulatedDeployment) -> None:
    rows = [
        {
            "pool": row["pool"],
            "role": row["role"],
            "workers": significant(row["mean_workers"]),
            "requests": f"{row['requests']:,}",
            "time in steps": percent(row["utilisation"]),
            **_busiest_group(simulated, row),
            "prompt tokens": f"{row['prefill_tokens']:,}",
            "tokens in decodes": f"{row['decode_tokens']:,}",
            "watts": significant(row["mean_w"]),
            **({"busiest network": percent(row["network_utilisation"])} if simulated.fleet.transfers_kv else {}),
        }
        for row in simulated.pools()
    ]
    output.records(rows, text=("pool", "role"))


def _busiest_group(simulated: SimulatedDeployment, row: Mapping[str, Any]) -> dict[str, str]:
    """A column for attention groups, whose mean is the time in steps; none where no worker has several."""
    if all(pool.plan.split.attention_data == 1 for pool in simulated.fleet.pools):
        return {}
    return {"of the busiest group": percent(row["busiest_group_utilisation"])}


def _show_workers(simulated: SimulatedDeployment) -> None:
    workers = [row for row in simulated.workers() if row["begun_s"] is not None]
    rows = [
        {
            "worker": row["worker"],
            "pool": row["pool"],
            "requests": f"{row['requests']:,}",
            "steps": f"{row['steps']:,}",
            "time in steps": percent(row["utilisation"]),
            **_busiest_group(simulated, row),
            "HBM hits": f"{row['hit_tokens']:,}",
            **({"loaded back": f"{row['host_hit_tokens']:,}"} if simulated.plan.tiers else {}),
            "preemptions": f"{row['preemptions']:,}",
            "peak KV": percent(row["peak_kv_tokens"] / row["kv_capacity_tokens"]),
            "watts": significant(row["mean_w"]),
        }
        for row in workers[:WORKER_ROWS]
    ]
    output.records(rows, text=("pool",))
    if len(workers) > WORKER_ROWS:
        output.say(f"and {len(workers) - WORKER_ROWS} more (--json lists all)")
