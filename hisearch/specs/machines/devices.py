"""Kind ``Device``, and devices attached to a worker's accelerators: PIM, CXL memory, NPUs, the host's CPU."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

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
    Seed,
    Strict,
)
from hisearch.specs.errors import KeyedError
from hisearch.specs.machines.hardware import LinkSpec
from hisearch.specs.machines.systolic import SystolicSpec

#: Families of a layer's operators, in the order of their dependencies, and the LM head.
OperatorName = Literal["projections", "prefill_attention", "decode_attention", "ffn", "experts", "lm_head"]
OPERATORS: tuple[OperatorName, ...] = (
    "projections", "prefill_attention", "decode_attention", "ffn", "experts", "lm_head",
)  # fmt: skip

#: Of these, what attached devices may have where the FFN has accelerators of its own.
ATTENTION: tuple[OperatorName, ...] = ("prefill_attention", "decode_attention")

#: Unit of KV cache that one channel of PIM holds.
PimMapping = Literal["heads", "requests", "striped"]

#: Kinds of attached devices.
DeviceKind = Literal["gpu", "npu", "pim", "cxl", "cpu"]

#: Name of the worker's own accelerator in mappings.
ACCELERATOR = "accelerator"


class PimSpec(Strict):
    """Processing in memory: units next to the DRAM banks, which all read at once."""

    standard: str = Field(min_length=1, description="DRAM standard, for the reader.")
    channels: Count = Field(description="Channels; memory and rates below are of one.")
    banks: Count = Field(description="Banks of a channel that compute at once, for the reader.")
    channel_bytes: Positive = Field(description="Memory of a channel.")
    channel_bytes_per_s: Positive = Field(description="What a channel moves over its pins.")
    internal_speedup: Positive = Field(description="What its banks read for their units, as a multiple of that.")
    flops_per_byte: Positive = Field(
        1.0,
        description="FLOPs of the units for each byte read so; 1: a 16-bit element meets one vector at a time, and a "
        "matrix is read again for each further one.",
    )
    efficiency: Fraction = Field(
        description="Share of the internal rate that matrix-vector products attain: rows must be activated."
    )
    product_s: NonNegative = Field(
        description="Fixed cost of one product in a channel: its vector is written, rows are filled in part."
    )
    softmax_scores_per_s: Positive | None = Field(
        None,
        description="Attention scores that units of its own normalise; the accelerator does it where absent, and "
        "scores and probabilities cross the link. Without effect on decode attention that operators has.",
    )
    mapping: PimMapping = Field(
        "heads",
        description="What one channel holds: the KV of a head of a request, of a request, or a stripe of everything.",
    )
    stripe_channels: Count = Field(
        1, description="heads, requests: channels over which the KV of one is striped; each pays product_s."
    )


class SheetSpec(Strict):
    """A roofline: peaks, and the shares of them that are attained."""

    peak_flops: dict[DType, Positive] = Field(min_length=1, description="Dense peak by operand format.")
    flops: Fraction = Field(description="Share of the peak that is attained.")
    bandwidth: Fraction = Field(description="Share of the memory bandwidth that is attained.")
    launch_s: NonNegative = Field(0.0, description="Fixed cost of an operator.")


class DeviceSpec(Strict):
    """A device attached to a worker's accelerators. Without a law (sheet, systolic, pim) it is memory alone."""

    kind: DeviceKind = Field(description="For the reader and the energy figures.")
    memory_bytes: Positive = Field(description="All of it.")
    memory_bandwidth_bytes_per_s: Positive = Field(
        description="As its own operators, and transfers to and from it, see it; PIM: of all channels' pins."
    )
    sheet: SheetSpec | None = Field(None, description="Law of a processor that is known by its sheet.")
    systolic: SystolicSpec | None = Field(None, description="Law of systolic arrays.")
    pim: PimSpec | None = Field(None, description="Law of processing in memory.")
    operators: str | None = Field(
        None,
        description="CSV of measured or simulated operators of one device, latencies and joules, which come before its "
        "law or stand in for one (docs/hardware.md). decode_attention has its softmax, wherever that ran.",
    )
    link: LinkSpec | None = Field(None, description="To the accelerator that it is attached to; none where absent.")
    idle_w: NonNegative = Field(description="Draw when idle.")
    active_w: NonNegative = Field(0.0, description="Draw at full use, of a sheet or systolic arrays.")
    internal_j_per_byte: NonNegative = Field(0.0, description="Of a byte that PIM reads inside.")
    flop_j: NonNegative = Field(0.0, description="Of a FLOP of PIM.")
    link_j_per_byte: NonNegative = Field(0.0, description="Of a byte over the link, both ends and the memory.")
    price: Price = Field(description="Of one.")
    provenance: Provenance = Field(description="Where the facts come from.")

    @model_validator(mode="after")
    def _check(self) -> DeviceSpec:
        laws = [name for name in ("sheet", "systolic", "pim") if getattr(self, name) is not None]
        if len(laws) > 1:
            raise ValueError(f"{' and '.join(laws)}: a device has one law at most")
        if self.pim is not None and self.pim.channels * self.pim.channel_bytes != self.memory_bytes:
            raise KeyedError(
                ("memory_bytes",),
                f"is {self.memory_bytes:g}, but {self.pim.channels} channels of {self.pim.channel_bytes:g} bytes "
                f"are {self.pim.channels * self.pim.channel_bytes:g}",
            )
        if self.pim is not None:
            pins = self.pim.channels * self.pim.channel_bytes_per_s
            if abs(self.memory_bandwidth_bytes_per_s - pins) > 1e-3 * pins:
                raise KeyedError(
                    ("memory_bandwidth_bytes_per_s",),
                    f"is {self.memory_bandwidth_bytes_per_s:g}, but {self.pim.channels} channels of "
                    f"{self.pim.channel_bytes_per_s:g} bytes/s are {pins:g}",
                )
        if self.link is not None and self.link.energy_j_per_byte:
            raise KeyedError(("link", "energy_j_per_byte"), "is stated as the device's link_j_per_byte")
        if self.pim is None and (self.internal_j_per_byte or self.flop_j):
            stated = "internal_j_per_byte" if self.internal_j_per_byte else "flop_j"
            raise KeyedError((stated,), "is of PIM alone; active_w has the joules of other devices")
        if self.active_w and not (self.sheet or self.systolic):
            raise KeyedError(("active_w",), "is of a sheet or of systolic arrays; this device has neither")
        if (self.sheet or self.systolic) and self.active_w < self.idle_w:
            raise KeyedError(("active_w",), f"is {self.active_w:g}, less than idle_w {self.idle_w:g}")
        return self


class AttachedDeviceSpec(Strict):
    """A device attached to each accelerator of a worker."""

    device: str = Field(description="Name or path of a Device.")
    count: Count = Field(1, description="Devices attached to each accelerator, working as one: links add up.")
    shared_by: Count = Field(
        1,
        description="Accelerators among which they are divided: each has its part of memory and rates, over a link of "
        "its own. Whole ones are bought and draw power, for each host, or for the pool where a host has fewer slots.",
    )
    mapping: PimMapping | None = Field(
        None, description="PIM: what a channel holds, as a Device's pim.mapping, whose own where absent."
    )
    stripe_channels: Count | None = Field(
        None, description="PIM: channels of one head or request, as a Device's pim.stripe_channels, likewise."
    )

    @property
    def number(self) -> float:
        """An accelerator's part of them; less than one where accelerators share them."""
        return self.count / self.shared_by

    def whole(self, accelerators: int) -> int:
        """Devices that so many accelerators need, which share them."""
        return -(-accelerators // self.shared_by) * self.count


class DirectLinkSpec(Strict):
    """A link between two devices; it comes before a device's own link."""

    between: tuple[str, str] = Field(description="Two names of the map; accelerator is the accelerator.")
    link: LinkSpec = Field(description="One direction.")


class StreamedSpec(Strict):
    """Weights that lie on another device and are read layer by layer, each while the layer before it runs."""

    device: str = Field(description="Where they lie: a name of attached.")
    layers: Count = Field(description="Layers whose weights lie there.")
    operators: list[Literal["projections", "ffn", "experts"]] = Field(
        default=["projections", "ffn", "experts"], min_length=1, description="Of these layers, which operators."
    )


class ExpertRoutingSpec(Strict):
    """How tokens choose experts."""

    kind: Literal["balanced", "round_robin", "random", "zipf", "histogram", "function"] = Field(
        "random",
        description="balanced: every expert equally often in each step; round_robin: in turn; random: even and "
        "independent; zipf: independent, the i-th expert in proportion to i ** -exponent; histogram: to weights; "
        "function: by a function of your own.",
    )
    function: str | None = Field(
        None,
        pattern=r"^[\w.]+:\w+$",
        description="function: MODULE:NAME, to be imported. Called with (tokens, layer, experts, per_token, rng), it "
        "returns how many of the tokens choose each expert, per_token each in all.",
    )
    exponent: NonNegative = Field(1.0, description="zipf.")
    weights: list[NonNegative] = Field(default_factory=list, description="histogram: of each expert, in any unit.")
    layers: list[list[NonNegative]] = Field(
        default_factory=list, description="histogram, in place of weights: those of every layer that has experts."
    )
    seed: Seed = Field(0, description="Of the draws by which the busiest rank is found.")

    @model_validator(mode="after")
    def _check(self) -> ExpertRoutingSpec:
        if self.weights and self.layers:
            raise KeyedError(("layers",), "go in place of weights: give one of the two")
        if (self.kind == "histogram") != bool(self.weights or self.layers):
            raise KeyedError(("weights",), "go with kind histogram, and only with it; so do layers")
        if (self.kind == "function") != (self.function is not None):
            raise KeyedError(("function",), "goes with kind function, and only with it")
        if self.weights and not any(self.weights):
            raise KeyedError(("weights",), "needs one above 0")
        return self


class ExpertOffloadSpec(Strict):
    """Experts that lie on another device."""

    device: str = Field(description="Where they lie: a name of attached.")
    resident: NonNegativeInt = Field(description="Experts of each layer that have a place on the accelerator.")
    run: Literal["fetch", "there"] = Field(
        "fetch", description="fetch: bring an expert that is needed; there: the device runs those that it holds."
    )
    eviction: Literal["static", "lru", "fifo"] = Field(
        "lru", description="fetch: who leaves; static: the most popular stay and others pass through."
    )
    predicted: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0, description="fetch: share of the missing experts that is foreseen, and fetched while a layer runs."
    )


class ExpertsSpec(Strict):
    """Routing, placement and offloading of experts."""

    routing: ExpertRoutingSpec = Field(ExpertRoutingSpec(), description="How tokens choose.")
    placement: Literal["in_order", "by_load"] = Field(
        "in_order", description="Experts of a rank: in order, or dealt so that loads are even."
    )
    replicas: NonNegativeInt = Field(0, description="Further copies of the most loaded experts, for each layer.")
    offload: ExpertOffloadSpec | None = Field(None, description="None: all lie on the accelerators.")


class AttentionFfnSpec(Strict):
    """Attention and FFN on accelerators of their own, micro-batches going back and forth."""

    attention: Count = Field(description="Attention workers, each of tensor_parallel accelerators, that share …")
    ffn: Count = Field(description="… so many FFN accelerators: dense FFNs split by width, experts dealt out.")
    micro_batches: Count = Field(2, description="Parts of a batch that are under way at once.")
    ffn_accelerator: str | None = Field(None, description="Name or path of an Accelerator; the pool's where absent.")
    link: LinkSpec | None = Field(None, description="Of each accelerator; the peer link where absent.")


#: How ranks along one dimension of a network reduce and gather.
CollectiveAlgorithm = Literal["ring", "halving_doubling", "tree", "direct", "in_network"]

#: Algorithms that each topology takes, the first where none is stated.
_ALGORITHMS: dict[str, tuple[CollectiveAlgorithm, ...]] = {
    "ring": ("ring",),
    "torus": ("ring",),
    "fully_connected": ("direct",),
    "switch": ("halving_doubling", "ring", "tree", "direct", "in_network"),
}


class DimensionSpec(Strict):
    """One dimension of a network."""

    topology: Literal["ring", "fully_connected", "switch", "torus"] = Field(
        description="ring: both neighbours; torus: a ring in a mesh, the same law; switch: one port each."
    )
    ranks: Count = Field(description="Along it.")
    bandwidth_bytes_per_s: Positive = Field(description="Of each rank in this dimension, one direction, all its links.")
    latency_s: NonNegative = Field(description="Of one hop.")
    energy_j_per_byte: NonNegative | None = Field(
        None,
        description="Of a byte over one hop, both ends together. The accelerator's peer link's where absent; of a "
        "switch, whose two hops are such a link, half of it.",
    )
    oversubscription: Annotated[float, Field(ge=1, allow_inf_nan=False)] = Field(
        1.0, description="switch: how much less its core carries than its ports."
    )
    algorithm: CollectiveAlgorithm | None = Field(
        None,
        description="Of reductions and gathers. switch: halving_doubling where absent, ring, tree, direct (a kernel "
        "reads all peers at once), in_network (the switch reduces); ring, torus: ring; fully_connected: direct.",
    )

    @property
    def taken(self) -> CollectiveAlgorithm:
        """The algorithm, stated or not."""
        return self.algorithm or _ALGORITHMS[self.topology][0]

    @model_validator(mode="after")
    def _check(self) -> DimensionSpec:
        known = _ALGORITHMS[self.topology]
        if self.taken not in known:
            raise KeyedError(("algorithm",), f"is {self.taken}; a {self.topology} has {', '.join(known)}")
        if self.oversubscription > 1.0 and self.topology != "switch":
            raise KeyedError(("oversubscription",), f"is of a switch's core; a {self.topology} has none")
        return self


class NetworkSpec(Strict):
    """A network of several dimensions, the innermost first; ranks are numbered along it in that order."""

    dimensions: list[DimensionSpec] = Field(min_length=1, max_length=6, description="Innermost first.")


class DevicesSpec(Strict):
    """Devices attached to a worker's accelerators: which operators run where, and what moves between them."""

    renamed: ClassVar[dict[str, str]] = {"beside": "attached"}

    attached: dict[str, AttachedDeviceSpec] = Field(
        default_factory=dict, description="Devices by the names that follow."
    )
    mapping: Literal["by_hand", "by_intensity", "greedy"] = Field(
        "by_hand",
        description="by_hand: operators says it; by_intensity: those below a device's balance leave the accelerator; "
        "greedy: each, in the order of dependencies, to where it and its transfers end first.",
    )
    operators: dict[OperatorName, str] = Field(
        default_factory=dict, description="Operator -> a name of attached, or accelerator; comes before any policy."
    )
    others: str | None = Field(
        ACCELERATOR, description="by_hand: where operators that are not listed run; null: all must be listed."
    )
    sequences: Count = Field(64, description="Decodes of the step for which a policy judges operators.")
    context_tokens: Count = Field(1024, description="Context of each of them.")
    attention: Literal["batched", "by_request"] = Field(
        "batched",
        description="by_request: decodes' attention is an operator of its own for each request, one after the other, "
        "and the rest is batched: Orca's selective batching.",
    )
    kv: str | None = Field(None, description="Where the KV cache lies; with decode_attention where absent.")
    schedule: Literal["serial", "interleaved", "best"] = Field(
        "serial",
        description="serial: one operator after the other; interleaved: a batch in two halves, one on each device at a "
        "time; best: whichever is faster for the step.",
    )
    links: list[DirectLinkSpec] = Field(default_factory=list, description="Beyond the devices' own.")
    streamed: list[StreamedSpec] = Field(default_factory=list, description="Weights that lie elsewhere.")
    experts: ExpertsSpec | None = Field(None, description="Routing, placement and offloading of experts.")
    attention_ffn: AttentionFfnSpec | None = Field(None, description="Attention and FFN on separate accelerators.")
    network: NetworkSpec | None = Field(None, description="Of the worker's accelerators; their peer link where absent.")

    @model_validator(mode="after")
    def _check(self) -> DevicesSpec:
        if ACCELERATOR in self.attached:
            raise KeyedError(("attached", ACCELERATOR), "is the accelerator's own name")
        known = [ACCELERATOR, *self.attached]
        named: list[tuple[tuple[str | int, ...], str | None]] = [
            *((("operators", operator), name) for operator, name in self.operators.items()),
            (("others",), self.others),
            (("kv",), self.kv),
            *((("streamed", i, "device"), entry.device) for i, entry in enumerate(self.streamed)),
            *((("links", i, "between", j), entry.between[j]) for i, entry in enumerate(self.links) for j in (0, 1)),
        ]
        if self.experts is not None and self.experts.offload is not None:
            named.append((("experts", "offload", "device"), self.experts.offload.device))
        for keypath, name in named:
            if name is not None and name not in known:
                raise KeyedError(keypath, f"no device '{name}'; known: {', '.join(known)}")
        for i, entry in enumerate(self.links):
            if entry.between[0] == entry.between[1]:
                raise KeyedError(("links", i, "between"), f"joins {entry.between[0]} with itself")
        for name in ("sequences", "context_tokens"):
            if self.mapping == "by_hand" and getattr(self, name) != type(self).model_fields[name].default:
                raise KeyedError((name,), "is of the step by which a policy maps operators; mapping is by_hand")
        missing = [operator for operator in OPERATORS if operator not in self.operators]
        if self.mapping == "by_hand" and self.others is None and missing:
            raise KeyedError(("operators",), f"no device for {', '.join(missing)}")
        offload = self.experts.offload if self.experts is not None else None
        if offload is not None and offload.device == ACCELERATOR:
            raise KeyedError(("experts", "offload", "device"), "needs another device than the accelerator")
        if self.attention_ffn is not None:
            self._check_attention_ffn(offload)
        return self

    def _check_attention_ffn(self, offload: ExpertOffloadSpec | None) -> None:
        """Attached devices may have attention and KV; the FFN has accelerators of its own, micro-batches are stated."""
        elsewhere = [name for name in self.operators if name not in ATTENTION]
        stated = {
            "operators": elsewhere, "mapping": self.mapping != "by_hand", "others": self.others != ACCELERATOR,
            "schedule": self.schedule != "serial", "streamed": self.streamed, "experts.offload": offload,
        }  # fmt: skip
        for name, value in stated.items():
            if value:
                what = f"{', '.join(elsewhere)} of operators" if name == "operators" else name
                raise KeyedError(
                    ("attention_ffn",),
                    f"goes without {what}: FFN and experts have accelerators of their own, and micro_batches are the "
                    f"schedule; {' and '.join(ATTENTION)} may be on attached devices",
                )
