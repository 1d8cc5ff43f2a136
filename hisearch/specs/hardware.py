"""Kinds ``Accelerator``, ``Medium``, ``Host`` and ``Fabric``: the hardware catalogue."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hisearch.specs.base import Count, DType, NonNegative, NonNegativeInt, Positive, Price, Provenance, Strict


class LinkSpec(Strict):
    """A point-to-point link: ``seconds = latency_s + bytes / bandwidth_bytes_per_s`` (one direction)."""

    kind: Literal["nvlink", "pcie", "infiniband", "roce", "ethernet", "cxl"]
    bandwidth_bytes_per_s: Positive
    latency_s: NonNegative


class AcceleratorSpec(Strict):
    """One accelerator, by its data sheet. FLOP/s are dense (no structured sparsity)."""

    memory_bytes: Positive = Field(description="Device memory as the driver reports it (nvidia-smi's total).")
    memory_bandwidth_bytes_per_s: Positive
    peak_flops: dict[DType, Positive] = Field(min_length=1, description="Dense peak FLOP/s per operand format.")
    peer_link: LinkSpec = Field(
        description="Between accelerators of one host, per accelerator and direction, at the link's full rate; "
        "the share that collectives attain is the latency profile's."
    )
    host_link: LinkSpec = Field(
        description="Between the accelerator and host memory, per direction, at the rate large pinned copies attain."
    )
    host: str | None = Field(None, description="Host kind that usually carries it.")
    idle_w: NonNegative
    active_w: Positive
    price: Price
    provenance: Provenance


class MediumSpec(Strict):
    """A storage medium for KV cache."""

    kind: Literal["hbm", "dram", "cxl", "nvme", "remote"]
    read_bytes_per_s: Positive
    write_bytes_per_s: Positive
    latency_s: NonNegative
    page_bytes: Count = 1
    queue_depth: Count = 1
    capacity_bytes: Positive = Field(description="Size of one device, DIMM set or pool.")
    usd_per_gib_hour: NonNegative
    energy_j_per_byte: NonNegative = 0.0
    scope: Literal["worker", "node", "cluster"]
    provenance: Provenance


class HostSpec(Strict):
    """A server that carries accelerators.

    A shipped accelerator's price includes its share of such a server, so a shipped host costs 0; give the host a price
    of its own, and take the share out of the accelerators', to account for them apart.
    """

    accelerators: Count = Field(description="Accelerator slots.")
    dram: str = Field(description="Medium of its main memory.")
    dram_bytes: Positive
    nvme: str | None = None
    nvme_bytes: NonNegative = 0.0
    cpu_cores: NonNegativeInt = 0
    base_w: NonNegative = 0.0
    price: Price
    provenance: Provenance


class FabricSpec(Strict):
    """Links between hosts."""

    topology: Literal["switch", "ring", "fully_connected"] = "switch"
    link: LinkSpec
    provenance: Provenance
