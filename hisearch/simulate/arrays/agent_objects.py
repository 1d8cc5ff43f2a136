"""Agents' objects by kind: how many, whose each is, how large the workload says that it is."""

from __future__ import annotations

from typing import Any

import numpy as np

from hisearch.simulate.plans.agent_plan import AgentPlan, KindPlan
from hisearch.traces.agents import AgentArrays

#: A file is larger than what it holds by its header. Assumed.
_FILE_SHARE = 1.01


class ObjectsDoNotFit(ValueError):  # noqa: N818
    """The agents' objects leave too little shared host memory for KV, or are larger than their places."""


def count_of(per: str, agents: AgentArrays) -> int:
    """Objects of a kind."""
    if per == "all":
        return 1
    if per == "agent":
        return len(agents.adapter)
    return int((agents.memory if per == "memory" else agents.adapter).max(initial=-1)) + 1


def all_bytes_per_rank(agents: AgentArrays | None, plan: AgentPlan) -> float:
    """Bytes of the places of objects of all kinds, on one rank."""
    return 0.0 if agents is None else sum(count_of(kind.per, agents) * kind.bytes_per_rank for kind in plan.kinds)


def check_sizes(plan: AgentPlan | None, agents: AgentArrays | None) -> None:
    """Refuse objects of the workload that are larger than their places.

    Raises:
        ObjectsDoNotFit: names the larger and the smaller size.
    """
    if plan is None or agents is None:
        return
    largest = int(agents.adapter_rank.max(initial=0))
    for kind in plan.kinds:
        if 0 < kind.rank < largest:
            raise ObjectsDoNotFit(
                f"an adapter of the workload has rank {largest}; agents.adapters.rank of the deployment is {kind.rank}"
            )
        most = int(_given_bytes(agents, kind.per).max(initial=0))
        if 0 < kind.whole_bytes * _FILE_SHARE < most:
            where = "agents.adapters" if kind.per == "adapter" else f"agents.objects: {kind.name}:"
            raise ObjectsDoNotFit(
                f"{'an' if kind.per == 'adapter' else 'a'} {kind.per} of the workload takes {most / 2**20:.1f} MiB; "
                f"{where} of the deployment has places of {kind.whole_bytes / 2**20:.1f} MiB"
            )


def _given_bytes(agents: AgentArrays, per: str) -> np.ndarray:
    """Sizes of the workload's objects of a kind, 0: as the deployment says; empty where it gives none."""
    given = {"adapter": agents.adapter_bytes, "memory": agents.memory_bytes}
    return given.get(per, np.zeros(0, np.int64))


def object_of(agents: AgentArrays, per: str) -> np.ndarray:
    """Each agent's object of a kind, or -1; shape (A,)."""
    count = len(agents.adapter)
    if per == "adapter":
        return agents.adapter
    if per == "memory":
        return agents.memory if len(agents.memory) else np.full(count, -1)
    return np.zeros(count, np.int64) if per == "all" else np.arange(count)


def _shares(agents: AgentArrays, kind: KindPlan) -> np.ndarray:
    """Sizes of the workload's objects of a kind as shares of the deployment's, by bytes, else by rank; 0: not given.

    Shape (as many as are known,).
    """
    ranks = agents.adapter_rank / kind.rank if kind.per == "adapter" and kind.rank else np.zeros(0)
    given = _given_bytes(agents, kind.per)
    if not len(given) or not kind.whole_bytes:
        return ranks
    by_rank = np.zeros(len(given))
    by_rank[: len(ranks)] = ranks[: len(given)]
    return np.where(given > 0, np.minimum(given / kind.whole_bytes, 1.0), by_rank)


def scale(things: Any, agents: AgentArrays, kind: KindPlan, plan: AgentPlan) -> None:
    """Shorten loads and reads of a kind's objects, ``things``, whose size is known and below the deployment's."""
    shares = _shares(agents, kind)
    known = np.flatnonzero(shares[: len(things)])
    share = shares[known]
    things["load_s"][known] = plan.link_latency_s + (kind.load_s - plan.link_latency_s) * share
    if kind.read_s:
        things["read_s"][known] = plan.disk_latency_s + (kind.read_s - plan.disk_latency_s) * share
