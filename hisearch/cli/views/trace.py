"""Output of ``hisearch trace stats``."""

from __future__ import annotations

from hisearch.cli import output
from hisearch.score.quantities import percent, significant
from hisearch.specs.wording import counted, format_percent, listed, per_second
from hisearch.traces.agent_stats import AgentStats
from hisearch.traces.reading.rows import one_line
from hisearch.traces.stats import CachePoint, TraceStats

_POINTS = ("mean", "min", "p10", "p50", "p90", "p95", "p99", "max")
#: Characters of the longest bar of a curve.
_BAR_WIDTH = 50
#: Characters of an agent's name.
_NAME_WIDTH = 60


def show(stats: TraceStats) -> None:
    """Print a trace's statistics for people."""
    output.say(f"{stats.name}: {counted(stats.requests, 'request')}", bold=True)
    for note in stats.notes:
        output.say(note)
    rows = {
        "sessions": f"{stats.sessions:,}, {percent(stats.single_turn_fraction)} of one turn",
        "follow-ups": f"{counted(stats.follow_ups, 'request')} after a predecessor",
        "span": f"{significant(stats.span_s)} s from the first to the last of "
        f"{counted(stats.known_arrivals, 'known arrival')}",
        "rate": per_second(significant(stats.rate_rps)),
        "burstiness": ", ".join(
            f"{name} {significant(value)}"
            for name, value in (
                ("CV of gaps", stats.interarrival_cv),
                ("Fano factor in 10 s", stats.fano_10s),
                ("in 60 s", stats.fano_60s),
            )
            if value is not None
        )
        or "too few known arrivals",
        **({"adapters": f"{stats.adapters:,}, which share no KV"} if stats.adapters else {}),
        "prompt tokens": f"{stats.prompt_tokens:,}, {stats.unique_prompt_tokens:,} of them distinct",
        "ideal hit rate": f"{percent(stats.ideal_hit_rate)} ({stats.ideal_hit_tokens:,} tokens), of an unlimited cache",
        "rows left out": f"{stats.skipped_rows:,}",
        "digest": stats.digest,
    }
    output.pairs(rows)
    if stats.agents is not None:
        _show_agents(stats.agents)
    output.heading("Distributions")
    shown = [("input tokens", stats.input_tokens), ("output tokens", stats.output_tokens)]
    if stats.thinking_tokens is not None:
        shown += [(f"thinking, of {percent(stats.thinking_fraction)} of requests", stats.thinking_tokens)]
    shown += [("turns per session", stats.turns)]
    shown += [("think time (s)", stats.think_s)] if stats.think_s is not None else []
    output.table(
        ("", *_POINTS),
        [(name, *(significant(getattr(values, point)) for point in _POINTS)) for name, values in shown],
        numbers=range(1, 9),
    )
    output.heading(f"Hit rate of an LRU cache of {stats.block_tokens}-token blocks")
    curve = [
        (f"{point.capacity_tokens:,}", format_percent(point.hit_rate, 2), f"{point.hit_tokens:,}")
        for point in stats.lru
    ]
    output.table(("capacity (tokens)", "hit rate", "hit tokens"), curve, numbers=range(3))


def _show_agents(agents: AgentStats) -> None:
    """Print what a trace says of its agents."""
    each, fan_out, tools = agents.calls_per_agent, agents.fan_out, agents.tool_s
    ranks = f" of rank {listed([str(rank) for rank in agents.adapter_ranks])}" if agents.adapter_ranks else ""
    ahead = agents.hint_ahead
    unit = "s" if agents.hint_unit == "s and steps" else agents.hint_unit
    shared = agents.shared_prefix_tokens
    held = f"{counted(agents.adapters, 'adapter')}{ranks}" if agents.adapters else "no adapters"
    held += f" and {counted(agents.memories, 'memory', 'memories')}" if agents.memories else ""
    output.heading("Agents")
    output.pairs({
        "agents": f"{agents.agents:,}, with {held}",
        "calls": f"{agents.calls:,}; per agent {significant(each.p50)} on median, p95 {significant(each.p95)}",
        "depth": f"{counted(agents.depth, 'call')} in the longest chain in which each waits for the one before",
        "wait for others": f"{percent(agents.waiting_fraction)} of calls; {counted(agents.joins, 'join')} of several",
        "fan-out": "nothing waits for a call"
        if fan_out is None
        else f"{significant(fan_out.mean)} calls wait for one that is waited for, at most {significant(fan_out.max)}",
        "tool time": "no call waits for another"
        if tools is None
        else f"{significant(tools.p50)} s before a call on median, p95 {significant(tools.p95)} s",
        "shared prefixes": "none among agents' first prompts"
        if shared is None
        else f"{agents.shared_prefixes:,} among agents' first prompts, {significant(shared.p50)} tokens on median",
        "hints": "none: no call says when its agent will call again"
        if ahead is None
        else f"{agents.hints:,} in {agents.hint_unit}, {significant(ahead.p50)} {unit} ahead on median; after "
        f"{percent(agents.hinted_fraction)} of calls",
        "most calls": "; ".join(
            f"{_shown(caller.name)}: {caller.calls:,}"
            + (f" (adapter {_shown(caller.adapter)})" if caller.adapter is not None else "")
            for caller in agents.busiest
        ),
    })  # fmt: skip


def _shown(name: str) -> str:
    """A name from a file, for a terminal."""
    return one_line(name[:_NAME_WIDTH])


def show_curve(points: list[CachePoint]) -> None:
    """Print a hit-rate curve as bars, of which the longest is the largest cache's."""
    output.heading("The whole curve, up to the cache that hits all that can be hit")
    most = max((point.hit_rate for point in points), default=0.0)
    rows = [
        (
            f"{point.capacity_tokens:,}",
            format_percent(point.hit_rate, 2),
            "█" * round(_BAR_WIDTH * point.hit_rate / most) if most else "",
        )
        for point in points
    ]
    output.table(("capacity (tokens)", "hit rate", ""), rows, numbers=(0, 1))
