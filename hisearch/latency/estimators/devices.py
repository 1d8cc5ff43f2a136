"""Estimator of workers of several devices, and of accelerators with systolic arrays (``hisearch.latency.devices``).

An accelerator without systolic arrays is priced by the profile's fitted laws, or by its roofline terms without laws.
The host times and CUDA graphs of the profile's engines apply.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.hardware.power import worker_idle_w
from hisearch.latency.costs import CompiledCosts, LockstepCosts, StepCosts, lockstep_costs
from hisearch.latency.devices.afd import FFN
from hisearch.latency.devices.build import WorkerDevices
from hisearch.latency.devices.compose import compose
from hisearch.latency.devices.fitted import profile_at_hand
from hisearch.latency.devices.tables import tabulate
from hisearch.latency.devices.worker import DeviceWorker
from hisearch.latency.estimator import ProfileEstimator, register
from hisearch.latency.host import front_end_of, with_overhead
from hisearch.latency.priced import PricedWorker
from hisearch.latency.workers.roofline import format_warnings
from hisearch.specs.machines.devices import ACCELERATOR, DevicesSpec
from hisearch.specs.machines.hardware import AcceleratorSpec
from hisearch.specs.machines.host import EngineOverhead
from hisearch.specs.machines.profile import LatencyProfileSpec


@register("devices")
class DevicesEstimator(ProfileEstimator):
    """Compiles workers with attached devices; without ``worker``, no devices are attached."""

    def __init__(self, profile_name: str, profile: LatencyProfileSpec, worker: WorkerDevices | None = None) -> None:
        super().__init__(profile_name, profile)
        self.worker = worker if worker is not None else WorkerDevices(DevicesSpec(), {})

    def compile(self, priced: PricedWorker) -> CompiledCosts:
        """See ``LatencyEstimator.compile``.

        Raises:
            DevicesRefused: a device has no law for an operator mapped to it.
        """
        self.check_shared_context(priced)
        model, accelerator, split = priced.model, priced.accelerator, priced.split
        name, profile = profile_at_hand(self.profile_name, self.profile, accelerator, priced.engine.name)
        overhead = ProfileEstimator(name, profile).overhead(priced)
        composed = compose(
            self.worker, model, accelerator, profile, split, priced.weight_dtype, priced.kv_dtype, priced.engine.name
        )
        limits = {
            "max_tokens": priced.max_tokens,
            "max_sequences": priced.max_sequences,
            "max_context": priced.max_context_tokens,
            "longest": model.max_context_tokens,
        }
        seconds = tabulate(composed.step, composed.sequence, joint=composed.joint, **limits)
        padded = _padded(seconds, overhead, model.layers)
        components = _joules(composed, split.tensor, limits)
        idle = idle_w_by_component(self.worker, accelerator, split.group_ranks)
        return CompiledCosts(
            seconds=with_overhead(padded, overhead, priced),
            front_end=front_end_of(overhead),
            joules=_sum(list(components.values())),
            idle_w=sum(idle.values()),
            profile=name,
            evidence=profile.evidence,
            relative_error=profile.relative_error,
            warnings=(*format_warnings(accelerator, model, priced.loaded_dtype), *_warnings(name, profile)),
            components=components,
            idle_w_by_component=idle,
            lockstep=_lockstep(composed, padded, overhead, priced.max_tokens),
        )


def idle_w_by_component(
    worker: WorkerDevices,
    accelerator: AcceleratorSpec,
    ranks: int,
    numbers: Mapping[str, float] | None = None,
    ffn_accelerators: float | None = None,
) -> dict[str, float]:
    """Idle watts of a worker of ``ranks`` ranks, by component.

    numbers, ffn_accelerators: devices for each accelerator, by name, and FFN accelerators for each worker, as they are
    bought; parts of those that are shared where absent.
    """
    idle_w = {ACCELERATOR: worker_idle_w(accelerator, ranks)}
    for name, entry in worker.spec.attached.items():
        device, number = worker.devices[name], entry.number if numbers is None else numbers[name]
        idle_w[device.kind] = idle_w.get(device.kind, 0.0) + ranks * number * device.idle_w
    afd = worker.spec.attention_ffn
    if afd is not None:
        part = afd.ffn / afd.attention if ffn_accelerators is None else ffn_accelerators
        idle_w[FFN] = worker_idle_w(worker.ffn_accelerator or accelerator, 1) * part
    return idle_w


def _warnings(name: str, profile: LatencyProfileSpec) -> tuple[str, ...]:
    if profile.estimator in {"roofline", "devices", "scaled"}:
        return ()
    return (f"devices: accelerators are priced by the roofline terms of {name}, not by estimator {profile.estimator}",)


def _padded(costs: StepCosts, overhead: EngineOverhead, layers: int) -> StepCosts:
    """Pad steps to the next CUDA graph; steps beyond the largest launch layer by layer."""
    table = costs.token_s.copy()
    graphs = np.array([size for size in overhead.graph_batches if size < len(table)], dtype=np.int64)
    if len(graphs):
        inside = np.arange(1, graphs[-1] + 1)
        table[inside] = costs.token_s[graphs[np.searchsorted(graphs, inside)]]
        table[graphs[-1] + 1 :] += layers * overhead.eager_layer_s
    return costs._replace(token_s=table)


def _lockstep(worker: DeviceWorker, costs: StepCosts, overhead: EngineOverhead, limit: int) -> LockstepCosts | None:
    """``costs.token_s`` split into own and shared parts; None for a single attention group.

    The shared part of overlapped phases is their serial time, at most the whole step. Where one group has a token and
    the others none, weights are read all the same. The entry of zero tokens is therefore extrapolated: the line from
    it to one token per group passes through the cost of a single token.
    """
    groups = worker.collectives.split.attention_data
    if groups == 1:
        return None
    shared = np.minimum(worker.shared_s(np.arange(1.0, limit + 1.0)), costs.token_s[1 : limit + 1])
    lone = float(worker.shared_s(np.array([1.0 / groups]))[0])
    none = max((groups * lone - shared[0]) / (groups - 1.0), 0.0)
    return lockstep_costs(costs.token_s, np.concatenate(([none], shared)), overhead.graph_batches)


def _joules(worker: DeviceWorker, ranks: int, limits: dict[str, int]) -> dict[str, StepCosts]:
    """Joules of ``ranks`` ranks, by component."""
    names = worker.components

    def together(by_component: dict[str, F8]) -> F8:
        shape = np.broadcast_shapes(*(np.shape(by_component[name]) for name in names))
        return np.stack([worker.ranks_of(name, ranks) * np.broadcast_to(by_component[name], shape) for name in names])

    tables = tabulate(
        lambda load: together(worker.step_joules(load)),
        lambda sequences: together(worker.sequence_joules(sequences)),
        joint=worker.joint,
        **limits,
    )
    return {name: _component(tables, index) for index, name in enumerate(names)}


def _component(tables: StepCosts, index: int) -> StepCosts:
    """The costs at ``index`` along the leading axis of ``tables``."""
    return _with_tables([None if table is None else np.ascontiguousarray(table[index]) for table in tables[2:]])


def _sum(parts: list[StepCosts]) -> StepCosts:
    """Costs with the sums of the parts' tables."""
    together = zip(*(part[2:] for part in parts), strict=True)
    return _with_tables([None if tables[0] is None else np.asarray(sum(tables)) for tables in together])


def _with_tables(tables: list[F8 | None]) -> StepCosts:
    """Costs without host times."""
    return StepCosts(0.0, 0.0, **dict(zip(StepCosts._fields[2:], tables, strict=True)))  # type: ignore[arg-type]
