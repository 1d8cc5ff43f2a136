"""What ScaleSim states of its runs, and ranges of what it leaves open.

The ranges were written before the runs that use them, but with the published peaks and earlier runs in sight.

Stated (arXiv 2601.21473; its code, github.com/PanZaifeng/KVFlow at 0db29c6):

- "achieves up to 1.74x speedup over SGLang on simulation benchmarks" (abstract); 1.73, 1.31, 1.74 by kind of workload.
- Interaction: the smaller of the action's remaining time and "Physical Distance / Velocity"; the code
  (``SScheduler/timestepManager/SpaceManager.py``: ``dependency_translation``) keeps only agents with one's own
  destination.
- ``python/sglang/configs/example.yaml`` and README: adapters of rank 64 on all matrices, KV copied to host memory.
- Qwen2.5-7B on one H100 at 64 GB/s to the host, a fifth of the agents active, a quarter resident, at most 125.

Everything else is open: a range below. A range's ends are half and twice, or more where it covers two systems.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Settings = dict[str, Any]


class Case(NamedTuple):
    """A population and a worker: changes of the workload, and of the worker."""

    changes: Settings
    worker: Settings


def lengths(mean_log: float, sigma_log: float, most: int) -> Settings:
    """A log-normal length distribution."""
    return {"distribution": "lognormal", "mean_log": mean_log, "sigma_log": sigma_log, "max_tokens": most}


class Open(NamedTuple):
    """Something that is not stated.

    Attributes:
        what: for the table, with its unit.
        low, high: ends of the range. central: what other tables assume.
        log: whether a draw is uniform in the logarithm. source: of the range.
    """

    what: str
    low: float
    central: float
    high: float
    log: bool
    source: str


OPEN: dict[str, Open] = {
    "answer": Open("answer (tokens, median)", 20, 40, 160, True, "a decision in a sentence to a paragraph"),
    "spread": Open("spread of lengths (sigma of the logarithm)", 0.25, 0.5, 1.0, True, "half and twice"),
    "growth": Open("new prompt tokens of a call (median)", 50, 100, 200, True, "half and twice"),
    "identity": Open("an agent's own system prompt (tokens)", 128, 512, 1024, True, "Generative Agents' 7 lines; more"),
    "history": Open("longest history (tokens; 0: none recurs)", 0, 1024, 2048, False,
                    "Generative Agents retrieves anew for each call; AgentSociety carries chats"),
    "frame": Open("the world's own time per frame (s)", 0, 0, 5, False, "a frame of nothing but calls; a slow world"),
    "regularity": Open("regularity of actions", 0, 0.5, 1, False, "by chance; by the clock"),
    "kv": Open("KV tokens for each resident agent", 1000, 2048, 4096, True, "the released example; twice the prompt"),
    "link": Open("copies' share of 64 GB/s", 0.4, 1.0, 1.0, False, "pageable memory; the whole link"),
    "ahead": Open("frames that are loaded ahead", 1, 1, 2, False, "the released example's two"),
    "density": Open("agents within 10 m of an agent", 0.5, 2.0, 8.0, True, "a park; a square"),
    "loss": Open("chance that a message takes an edge", 0.3, 1.0, 1.0, False, "a rumour; a broadcast"),
}  # fmt: skip
#: The only kind that something matters to.
ONLY = {"density": "interaction", "loss": "diffusion", "regularity": "independent"}


def case(kind: str, agents: int, **given: float) -> Case:
    """The case with every open quantity at its central value but those ``given``."""
    value = {name: given.get(name, quantity.central) for name, quantity in OPEN.items()}
    history = round(value["history"])
    # A mean number of neighbours within 10 m over the plane's area.
    size_m = (agents * np.pi * 10.0**2 / value["density"]) ** 0.5
    changes: Settings = {
        "kind": kind, "agents": agents, "world_prompt_tokens": 128, "system_prompt_tokens": round(value["identity"]),
        "new_input": lengths(float(np.log(value["growth"])), value["spread"], 2048),
        "output": lengths(float(np.log(value["answer"])), value["spread"], 1024),
        "history": history > 0, "history_cap_tokens": history or None, "summary_tokens": min(256, history),
        "frame_s": value["frame"], "regularity": value["regularity"],
        "world": {"size_m": max(size_m, 20.0)},
        "graph": {"model": "small_world", "degree": 4}, "spread": value["loss"],
        "seeds": max(agents // 25, 1) if kind == "diffusion" else 1,
    }  # fmt: skip
    worker = {
        "tokens_per_agent": round(value["kv"]),
        "link": 64e9 * value["link"],
        "ahead_frames": float(round(value["ahead"])),
    }
    return Case(changes, worker)


def matters(name: str, kind: str) -> bool:
    """Whether the open quantity is one of this kind of workload."""
    return ONLY.get(name, kind) == kind


def draws(kind: str, count: int) -> list[dict[str, float]]:
    """So many sets of values, each drawn from its range; seeded."""
    rng = np.random.default_rng(2601)
    rows = []
    for _ in range(count):
        row = {}
        for name, quantity in OPEN.items():
            share = rng.random()
            if quantity.log:
                row[name] = quantity.low * (quantity.high / quantity.low) ** share
            else:
                row[name] = quantity.low + share * (quantity.high - quantity.low)
        # Few tokens of history are no history.
        row["history"] = row["history"] if row["history"] >= 256 else 0.0
        rows.append({name: value for name, value in row.items() if matters(name, kind)})
    return rows
