"""Composes a pool's devices block into a worker whose steps can be priced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from hisearch.hardware.peaks import sheet_peaks
from hisearch.hardware.topology import Network, RanksDoNotFit
from hisearch.latency.devices.afd import FFN, Afd
from hisearch.latency.devices.build import (
    DevicesRefused,
    WorkerDevices,
    accelerator_device,
    attached_device,
    links_of,
)
from hisearch.latency.devices.chosen_experts import ChosenExpertLoads
from hisearch.latency.devices.collectives import CollectiveLaw
from hisearch.latency.devices.experts import ExpertLoads
from hisearch.latency.devices.fitted import FittedLaw, fitted_worker
from hisearch.latency.devices.layer import Product, ProductFamily
from hisearch.latency.devices.mapping import operator_map, runs
from hisearch.latency.devices.work import Load, Work, attention_heads, decode_work, operator_work, prefill_work
from hisearch.latency.devices.worker import DeviceWorker
from hisearch.latency.operators import attention_shape, sequence_operators, token_operators
from hisearch.latency.parameters import lm_head, matrices, wide_dtype
from hisearch.latency.sharding import (
    InvalidParallelism,
    Parallelism,
    Shard,
    dense_layers,
    expert_hidden,
    moe_layers,
    shard,
)
from hisearch.latency.workers.roofline import compute_dtypes, peer_collectives
from hisearch.specs.base import DType, EngineName
from hisearch.specs.machines.devices import ACCELERATOR, DevicesSpec, OperatorName
from hisearch.specs.machines.hardware import AcceleratorSpec
from hisearch.specs.machines.profile import LatencyProfileSpec
from hisearch.specs.models.model import ModelSpec

#: Elementwise operators that run with a family; the others stay on the accelerator.
ELEMENTWISE_OF: dict[str, ProductFamily] = {
    "activation": "ffn",
    "expert_activation": "experts",
    "expert_gather": "experts",
}


def family_of(name: str) -> OperatorName:
    """Family of a weight matrix."""
    if name.startswith("experts_"):
        return "experts"
    if name in {"gate_up_proj", "down_proj", "shared_gate_up_proj", "shared_down_proj"}:
        return "ffn"
    return "projections"


def present_operators(model: ModelSpec) -> list[OperatorName]:
    """Families that a model has, in the order of dependencies."""
    families: list[OperatorName] = ["projections", "prefill_attention", "decode_attention"]
    if dense_layers(model) or (model.moe is not None and model.moe.shared_intermediate_size):
        families.append("ffn")
    if moe_layers(model):
        families.append("experts")
    return [*families, "lm_head"]


def compose(
    worker: WorkerDevices,
    model: ModelSpec,
    accelerator: AcceleratorSpec,
    profile: LatencyProfileSpec,
    split: Parallelism,
    weight_dtype: DType | None,
    kv_dtype: DType,
    engine: EngineName = "vllm",
) -> DeviceWorker:
    """One rank's operators on its devices, by fitted laws of ``engine``'s kernels where the profile has them.

    Raises:
        DevicesRefused: an operator's device has no law for it, a link is missing, or weights do not divide.
        InvalidParallelism: the model cannot be split so.
    """
    spec, part = worker.spec, shard(model, split)
    if model.compressed_attention is not None or model.block_sparse is not None:
        raise DevicesRefused(
            "operators",
            f"{model.huggingface_id} has compressed or block-sparse attention, of which no device has a law",
        )
    if model.sparse_attention is not None:
        raise DevicesRefused("operators", f"{model.huggingface_id} has sparse attention, of which no device has a law")
    if model.window_heads is not None or model.value_head_dim not in (0, model.head_dim):
        raise DevicesRefused(
            "operators",
            f"{model.huggingface_id} has layers of several head widths, which are not simulated on attached devices",
        )
    dtype = weight_dtype if weight_dtype is not None else model.weight_dtype
    heads = attention_heads(model, part)
    devices = {ACCELERATOR: accelerator_device(accelerator, profile, split.tensor)} | {
        name: attached_device(name, worker.devices[name], entry, heads.kv_heads, split.tensor)
        for name, entry in spec.attached.items()
    }
    fitted = fitted_worker(model, accelerator, profile, split, weight_dtype, kv_dtype, engine)
    if fitted is not None:
        base = devices[ACCELERATOR]
        assert base.seconds is not None
        devices[ACCELERATOR] = replace(base, seconds=FittedLaw(fitted, base.seconds, stated=spec.experts is not None))
    links = links_of(worker, accelerator, split.ranks)
    plain = DeviceWorker(
        model=model,
        spec=spec,
        devices=devices,
        map=dict.fromkeys(present_operators(model), ACCELERATOR),
        kv=ACCELERATOR,
        links=links.links,
        in_slot=links.in_slot,
        products=_products(model, part, accelerator, dtype),
        sequence_products=_sequence_products(model, part, dtype),
        attention=attention_shape(model, part, kv_dtype),
        heads=heads,
        attention_dtype=wide_dtype(dtype),
        collectives=CollectiveLaw(
            model,
            split,
            fitted.collectives if fitted is not None else peer_collectives(profile, accelerator),
            fitted is not None,
            _network(spec, accelerator, profile),
        ),
    )
    chosen = _mapped(plain, accelerator)
    mapped = replace(plain, map=chosen, kv=spec.kv or chosen["decode_attention"])
    if spec.attention_ffn is not None:
        mapped = _afd(worker, mapped, accelerator, profile, weight_dtype)
    else:
        _check_experts(spec, plain)
        mapped = replace(
            mapped, streamed=_streamed(spec, plain, chosen), expert_loads=_expert_loads(spec, model, split)
        )
    _check_links(mapped)
    return mapped


def _network(spec: DevicesSpec, accelerator: AcceleratorSpec, profile: LatencyProfileSpec) -> Network | None:
    if spec.network is None:
        return None
    return Network.of(spec.network, profile.all_reduce.bandwidth, accelerator.peer_link.energy_j_per_byte)


def _afd(
    worker: WorkerDevices,
    plain: DeviceWorker,
    accelerator: AcceleratorSpec,
    profile: LatencyProfileSpec,
    weight_dtype: DType | None,
) -> DeviceWorker:
    """The same worker with attention-FFN disaggregation: FFN and experts on separate accelerators."""
    spec, model, split = worker.spec, plain.model, plain.collectives.split
    assert spec.attention_ffn is not None
    if split.attention_data > 1 or split.pipeline > 1:
        raise DevicesRefused("attention_ffn", f"goes with tensor parallelism alone, not with {split}")
    ffn = worker.ffn_accelerator or accelerator
    link, peers = spec.attention_ffn.link or accelerator.peer_link, peer_collectives(profile, ffn)
    afd = Afd(spec.attention_ffn, model, split.tensor, link, peers)
    try:
        part = shard(model, afd.split)
    except InvalidParallelism as error:
        raise DevicesRefused("attention_ffn.ffn", str(error)) from None
    dtype = weight_dtype if weight_dtype is not None else model.weight_dtype
    ffn_products = tuple(
        replace(product, token_scale=afd.token_scale)
        for product in _products(model, part, ffn, dtype)
        if product.family in {"ffn", "experts"}
    )
    attention_products = tuple(product for product in plain.products if product.family not in {"ffn", "experts"})
    expert_loads = None
    if model.moe is not None and spec.experts is not None:
        expert_loads = _expert_loads(spec, model, afd.split)
    return replace(
        plain,
        devices={
            **plain.devices,
            FFN: replace(
                accelerator_device(ffn, profile, split.tensor),
                name=FFN,
                kind=FFN,
                link_j_per_byte=afd.link.energy_j_per_byte,
            ),
        },
        map={**plain.map, "ffn": FFN, "experts": FFN},
        products=attention_products + ffn_products,
        collectives=replace(plain.collectives, once=True),
        expert_loads=expert_loads,
        afd=afd,
        ffn_bytes_per_rank=model.layers * layer_weight_bytes(plain, {"ffn", "experts"}),
    )


def _products(model: ModelSpec, part: Shard, accelerator: AcceleratorSpec, dtype: DType) -> tuple[Product, ...]:
    held = {matrix.name: matrix for matrix in matrices(model, part)}
    products = []
    formats = compute_dtypes(accelerator, model, dtype)
    for op in token_operators(model, part, dtype, formats[dtype], formats):
        matrix = held.get(op.name)
        family: ProductFamily = ELEMENTWISE_OF.get(op.name, "elementwise")
        if matrix is not None:
            family = family_of(op.name)
        products.append(Product(family, op, matrix))
    return tuple(products)


def _sequence_products(model: ModelSpec, part: Shard, dtype: DType) -> tuple[Product, ...]:
    head = lm_head(model, part)
    return tuple(
        Product("lm_head", op, head) if op.name == "lm_head" else Product("elementwise", op, None)
        for op in sequence_operators(model, part, dtype)
    )


def _expert_loads(spec: DevicesSpec, model: ModelSpec, split: Parallelism) -> ExpertLoads | None:
    if spec.experts is None:
        return None
    if model.moe is None:
        raise DevicesRefused("experts", f"{model.huggingface_id} has no experts")
    stated, layers = len(spec.experts.routing.layers), moe_layers(model)
    if stated not in {0, layers}:
        raise DevicesRefused("experts.routing.layers", f"has {stated} entries for {layers} layers with experts")
    sizes = (spec.experts, model.moe.experts, model.moe.experts_per_token, split.expert, expert_hidden(model))
    loads = ExpertLoads(*sizes) if spec.experts.routing.function is None else ChosenExpertLoads(*sizes, layers=layers)
    held = max(len(rank) for rank in loads.dealt)
    offload = spec.experts.offload
    if offload is not None and offload.resident > held:
        raise DevicesRefused(
            "experts.offload.resident", f"is {offload.resident}, but a rank holds {held} experts a layer"
        )
    return loads


def _check_experts(spec: DevicesSpec, worker: DeviceWorker) -> None:
    """Refuse experts mapped to a device without a law for them."""
    offload = spec.experts.offload if spec.experts is not None else None
    if offload is not None and offload.run == "there" and not runs(worker.devices[offload.device], "experts"):
        raise DevicesRefused("experts.offload.run", f"{offload.device} has no law for experts")


def _streamed(
    spec: DevicesSpec, worker: DeviceWorker, chosen: Mapping[OperatorName, str]
) -> tuple[tuple[int, float, str], ...]:
    """(layers, bytes of a layer on a rank, device) of every entry."""
    layers = worker.model.layers
    streamed_layers = sum(entry.layers for entry in spec.streamed)
    if streamed_layers > layers:
        raise DevicesRefused("streamed", f"{streamed_layers} layers are streamed of {layers}")
    entries = []
    for entry in spec.streamed:
        if entry.device == ACCELERATOR:
            raise DevicesRefused("streamed", "weights on the accelerator itself are not streamed")
        for operator in entry.operators:
            if chosen.get(operator, ACCELERATOR) != ACCELERATOR:
                raise DevicesRefused("streamed", f"{operator} runs on {chosen[operator]}, where its weights lie")
        entries.append((entry.layers, layer_weight_bytes(worker, set(entry.operators)), entry.device))
    return tuple(entries)


def layer_weight_bytes(worker: DeviceWorker, families: set[str]) -> float:
    """Bytes of these families' weights in the mean layer of a rank."""
    total = 0.0
    for product in worker.products:
        if product.matrix is not None and product.family in families:
            total += product.op.layers * product.matrix.experts * product.op.weight_bytes
    return total / worker.model.layers


def _mapped(worker: DeviceWorker, accelerator: AcceleratorSpec) -> dict[OperatorName, str]:
    """The devices block's map of families to devices."""
    spec, unit = worker.spec, np.ones(1)
    sequences, context = unit * spec.sequences, unit * spec.sequences * spec.context_tokens
    decodes = Load(sequences, 0 * unit, 0 * unit, sequences, context)
    chunk = Load(unit * spec.context_tokens, unit * spec.context_tokens, 0 * unit, 0 * unit, 0 * unit)
    peaks = sheet_peaks(accelerator)
    balance = peaks["bf16"] / accelerator.memory_bandwidth_bytes_per_s

    def intensity(family: OperatorName) -> tuple[float, float]:
        works = [work for work, _ in _works(worker, family, decodes, chunk)]
        flops = sum(float(work.flops[0]) for work in works)
        return flops / max(sum(float(work.moved_bytes[0]) for work in works), 1e-9), balance

    def seconds(family: OperatorName, name: str, chosen: Mapping[OperatorName, str] | None) -> float:
        law = worker.devices[name].seconds
        assert law is not None
        alone = sum(times * float(law.cost(work)[0]) for work, times in _works(worker, family, decodes, chunk))
        if chosen is None:
            return alone
        origin = ACCELERATOR if family == "projections" else chosen["projections"]
        if family == "lm_head":
            origin = ACCELERATOR
        if origin == name:
            return alone
        moved = _handed_bytes(worker, family, decodes, chunk)
        return alone + worker.model.layers * 2.0 * float(worker.transfer_s(origin, name, np.array([moved / 2.0]))[0])

    return operator_map(spec, worker.devices, present_operators(worker.model), intensity, seconds)


def _works(worker: DeviceWorker, family: OperatorName, decodes: Load, chunk: Load) -> list[tuple[Work, float]]:
    """A family's operators in the reference step, each with its number of layers."""
    shape, dtype = worker.attention, worker.attention_dtype
    layers = float(shape.full_layers + shape.window_layers)
    if family == "decode_attention":
        return [(decode_work(shape, worker.heads, dtype, decodes.sequences, decodes.context), layers)]
    if family == "prefill_attention":
        return [(prefill_work(shape, worker.heads, dtype, chunk.prompt, chunk.before), layers)]
    products = worker.sequence_products if family == "lm_head" else worker.products
    return [
        (operator_work(product.op, product.matrix, decodes.tokens), float(product.op.layers))
        for product in products
        if product.family == family
    ]


def _handed_bytes(worker: DeviceWorker, family: OperatorName, decodes: Load, chunk: Load) -> float:
    """Bytes per layer to a family's device and back."""
    shape = worker.attention
    if family == "decode_attention":
        return float(decodes.sequences[0]) * (shape.decode_query_bytes + shape.kv_bytes_per_token)
    if family == "prefill_attention":
        return float(chunk.prompt[0]) * (shape.prefill_query_bytes + shape.kv_bytes_per_token)
    width = expert_hidden(worker.model) if family == "experts" else worker.model.hidden_size
    return float(decodes.tokens[0]) * width * 4.0


def _check_links(worker: DeviceWorker) -> None:
    """Refuse a map with a missing link, and groups of ranks that do not divide the network."""
    unit = np.ones(1)
    try:
        worker.step(Load(2 * unit, unit, unit, unit, unit))
        worker.sequence(unit)
    except RanksDoNotFit as error:
        raise DevicesRefused("network", str(error)) from None
    for _, _, name in worker.streamed:
        worker.link(ACCELERATOR, name)
