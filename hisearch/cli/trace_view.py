"""What ``hisearch trace stats`` prints."""

from __future__ import annotations

from hisearch.cli import output
from hisearch.report.quantities import percent, significant
from hisearch.traces.stats import Distribution, TraceStats

_POINTS = ("mean", "min", "p10", "p50", "p90", "p95", "p99", "max")


def show(stats: TraceStats) -> None:
    """Print a trace's statistics for people."""
    output.say(f"{stats.name}: {stats.requests:,} requests", bold=True)
    rows = {
        "sessions": f"{stats.sessions:,}, {percent(stats.single_turn_fraction)} of one turn",
        "follow-ups": f"{stats.follow_ups:,} wait for their predecessor",
        "span": f"{significant(stats.span_s)} s from the first to the last of {stats.known_arrivals:,} known arrivals",
        "rate": f"{significant(stats.rate_rps)} requests/s",
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
        "prompt tokens": f"{stats.prompt_tokens:,}, {stats.unique_prompt_tokens:,} of them distinct",
        "ideal hit rate": f"{percent(stats.ideal_hit_rate)} ({stats.ideal_hit_tokens:,} tokens), of an unlimited cache",
        "rows left out": f"{stats.skipped_rows:,}",
        "digest": stats.digest,
    }
    output.pairs(rows)
    output.heading("Distributions")
    shown = [("input tokens", stats.input_tokens), ("output tokens", stats.output_tokens)]
    shown += [("turns per session", stats.turns)]
    shown += [("think time (s)", stats.think_s)] if stats.think_s is not None else []
    output.table(("", *_POINTS), [(name, *_points(values)) for name, values in shown], numbers=range(1, 9))
    output.heading(f"Hit rate of an LRU cache of {stats.block_tokens}-token blocks")
    curve = [(f"{point.capacity_tokens:,}", f"{point.hit_rate:.2%}", f"{point.hit_tokens:,}") for point in stats.lru]
    output.table(("capacity (tokens)", "hit rate", "hit tokens"), curve, numbers=range(3))


def _points(values: Distribution) -> list[str]:
    return [significant(getattr(values, point)) for point in _POINTS]
