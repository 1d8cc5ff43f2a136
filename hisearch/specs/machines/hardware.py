"""Kinds ``Accelerator``, ``Medium``, ``Host`` and ``Fabric``: the hardware catalogue."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from hisearch.specs.base import (
    Count,
    DType,
    Fraction,
    NonNegative,
    NonNegativeInt,
    Positive,
    Price,
    Provenance,
    Strict,
    check_price_range,
)
from hisearch.specs.errors import KeyedError
from hisearch.specs.machines.host import HostProcessor
from hisearch.specs.machines.systolic import SystolicSpec

ScopeName = Literal["worker", "node", "cluster"]


class LinkSpec(Strict):
    """A point-to-point link: ``seconds = latency_s + bytes / bandwidth_bytes_per_s`` (one direction)."""

    kind: Literal["nvlink", "pcie", "infiniband", "roce", "ethernet", "cxl"] = Field(
        description="nvlink: KV between workers passes no slot, and vLLM keeps room for fused all-reduces. pcie: a "
        "card without a profile has collectives as measured on the nearest such link. Of devices, pcie and cxl pass "
        "the accelerator's slot. Else for the reader."
    )
    bandwidth_bytes_per_s: Positive = Field(description="One direction.")
    latency_s: NonNegative = Field(description="Fixed cost of a transfer.")
    energy_j_per_byte: NonNegative = Field(0.0, description="Of a byte sent, both ends together.")


class DeratingSpec(Strict):
    """What kernels attain of an accelerator's peaks, over what they attain of those of the measured accelerators."""

    flops: Fraction = Field(description="Of peak_flops.")
    bandwidth: Fraction = Field(description="Of memory_bandwidth_bytes_per_s.")
    source: str = Field(min_length=1, description="Where it was measured.")


class AcceleratorSpec(Strict):
    """One accelerator, by its data sheet. FLOP/s are dense (no structured sparsity)."""

    memory_bytes: Positive = Field(description="Device memory as the driver reports it (nvidia-smi's total).")
    reserved_bytes: NonNegative | None = Field(
        None,
        description="What CUDA does not offer of memory_bytes: that less PyTorch's total_memory. 0.47 GiB and 0.1 % of "
        "memory_bytes where absent.",
    )
    memory_bandwidth_bytes_per_s: Positive = Field(description="Peak of the device memory.")
    in_band_ecc: bool | None = Field(
        None,
        description="Whether error correction is on whose bits lie in the memory itself, as with GDDR6 (HBM and GDDR7 "
        "have room of their own): they take 1/16 of it, which memory_bytes lacks already, and of the bandwidth where "
        "laws are carried between cards with it and without. As the laws' card where absent.",
    )
    peak_flops: dict[DType, Positive] = Field(min_length=1, description="Dense peak by operand format.")
    peer_link: LinkSpec = Field(
        description="Between accelerators of one host, or of its peer domain, per accelerator and direction, at the "
        "link's full rate; the share that collectives attain is the latency profile's. Its latency counts where none "
        "were measured, for sends between pipeline stages, and for FFNs apart."
    )
    peer_ranks: Count | None = Field(
        None,
        description="Accelerators that peer_link joins, as bridges do; more of them talk over host_link between such "
        "groups. All of a host, or of its peer domain, where absent.",
    )
    host_link: LinkSpec = Field(
        description="Between the accelerator and host memory, per direction, at the rate large pinned copies attain. "
        "Devices attached over PCIe or CXL share its bandwidth."
    )
    host_processor: HostProcessor = Field(
        "x86", description="Of its host, which an engine's host work runs on: where a profile is carried over to it."
    )
    multiprocessors: Count | None = Field(
        None,
        description="Of an NVIDIA GPU without a profile, to which the laws of the nearest measured one are carried.",
    )
    compute_capability: Positive | None = Field(
        None, description="NVIDIA's, which decides which attention kernels vLLM runs; unknown where absent."
    )
    derating: DeratingSpec | None = Field(
        None, description="Of another vendor's GPU without a profile, to which they are carried likewise."
    )
    systolic: SystolicSpec | None = Field(
        None, description="Its systolic arrays, whose law prices operators in place of the roofline."
    )
    host: str | None = Field(None, description="Name or path of the Host that usually carries it.")
    idle_w: NonNegative = Field(description="Draw when idle.")
    active_w: Positive = Field(description="Draw at full use: the board's power limit.")
    memory_w: Positive | None = Field(
        None,
        description="Draw while memory alone is busy, as in decodes of few sequences: idle_w to active_w, which it is "
        "where absent, as of GPUs with GDDR memory, which draw their limit.",
    )
    standby_w: NonNegative | None = Field(
        None, description="Draw in place of idle_w after standby_after_s without work; none of the kind where absent."
    )
    standby_after_s: NonNegative = Field(60.0, description="Seconds without work until standby.")
    wake_s: NonNegative = Field(0.0, description="From standby to the first step: it begins so much later.")
    wake_j: NonNegative = Field(0.0, description="Of one accelerator for each such start, beyond standby_w.")
    price: Price = Field(description="Of one accelerator, its share of the host included where the host costs 0.")
    provenance: Provenance = Field(description="Where the facts come from.")

    @property
    def worker_link(self) -> LinkSpec:
        """What joins it to accelerators of other workers: host_link where bridges join too few of them."""
        return self.peer_link if self.peer_ranks is None else self.host_link

    @model_validator(mode="after")
    def _check(self) -> AcceleratorSpec:
        if self.reserved_bytes is not None and self.reserved_bytes >= self.memory_bytes:
            message = f"must be less than memory_bytes {self.memory_bytes:g}, got {self.reserved_bytes:g}"
            raise KeyedError(("reserved_bytes",), message)
        if self.standby_w is None:
            for name in ("standby_after_s", "wake_s", "wake_j"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise KeyedError((name,), "goes with standby_w: without one there is no standby to enter or leave")
        if self.standby_w is not None and self.standby_w > self.idle_w:
            raise KeyedError(("standby_w",), f"must be at most idle_w {self.idle_w:g}, got {self.standby_w:g}")
        if self.memory_w is not None and not self.idle_w <= self.memory_w <= self.active_w:
            message = f"must be idle_w {self.idle_w:g} to active_w {self.active_w:g}, got {self.memory_w:g}"
            raise KeyedError(("memory_w",), message)
        return self


class MediumSpec(Strict):
    """A storage medium for KV cache.

    Pages of p bytes move in ``latency_s`` and the longer of ``bytes / bandwidth`` and ``operations * latency_s /
    queue_depth``, where operations are ``bytes / max(page_bytes, p)``. A store larger than one device
    is made of as many as it takes; their bandwidths and queues add up.
    """

    kind: Literal["hbm", "dram", "cxl", "nvme", "remote"] = Field(
        description="Which of a host's sizes it counts against: dram its main memory, nvme its disks."
    )
    read_bytes_per_s: Positive = Field(description="Large reads, of one device, DIMM set or pool.")
    write_bytes_per_s: Positive = Field(description="Large writes, likewise.")
    latency_s: NonNegative = Field(description="Of one operation.")
    page_bytes: Count = Field(1, description="Smallest transfer.")
    queue_depth: Count = Field(1, description="Operations in flight.")
    capacity_bytes: Positive = Field(description="Size of one device, DIMM set or pool.")
    usd_per_gib_hour: NonNegative = Field(description="Price of what a tier takes of it.")
    range_usd_per_gib_hour: tuple[NonNegative, NonNegative] | None = Field(
        None, description="Least and most that it may turn out to be; exact where absent."
    )
    price_source: str = Field("", description="Price list, contract or assumption that the price was taken from.")
    energy_j_per_byte: NonNegative = Field(0.0, description="Of a byte read or written.")
    scope: ScopeName = Field(description="Who usually shares a store of it: a Tier's scope where that has none.")
    provenance: Provenance = Field(description="Where the facts come from.")

    @model_validator(mode="after")
    def _check(self) -> MediumSpec:
        check_price_range("range_usd_per_gib_hour", self.range_usd_per_gib_hour, self.usd_per_gib_hour)
        return self


class BasePartsSpec(Strict):
    """Parts of a host's ``base_w``; the remainder is fans, boards, conversion."""

    cpu_w: NonNegative = Field(0.0, description="CPUs that wait.")
    dram_w: NonNegative = Field(0.0, description="Main memory that is kept.")
    links_w: NonNegative = Field(0.0, description="Switches between the accelerators.")
    nics_w: NonNegative = Field(0.0, description="Network adapters.")
    storage_w: NonNegative = Field(0.0, description="Disks.")

    @property
    def total_w(self) -> float:
        """All that is stated."""
        return self.cpu_w + self.dram_w + self.links_w + self.nics_w + self.storage_w


class SharedLinkSpec(Strict):
    """What accelerators in neighbouring slots share on their way to host memory."""

    name: str = Field(min_length=1, description="For the reader: a PCIe switch, a root port, memory of a socket.")
    accelerators: Count = Field(description="Slots that share one of it; they divide the host's.")
    bandwidth_bytes_per_s: Positive = Field(description="Of one of it, one direction, for all of them together.")
    latency_s: NonNegative = Field(0.0, description="Of a transfer through it.")
    ports: bool = Field(
        False,
        description="Whether the network's ports lie behind it: KV between workers then passes it, but over NVLink. "
        "false: they are next to the slots, behind the same switch.",
    )


class HostSpec(Strict):
    """A server that carries accelerators.

    A shipped accelerator's price includes its share of such a server, so a shipped host costs 0. To account for them
    separately, give the host a price of its own and take the share out of the accelerators' prices.
    """

    accelerators: Count = Field(description="Accelerator slots.")
    peer_domain: Count | None = Field(
        None,
        description="Accelerators that peer links join across so many such hosts, those of a rack of NVL72: a stage "
        "may be as wide, on whole hosts. The slots where absent.",
    )
    dram: str = Field(description="Name or path of the Medium of its main memory.")
    dram_bytes: Positive = Field(description="Size of its main memory; doctor holds the workers' tiers against it.")
    nvme: str | None = Field(None, description="Name or path of the Medium of its disks; none where absent.")
    nvme_bytes: NonNegative = Field(0.0, description="Size of its disks; doctor holds the workers' tiers against it.")
    network: LinkSpec | None = Field(
        None, description="To stores that the cluster shares, for all its workers together; none where absent."
    )
    shared: list[SharedLinkSpec] = Field(
        default_factory=list,
        description="What copies between accelerators and host memory, or attached devices of the host, share beyond "
        "each accelerator's own link; nothing where absent.",
    )
    cpu_cores: NonNegativeInt = Field(0, description="For the reader.")
    cpu_sockets: NonNegativeInt | None = Field(
        None, description="Its CPUs: most attached devices of kind cpu that it takes; any number where absent."
    )
    base_w: NonNegative = Field(
        0.0, description="Draw of all but the accelerators while nothing runs; pools count it by the slots they use."
    )
    base_parts: BasePartsSpec = Field(
        BasePartsSpec(), description="What of base_w is whose, for energy by component; unstated parts are in the rest."
    )
    cpu_active_w: NonNegative = Field(0.0, description="Beyond base_w, while the workers on it step; likewise.")
    usd_per_kwh: NonNegative = Field(
        0.0,
        description="Price of electricity, added to the dollars per hour; 0 where prices include it, as clouds do.",
    )
    pue: Annotated[float, Field(ge=1)] = Field(
        1.0, description="Watts that the site draws for each watt of its machines, for the price of electricity."
    )
    price: Price = Field(description="Of the whole host, on top of its accelerators; pools pay by the slots they use.")
    provenance: Provenance = Field(description="Where the facts come from.")

    @property
    def reach(self) -> int:
        """Accelerators that peer links join."""
        return self.peer_domain if self.peer_domain is not None else self.accelerators

    @model_validator(mode="after")
    def _check(self) -> HostSpec:
        if self.reach % self.accelerators:
            message = f"must be whole hosts of {self.accelerators} accelerators, got {self.reach}"
            raise KeyedError(("peer_domain",), message)
        for index, link in enumerate(self.shared):
            if self.accelerators % link.accelerators:
                message = f"is {link.accelerators}, which does not divide the host's {self.accelerators} slots"
                raise KeyedError(("shared", index, "accelerators"), message)
        if self.base_parts.total_w > self.base_w:
            message = f"the parts draw {self.base_parts.total_w:g} W, more than base_w, {self.base_w:g} W"
            raise KeyedError(("base_parts",), message)
        return self


class FabricSpec(Strict):
    """Links between hosts, which carry KV transfers from prefill to decode workers."""

    topology: Literal["switch", "ring", "fully_connected"] = Field("switch", description="How hosts are connected.")
    link: LinkSpec = Field(description="Of one port.")
    provenance: Provenance = Field(description="Where the facts come from.")
