"""Builds a worker's devices: laws of seconds and joules for each, and the links between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from hisearch.hardware.host_path import to_host
from hisearch.hardware.peaks import sheet_peaks
from hisearch.hardware.power import memory_power_share, worker_dynamic_w
from hisearch.latency.devices.laws import ALL_KINDS, FamilyRate, Law, PimEnergy, PimLaw, SheetLaw, SystolicLaw
from hisearch.latency.devices.measured import MeasuredLaw, read_operators
from hisearch.latency.devices.work import WorkKind
from hisearch.specs.base import DType
from hisearch.specs.machines.devices import (
    ACCELERATOR,
    AttachedDeviceSpec,
    DeviceKind,
    DeviceSpec,
    DevicesSpec,
    PimSpec,
)
from hisearch.specs.machines.hardware import AcceleratorSpec, LinkSpec, SharedLinkSpec
from hisearch.specs.machines.profile import Efficiency, LatencyProfileSpec

#: Kinds of devices that are the host's, or plugged into it, on the way to its memory.
HOST_KINDS: frozenset[DeviceKind] = frozenset({"cpu", "cxl"})

#: Kinds of links that reach an accelerator through its slot.
SLOT_KINDS = frozenset({"pcie", "cxl"})


class DevicesRefused(ValueError):  # noqa: N818
    """A worker cannot have this devices block; says which key and why."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"devices.{key}: {message}")
        self.key = f"devices.{key}"
        self.message = message


@dataclass(frozen=True)
class WorkerDevices:
    """A pool's devices block with its catalogue entries; all figures are per accelerator.

    devices: by the names of ``spec.attached``.
    ffn_accelerator: of attention-FFN disaggregation; None: the pool's accelerator.
    shared: what neighbouring slots share on the way to the host, where devices of ``HOST_KINDS`` are.
    """

    spec: DevicesSpec
    devices: Mapping[str, DeviceSpec]
    ffn_accelerator: AcceleratorSpec | None = None
    shared: tuple[SharedLinkSpec, ...] = ()

    @property
    def key(self) -> str:
        """A string of all fields, equal only for equal blocks."""
        attached = "".join(f"{name}:{device.model_dump_json()}" for name, device in sorted(self.devices.items()))
        ffn = self.ffn_accelerator.model_dump_json() if self.ffn_accelerator is not None else ""
        shared = "".join(part.model_dump_json() for part in self.shared)
        return f"{self.spec.model_dump_json()}{attached}{ffn}{shared}"

    def memory_bytes(self, name: str) -> float:
        """Memory of all devices of that name attached to one accelerator."""
        return self.devices[name].memory_bytes * self.spec.attached[name].number


@dataclass(frozen=True)
class Device:
    """A device of a worker.

    seconds, joules: None for memory only.
    kind: its component in energy figures.
    leaves_scores: whether the law of its attention leaves scores to be normalised, as PIM's does; measured attention
        is all of it. softmax_scores_per_s: what its own units normalise of them, if any.
    """

    name: str
    kind: str
    seconds: Law | None
    joules: Law | None
    memory_bytes_per_s: float
    link_j_per_byte: float = 0.0
    leaves_scores: bool = False
    softmax_scores_per_s: float | None = None


def accelerator_device(accelerator: AcceleratorSpec, profile: LatencyProfileSpec, tensor_parallel: int) -> Device:
    """The accelerator by its systolic arrays, or by its data sheet at the profile's shares; joules by the roofline.

    Operators measured in a profile of estimator devices take precedence.
    """
    peaks = sheet_peaks(accelerator)
    bandwidth = accelerator.memory_bandwidth_bytes_per_s
    terms: dict[WorkKind, Efficiency] = {
        "product": profile.gemm,
        "elementwise": profile.elementwise,
        "prefill_attention": profile.prefill_attention,
        "decode_attention": profile.decode_attention,
    }
    sheet = SheetLaw(
        peaks,
        {kind: FamilyRate(term.flops, bandwidth * term.bandwidth, term.launch_s) for kind, term in terms.items()},
    )
    seconds: Law = sheet if accelerator.systolic is None else SystolicLaw(accelerator.systolic, bandwidth)
    joules: Law = _energy_law(sheet, worker_dynamic_w(accelerator, 1), memory_power_share(accelerator))
    if profile.estimator == "devices" and profile.operators is not None:
        tables = read_operators(Path(profile.operators), tensor_parallel)
        seconds, joules = MeasuredLaw(tables.seconds, seconds), MeasuredLaw(tables.joules, joules)
    return Device(ACCELERATOR, ACCELERATOR, seconds, joules, bandwidth)


def attached_device(
    name: str, spec: DeviceSpec, entry: AttachedDeviceSpec, kv_heads: int, tensor_parallel: int
) -> Device:
    """Devices attached to one accelerator, which work as one.

    Raises:
        DevicesRefused: the entry maps channels that the device does not have, its devices cannot be shared so, or
            measured operators are of one device alone, or have no joules.
        TraceError: see ``read_operators``.
    """
    count = entry.number
    for key in ("mapping", "stripe_channels"):
        if getattr(entry, key) is not None and spec.pim is None:
            raise DevicesRefused(f"attached.{name}.{key}", f"{entry.device} has no channels of PIM to map")
    bandwidth, dynamic_w = spec.memory_bandwidth_bytes_per_s * count, count * max(spec.active_w - spec.idle_w, 0.0)
    seconds: Law | None = None
    joules: Law | None = None
    scores_per_s: float | None = None
    leaves_scores = spec.pim is not None
    if spec.pim is not None:
        pim = _mapped_pim(name, spec.pim, entry)
        seconds = PimLaw(pim, kv_heads)
        scores_per_s = pim.softmax_scores_per_s
        joules = PimEnergy(pim, spec.internal_j_per_byte, spec.flop_j)
    elif spec.systolic is not None:
        arrays = spec.systolic.model_copy(
            update={
                "arrays": _whole(name, "systolic arrays", spec.systolic.arrays, entry),
                "scratchpad_bytes": spec.systolic.scratchpad_bytes * count,
                "vector_flops": spec.systolic.vector_flops * count,
            }
        )
        seconds = SystolicLaw(arrays, bandwidth)
        dense_flops = 2.0 * arrays.arrays * arrays.rows * arrays.columns * arrays.clock_hz
        rate = FamilyRate(1.0, bandwidth * arrays.bandwidth, 0.0)
        joules = _energy_law(SheetLaw(_all_formats(dense_flops), dict.fromkeys(ALL_KINDS, rate)), dynamic_w)
    elif spec.sheet is not None:
        sheet = spec.sheet
        peaks = _filled({dtype: peak * count for dtype, peak in sheet.peak_flops.items()})
        rate = FamilyRate(sheet.flops, bandwidth * sheet.bandwidth, sheet.launch_s)
        by_sheet = SheetLaw(peaks, dict.fromkeys(ALL_KINDS, rate))
        seconds, joules = by_sheet, _energy_law(by_sheet, dynamic_w)
    if spec.operators is not None:
        if entry.number != 1:
            raise DevicesRefused(f"attached.{name}.count", "measured operators are of one device for each accelerator")
        tables = read_operators(Path(spec.operators), tensor_parallel)
        if joules is None and set(tables.joules) != set(tables.seconds):
            raise DevicesRefused(
                f"attached.{name}", f"{entry.device} has no law of energy: its measured operators need energy_j"
            )
        leaves_scores = leaves_scores and "decode_attention" not in tables.seconds
        seconds, joules = MeasuredLaw(tables.seconds, seconds), MeasuredLaw(tables.joules, joules)
    return Device(name, spec.kind, seconds, joules, bandwidth, spec.link_j_per_byte, leaves_scores, scores_per_s)


def _whole(name: str, what: str, of_device: int, entry: AttachedDeviceSpec) -> int:
    """Parts of devices for one accelerator, which cannot be cut."""
    total = of_device * entry.count
    if total % entry.shared_by:
        raise DevicesRefused(
            f"attached.{name}.shared_by", f"{total} {what} do not divide among {entry.shared_by} accelerators"
        )
    return total // entry.shared_by


def _mapped_pim(name: str, pim: PimSpec, entry: AttachedDeviceSpec) -> PimSpec:
    """PIM of one accelerator: all its channels, with the entry's mapping of them, or the device's."""
    overrides: dict[str, object] = {
        key: getattr(entry, key) for key in ("mapping", "stripe_channels") if getattr(entry, key) is not None
    }
    channels = _whole(name, "channels", pim.channels, entry)
    overrides["channels"] = channels
    if pim.softmax_scores_per_s is not None:
        overrides["softmax_scores_per_s"] = pim.softmax_scores_per_s * entry.number
    mapped = pim.model_copy(update=overrides)
    if mapped.stripe_channels > channels:
        raise DevicesRefused(
            f"attached.{name}.stripe_channels", f"is {mapped.stripe_channels}, but there are {channels} channels"
        )
    return mapped


class Links(NamedTuple):
    """A worker's links by the two names that they join; in_slot: those that pass the accelerator's own slot."""

    links: dict[frozenset[str], LinkSpec]
    in_slot: frozenset[frozenset[str]]


def links_of(worker: WorkerDevices, accelerator: AcceleratorSpec, ranks: int) -> Links:
    """Links of devices to one accelerator, and those that the block states; of several devices of one name they add up.

    PCIe and CXL reach the accelerator through its slot, whose bandwidth bounds them. To devices of the host all
    ``ranks`` go at once, over what neighbouring slots share on the way.
    """
    links: dict[frozenset[str], LinkSpec] = {}
    in_slot = set()
    for name, device in worker.devices.items():
        if device.link is not None:
            ends, bandwidth = frozenset((ACCELERATOR, name)), device.link.bandwidth_bytes_per_s
            bandwidth *= worker.spec.attached[name].count
            if device.link.kind in SLOT_KINDS:
                in_slot.add(ends)
                bandwidth = min(bandwidth, accelerator.host_link.bandwidth_bytes_per_s)
            link = device.link.model_copy(update={"bandwidth_bytes_per_s": bandwidth})
            links[ends] = to_host(link, worker.shared, ranks) if device.kind in HOST_KINDS else link
    for entry in worker.spec.links:
        links[frozenset(entry.between)] = entry.link
        in_slot.discard(frozenset(entry.between))
    return Links(links, frozenset(in_slot))


def _energy_law(sheet: SheetLaw, dynamic_w: float, share: float = 1.0) -> SheetLaw:
    """Joules above idle by the roofline of the seconds, without launches (``hisearch.hardware.power``)."""
    families = {kind: replace(rate, launch_s=0.0) for kind, rate in sheet.families.items()}
    return SheetLaw(sheet.peak_flops, families, dynamic_w, share)


def _all_formats(flops: float) -> dict[DType, float]:
    formats: tuple[DType, ...] = ("fp32", "bf16", "fp16", "fp8", "int8", "fp4", "nvfp4", "int4")
    return dict.fromkeys(formats, flops)


def _filled(peaks: dict[DType, float]) -> dict[DType, float]:
    """16-bit formats stand in for one another, and for narrower formats without a rate."""
    wide = peaks.get("bf16", peaks.get("fp16", peaks.get("fp32")))
    if wide is None:
        raise ValueError(f"peak_flops needs bf16, fp16 or fp32; it has {', '.join(sorted(peaks))}")
    return {**_all_formats(wide), **peaks}
