"""How servers fare, and what is odd in their settings, in words.

A threshold here decides whether a sentence is said, nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hisearch.observe.reading import Facts
from hisearch.observe.watch import Window
from hisearch.specs.wording import format_percent

#: Shares of KV memory: beyond, it is nearly full; below, most of it is never used.
FULL, EMPTY = 0.95, 0.3
#: Preemptions of a hundred requests that are worth a sentence.
PREEMPTED = 0.01
#: Share of the batch limit that counts as reached.
REACHED = 0.98
#: Settings that are no advantage on any accelerator: key -> (value, sentence).
ODD = {
    "engine.prefix_caching": (False, "Prefix caching is off: prompts with a common beginning are computed anew."),
    "engine.overlap": (False, "Asynchronous scheduling is off: the device waits for the host at every step."),
    "engine.chunked_prefill": (False, "Prompts are not cut: a long one holds up all answers that are being written."),
    "engine.enforce_eager": (
        True,
        "CUDA graphs are off (--enforce-eager or --disable-cuda-graph): every step waits for launches.",
    ),
}


def how_it_fares(window: Window) -> list[str]:
    """Rates, latencies, memory and queue, as sentences."""
    said, counters = [], window.counters
    requests = counters.get("requests")
    if requests is not None:
        rate = requests / window.seconds
        lengths = _lengths(window)
        said.append(f"{rate:.3g} requests/s ended{lengths} ({requests:,.0f} in {window.seconds:.0f} s).")
    failed = counters.get("failed", 0.0)
    if failed:
        said.append(f"{failed:,.0f} requests failed or were aborted.")
    latencies = [
        f"{name} {_ms(histogram.mean)} (p95 about {_ms(histogram.quantile(0.95))})"
        for name, key in (("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("ITL", "itl_s"), ("E2E", "e2e_s"))
        if (histogram := window.histograms.get(key)) is not None and histogram.count
    ]
    if latencies:
        said.append(f"Means as the server sees them: {', '.join(latencies)}.")
    if window.steps:
        mean_s = sum(step.latency_s for step in window.steps) / len(window.steps)
        said.append(f"{len(window.steps):,} steps of {_ms(mean_s)} on average.")
    elif counters.get("steps"):
        step_tokens = window.histograms["step_tokens"].mean
        said.append(f"{counters['steps'] / window.seconds:.3g} steps/s, of {step_tokens:.3g} tokens on average.")
    if "running" in window.gauges:
        (mean, most), waiting = window.gauges["running"], window.gauges.get("waiting", (0.0, 0.0))
        said.append(
            f"{mean:.3g} requests ran at a time (at most {most:.0f}), {waiting[0]:.3g} waited ({waiting[1]:.0f})."
        )
    if "kv_usage" in window.gauges:
        mean, most = window.gauges["kv_usage"]
        said.append(f"KV memory is {format_percent(mean)} full on average, {format_percent(most)} at most.")
    if counters.get("queried_tokens"):
        share = counters.get("hit_tokens", 0.0) / counters["queried_tokens"]
        said.append(f"{format_percent(share)} of the prompt tokens were in the prefix cache.")
    return said


def what_is_odd(window: Window, servers: Sequence[Facts], planned_kv_tokens: int | None = None) -> list[str]:
    """Settings that hold the server back or differ without reason, as sentences.

    Args:
        window: what came.
        servers: what each says of itself.
        planned_kv_tokens: KV memory that such a worker is simulated with; None where that is not known.
    """
    facts = servers[0]
    said = [sentence for key, (value, sentence) in ODD.items() if facts.settings.get(key) is value]
    for key in dict.fromkeys(key for each in servers for key in each.settings):
        values = {str(each.settings.get(key)) for each in servers}
        if len(values) > 1:
            said.append(f"Servers differ in {key}: {', '.join(sorted(values))}.")
    running, waiting = window.gauges.get("running", (0.0, 0.0)), window.gauges.get("waiting", (0.0, 0.0))
    usage = window.gauges.get("kv_usage")
    limit = facts.settings.get("engine.max_running_requests")
    if isinstance(limit, int) and waiting[0] > 0 and running[1] >= REACHED * limit * len(servers):
        memory = f" while KV memory is at most {format_percent(usage[1])} full" if usage and usage[1] < FULL else ""
        said.append(f"Requests wait at the limit of {limit} running ones{memory}.")
    if usage and usage[1] >= FULL:
        said.append(f"KV memory ran full ({format_percent(usage[1])}): it limits the batch.")
    elif usage and usage[1] < EMPTY and window.counters.get("requests", 0.0) > 0:
        said.append(f"At most {format_percent(usage[1])} of KV memory was in use: fewer or smaller devices may do.")
    requests, preemptions = window.counters.get("requests", 0.0), window.counters.get("preemptions", 0.0)
    if preemptions > PREEMPTED * max(requests, 1.0):
        said.append(f"{preemptions:,.0f} preemptions for {requests:,.0f} requests: work is thrown away and done again.")
    if planned_kv_tokens and facts.kv_tokens:
        error = planned_kv_tokens / facts.kv_tokens - 1.0
        said.append(
            f"KV memory holds {facts.kv_tokens:,} tokens; {planned_kv_tokens:,} would be simulated "
            f"({format_percent(error, 1, signed=True)})."
        )
    return said


def _lengths(window: Window) -> str:
    inputs, outputs = window.histograms.get("input_tokens"), window.histograms.get("output_tokens")
    if inputs is None or outputs is None or math.isnan(inputs.mean) or math.isnan(outputs.mean):
        return ""
    return f", of {inputs.mean:,.0f} + {outputs.mean:,.0f} tokens on average"


def _ms(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1.0 else f"{1e3 * seconds:.3g} ms"
