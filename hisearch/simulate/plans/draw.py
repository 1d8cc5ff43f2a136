"""A pool's devices, and what a worker draws besides its steps: its part of what the pool buys whole included."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from hisearch.hardware.power import FfnPart, PowerPlan, plan_power
from hisearch.hardware.whole import devices_bought, ffn_accelerators_bought
from hisearch.latency.costs import CompiledCosts
from hisearch.latency.devices.build import WorkerDevices
from hisearch.latency.estimators.devices import idle_w_by_component
from hisearch.specs.deployments.deployment import PoolSpec
from hisearch.specs.machines.devices import DeviceSpec
from hisearch.specs.machines.hardware import AcceleratorSpec, HostSpec
from hisearch.specs.models.model import ModelSpec


def ffn_accelerator_name(pool: PoolSpec) -> str | None:
    """The accelerator that a pool names for its FFNs, or None."""
    attention_ffn = pool.devices.attention_ffn if pool.devices is not None else None
    return attention_ffn.ffn_accelerator if attention_ffn is not None else None


def worker_devices(
    pool: PoolSpec, devices: Mapping[str, DeviceSpec], ffn_accelerator: AcceleratorSpec | None, host: HostSpec | None
) -> WorkerDevices | None:
    """The pool's devices by the names of its block, on workers of ``host``; None without one."""
    if pool.devices is None:
        return None
    named = {name: devices[entry.device] for name, entry in pool.devices.attached.items()}
    return WorkerDevices(pool.devices, named, ffn_accelerator, tuple(host.shared) if host is not None else ())


class WorkerHardware(NamedTuple):
    """A pool's accelerator and its host; the accelerator that it names for FFNs, and the host of FFN accelerators."""

    accelerator: AcceleratorSpec
    host: HostSpec | None
    ffn: AcceleratorSpec | None = None
    ffn_host: HostSpec | None = None


def idle_draw(
    costs: CompiledCosts, pool: PoolSpec, model: ModelSpec, hardware: WorkerHardware, devices: WorkerDevices | None
) -> tuple[CompiledCosts, PowerPlan]:
    """``costs`` with the idle watts of whole devices, and the worker's draw besides; each worker has an equal part."""
    accelerator, host = hardware.accelerator, hardware.host
    if devices is None:
        return costs, plan_power(pool.parallelism, model, accelerator, host)
    bought = {name: devices_bought(pool, entry, host) for name, entry in devices.spec.attached.items()}
    numbers = {name: count / pool.accelerators for name, count in bought.items()}
    afd, ffn = devices.spec.attention_ffn, None
    if afd is not None:
        part = ffn_accelerators_bought(pool) / pool.replicas
        ffn = FfnPart(part, afd.ffn, hardware.ffn or accelerator, hardware.ffn_host)
    idle = idle_w_by_component(
        devices, accelerator, pool.parallelism.group_ranks, numbers, ffn.accelerators if ffn is not None else 0.0
    )
    whole = replace(costs, idle_w=sum(idle.values()), idle_w_by_component=idle)
    networked = devices.spec.network is not None
    return whole, plan_power(pool.parallelism, model, accelerator, host, ffn, networked=networked)
