"""Checks without simulation of whether parts of a study are compatible."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from itertools import pairwise

from hisearch.specs.base import ENGINE_TITLES, DType, EngineName, rate_dtype
from hisearch.specs.deployments.pool import PoolSpec
from hisearch.specs.machines.devices import DeviceSpec, DevicesSpec
from hisearch.specs.machines.hardware import AcceleratorSpec, HostSpec
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.studies.search_space import ExecutionSpace
from hisearch.specs.studies.slo import SloSpec, SloTerm
from hisearch.specs.wording import counted

_GIB = 1024.0**3


def dtype_problem(name: str, accelerator: AcceleratorSpec, dtype: DType) -> str:
    """Why weights of ``dtype`` do not run at their own rate on the accelerator called ``name``; "" where they do."""
    if rate_dtype(dtype) in accelerator.peak_flops:
        return ""
    return f"{name} has no {dtype} rate; known: {', '.join(accelerator.peak_flops)}"


def format_problem(engine: EngineName, name: str, accelerator: AcceleratorSpec, model: ModelSpec, dtype: DType) -> str:
    """Why ``engine`` does not run weights of ``dtype`` on the accelerator called ``name``; "" where it does.

    TensorRT-LLM multiplies fp8 from Ada on, NVFP4 from Blackwell on ("Hardware Support Matrix" of its quantization
    page). vLLM and SGLang unpack such weights elsewhere, by Marlin. TensorRT-LLM does so only where it is asked to
    (pull requests 13476 and 16749, 2026), and of checkpoints without scales of activations (14775).
    """
    if engine != "trtllm":
        return ""
    for held in dict.fromkeys((dtype, *model.other_formats.get(dtype, {}))):
        if held in ("fp8", "nvfp4") and held not in model.weight_only and dtype_problem(name, accelerator, held):
            marlin = "; Marlin, which unpacks them where it is asked to, is not simulated" * (held == "nvfp4")
            return f"{ENGINE_TITLES[engine]} has no kernels that multiply {held} weights on {name}{marlin}"
    return ""


def left_out_formats(
    execution: ExecutionSpace, accelerators: Mapping[str, AcceleratorSpec], model: ModelSpec
) -> list[str]:
    """Why a space's weights are left out, of each engine and accelerator that does not run them."""
    formats = execution.weight_dtypes or [model.weight_dtype]
    tried = itertools.product(execution.engines, execution.accelerators, formats)
    problems = (format_problem(engine, name, accelerators[name], model, dtype) for engine, name, dtype in tried)
    return [f"left out: {problem}" for problem in dict.fromkeys(filter(None, problems))]


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
    """Why a host has too few CPUs for those attached to the accelerators in its slots; "" where it has enough.

    Of pools whose replicas change, when they are most.
    """
    accelerators = min(pool.parallelism.ranks * pool.most_replicas, host.accelerators)
    cpus = sum(entry.whole(accelerators) for entry in block.attached.values() if devices[entry.device].kind == "cpu")
    if host.cpu_sockets is None or cpus <= host.cpu_sockets:
        return ""
    return (
        f"{accelerators} accelerators in {host_name} need {cpus} CPUs, but it has "
        f"{counted(host.cpu_sockets, 'socket')}: let accelerators share them (shared_by)"
    )
