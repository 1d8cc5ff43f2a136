"""Notes for operators of an export: slots, weights, network security."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from hisearch.export.engines.flags import Launch, needs_checkpoint
from hisearch.latency.parameters import weight_bytes_per_rank
from hisearch.specs.wording import counted, listed


def format_slots(taken: Iterable[tuple[int, int]], slots: Sequence[int]) -> str:
    """Hosts and slots as text, with idle slots and the share of them in the predicted cost.

    Args:
        taken: (host, accelerators that one server takes there) of every server.
        slots: accelerator slots of each host, by its number.
    """
    used = [0] * len(slots)
    for host, count in taken:
        used[host] += count
    kinds = dict.fromkeys(slots)
    text = listed([f"{counted(slots.count(size), 'host')} with {counted(size, 'accelerator slot')}" for size in kinds])
    text += " each." if len(slots) > 1 and len(kinds) == 1 else "."
    idle = [
        f"{size - count} of host {host}"
        for host, (count, size) in enumerate(zip(used, slots, strict=True))
        if count < size
    ]
    if not idle:
        return f"{text} All are used."
    return (
        f"{text} Idle: {listed(idle)}. The predicted cost is that of the {sum(used)} accelerators in use, with their "
        f"share of the hosts: where whole hosts are paid for, it is that of {sum(slots)}."
    )


def security_note(listening: str, port: int, routed: bool) -> str:
    """A note on ports that listen without authentication.

    Args:
        listening: noun for the servers: replicas, servers.
        port: used by clients.
        routed: whether clients talk to a router.
    """
    if not routed:
        return (
            f"Port {port} asks nobody for authentication and listens on all addresses (`LISTEN`): keep it inside your "
            "network, or put a gateway that authenticates before it."
        )
    return (
        f"Neither the {listening} nor the router ask for authentication, and the router listens on port {port} of all "
        f"addresses (`LISTEN`): keep the ports of the {listening} to the router, and its own inside your network or "
        "behind a gateway that authenticates."
    )


def weights_gib(launches: Iterable[Launch]) -> int:
    """GiB of the largest checkpoint to download: the published one, or another format where needed."""
    return max(math.ceil(_download_bytes(launch) / 2**30) for launch in launches)


def _download_bytes(launch: Launch) -> float:
    published = launch.model.weight_dtype
    weight_dtype = published if needs_checkpoint(launch) is None else launch.pool.weight_dtype or published
    return weight_bytes_per_rank(launch.model, 1, weight_dtype)
