"""Checks without simulation of whether parts of a study are compatible."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from hisearch.specs.base import DType, rate_dtype
from hisearch.specs.deployments.pool import PoolSpec
from hisearch.specs.machines.devices import DeviceSpec, DevicesSpec
from hisearch.specs.machines.hardware import AcceleratorSpec, HostSpec
from hisearch.specs.studies.slo import SloSpec, SloTerm
from hisearch.specs.wording import counted

_GIB = 1024.0**3


def dtype_problem(name: str, accelerator: AcceleratorSpec, dtype: DType) -> str:
    """Why weights of ``dtype`` do not run at their own rate on the accelerator called ``name``; "" where they do."""
    if rate_dtype(dtype) in accelerator.peak_flops:
        return ""
    return f"{name} has no {dtype} rate; known: {', '.join(accelerator.peak_flops)}"


def slo_warnings(slo: SloSpec) -> list[str]:
    """Messages on terms without effect, because another term is stricter."""
    messages = []
    alike: dict[tuple[str, str], list[SloTerm]] = {}
    for term in sorted(slo.terms, key=lambda term: (term.metric, term.percentile)):
        alike.setdefault((term.metric, term.class_label), []).append(term)
    for terms in alike.values():
        for low, high in pairwise(terms):
            if high.at_most_s <= low.at_most_s:
                messages.append(
                    f"{low.label} <= {low.at_most_s:g} s says nothing: {high.label} <= {high.at_most_s:g} s is stricter"
                )
    ends = {(term.percentile, term.class_label): term.at_most_s for term in slo.terms if term.metric == "e2e_s"}
    messages += [
        f"{term.label} <= {term.at_most_s:g} s says nothing: the whole answer must be there by then"
        for term in slo.terms
        if term.metric in ("ttft_s", "ttfo_s")
        and ends.get((term.percentile, term.class_label), float("inf")) <= term.at_most_s
    ]
    return messages


def cpu_memory_note(
    pool: PoolSpec, block: DevicesSpec, devices: Mapping[str, DeviceSpec], host_name: str, host: HostSpec
) -> str:
    """Why the memory of attached CPUs is more than the host's main memory, which it is; "" where it is not."""
    gib = sum(
        devices[entry.device].memory_bytes * entry.number / _GIB
        for entry in block.attached.values()
        if devices[entry.device].kind == "cpu"
    )
    accelerators = min(pool.parallelism.ranks * pool.replicas, host.accelerators)
    if accelerators * gib <= host.dram_bytes / _GIB * (1 + 1e-9):
        return ""
    return (
        f"CPUs attached to {counted(accelerators, 'accelerator')} in {host_name} have {accelerators * gib:g} GiB of "
        f"its main memory, which is {host.dram_bytes / _GIB:g} GiB"
    )


def cpu_problem(
    pool: PoolSpec, block: DevicesSpec, devices: Mapping[str, DeviceSpec], host_name: str, host: HostSpec
) -> str:
    """Why a host has too few CPUs for those attached to the accelerators in its slots; "" where it has enough."""
    accelerators = min(pool.parallelism.ranks * pool.replicas, host.accelerators)
    cpus = sum(entry.whole(accelerators) for entry in block.attached.values() if devices[entry.device].kind == "cpu")
    if host.cpu_sockets is None or cpus <= host.cpu_sockets:
        return ""
    return (
        f"{accelerators} accelerators in {host_name} need {cpus} CPUs, but it has "
        f"{counted(host.cpu_sockets, 'socket')}: let accelerators share them (shared_by)"
    )
