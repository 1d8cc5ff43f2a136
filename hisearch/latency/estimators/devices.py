"""Workers of several devices, and accelerators with systolic arrays (``hisearch.latency.devices``).

The profile's fitted laws price the accelerator, or its roofline terms where it has none, unless it has systolic arrays;
its engines' host times and CUDA graphs apply.
"""

from __future__ import annotations

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
from hisearch.latency.estimator import LatencyEstimator, register
from hisearch.latency.estimators.roofline import engine_overhead, format_warnings
from hisearch.latency.host import front_end_of, with_overhead
from hisearch.latency.priced import PricedWorker
from hisearch.specs.machines.devices import ACCELERATOR, DevicesSpec
from hisearch.specs.machines.hardware import AcceleratorSpec
from hisearch.specs.machines.host import EngineOverhead
from hisearch.specs.machines.profile import LatencyProfileSpec


class DevicesEstimator:
    """Compiles workers with devices beside their accelerators; none where ``worker`` is not given."""

    def __init__(self, profile_name: str, profile: LatencyProfileSpec, worker: WorkerDevices | None = None) -> None:
        self.profile_name = profile_name
        self.profile = profile
        self.worker = worker if worker is not None else WorkerDevices(DevicesSpec(), {})

    def compile(self, priced: PricedWorker) -> CompiledCosts:
        """See ``LatencyEstimator.compile``.

        Raises:
            DevicesRefused: the devices cannot do what the map asks of them.
        """
        model, accelerator, split = priced.model, priced.accelerator, priced.split
        name, profile = profile_at_hand(self.profile_name, self.profile, accelerator, priced.engine.name)
        overhead = engine_overhead(name, profile, priced.engine)
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
        idle = self.idle_w_by_component(accelerator, split.group_ranks)
        return CompiledCosts(
            seconds=with_overhead(padded, overhead, priced),
            front_end=front_end_of(overhead),
            joules=_sum(list(components.values())),
            idle_w=sum(idle.values()),
            profile=name,
            evidence=profile.evidence,
            relative_error=profile.relative_error,
            warnings=(*format_warnings(accelerator, priced.loaded_dtype), *_warnings(name, profile)),
            components=components,
            idle_w_by_component=idle,
            lockstep=_wave(composed, padded, overhead, priced.max_tokens),
        )

    def idle_w_by_component(self, accelerator: AcceleratorSpec, ranks: int) -> dict[str, float]:
        """Idle watts of a worker of so many ranks."""
        found = {ACCELERATOR: worker_idle_w(accelerator, ranks)}
        for name, entry in self.worker.spec.attached.items():
            device = self.worker.devices[name]
            found[device.kind] = found.get(device.kind, 0.0) + ranks * entry.count * device.idle_w
        afd = self.worker.spec.attention_ffn
        if afd is not None:
            ffn = self.worker.ffn_accelerator or accelerator
            found[FFN] = worker_idle_w(ffn, 1) * afd.ffn / afd.attention
        return found


def _warnings(name: str, profile: LatencyProfileSpec) -> tuple[str, ...]:
    if profile.estimator in {"roofline", "devices", "scaled"}:
        return ()
    return (f"devices: accelerators are priced by the roofline terms of {name}, not by estimator {profile.estimator}",)


def _padded(costs: StepCosts, overhead: EngineOverhead, layers: int) -> StepCosts:
    """Steps of up to the largest CUDA graph take what the next graph does, longer ones launch layer by layer."""
    table = costs.token_s.copy()
    graphs = np.array([size for size in overhead.graph_batches if size < len(table)], dtype=np.int64)
    if len(graphs):
        inside = np.arange(1, graphs[-1] + 1)
        table[inside] = costs.token_s[graphs[np.searchsorted(graphs, inside)]]
        table[graphs[-1] + 1 :] += layers * overhead.eager_layer_s
    return costs._replace(token_s=table)


def _wave(worker: DeviceWorker, costs: StepCosts, overhead: EngineOverhead, limit: int) -> LockstepCosts | None:
    """``costs.token_s`` taken apart; None where there is one attention group.

    Of phases that overlap, the groups' part is what they take one after the other, at most all of the step. Where one
    group has a token and the others none, weights are read all the same: the entry of no tokens is such that the line
    from it to that of one token each passes through what a single token takes.
    """
    groups = worker.collectives.split.attention_data
    if groups == 1:
        return None
    shared = np.minimum(worker.shared_s(np.arange(1.0, limit + 1.0)), costs.token_s[1 : limit + 1])
    lone = float(worker.shared_s(np.array([1.0 / groups]))[0])
    none = max((groups * lone - shared[0]) / (groups - 1.0), 0.0)
    return lockstep_costs(costs.token_s, np.concatenate(([none], shared)), overhead.graph_batches)


def _joules(worker: DeviceWorker, ranks: int, limits: dict[str, int]) -> dict[str, StepCosts]:
    """Joules of so many ranks, by component."""
    names = worker.components

    def together(found: dict[str, F8]) -> F8:
        shape = np.broadcast_shapes(*(np.shape(found[name]) for name in names))
        return np.stack([worker.ranks_of(name, ranks) * np.broadcast_to(found[name], shape) for name in names])

    tables = tabulate(
        lambda load: together(worker.step_joules(load)),
        lambda sequences: together(worker.sequence_joules(sequences)),
        joint=worker.joint,
        **limits,
    )
    return {name: _component(tables, index) for index, name in enumerate(names)}


def _component(tables: StepCosts, index: int) -> StepCosts:
    """One of the costs that ``tables`` has along its leading axis."""
    return _with_tables([None if table is None else np.ascontiguousarray(table[index]) for table in tables[2:]])


def _sum(parts: list[StepCosts]) -> StepCosts:
    """Costs whose tables add up."""
    together = zip(*(part[2:] for part in parts), strict=True)
    return _with_tables([None if tables[0] is None else np.asarray(sum(tables)) for tables in together])


def _with_tables(tables: list[F8 | None]) -> StepCosts:
    """Costs without host times."""
    return StepCosts(0.0, 0.0, **dict(zip(StepCosts._fields[2:], tables, strict=True)))  # type: ignore[arg-type]


@register("devices")
def build(profile_name: str, profile: LatencyProfileSpec) -> LatencyEstimator:
    """The estimator of accelerators without devices beside them."""
    return DevicesEstimator(profile_name, profile)
