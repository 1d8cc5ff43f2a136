"""Tables of docs/agents.md and its note: each a head, and rows that can be computed one by one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from agent_assumptions import OPEN, draws, matters
from agent_populations import (
    AGENTS,
    DRAM_GIB,
    KINDS,
    PUBLISHED,
    STAGES,
    most_in_time,
    run,
    slots_of,
    stages,
    ttft_s,
    worker,
)

from hisearch.kernels.layout import sim as la
from hisearch.simulate import Result
from hisearch.specs.documents.catalogue import Catalogue

Row = list[str]


class Table(NamedTuple):
    """A table: its head, and its rows, each computed when called. ``costly``: rows take seconds."""

    head: Row
    rows: list[Callable[[], Row]]
    costly: bool = False


STAGE_NAMES = [name for name, _, _ in STAGES]


def _ratios(runs: list[Result | None], first: int = 0) -> Row:
    """Speed-up of each stage over stage ``first``."""
    base = runs[first]
    return [f"{base.makespan_s / result.makespan_s:.2f}" if base and result else "-" for result in runs[first + 1 :]]


def speed_up() -> Table:
    """End to end, over SGLang's reactive LRU with KV in device memory alone, by kind and number of agents."""

    def row(kind: str, agents: int) -> Row:
        return [kind, f"{agents}", *_ratios(stages(kind, agents)), f"{PUBLISHED[kind]:.2f}"]

    rows = [partial(row, kind, agents) for kind in KINDS for agents in AGENTS]
    return Table(["workload", "agents", *STAGE_NAMES[1:], "published peak"], rows)


def without_tier() -> Table:
    """Likewise with KV in device memory alone."""

    def row(kind: str, agents: int) -> Row:
        runs = stages(kind, agents, dram_gib=0.0)
        return [kind, f"{agents}", *_ratios(runs, 1)]

    rows = [partial(row, kind, agents) for kind in KINDS for agents in (100, 500, 1000)]
    return Table(["workload", "agents", *STAGE_NAMES[2:]], rows)


def first_tokens() -> Table:
    """Mean TTFT in milliseconds, with KV in host memory for all; by how much ``distance`` is below HiCache."""

    def row(kind: str, agents: int) -> Row:
        runs = stages(kind, agents)[1:]
        times = [ttft_s(result) if result else np.nan for result in runs]
        less = 1 - times[STAGE_NAMES.index("distance") - 1] / times[0]
        return [kind, f"{agents}", *(f"{1e3 * seconds:.0f}" for seconds in times), f"{100 * less:.0f} %"]

    rows = [partial(row, kind, agents) for kind in KINDS for agents in AGENTS[2:]]
    return Table(["workload", "agents", *STAGE_NAMES[1:], "distance below host tier"], rows)


def ends() -> Table:
    """500 agents, one open quantity at each end of its range."""

    def row(name: str, value: float, kind: str) -> Row:
        return [OPEN[name].what, f"{value:g}", kind, *_ratios(stages(kind, 500, given={name: value}))]

    rows = [
        partial(row, name, value, kind)
        for name, quantity in OPEN.items()
        for value in sorted({quantity.low, quantity.high} - {quantity.central})
        for kind in KINDS
        if matters(name, kind)
    ]
    return Table(["open", "value", "workload", *STAGE_NAMES[1:]], rows)


def _over(base: Result | None, other: Result | None) -> str:
    return f"{base.makespan_s / other.makespan_s:.2f}" if base and other else "-"


#: Sets of values drawn from all ranges at once.
DRAWS = 60


def at_random() -> Table:
    """500 and 1,000 agents, all open quantities drawn at once: median, and 5 to 95 % of the draws."""

    def row(kind: str, agents: int) -> Row:
        pairs: dict[str, list[float]] = {name: [] for name in STAGE_NAMES[1:]}
        added, below = [], []
        for given in draws(kind, DRAWS):
            runs = stages(kind, agents, given=given)
            if any(result is None for result in runs):
                continue
            lru = runs[0].makespan_s
            for name, result in zip(STAGE_NAMES[1:], runs[1:], strict=True):
                pairs[name].append(lru / result.makespan_s)
            added.append(runs[2].makespan_s / runs[5].makespan_s)
            below.append(1 - ttft_s(runs[5]) / ttft_s(runs[1]))
        cells = [_spread(values) for values in pairs.values()]
        share = np.mean(np.array(pairs["distance"]) >= PUBLISHED[kind])
        return [kind, f"{agents}", *cells, _spread(added), _spread(below), f"{100 * share:.0f} %"]

    rows = [partial(row, kind, agents) for kind in KINDS for agents in (500, 1000)]
    head = ["distance over queued", "TTFT below host tier", "draws at or above the published peak"]
    return Table(["workload", "agents", *STAGE_NAMES[1:], *head], rows, costly=True)


def _spread(values: list[float]) -> str:
    low, middle, high = np.percentile(values, [5, 50, 95])
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


#: Who says when an agent will call, and what is done to it.
SOURCES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("hints", {}), ("own mean gap", {"distance": "past"}), ("last gap", {"distance": "last"}),
    ("moving average", {"distance": "ewma"}), ("survival", {"distance": "survival"}), ("noise", {"noise": 8.0}),
    ("oracle", {"distance": "oracle"}),
)  # fmt: skip


#: Workloads of which hints are judged: label, kind, what is open. The last one's hints do not know what gets lost.
HINTED: tuple[tuple[str, str, dict[str, float]], ...] = (
    *((kind, kind, {}) for kind in KINDS), ("diffusion, lossy", "diffusion", {"loss": 0.3}),
)  # fmt: skip


def hint_quality() -> Table:
    """500 agents, KV in DRAM: what predictions are worth, and the speed-up over ``queued`` with the same DRAM."""

    def row(label: str, kind: str, given: dict[str, float], name: str, settings: dict[str, Any]) -> Row:
        queued = run(kind, "queued", 500, dram_gib=DRAM_GIB, given=given)
        result = run(kind, "distance", 500, dram_gib=DRAM_GIB, given=given, **settings)
        hints, (use,) = result.hints, result.objects
        loads = [f"{use.loads}", f"{use.loads_ahead}", f"{use.loads_ahead - use.used_ahead}", _over(queued, result)]
        if hints is None:
            return [label, name, *([""] * 7), *loads]
        near = [hints.said_near, hints.came_near, hints.near_as_said]
        return [
            label, name, f"{100 * hints.ordered / hints.compared:.0f} %",
            f"{100 * hints.ordered_by_use / hints.compared:.0f} %",
            *(f"{100 * count / hints.samples:.0f} %" for count in near), f"{hints.lead_s / hints.predicted_calls:.1f}",
            f"{100 * hints.in_time / hints.predicted_calls:.0f} %", *loads,
        ]  # fmt: skip

    rows = [partial(row, *workload, *source) for workload in HINTED for source in SOURCES]
    head = [
        "workload", "who says", "pairs ordered right", "by last use", "said near", "came near", "both",
        "lead (s)", "lead exceeds a load", "loads", "ahead", "of them unused", "over queued",
    ]  # fmt: skip
    return Table(head, rows)


#: Links to host memory, GB/s: PCIe 5.0 as published, 4.0, and 4.0 shared by two.
LINKS = (64, 25, 12)


#: Policies whose KV lies on slower memory: each and its settings. The fifth brings KV ahead of calls, the fourth does
#: so for objects alone.
KV_POLICIES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("lru", "lru", {}), ("queued", "queued", {}), ("noise", "distance", {"noise": 8.0}),
    ("distance, no KV ahead", "distance", {"ahead_kv": False}), ("distance", "distance", {}),
    ("oracle", "distance", {"distance": "oracle"}),
)  # fmt: skip
KV_HEAD = [
    *(f"{name} (s)" for name, _, _ in KV_POLICIES), "TTFT, no KV ahead (ms)", "TTFT, KV ahead (ms)",
    "prompt tokens found in HBM, no KV ahead", "KV ahead",
]  # fmt: skip


def _kv_cells(kind: str, agents: int, **memory: Any) -> Row:
    """Total time by policy; of ``distance`` mean TTFT and hits in device memory, without KV ahead and with it."""
    runs = [run(kind, policy, agents, **settings | memory) for _, policy, settings in KV_POLICIES]
    without, ahead = runs[3:5]
    times = [f"{ttft_s(result) * 1e3:.0f}" for result in (without, ahead)]
    hits = [f"{100 * result.tier_hit_tokens[0] / result.prompt_tokens:.0f} %" for result in (without, ahead)]
    return [*(f"{result.makespan_s:.1f}" for result in runs), *times, *hits]


def kv_ahead() -> Table:
    """KV in host memory: 500 agents, by link."""

    def row(kind: str, link: int) -> Row:
        return [kind, f"{link}", *_kv_cells(kind, 500, dram_gib=DRAM_GIB, link=link * 1e9)]

    rows = [partial(row, kind, link) for kind in KINDS for link in LINKS]
    return Table(["workload", "link (GB/s)", *KV_HEAD], rows)


#: Host memory that does not hold what the agents have, GiB, and a disk behind it that does.
LITTLE_DRAM_GIB, NVME_GIB = 32.0, 500.0


def from_disks() -> Table:
    """KV on a disk behind host memory that does not hold it: 1,000 agents."""

    def row(kind: str, prefetch: str) -> Row:
        return [kind, prefetch, *_kv_cells(kind, 1000, dram_gib=LITTLE_DRAM_GIB, nvme_gib=NVME_GIB, prefetch=prefetch)]

    rows = [partial(row, kind, prefetch) for kind in KINDS for prefetch in ("best_effort", "wait_complete")]
    return Table(["workload", "prefetch", *KV_HEAD], rows)


SPARSITIES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


def sparsity() -> Table:
    """500 independent agents by the share that does not call in a frame."""

    def row(idle: float) -> Row:
        return [f"{idle:.0%} idle", *_ratios(stages("independent", 500, active_rate=round(1 - idle, 3)))]

    return Table(["", *STAGE_NAMES[1:]], [partial(row, idle) for idle in SPARSITIES])


def _steps_s(result: Result, kind: int) -> float:
    """Device time of steps of a kind."""
    assert result.log is not None
    steps = result.log.steps[result.log.steps["kind"] == kind]
    return float((steps["end_s"] - steps["start_s"]).sum())


def breakdown() -> Table:
    """Where a run's time goes: 500 independent agents. What loads hold up are the steps that prefill."""

    def row(name: str, policy: str, settings: dict[str, Any]) -> Row:
        result = run("independent", policy, 500, log=True, **settings)
        use = result.objects[0]
        prefill_s, decode_s = (_steps_s(result, kind) for kind in (la.PREFILL_STEP, la.DECODE_STEP))
        return [
            name, f"{result.makespan_s:.1f}", f"{use.stall_s:.1f}", f"{prefill_s - use.stall_s:.1f}",
            f"{decode_s:.1f}", f"{max(result.makespan_s - prefill_s - decode_s, 0.0):.1f}",
            f"{100 * use.resident_calls / max(use.object_calls, 1):.0f} %", f"{use.loads}", f"{use.loads_ahead}",
            f"{use.loads_ahead - use.used_ahead}", f"{use.preempted}", f"{100 * result.hit_rate:.0f} %",
        ]  # fmt: skip

    head = [
        "policy", "total (s)", "load", "prefill", "decode", "other", "calls that find all", "loads", "ahead",
        "of them unused", "preempted", "prompt tokens hit",
    ]  # fmt: skip
    return Table(head, [partial(row, *stage) for stage in STAGES])


NOISES = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


def errors() -> Table:
    """Speed-up over ``queued``, both with DRAM, by the error of distances: standard deviation of their logarithm."""

    def row(kind: str, trust: str) -> Row:
        queued = run(kind, "queued", 500, dram_gib=DRAM_GIB)
        runs = [run(kind, "distance", 500, dram_gib=DRAM_GIB, noise=noise, trust=trust) for noise in NOISES]
        lru = run(kind, "lru", 500, dram_gib=DRAM_GIB)
        oracle = run(kind, "distance", 500, dram_gib=DRAM_GIB, distance="oracle")
        return [kind, trust, _over(queued, lru), *(_over(queued, result) for result in runs), _over(queued, oracle)]

    rows = [partial(row, kind, trust) for kind in KINDS for trust in ("tested", "always")]
    return Table(["workload", "trust", "lru", *(f"{noise:g}" for noise in NOISES), "oracle"], rows)


RANKS = (8, 16, 32, 64)


def by_rank() -> Table:
    """500 independent agents by the adapters' rank: what it decides is how long a load takes."""

    def row(rank: int) -> Row:
        plan = worker("distance", slots_of(500), rank=rank)
        assert plan.agents is not None
        kind = plan.agents.kinds[0]
        ratios = _ratios(stages("independent", 500, rank=rank))
        return [f"{rank}", f"{kind.bytes_per_rank / 2**20:.0f} MiB", f"{kind.load_s * 1e3:.1f} ms", *ratios]

    return Table(["rank", "adapter", "load", *STAGE_NAMES[1:]], [partial(row, rank) for rank in RANKS])


def _usd_per_hour(dram_gib: float, nvme_gib: float = 0.0) -> float:
    """Of an H100 with so much memory."""
    catalogue = Catalogue()
    gpu_usd: float = catalogue.get("Accelerator", "h100-sxm").spec.price.usd_per_hour
    media = {"ddr5": dram_gib, "nvme-gen4": nvme_gib}
    return gpu_usd + sum(gib * catalogue.get("Medium", name).spec.usd_per_gib_hour for name, gib in media.items())


#: Of the tables of agents per GPU: name, policy, settings.
POLICIES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("lru", "lru", {}), ("queued", "queued", {}), ("noise", "distance", {"noise": 8.0}),
    ("distance, nothing ahead", "distance", {"ahead_budget": 0.0, "ahead_kv": False}), ("distance", "distance", {}),
    ("oracle", "distance", {"distance": "oracle"}),
)  # fmt: skip


def per_gpu() -> Table:
    """Agents that one H100 serves within the SLO of the shipped study, by policy, and what an hour of one costs."""

    def row(what: str, rank: int, dram_gib: float) -> Row:
        most = [most_in_time(policy, rank=rank, dram_gib=dram_gib, **settings)[0] for _, policy, settings in POLICIES]
        usd = _usd_per_hour(dram_gib) / max(most[1], 1) * 1e3
        return [what, f"{dram_gib:.0f} GiB", *(f"{count:,}" if count else "-" for count in most), f"{usd:.2f}"]

    adapters = (("none", 0), ("rank 16", 16), ("rank 64", 64))
    rows = [partial(row, *size, dram) for size in adapters for dram in (0.0, 96.0)]
    head = ["adapters", "DRAM for KV", *(name for name, _, _ in POLICIES), "USD per 1,000 agent-hours by queued"]
    return Table(head, rows, costly=True)


#: Of one H100: DRAM, how much of it adapters take (0: as much as they do), NVMe, GiB.
ON_DISK = ((96.0, 64.0, 1000.0), (128.0, 96.0, 1000.0), (256.0, 0.0, 0.0), (256.0, 224.0, 1000.0), (480.0, 0.0, 0.0))


def adapters_on_disk() -> Table:
    """What a disk behind host memory that does not hold all adapters adds: the shipped population, within its SLO."""

    def row(dram_gib: float, host_gib: float, nvme_gib: float, name: str, policy: str, settings: dict[str, Any]) -> Row:
        memory: dict[str, Any] = {"dram_gib": dram_gib, "nvme_gib": nvme_gib, "host": "tier", **settings}
        most, result = most_in_time(policy, **memory, **({"host_gib": host_gib} if host_gib else {}))
        use = result.objects[0] if result is not None else None
        usd = _usd_per_hour(dram_gib, nvme_gib)
        return [
            f"{dram_gib:.0f}", f"{host_gib:.0f}" if host_gib else "all", f"{nvme_gib:.0f}" if nvme_gib else "",
            name, f"{most:,}" if most else "-", f"{usd / most * 1e3:.2f}" if most else "-",
            f"{use.disk_reads / use.calls:.2f}" if use and use.on_disk_bytes else "",
            f"{100 * use.disk_reads_ahead / use.disk_reads:.0f} %" if use and use.disk_reads else "",
            f"{ttft_s(result) * 1e3:.0f}" if result is not None else "",
        ]  # fmt: skip

    head = [
        "DRAM (GiB)", "of it for adapters", "NVMe (GiB)", "policy", "agents per GPU", "USD per 1,000 agent-hours",
        "reads from the disk per call", "of them ahead", "mean TTFT (ms)",
    ]  # fmt: skip
    return Table(head, [partial(row, *memory, *policy) for memory in ON_DISK for policy in POLICIES], costly=True)


PARTS: dict[str, Callable[[], Table]] = {
    "speed-up": speed_up,
    "without-tier": without_tier,
    "ends": ends,
    "at-random": at_random,
    "first-tokens": first_tokens,
    "hint-quality": hint_quality,
    "errors": errors,
    "kv-ahead": kv_ahead,
    "from-disks": from_disks,
    "sparsity": sparsity,
    "breakdown": breakdown,
    "ranks": by_rank,
    "per-gpu": per_gpu,
    "adapters-on-disk": adapters_on_disk,
}
