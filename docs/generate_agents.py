"""Simulates societies of agents and writes the tables of docs/agents.md (``make agents``).

Usage::

    python docs/generate_agents.py [--write] [--only PART,...]

Without ``--write`` the tables are printed. Every part is a function of the table PARTS.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from hisearch.simulate import Result, WorkerPlan, plan_worker, simulate
from hisearch.specs.agent_memory import AgentMemorySpec
from hisearch.specs.agent_workload import AgentWorkloadSpec
from hisearch.specs.catalogue import Catalogue
from hisearch.specs.deployment import EngineSpec, PoolSpec
from hisearch.specs.tiers import TierSpec
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.compiler import compile_trace
from hisearch.traces.generators import generate_agents

PAGE = Path(__file__).resolve().parent / "agents.md"

KINDS = ("independent", "interaction", "diffusion")
POLICIES = ("lru", "queued", "duration", "steps", "distance")
#: Published peaks of the speed-up over SGLang, by kind.
PUBLISHED = {"independent": 1.73, "interaction": 1.31, "diffusion": 1.74}
AGENTS = (25, 50, 100, 250, 500, 1000)
#: At most a quarter of the agents is resident, and no more than these.
MOST_RESIDENT, SHARE = 125, 0.25
#: Bytes per second of the link to host memory.
LINK = 64e9
FRAMES = 24
Rows = list[list[str]]


@cache
def society(kind: str, agents: int, active_rate: float = 0.2, frames: int = FRAMES, **changes: Any) -> CompiledTrace:
    """Calls of so many frames; what is not published is assumed, see docs/agents.md."""
    spec: dict[str, Any] = {
        "kind": kind, "agents": agents, "calls": max(round(frames * active_rate * agents), 2 * agents),
        "active_rate": active_rate, "world_prompt_tokens": 128, "system_prompt_tokens": 512,
        "history_cap_tokens": 1024, "summary_tokens": 256,
        "new_input": {"distribution": "lognormal", "mean_log": 4.6, "sigma_log": 0.5, "max_tokens": 512},
        "output": {"distribution": "lognormal", "mean_log": 3.7, "sigma_log": 0.5, "max_tokens": 256},
        "world": {"size_m": 12.0 * agents**0.5 + 20.0}, "graph": {"model": "small_world", "degree": 4},
        "seeds": max(agents // 25, 1) if kind == "diffusion" else 1,
    }  # fmt: skip
    return compile_trace(generate_agents(AgentWorkloadSpec.model_validate(spec | changes)), kind)


@cache
def worker(
    policy: str,
    slots: int,
    *,
    model: str = "qwen2.5-7b",
    ranks: int = 1,
    rank: int = 64,
    dram_gib: float = 0.0,
    link: float = LINK,
    **settings: Any,
) -> WorkerPlan:
    """A worker whose device memory has room for the adapters of so many agents; rank 0: they have none."""
    catalogue = Catalogue()
    accelerator = catalogue.get("Accelerator", "h100-sxm").spec
    to_host = accelerator.host_link.model_copy(update={"bandwidth_bytes_per_s": link})
    accelerator = accelerator.model_copy(update={"host_link": to_host})
    objects: dict[str, Any] = {"adapters": {"rank": rank}, "slots": slots} if rank else {}
    agents = AgentMemorySpec.model_validate({"policy": policy, **objects, **settings})
    pool = PoolSpec(
        accelerator="h100-sxm",
        engine=EngineSpec(name="sglang"),
        tensor_parallel=ranks,
        tiers=[TierSpec(medium="ddr5", gib=dram_gib)] if dram_gib else [],
        agents=agents,
    )
    assert accelerator.host is not None
    return plan_worker(
        pool,
        model=catalogue.get("Model", model).spec,
        accelerator=accelerator,
        host=catalogue.get("Host", accelerator.host).spec,
        media={"ddr5": catalogue.get("Medium", "ddr5").spec},
        profile=catalogue.get("LatencyProfile", "sglang-h100-sxm").spec,
        profile_name="sglang-h100-sxm",
    )


def slots_of(agents: int) -> int:
    """Agents that may be resident."""
    return max(min(round(SHARE * agents), MOST_RESIDENT), 2)


#: KV tokens that device memory has for each resident agent: its prompt at its longest, and an answer.
TOKENS_PER_AGENT = 2048


def run(
    kind: str,
    policy: str,
    agents: int,
    *,
    active_rate: float = 0.2,
    society_: dict[str, Any] | None = None,
    **settings: Any,
) -> Result:
    """A society on a worker."""
    slots = slots_of(agents)
    plan = worker(policy, slots, **settings)
    room = min(plan.kv_capacity_tokens, max(slots * TOKENS_PER_AGENT, 16_384))
    trace = society(kind, agents, active_rate, **(society_ or {}))
    return simulate(replace(plan, kv_capacity_tokens=room), trace)


def ttft_s(result: Result) -> float:
    """Mean time to the first token."""
    table = result.requests
    return float(np.mean(table.first_token_s - table.arrival_s))


def frames_of(trace: CompiledTrace) -> int:
    """Frames that a society's calls fill."""
    assert trace.agents is not None
    return int(trace.agents.gate.max()) + 1


def _ratio(base: float, other: float) -> str:
    return f"{base / other:.2f}"


def _table(head: Sequence[str], rows: Rows) -> str:
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


#: Host memory for KV, GiB, which holds all that 1,000 agents have.
DRAM_GIB = 128.0


def speed_up() -> str:
    """End to end, over SGLang's reactive LRU, by kind and number of agents.

    What is published has everything of an agent's in host memory, from where it is fetched: that is ``distance`` with
    DRAM for KV. SGLang's own KV is in device memory alone.
    """
    rows = []
    for kind in KINDS:
        for policy, dram_gib in (*((policy, 0.0) for policy in POLICIES[1:]), ("distance", DRAM_GIB)):
            ratios = [
                run(kind, "lru", agents).makespan_s / run(kind, policy, agents, dram_gib=dram_gib).makespan_s
                for agents in AGENTS
            ]
            name = f"{policy}, KV in DRAM" if dram_gib else policy
            told = f"{PUBLISHED[kind]:.2f}" if dram_gib else ""
            rows.append([kind, name, *(f"{ratio:.2f}" for ratio in ratios), f"{max(ratios):.2f}", told])
    return _table(["workload", "policy", *map(str, AGENTS), "peak", "published peak"], rows)


def time_per_frame() -> str:
    """Seconds that a frame takes, by number of agents: where every agent's call is awaited."""
    rows = []
    for kind in KINDS:
        for policy in ("lru", "queued", "distance"):
            seconds = [run(kind, policy, agents).makespan_s / frames_of(society(kind, agents)) for agents in AGENTS]
            rows.append([kind, policy, *(f"{value:.2f}" for value in seconds)])
    return _table(["workload", "policy", *(f"{agents}" for agents in AGENTS)], rows)


def first_tokens() -> str:
    """Mean TTFT in milliseconds, with KV in host memory for both."""
    rows = []
    for agents in AGENTS[2:]:
        cells = [f"{agents}"]
        for kind in KINDS:
            base = ttft_s(run(kind, "lru", agents, dram_gib=DRAM_GIB))
            found = ttft_s(run(kind, "distance", agents, dram_gib=DRAM_GIB))
            cells += [f"{base * 1e3:.0f}", f"{found * 1e3:.0f}", f"{100 * (1 - found / base):.0f} %"]
        rows.append(cells)
    head = ["agents", *(f"{kind}: {what}" for kind in KINDS for what in ("HiCache", "distance", "less"))]
    return _table(head, rows)


#: Links to host memory, GB/s: PCIe 5.0 as published, 4.0, and 4.0 shared by two.
LINKS = (64, 25, 12)


def kv_ahead() -> str:
    """What KV brought ahead of calls adds to ``distance``: 500 agents, by the link's bandwidth."""
    rows = []
    for kind in KINDS:
        for link in LINKS:
            for ahead in (False, True):
                result = run(kind, "distance", 500, dram_gib=DRAM_GIB, link=link * 1e9, ahead_kv=ahead)
                (use,) = result.objects
                in_hbm, on_host = (tokens / result.prompt_tokens for tokens in result.tier_hit_tokens[:2])
                used = f"{100 * use.kv_tokens_used / use.kv_tokens_ahead:.0f} %" if use.kv_tokens_ahead else ""
                rows.append(
                    [
                        kind, f"{link}", "ahead" if ahead else "with the step", f"{result.makespan_s:.1f}",
                        f"{ttft_s(result) * 1e3:.0f}", f"{100 * in_hbm:.0f} %", f"{100 * on_host:.0f} %", used,
                    ]
                )  # fmt: skip
    head = [
        "workload", "link (GB/s)", "KV from the host", "total (s)", "mean TTFT (ms)", "prompt tokens found in HBM",
        "loaded back by steps", "of those ahead used",
    ]  # fmt: skip
    return _table(head, rows)


SPARSITIES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


def sparsity() -> str:
    """Speed-up over lru by the share of agents that do not call in a frame."""
    rows = []
    for agents in (250, 500):
        ratios = []
        for share in SPARSITIES:
            rate = round(1 - share, 3)
            times = [run("independent", policy, agents, active_rate=rate).makespan_s for policy in ("lru", "distance")]
            ratios.append(_ratio(*times))
        rows.append([str(agents), *ratios])
    return _table(["agents", *(f"{share:.0%} idle" for share in SPARSITIES)], rows)


def machines() -> str:
    """Speed-up over lru by model and accelerators."""
    rows = []
    for model in ("qwen2.5-7b", "qwen2.5-32b"):
        cells = [model]
        for ranks in (1, 2, 4, 8):
            try:
                times = [
                    run("independent", policy, 250, model=model, ranks=ranks).makespan_s
                    for policy in ("lru", "distance")
                ]
            except ValueError as error:
                cells.append("does not divide" if "divide" in str(error) else "does not fit")
                continue
            cells.append(f"{_ratio(*times)} ({times[1]:.0f} s)")
        rows.append(cells)
    return _table(["model", "1 x H100", "2", "4", "8"], rows)


def breakdown() -> str:
    """Where a run's time goes: 500 independent agents."""
    rows = []
    for policy in POLICIES:
        result = run("independent", policy, 500)
        use = result.objects[0]
        busy = float(result.workers.busy_s[0])
        rows.append(
            [
                policy, f"{result.makespan_s:.1f}", f"{busy - use.stall_s:.1f}", f"{use.stall_s:.1f}",
                f"{result.makespan_s - busy:.1f}", f"{100 * use.found / use.calls:.0f} %", f"{use.loads}",
                f"{use.loads_ahead}", f"{100 * use.used_ahead / max(use.loads_ahead, 1):.0f} %", f"{use.preempted}",
                f"{100 * result.hit_rate:.0f} %",
            ]
        )  # fmt: skip
    head = [
        "policy", "total (s)", "compute", "steps wait for loads", "device idle", "calls that find all", "loads",
        "ahead", "of them used", "preempted", "prompt tokens hit",
    ]  # fmt: skip
    return _table(head, rows)


NOISES = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


def errors() -> str:
    """Speed-up over lru by the error of distances: standard deviation of their logarithm."""
    rows = []
    for kind in KINDS:
        for trust in ("tested", "always"):
            base = run(kind, "lru", 500).makespan_s
            ratios = [_ratio(base, run(kind, "distance", 500, noise=noise, trust=trust).makespan_s) for noise in NOISES]
            rows.append([kind, trust, *ratios])
        past = _ratio(base, run(kind, "distance", 500, distance="past").makespan_s)
        oracle = _ratio(base, run(kind, "distance", 500, distance="oracle").makespan_s)
        rows.append([kind, f"own past gaps: {past}; oracle: {oracle}", *[""] * len(NOISES)])
    return _table(["workload", "trust", *(f"{noise:g}" for noise in NOISES)], rows)


RANKS = (8, 16, 32, 64)


def by_rank() -> str:
    """Speed-up over lru by the adapters' rank: what it decides is how long a load takes."""
    rows = []
    for rank in RANKS:
        plan = worker("distance", slots_of(500), rank=rank)
        assert plan.agents is not None
        kind = plan.agents.kinds[0]
        ratios = [
            _ratio(*(run(name, policy, 500, rank=rank).makespan_s for policy in ("lru", "distance"))) for name in KINDS
        ]
        rows.append([f"{rank}", f"{kind.bytes_per_rank / 2**20:.0f} MiB", f"{kind.load_s * 1e3:.1f} ms", *ratios])
    return _table(["rank", "adapter", "load", *KINDS], rows)


#: How long a frame may take, seconds: a society that lives ten seconds of its world at once, in real time.
PACE_S = 10.0
#: Sizes that are tried, each some 12 % above the one before it.
SIZES = tuple(round(50 * 1.125**k) for k in range(44))


def _keeps_pace(policy: str, agents: int, *, slots: int, dram_gib: float, rank: int) -> bool:
    """Whether all calls of a frame are answered in time, on average: with all of the device's memory."""
    trace = society("independent", agents, frames=12)
    plan = worker(policy, slots, dram_gib=dram_gib, rank=rank)
    return simulate(plan, trace).makespan_s / frames_of(trace) <= PACE_S


def _most_agents(policy: str, **memory: Any) -> int:
    """The largest size that keeps pace; 0: none does."""
    low, high = -1, len(SIZES)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _keeps_pace(policy, SIZES[middle], **memory) else (low, middle)
    return SIZES[low] if low >= 0 else 0


def per_gpu() -> str:
    """Agents that one H100 serves in real time, and what an hour of one costs."""
    catalogue = Catalogue()
    gpu_usd = catalogue.get("Accelerator", "h100-sxm").spec.price.usd_per_hour
    dram_usd = catalogue.get("Medium", "ddr5").spec.usd_per_gib_hour
    rows = []
    for what, rank, slots in (("no adapters", 0, 0), ("rank 16", 16, 125), ("rank 64", 64, 125)):
        for dram_gib in (0.0, 96.0):
            for policy in ("lru", "queued", "distance"):
                most = _most_agents(policy, slots=slots, dram_gib=dram_gib, rank=rank)
                usd = gpu_usd + dram_gib * dram_usd
                rows.append(
                    [what, f"{dram_gib:.0f} GiB", policy, f"{most:,}", f"{usd / most * 1e3:.2f}" if most else "-"]
                )
    return _table(["adapters", "DRAM for KV", "policy", "agents per GPU", "USD per 1,000 agent-hours"], rows)


PARTS: dict[str, Callable[[], str]] = {
    "speed-up": speed_up,
    "time-per-frame": time_per_frame,
    "first-tokens": first_tokens,
    "kv-ahead": kv_ahead,
    "sparsity": sparsity,
    "machines": machines,
    "breakdown": breakdown,
    "errors": errors,
    "ranks": by_rank,
    "per-gpu": per_gpu,
}


def write(parts: Iterable[str], page: Path) -> None:
    """Put the tables between their marks."""
    text = page.read_text(encoding="utf-8")
    for name in parts:
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, found, rest = text.partition(begin)
        _, ended, after = rest.partition(end)
        if not (found and ended):
            raise SystemExit(f"{page}: no marks {begin} … {end}")
        text = f"{before}{begin}\n{PARTS[name]()}\n{end}{after}"
    page.write_text(text, encoding="utf-8")


def main() -> None:
    """Simulate, and print or write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--write", action="store_true", help="write docs/agents.md")
    parser.add_argument("--only", default=",".join(PARTS), help="some parts, by name")
    arguments = parser.parse_args()
    parts = arguments.only.split(",")
    for name in parts:
        if name not in PARTS:
            raise SystemExit(f"no part {name}; known: {', '.join(PARTS)}")
    if arguments.write:
        write(parts, PAGE)
        return
    for name in parts:
        print(f"## {name}\n\n{PARTS[name]()}\n")


if __name__ == "__main__":
    main()
