"""A worker's LoRA adapters, compiled: slots, seconds, what they add to a step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LoraPlan:
    """How a worker serves adapters.

    Attributes:
        slots: adapters that a batch may have.
        rank: largest rank of an adapter; 0: any.
        most_adapters: that the server holds; 0: any number.
        copies: adapters that host memory holds, with a disk behind it; 0: all of them, from the beginning.
        base_slot: whether the base model takes a slot of its own.
        fifo: whether the adapter that came first is evicted first, rather than the least recently used.
        overlaps: whether adapters are copied beside steps.
        drain_wait_s: wait after which running adapters make room for one that waits; 0: never.
        load_latency_s, load_s: of a copy of an adapter of the largest rank from host memory into a slot: its fixed
            part, and all of it.
        read_latency_s, read_s: likewise of a read from the disk.
        base_s: that serving adapters adds to a step without any.
        step_s, adapter_s, token_s: that adapters add to a step that has any, for each of them, for each of their
            tokens.
        adapter_j, token_j: likewise, joules.
        slot_bytes: of a slot, on one rank.
    """

    slots: int
    rank: int = 0
    most_adapters: int = 0
    copies: int = 0
    base_slot: bool = False
    fifo: bool = False
    overlaps: bool = False
    drain_wait_s: float = 0.0
    load_latency_s: float = 0.0
    load_s: float = 0.0
    read_latency_s: float = 0.0
    read_s: float = 0.0
    base_s: float = 0.0
    step_s: float = 0.0
    adapter_s: float = 0.0
    token_s: float = 0.0
    adapter_j: float = 0.0
    token_j: float = 0.0
    slot_bytes: float = 0.0
