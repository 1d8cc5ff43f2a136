"""Scripts that send the simulated requests to the real deployment, by three public tools.

guidellm sends every request at its simulated time. ``sglang.bench_serving`` and ``vllm bench serve`` cannot replay
arrival times of such data: they send the same prompts in the same order, as a Poisson process of the same mean rate.
Flags were read in the wheels of the versions below (docs/generate_engine_flags.py).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from hisearch.export.context import BENCHMARK, REQUESTS
from hisearch.export.engines.flags import ENGINE_VERSIONS
from hisearch.export.rendering import render, source
from hisearch.export.servers.exported import Export
from hisearch.specs.models.model import names_weights

GUIDELLM_VERSION = "0.8.1"


class _Tool(NamedTuple):
    """A benchmark tool. data: the file that it reads. output: the file that it writes."""

    version: str
    data: str
    output: str


_TOOLS = {
    "guidellm": _Tool(GUIDELLM_VERSION, REQUESTS, "guidellm.json"),
    "sglang": _Tool(ENGINE_VERSIONS["sglang"], "chats.jsonl", "sglang.jsonl"),
    "vllm": _Tool(ENGINE_VERSIONS["vllm"], "prompts.jsonl", "vllm.json"),
}
#: Every path that ``benchmark_files`` may write.
BENCHMARK_PATHS = tuple(
    f"{BENCHMARK}/{name}" for name in ("README.md", REQUESTS, "prompts.py", *(f"{tool}.sh" for tool in _TOOLS))
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
    versions = {name: tool.version for name, tool in _TOOLS.items()}
    readme = render("benchmark.md.j2", **facts, versions=versions, short_rate=f"{replay.rate_rps:.3g}")
    scripts = {
        f"{BENCHMARK}/{name}.sh": render(f"benchmark_{name}.sh.j2", tool=name, **tool._asdict(), **facts)
        for name, tool in _TOOLS.items()
    }
    prompts = source("prompts.py.txt")
    return dict(zip(BENCHMARK_PATHS, (readme, replay.text(), prompts, *scripts.values()), strict=True))
