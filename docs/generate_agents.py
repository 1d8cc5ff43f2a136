"""Simulates societies of agents and writes the tables of docs/agents.md and its note (``make agents``).

Usage::

    python docs/generate_agents.py [--write] [--only PART,...]

Without ``--write`` the tables are printed. Every part is a function of the table PARTS.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from agent_populations import (
    AGENTS,
    DRAM_GIB,
    GROW,
    GROWING,
    KINDS,
    POLICIES,
    PUBLISHED,
    RETRIEVED,
    frames_of,
    frozen,
    lengths,
    most_agents,
    most_in_time,
    population,
    run,
    slots_of,
    slots_with_room,
    ttft_s,
    worker,
)

from hisearch.kernels.layout import sim as la
from hisearch.latency.sharding import InvalidParallelism
from hisearch.simulate import Result
from hisearch.simulate.engine import EngineOutOfMemory
from hisearch.specs.documents.catalogue import Catalogue

DOCS = Path(__file__).resolve().parent
PAGES = (DOCS / "agents.md", DOCS / "notes" / "2026-11-agents-published.md")
Rows = list[list[str]]


def _ratio(base: float, other: float) -> str:
    return f"{base / other:.2f}"


def _table(head: Sequence[str], rows: Rows) -> str:
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def speed_up() -> str:
    """End to end, over SGLang's reactive LRU, by kind and number of agents.

    What is published runs with HiCache, so that host memory has everything of an agent's: that is ``distance`` with
    DRAM for KV. Its baseline's KV is in device memory alone.
    """
    rows = []
    for kind in KINDS:
        for policy, dram_gib in (*((policy, 0.0) for policy in POLICIES[1:]), ("distance", DRAM_GIB)):
            ratios = [
                run(kind, "lru", agents).makespan_s / run(kind, policy, agents, dram_gib=dram_gib).makespan_s
                for agents in AGENTS
            ]
            name = f"{policy}, KV in DRAM" if dram_gib else policy
            published = f"{PUBLISHED[kind]:.2f}" if dram_gib else ""
            rows.append([kind, name, *(f"{ratio:.2f}" for ratio in ratios), f"{max(ratios):.2f}", published])
    return _table(["workload", "policy", *map(str, AGENTS), "peak", "published peak"], rows)


def time_per_frame() -> str:
    """Seconds that a frame takes, by number of agents: where every agent's call is awaited."""
    rows = []
    for kind in KINDS:
        for policy in ("lru", "queued", "distance"):
            seconds = [run(kind, policy, agents).makespan_s / frames_of(population(kind, agents)) for agents in AGENTS]
            rows.append([kind, policy, *(f"{value:.2f}" for value in seconds)])
    return _table(["workload", "policy", *(f"{agents}" for agents in AGENTS)], rows)


#: Whom TTFT is held against, KV in DRAM: SGLang's HiCache with adapters by last use, and by slot.
HICACHE = ("lru", "by_slot")


def _less(base_s: float, found_s: float) -> str:
    return f"{100 * (1 - found_s / base_s):.0f} %"


def first_tokens() -> str:
    """Mean TTFT in milliseconds, with KV in host memory for all."""
    rows = []
    for kind in KINDS:
        for agents in AGENTS[2:]:
            by_distance = ttft_s(run(kind, "distance", agents, dram_gib=DRAM_GIB))
            cells = [kind, f"{agents}", f"{by_distance * 1e3:.0f}"]
            for policy in HICACHE:
                base = ttft_s(run(kind, policy, agents, dram_gib=DRAM_GIB))
                cells += [f"{base * 1e3:.0f}", _less(base, by_distance)]
            rows.append(cells)
    head = ["workload", "agents", "distance", "HiCache, lru", "less", "HiCache, by slot", "less"]
    return _table(head, rows)


def slower_copies() -> str:
    """By how much mean TTFT is below HiCache's, where copies attain the published link's bandwidth, and half of it."""
    rows = []
    for kind in KINDS:
        for policy in HICACHE:
            for link in (64, 32):
                cells = [kind, policy, f"{link}"]
                for agents in AGENTS[2:]:
                    base, by_distance = (
                        ttft_s(run(kind, tried_policy, agents, dram_gib=DRAM_GIB, link=link * 1e9))
                        for tried_policy in (policy, "distance")
                    )
                    cells.append(_less(base, by_distance))
                rows.append(cells)
    head = ["workload", "HiCache's adapters", "copies (GB/s)", *(f"{agents} agents" for agents in AGENTS[2:])]
    return _table(head, rows)


#: Answers of half the length.
SHORT = {"output": lengths(3.01, 0.5, 256)}
#: At 1,000 agents: whose TTFT ``distance`` is held against, changes of the society, and of the worker.
CROWDED: tuple[tuple[str, str, dict[str, Any], dict[str, Any]], ...] = (
    ("as above: adapters by last use", "lru", {}, {}),
    ("adapters by slot", "by_slot", {}, {}),
    ("by slot, answers half as long (23)", "by_slot", SHORT, {}),
    ("by slot, copies at 32 GB/s", "by_slot", {}, {"link": 32e9}),
    ("by slot, copies at 12 GB/s", "by_slot", {}, {"link": 12e9}),
    ("by slot, answers half as long, copies at 32 GB/s", "by_slot", SHORT, {"link": 32e9}),
)


def crowded() -> str:
    """By how much mean TTFT is below HiCache's at 1,000 agents, with one or two assumptions changed."""
    rows = []
    for what, policy, changes, settings in CROWDED:
        cells = [what]
        for kind in KINDS:
            base, by_distance = (
                ttft_s(run(kind, tried_policy, 1000, changes=frozen(changes), dram_gib=DRAM_GIB, **settings))
                for tried_policy in (policy, "distance")
            )
            cells.append(f"{_less(base, by_distance)} ({base * 1e3:.0f} to {by_distance * 1e3:.0f} ms)")
        rows.append(cells)
    return _table(["HiCache", *KINDS], rows)


#: Links to host memory, GB/s: PCIe 5.0 as published, 4.0, and 4.0 shared by two.
LINKS = (64, 25, 12)


def kv_ahead() -> str:
    """What KV brought ahead of calls adds to ``distance``: 500 agents with prompts that grow, by link."""
    rows = []
    for kind in KINDS:
        for link in LINKS:
            for ahead in (False, True):
                result = run(
                    kind, "distance", 500, changes=GROW[kind], dram_gib=DRAM_GIB, link=link * 1e9, ahead_kv=ahead
                )
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


#: Host memory that does not hold what the agents have, GiB, and a disk behind it that does.
LITTLE_DRAM_GIB, NVME_GIB = 32.0, 500.0


def from_disks() -> str:
    """What KV fetched from a disk ahead of calls adds to ``distance``: 1,000 agents whose prompts grow."""
    rows = []
    for kind in KINDS:
        for prefetch in ("best_effort", "wait_complete"):
            for ahead in (False, True):
                result = run(
                    kind, "distance", 1000, changes=GROW[kind], dram_gib=LITTLE_DRAM_GIB, nvme_gib=NVME_GIB,
                    prefetch=prefetch, ahead_kv=ahead,
                )  # fmt: skip
                (use,) = result.objects
                in_hbm, on_host, stored = (tokens / result.prompt_tokens for tokens in result.tier_hit_tokens[:3])
                rows.append(
                    [
                        kind, prefetch, "ahead" if ahead else "by the request", f"{result.makespan_s:.1f}",
                        f"{ttft_s(result) * 1e3:.0f}", *(f"{100 * share:.0f} %" for share in (in_hbm, on_host, stored)),
                        f"{use.kv_tokens_fetched / 1e6:.2f}" if ahead else "",
                    ]
                )  # fmt: skip
    head = [
        "workload", "prefetch", "KV from the disk", "total (s)", "mean TTFT (ms)", "prompt tokens found in HBM",
        "in host memory", "fetched by the request", "million tokens fetched ahead",
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
    """Speed-up over lru by model and accelerators; with fewer slots where memory has no room for a quarter's."""
    rows = []
    for model in ("qwen2.5-7b", "qwen2.5-32b"):
        cells = [model]
        for ranks in (1, 2, 4, 8):
            try:
                slots = slots_with_room(250, model, ranks)
            except InvalidParallelism:
                cells.append("does not divide")
                continue
            if slots == 0:
                cells.append("does not fit")
                continue
            times = [
                run("independent", policy, 250, model=model, ranks=ranks, slots=slots).makespan_s
                for policy in ("lru", "distance")
            ]
            cells.append(f"{_ratio(*times)} ({times[1]:.0f} s, {slots} slots)")
        rows.append(cells)
    return _table(["model", "1 x H100", "2", "4", "8"], rows)


def _steps_s(result: Result, kind: int) -> float:
    """Device time of steps of a kind."""
    assert result.log is not None
    steps = result.log.steps[result.log.steps["kind"] == kind]
    return float((steps["end_s"] - steps["start_s"]).sum())


def breakdown() -> str:
    """Where a run's time goes: 500 independent agents. What loads hold up are the steps that prefill."""
    rows = []
    for policy, dram_gib in (*((policy, 0.0) for policy in POLICIES), ("lru", DRAM_GIB), ("distance", DRAM_GIB)):
        result = run("independent", policy, 500, dram_gib=dram_gib, log=True)
        use = result.objects[0]
        prefill_s, decode_s = (_steps_s(result, kind) for kind in (la.PREFILL_STEP, la.DECODE_STEP))
        rows.append(
            [
                f"{policy}, KV in DRAM" if dram_gib else policy, f"{result.makespan_s:.1f}", f"{use.stall_s:.1f}",
                f"{prefill_s - use.stall_s:.1f}", f"{decode_s:.1f}", f"{result.makespan_s - prefill_s - decode_s:.1f}",
                f"{100 * use.found / use.calls:.0f} %", f"{use.loads}", f"{use.loads_ahead}",
                f"{100 * use.used_ahead / max(use.loads_ahead, 1):.0f} %", f"{use.preempted}",
                f"{100 * result.hit_rate:.0f} %",
            ]
        )  # fmt: skip
    head = [
        "policy", "total (s)", "load", "prefill", "decode", "other", "calls that find all", "loads", "ahead",
        "of them used", "preempted", "prompt tokens hit",
    ]  # fmt: skip
    return _table(head, rows)


def _late(result: Result, kind: str, agents: int) -> np.ndarray:
    """Which calls were scheduled when so many others of their frame had been as there are slots."""
    trace = population(kind, agents)
    assert trace.agents is not None
    order = np.lexsort((result.requests.scheduled_s, trace.agents.gate))
    gate = trace.agents.gate[order]
    place = np.arange(len(gate)) - np.searchsorted(gate, gate)
    late = np.empty(len(gate), dtype=bool)
    late[order] = place >= slots_of(agents)
    return late


def waits() -> str:
    """Mean TTFT at 1,000 agents of calls that a slot is there for when their frame begins, and of those behind them."""
    rows = []
    for kind in KINDS:
        cells = [kind]
        for behind in (False, True):
            means = {}
            for policy in (*HICACHE, "distance"):
                result = run(kind, policy, 1000, dram_gib=DRAM_GIB)
                means[policy] = float(result.requests.ttft_s[_late(result, kind, 1000) == behind].mean())
            cells.append(f"{1e3 * means['distance']:.0f}")
            for policy in HICACHE:
                cells += [f"{1e3 * means[policy]:.0f}", _less(means[policy], means["distance"])]
        rows.append(cells)
    groups = (f"first {slots_of(1000)}", "behind them")
    shown = ("distance", "HiCache, lru", "less", "HiCache, by slot", "less")
    return _table(["workload", *(f"{group}: {what}" for group in groups for what in shown)], rows)


#: What is assumed, otherwise: changes of every society, of interaction's prompts alone, and of the worker.
OTHERWISE: tuple[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]], ...] = (
    ("as above", {}, {}, {}),
    ("interaction with prompts that grow, as the others'", {}, GROWING | {"history": True}, {}),
    ("all prompts as interaction's", RETRIEVED, {}, {}),
    ("system prompts of 512 tokens and no histories", {"history": False, "history_cap_tokens": None}, {}, {}),
    ("SGLang's adapters by slot, as before it had a policy", {}, {}, {"base": "by_slot"}),
    ("answers half as long (23)", SHORT, {}, {}),
    ("answers twice as long (92)", {"output": lengths(4.4, 0.5, 512)}, {}, {}),
    ("1,000 KV tokens for each resident agent, as in the released example", {}, {}, {"tokens_per_agent": 1000}),
    ("a link of half the bandwidth, as copies out of pageable memory", {}, {}, {"link": 32e9}),
    ("two frames ahead, up to the whole pool", {}, {}, {"ahead_frames": 2.0, "ahead_budget": 1.0}),
)


def _makespan_s(kind: str, policy: str, agents: int, **settings: Any) -> float:
    """Of a society; not a number where the engine would stop."""
    try:
        return run(kind, policy, agents, **settings).makespan_s
    except EngineOutOfMemory:
        return float("nan")


def otherwise() -> str:
    """Peaks of ``distance`` with KV in DRAM over SGLang, with one assumption changed at a time."""
    rows = []
    for what, population_, interaction, settings in OTHERWISE:
        cells = [what]
        for kind in KINDS:
            changes = frozen(population_ | (interaction if kind == "interaction" else {}))
            base = settings.get("base", "lru")
            both = {name: value for name, value in settings.items() if name != "base"}
            own = {name: value for name, value in both.items() if not name.startswith("ahead")}
            ratios = [
                _makespan_s(kind, base, agents, changes=changes, **own)
                / _makespan_s(kind, "distance", agents, changes=changes, dram_gib=DRAM_GIB, **both)
                for agents in AGENTS
            ]
            cells.append(f"{np.nanmax(ratios):.2f}")
        rows.append(cells)
    rows.append(["published", *(f"{PUBLISHED[kind]:.2f}" for kind in KINDS)])
    return _table(["assumed", *KINDS], rows)


NOISES = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


def errors() -> str:
    """Speed-up over lru by the error of distances: standard deviation of their logarithm. Prompts grow."""
    rows = []
    for kind in KINDS:

        def seconds(policy: str, kind: str = kind, **settings: Any) -> float:
            return run(kind, policy, 500, changes=GROW[kind], **settings).makespan_s

        for trust in ("tested", "always"):
            base = seconds("lru")
            ratios = [_ratio(base, seconds("distance", noise=noise, trust=trust)) for noise in NOISES]
            rows.append([kind, trust, *ratios])
        past, oracle = (_ratio(base, seconds("distance", distance=source)) for source in ("past", "oracle"))
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


def per_gpu() -> str:
    """Agents that one H100 serves in real time, and what an hour of one costs."""
    catalogue = Catalogue()
    gpu_usd = catalogue.get("Accelerator", "h100-sxm").spec.price.usd_per_hour
    dram_usd = catalogue.get("Medium", "ddr5").spec.usd_per_gib_hour
    rows = []
    for what, rank, slots in (("no adapters", 0, 0), ("rank 16", 16, 125), ("rank 64", 64, 125)):
        for dram_gib in (0.0, 96.0):
            for policy in ("lru", "queued", "distance"):
                most = most_agents(policy, slots=slots, dram_gib=dram_gib, rank=rank)
                usd = gpu_usd + dram_gib * dram_usd
                rows.append(
                    [what, f"{dram_gib:.0f} GiB", policy, f"{most:,}", f"{usd / most * 1e3:.2f}" if most else "-"]
                )
    return _table(["adapters", "DRAM for KV", "policy", "agents per GPU", "USD per 1,000 agent-hours"], rows)


#: Of one H100: DRAM, how much of it adapters take (0: as much as they do), NVMe, GiB.
ON_DISK = ((96.0, 64.0, 1000.0), (128.0, 96.0, 1000.0), (256.0, 0.0, 0.0), (256.0, 224.0, 1000.0), (480.0, 0.0, 0.0))


def adapters_on_disk() -> str:
    """What a disk behind host memory that does not hold all adapters adds: the shipped society, within its SLO."""
    catalogue = Catalogue()
    gpu_usd = catalogue.get("Accelerator", "h100-sxm").spec.price.usd_per_hour
    dram_usd, nvme_usd = (catalogue.get("Medium", name).spec.usd_per_gib_hour for name in ("ddr5", "nvme-gen4"))
    rows = []
    for dram_gib, host_gib, nvme_gib in ON_DISK:
        for policy in ("lru", "queued", "distance"):
            memory: dict[str, Any] = {"dram_gib": dram_gib, "nvme_gib": nvme_gib, "host": "tier"}
            most, result = most_in_time(policy, **memory, **({"host_gib": host_gib} if host_gib else {}))
            use = result.objects[0] if result is not None else None
            usd = gpu_usd + dram_gib * dram_usd + nvme_gib * nvme_usd
            rows.append(
                [
                    f"{dram_gib:.0f}", f"{host_gib:.0f}" if host_gib else "all", f"{nvme_gib:.0f}" if nvme_gib else "",
                    policy, f"{most:,}" if most else "-", f"{usd / most * 1e3:.2f}" if most else "-",
                    f"{use.disk_reads / use.calls:.2f}" if use and use.on_disk_bytes else "",
                    f"{100 * use.disk_reads_ahead / use.disk_reads:.0f} %" if use and use.disk_reads else "",
                    f"{ttft_s(result) * 1e3:.0f}" if result is not None else "",
                ]
            )  # fmt: skip
    head = [
        "DRAM (GiB)", "of it for adapters", "NVMe (GiB)", "policy", "agents per GPU", "USD per 1,000 agent-hours",
        "reads from the disk per call", "of them ahead", "mean TTFT (ms)",
    ]  # fmt: skip
    return _table(head, rows)


PARTS: dict[str, Callable[[], str]] = {
    "speed-up": speed_up,
    "time-per-frame": time_per_frame,
    "first-tokens": first_tokens,
    "slower-copies": slower_copies,
    "crowded": crowded,
    "kv-ahead": kv_ahead,
    "from-disks": from_disks,
    "sparsity": sparsity,
    "machines": machines,
    "breakdown": breakdown,
    "waits": waits,
    "otherwise": otherwise,
    "errors": errors,
    "ranks": by_rank,
    "per-gpu": per_gpu,
    "adapters-on-disk": adapters_on_disk,
}


def write(parts: Iterable[str], pages: Iterable[Path]) -> None:
    """Put the tables between their marks, on the page that has them."""
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    for name in parts:
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        page = next((page for page, text in texts.items() if begin in text and end in text), None)
        if page is None:
            raise SystemExit(f"no marks {begin} … {end} in {', '.join(map(str, texts))}")
        before, _, rest = texts[page].partition(begin)
        _, _, after = rest.partition(end)
        texts[page] = f"{before}{begin}\n{PARTS[name]()}\n{end}{after}"
    for page, text in texts.items():
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
        write(parts, PAGES)
        return
    for name in parts:
        print(f"## {name}\n\n{PARTS[name]()}\n")


if __name__ == "__main__":
    main()
