"""Memory of a worker with weights or KV on attached devices.

    on the accelerator    all weights, less streamed layers (two are buffered while they pass), less offloaded experts,
                          less families that run on another device
    KV                    on the accelerator the share that its engine leaves; elsewhere ``KV_SHARE`` of that device's
                          memory, less the weights there

With attention-FFN disaggregation, attention accelerators hold no FFN weights, and FFN accelerators hold nothing else.
KV may be on a device attached to the former.
"""

from __future__ import annotations

from dataclasses import dataclass

from hisearch.latency.device_memory.constants import GIB
from hisearch.latency.device_memory.plan import DoesNotFit, Elsewhere
from hisearch.latency.devices.afd import FFN, Afd
from hisearch.latency.devices.build import WorkerDevices
from hisearch.latency.devices.compose import compose, layer_weight_bytes
from hisearch.latency.devices.worker import DeviceWorker
from hisearch.latency.sharding import Parallelism
from hisearch.specs.base import DType, EngineName
from hisearch.specs.machines.devices import ACCELERATOR, OperatorName
from hisearch.specs.machines.hardware import AcceleratorSpec
from hisearch.specs.machines.profile import LatencyProfileSpec
from hisearch.specs.models.model import ModelSpec

#: Share of a device's memory for KV and weights; assumed, the device needs the rest.
KV_SHARE = 0.95

#: Streamed layers on the accelerator at once: the running one and the next.
STREAM_BUFFERS = 2


@dataclass(frozen=True)
class HeldElsewhere:
    """Bytes of one rank's weights on each device, and bytes for KV on a device; None: KV is on the accelerator."""

    weights_bytes: dict[str, float]
    kv_space_bytes: float | None

    @property
    def relief(self) -> Elsewhere:
        """The argument ``elsewhere`` of ``plan_memory``."""
        return Elsewhere(sum(self.weights_bytes.values()), self.kv_space_bytes)


def held_elsewhere(worker: WorkerDevices, composed: DeviceWorker, accelerator: AcceleratorSpec) -> HeldElsewhere:
    """Bytes that devices other than the accelerator hold.

    Raises:
        DoesNotFit: a device has too little memory.
    """
    if composed.afd is not None:
        return _afd(worker, composed, composed.afd, accelerator)
    weights = dict.fromkeys(worker.devices, 0.0)
    # A rank holds the layers of its stage of the pipeline, and its share of the LM head.
    stages = composed.collectives.split.pipeline
    layers = composed.model.layers / stages
    families: tuple[OperatorName, ...] = ("projections", "ffn", "experts")
    for family in families:
        name = composed.map.get(family, ACCELERATOR)
        if name != ACCELERATOR:
            weights[name] += layers * layer_weight_bytes(composed, {family})
    if composed.map["lm_head"] != ACCELERATOR:
        weights[composed.map["lm_head"]] += (
            sum(product.op.weight_bytes for product in composed.sequence_products) / stages
        )
    buffer_bytes = 0.0
    for count, moved, name in composed.streamed:
        weights[name] += count / stages * moved
        buffer_bytes = max(buffer_bytes, min(STREAM_BUFFERS, count / stages) * moved)
    offload = composed.spec.experts.offload if composed.spec.experts is not None else None
    if offload is not None and composed.expert_loads is not None:
        held = max(len(rank) for rank in composed.expert_loads.dealt)
        away = 1.0 - offload.resident / held
        weights[offload.device] += away * layers * layer_weight_bytes(composed, {"experts"})
    for name, needed in weights.items():
        capacity = KV_SHARE * worker.memory_bytes(name)
        if needed > capacity:
            raise DoesNotFit(
                f"weights of {needed / GIB:.2f} GiB do not fit on {name}, which offers {capacity / GIB:.2f} GiB",
                needed - capacity,
            )
    kv_bytes = _kv_bytes(worker, composed, weights.get(composed.kv, 0.0))
    if buffer_bytes:
        weights["passing"] = -buffer_bytes
    return HeldElsewhere(weights, kv_bytes)


def _afd(worker: WorkerDevices, composed: DeviceWorker, afd: Afd, accelerator: AcceleratorSpec) -> HeldElsewhere:
    """Attention accelerators hold no FFN weights; FFN accelerators must fit them."""
    needed = composed.model.layers * layer_weight_bytes(composed, {"ffn", "experts"})
    ffn = worker.ffn_accelerator or accelerator
    capacity = KV_SHARE * ffn.memory_bytes
    if needed > capacity:
        raise DoesNotFit(
            f"FFN weights of {needed / GIB:.2f} GiB do not fit on each of {afd.spec.ffn} FFN accelerators, which "
            f"offer {capacity / GIB:.2f} GiB",
            needed - capacity,
        )
    return HeldElsewhere({FFN: composed.ffn_bytes_per_rank}, _kv_bytes(worker, composed, 0.0))


def _kv_bytes(worker: WorkerDevices, composed: DeviceWorker, weights_bytes: float) -> float | None:
    """Bytes for KV on the device that holds it and ``weights_bytes``; None: KV is on the accelerator."""
    if composed.kv == ACCELERATOR:
        return None
    return KV_SHARE * worker.memory_bytes(composed.kv) - weights_bytes


def devices_memory(
    worker: WorkerDevices,
    model: ModelSpec,
    accelerator: AcceleratorSpec,
    profile: LatencyProfileSpec,
    split: Parallelism,
    weight_dtype: DType | None,
    kv_dtype: DType,
    engine: EngineName = "vllm",
) -> Elsewhere:
    """Bytes that a pool's devices take off its accelerators.

    Raises:
        DevicesRefused, DoesNotFit, InvalidParallelism: the devices cannot be composed into a worker.
    """
    composed = compose(worker, model, accelerator, profile, split, weight_dtype, kv_dtype, engine)
    return held_elsewhere(worker, composed, accelerator).relief
