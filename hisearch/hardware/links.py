"""Point-to-point links: seconds = latency + bytes / bandwidth (law L4)."""

from __future__ import annotations

from hisearch.specs.machines.hardware import LinkSpec


def transfer_s(payload_bytes: float, link: LinkSpec) -> float:
    """Seconds to move ``payload_bytes`` over ``link`` in one direction; 0 for an empty payload.

    Raises:
        ValueError: the payload is negative.
    """
    if payload_bytes < 0:
        raise ValueError(f"payload_bytes {payload_bytes} is negative")
    return link.latency_s + payload_bytes / link.bandwidth_bytes_per_s if payload_bytes else 0.0
