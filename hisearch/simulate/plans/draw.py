"""A pool's devices, and what a worker draws besides its steps: its part of what the pool buys whole included.

A plan's figures are those of the pool's replicas. Where workers come and go, each has its part of what was there
(``drawn_over_time``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from typing import NamedTuple

from hisearch.hardware.power import BaseParts, FfnPart, PowerPlan, base_parts, plan_power, standby_of
from hisearch.hardware.whole import Shared, ffn_accelerators, shared_devices
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


class SharedDraw(NamedTuple):
    """Watts of hardware that a pool's workers share, each of it.

    shared: how many of it are there. part: a worker's, in the plan. idle_w: when idle. attached: whether it is an
    attached device, else FFN accelerators apart. host_w, cpu_w, base_parts: of a slot of the host that carries it.
    saving_w: in standby.
    """

    shared: Shared
    part: float
    idle_w: float
    attached: bool = True
    host_w: float = 0.0
    cpu_w: float = 0.0
    base_parts: BaseParts = BaseParts()
    saving_w: float = 0.0


class Draw(NamedTuple):
    """What a worker draws besides its steps: idle watts, those of attached devices among them, and its power."""

    idle_w: float
    attached_idle_w: float
    power: PowerPlan


def shared_draws(pool: PoolSpec, hardware: WorkerHardware, devices: WorkerDevices | None) -> tuple[SharedDraw, ...]:
    """Of hardware whose number does not follow that of the pool's workers."""
    if devices is None:
        return ()
    draws = []
    for name, entry in devices.spec.attached.items():
        shared = shared_devices(pool, entry, hardware.host)
        if shared.among > 1:
            part = shared.bought(pool.replicas) / pool.replicas
            draws.append(SharedDraw(shared, part, devices.devices[name].idle_w))
    ffn, host = ffn_accelerators(pool), hardware.ffn_host
    if ffn is not None:
        accelerator, part = hardware.ffn or hardware.accelerator, ffn.bought(pool.replicas) / pool.replicas
        draw = SharedDraw(ffn, part, accelerator.idle_w, False, saving_w=standby_of(accelerator, 1.0).saving_w)
        if host is not None:
            slot = 1.0 / host.accelerators
            draw = draw._replace(
                host_w=host.base_w * slot, cpu_w=host.cpu_active_w * slot, base_parts=base_parts(host, slot)
            )
        draws.append(draw)
    return tuple(draws)


def drawn_over_time(draw: Draw, shared: Sequence[SharedDraw], present: Sequence[tuple[int, float]]) -> Draw:
    """``draw`` of a plan, on average over workers that come and go.

    present: numbers of workers, and the share of the time with so many; of a number that stays, the plan's own figures.
    """
    workers = sum(count * share for count, share in present)
    if len(present) == 1 or not workers:
        return draw
    for each in shared:
        more = sum(each.shared.bought(count) * share for count, share in present) / workers - each.part
        power, idle_w = draw.power, more * each.idle_w
        parts = zip(astuple(power.base_parts), astuple(each.base_parts), strict=True)
        ffn = power.ffn
        if ffn is not None and not each.attached:
            ffn = ffn._replace(saving_w=ffn.saving_w + more * each.saving_w)
        power = replace(
            power,
            host_w=power.host_w + more * each.host_w,
            cpu_w=power.cpu_w + more * each.cpu_w,
            base_parts=BaseParts(*(watts + more * slot for watts, slot in parts)),
            ffn=ffn,
        )
        draw = Draw(draw.idle_w + idle_w, draw.attached_idle_w + (idle_w if each.attached else 0.0), power)
    return draw


def idle_draw(
    costs: CompiledCosts, pool: PoolSpec, model: ModelSpec, hardware: WorkerHardware, devices: WorkerDevices | None
) -> tuple[CompiledCosts, PowerPlan]:
    """``costs`` with the idle watts of whole devices, and the worker's draw besides; each worker has an equal part."""
    accelerator, host = hardware.accelerator, hardware.host
    if devices is None:
        return costs, plan_power(pool.parallelism, model, accelerator, host)
    numbers = {
        name: shared_devices(pool, entry, host).bought(pool.replicas) / pool.accelerators
        for name, entry in devices.spec.attached.items()
    }
    afd, shared, ffn = devices.spec.attention_ffn, ffn_accelerators(pool), None
    if afd is not None and shared is not None:
        part = shared.bought(pool.replicas) / pool.replicas
        ffn = FfnPart(part, afd.ffn, hardware.ffn or accelerator, hardware.ffn_host)
    idle = idle_w_by_component(
        devices, accelerator, pool.parallelism.group_ranks, numbers, ffn.accelerators if ffn is not None else 0.0
    )
    whole = replace(costs, idle_w=sum(idle.values()), idle_w_by_component=idle)
    networked = devices.spec.network is not None
    return whole, plan_power(pool.parallelism, model, accelerator, host, ffn, networked=networked)
