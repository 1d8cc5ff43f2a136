"""Scripts that send the simulated requests to the real deployment, by three public tools.

guidellm sends every request at its simulated time. ``sglang.bench_serving`` and ``vllm bench serve`` cannot replay
arrival times of such data: they send the same prompts in the same order, as a Poisson process of the same mean rate.
Flags were read in the tools' wheels (docs/generate_engine_flags.py). The exported engine's tool is of its release, the
other's of the newest that was read.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from hisearch.export.context import BENCHMARK, REQUESTS
from hisearch.export.engines.releases import READ, is_changed
from hisearch.export.rendering import render, source
from hisearch.export.servers.exported import Export
from hisearch.specs.models.model import names_weights
from hisearch.specs.wording import per_second

GUIDELLM_VERSION = "0.8.1"


class _Tool(NamedTuple):
    """A benchmark tool. data: the file that it reads. output: the file that it writes."""

    data: str
    output: str


_TOOLS = {
    "guidellm": _Tool(REQUESTS, "guidellm.json"),
    "sglang": _Tool("chats.jsonl", "sglang.jsonl"),
    "vllm": _Tool("prompts.jsonl", "vllm.json"),
}
#: Every path that ``benchmark_files`` may write.
BENCHMARK_PATHS = tuple(
    f"{BENCHMARK}/{name}"
    for name in ("README.md", REQUESTS, "prompts.py", "warmup.py", *(f"{tool}.sh" for tool in _TOOLS))
)


def benchmark_files(export: Export) -> dict[str, str]:
    """Scripts that send the benchmark's requests to the clients' port; none without a benchmark."""
    benchmark = export.context.benchmark
    if benchmark is None:
        return {}
    replay = benchmark.replay
    facts = {
        "export": export,
        "replay": replay,
        "about": benchmark.about,
        "count": f"{len(replay):,}",
        "requests": REQUESTS,
        "named": names_weights(export.model),
        "rate": "inf" if math.isinf(replay.rate_rps) else f"{replay.rate_rps:.6g}",
    }
    newest = {"guidellm": GUIDELLM_VERSION, "sglang": READ["sglang"][-1], "vllm": READ["vllm"][-1]}
    versions = newest | {name: export.version for name in _TOOLS if name == export.engine}
    engine = export.deployment.pool.engine
    moved = export.engine != "sglang" or is_changed(engine, "moved_bench_serving")
    facts["bench_serving"] = "sglang.benchmark.serving" if moved else "sglang.bench_serving"
    share = replay.rate_rps / benchmark.mean_rps
    rates = {
        "short_rate": per_second(f"{replay.rate_rps:.3g}"),
        "mean_rate": per_second(f"{benchmark.mean_rps:.3g}"),
        "share": f"{share:.2f}",
    }
    readme = render(
        "benchmark.md.j2", **facts, **rates, versions=versions, simulated=benchmark.simulated if share > 0 else ""
    )
    scripts = {
        f"{BENCHMARK}/{name}.sh": render(
            f"benchmark_{name}.sh.j2", tool=name, version=versions[name], **tool._asdict(), **facts
        )
        for name, tool in _TOOLS.items()
    }
    programs = (source("prompts.py.txt"), source("warmup.py.txt"))
    return dict(zip(BENCHMARK_PATHS, (readme, replay.text(), *programs, *scripts.values()), strict=True))
