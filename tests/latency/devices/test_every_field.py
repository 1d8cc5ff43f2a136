"""Every field of accelerators, hosts, networks and FFNs apart changes a figure of a worker, or is refused.

Figures are the compiled worker (step times, joules, memory, tiers, power), its price, and what a deployment is refused
for. Fields for the reader are named here. Those of attached devices: ``test_conservation``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from devices_catalogue import CATALOGUE, KNOWN
from latency_catalogue import LLAMA_8B
from pydantic import BaseModel, ValidationError

from hisearch.hardware.prices import deployment_cost
from hisearch.latency.device_memory.plan import DoesNotFit
from hisearch.latency.devices.build import DevicesRefused
from hisearch.simulate import plan_worker
from hisearch.specs.deployments.deployment import DeploymentSpec, PoolSpec
from hisearch.specs.deployments.tier_checks import capacity_problems, other_memory
from hisearch.specs.machines.devices import AttentionFfnSpec, DimensionSpec
from hisearch.specs.machines.hardware import AcceleratorSpec, HostSpec

MEDIA = {name: CATALOGUE.get("Medium", name).spec for name in CATALOGUE.names("Medium")}
PROFILES = {name: CATALOGUE.get("LatencyProfile", name).spec for name in ("roofline", "auto")}

#: Fields for the reader: where facts come from, and how sure prices are, which draws of a search vary.
DESCRIPTIVE = {"provenance", "evidence", "source", "as_of", "notes", "range_usd_per_hour"}

#: Of single kinds of documents: names and counts that only people read, and kinds of links that decide nothing there.
READER = {("cpu_cores",), ("shared", 0, "name"), ("host_link", "kind"), ("network", "kind"), ("link", "kind")}


def with_fields(spec: Any, **fields: Any) -> Any:
    return type(spec).model_validate(spec.model_dump() | fields)


def with_joules(link: Any, **fields: Any) -> dict[str, Any]:
    return {**link.model_dump(), "energy_j_per_byte": 1e-10, **fields}


A6000 = CATALOGUE.get("Accelerator", "a6000").spec
GPU = with_fields(
    A6000, peer_ranks=2, standby_after_s=20.0, wake_s=1.0, wake_j=50.0, reserved_bytes=3e8, memory_w=200.0,
    in_band_ecc=True, peer_link=with_joules(A6000.peer_link), host_link=with_joules(A6000.host_link), host="usual",
)  # fmt: skip
#: A card without a profile of its own, to which laws of a measured one are carried.
CARRIED = with_fields(CATALOGUE.get("Accelerator", "rtx-6000-ada").spec, host="usual")
AMD = with_fields(CATALOGUE.get("Accelerator", "mi300x").spec, host="usual")
NPU = with_fields(CATALOGUE.get("Accelerator", "npu-128x128").spec, host="usual")
#: What FFNs apart may run on, with a link that says what it does.
OTHER = with_fields(CATALOGUE.get("Accelerator", "l40s").spec, host="usual")
GEMMA = CATALOGUE.get("Model", "gemma-3-12b").spec
HOST = CATALOGUE.get("Host", "workstation-a6000-4").spec
HOST = with_fields(
    HOST, accelerators=8, peer_domain=16, dram="ddr5", dram_bytes=600 * 2.0**30, nvme="nvme-gen4",
    nvme_bytes=900 * 2.0**30, cpu_sockets=2, base_w=900.0, cpu_active_w=300.0, usd_per_kwh=0.2, pue=1.3,
    base_parts={"cpu_w": 100.0, "dram_w": 90.0, "links_w": 80.0, "nics_w": 70.0, "storage_w": 60.0},
    network=with_joules(A6000.peer_link, kind="infiniband"), price={**HOST.price.model_dump(), "usd_per_hour": 3.0},
    shared=[{"name": "switch", "accelerators": 4, "bandwidth_bytes_per_s": 40e9, "latency_s": 2e-5}],
)  # fmt: skip

TIERS = {
    "tiers": [
        {"medium": "ddr5", "gib": 200, "scope": "worker"}, {"medium": "nvme-gen4", "gib": 400, "scope": "node"},
    ],
    "movement": {"kv_connector": "hicache"},
}  # fmt: skip
REMOTE = {"tiers": [TIERS["tiers"][0], {"medium": "rdma-pool", "gib": 400}], "movement": TIERS["movement"]}
SMALL = {"max_running_requests": 16, "chunk_tokens": 512}
CPU_BLOCK = {"attached": {"cpu": {"device": "cpu", "shared_by": 4}}, "operators": {"ffn": "cpu"}}


def pool(engine: str = "vllm", **fields: Any) -> dict[str, Any]:
    return {"accelerator": "card", "engine": {"name": engine, **SMALL}, "replicas": 2, **fields}


#: (fields of a pool, profile) of each kind of accelerator; the first in which a change shows ends the look.
WORLDS: dict[str, list[tuple[dict[str, Any], str]]] = {
    "gpu": [
        (pool("sglang", tensor_parallel=4, **TIERS), "roofline"),
        (pool(tensor_parallel=4, weight_dtype="fp8"), "auto"),
        (pool(tensor_parallel=2), "auto"),
    ],
    "carried": [(pool(), "auto"), (pool(windows=True), "auto")],
    "amd": [(pool(tensor_parallel=2), "auto"), (pool(weight_dtype="fp8"), "auto")],
    "npu": [(pool(devices={}), "roofline"), (pool(tensor_parallel=2, devices={}), "roofline")],
}  # fmt: skip
HOST_WORLDS = [
    (pool("sglang", tensor_parallel=4, **TIERS), "roofline"),
    (pool("sglang", tensor_parallel=4, **REMOTE), "roofline"),
    (pool(tensor_parallel=16), "roofline"),
    (pool(tensor_parallel=4, devices=CPU_BLOCK), "roofline"),
    (pool(lora={"max_loras": 2, "rank": 16}), "roofline"),
]


def parts(value: Any) -> Iterator[bytes]:
    """All numbers and words of a compiled worker."""
    if isinstance(value, np.ndarray):
        yield str(value.shape).encode() + value.tobytes()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from parts(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for name in sorted(value):
            yield str(name).encode()
            yield from parts(value[name])
    elif isinstance(value, tuple | list):
        for part in value:
            yield from parts(part)
    else:
        yield repr(value).encode()


def digest(value: Any) -> str:
    state = hashlib.sha256()
    for part in parts(value):
        state.update(part + b"\0")
    return state.hexdigest()


def figures(
    fields: dict[str, Any], profile: str, card: AcceleratorSpec, host: HostSpec, ffn: AcceleratorSpec = OTHER
) -> tuple[Any, ...]:
    """All that a worker of the pool costs, and what its deployment is refused for."""
    fields = dict(fields)
    model = GEMMA if fields.pop("windows", False) else LLAMA_8B
    spec = PoolSpec.model_validate(fields)
    afd = spec.devices.attention_ffn if spec.devices is not None else None
    named = afd is not None and afd.ffn_accelerator is not None
    plan = plan_worker(
        spec, model=model, accelerator=card, host=host, media=MEDIA, profile=PROFILES[profile], profile_name=profile,
        devices=KNOWN, ffn_accelerator=ffn if named else None, ffn_host=host,
    )  # fmt: skip
    bought = DeploymentSpec(model="m", pools=[spec])
    cost = deployment_cost(bought, {"card": card, "other": ffn}, {"usual": host}, MEDIA, KNOWN)
    refused = [
        *capacity_problems(spec.tiers, spec.parallelism, MEDIA, "usual", host),
        *other_memory(spec.tiers, MEDIA, "usual", host),
    ]
    return digest(plan), cost, refused


def leaves(spec: BaseModel, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all fields that have a value, but those for the reader."""
    for name in type(spec).model_fields:
        value = getattr(spec, name)
        if name in DESCRIPTIVE or (*at, name) in READER:
            continue
        if isinstance(value, BaseModel):
            yield from leaves(value, (*at, name))
        elif isinstance(value, list):
            for index, part in enumerate(value):
                yield from leaves(part, (*at, name, index))
        elif isinstance(value, dict):
            yield from ((*at, name, key) for key in value)
        elif value is not None:
            yield (*at, name)


def choices(spec: BaseModel, path: tuple[Any, ...]) -> list[str]:
    """What else a field of words may say."""
    annotation: Any = type(spec)
    for name in path:
        if isinstance(name, int):
            continue
        annotation = annotation.model_fields[name].annotation
        for inner in typing.get_args(annotation):
            annotation = inner if isinstance(inner, type) and issubclass(inner, BaseModel) else annotation
    known = [word for word in _words(annotation) if isinstance(word, str)]
    return known or ["hgx-h100-8", "ddr4", "cxl-dram", "nvme-gen5"]


def _words(annotation: Any) -> Iterator[Any]:
    for inner in typing.get_args(annotation):
        yield from [inner] if isinstance(inner, str) else _words(inner)


def changed(spec: BaseModel, path: tuple[Any, ...]) -> Iterator[BaseModel]:
    """The spec with one field made another, where that is allowed."""
    plain: Any = spec.model_dump()
    inner = plain
    for name in path[:-1]:
        inner = inner[name]
    value = inner[path[-1]]
    if isinstance(value, bool):
        others: list[Any] = [not value]
    elif isinstance(value, str):
        others = [word for word in choices(spec, path) if word != value]
    elif isinstance(value, int):
        others = [2 * value, value + 1, max(value // 2, 1), max(value // 4, 1)]
    else:
        others = [0.9 * value, 1.1 * value, 2 * value, 0.05 * value, 0.001 * value] if value else [1e-6, 1.0]
    for other in others:
        inner[path[-1]] = other
        try:
            yield type(spec).model_validate(plain)
        except ValidationError:
            continue


def outcome(look: Any, *given: Any) -> Any:
    """Figures, or why they are refused."""
    try:
        return look(*given)
    except (ValidationError, DevicesRefused, DoesNotFit, ValueError) as refusal:
        return str(refusal)


def counts(spec: BaseModel, path: tuple[Any, ...], looks: list[Any]) -> bool:
    """Whether a change of the field that is allowed shows in one of ``looks``, functions of the spec, or none is."""
    others = list(changed(spec, path))
    for look in looks:
        before = outcome(look, spec)
        assert not isinstance(before, str), before
        if any(outcome(look, other) != before for other in others):
            return True
    return not others


def title(value: Any) -> str:
    return ".".join(map(str, value))


CARDS = {"gpu": GPU, "carried": CARRIED, "amd": AMD, "npu": NPU}
#: Formats that stand in for others only, or that no weights are in.
CARD_FIELDS = sorted({path for card in CARDS.values() for path in leaves(card)} - {
    ("peak_flops", dtype) for dtype in ("fp32", "fp16", "int8", "int4")
})  # fmt: skip


@pytest.mark.parametrize("path", CARD_FIELDS, ids=title)
def test_every_field_of_an_accelerator_counts(path: tuple[Any, ...]) -> None:
    """On one of those that have it: a GPU, one without a profile, another vendor's, an NPU of systolic arrays."""
    assert any(
        counts(card, path, [lambda card, world=world: figures(*world, card, HOST) for world in WORLDS[name]])
        for name, card in CARDS.items()
        if path in set(leaves(card))
    )


def test_every_field_of_an_accelerator_is_looked_at() -> None:
    """None is left out because no example has it."""
    assert {path[0] for path in CARD_FIELDS} == set(AcceleratorSpec.model_fields) - DESCRIPTIVE
    assert {path[0] for path in leaves(HOST)} == set(HostSpec.model_fields) - DESCRIPTIVE - {"cpu_cores"}


@pytest.mark.parametrize("path", list(leaves(HOST)), ids=title)
def test_every_field_of_a_host_counts(path: tuple[Any, ...]) -> None:
    assert counts(HOST, path, [lambda host, world=world: figures(*world, GPU, host) for world in HOST_WORLDS])


AFD = {"attention": 2, "ffn": 2, "micro_batches": 2, "ffn_accelerator": "card", "link": with_joules(A6000.peer_link)}


def disaggregated(afd: AttentionFfnSpec) -> tuple[Any, ...]:
    block = {"attention_ffn": afd.model_dump()}
    return figures(
        pool(replicas=3, devices=block), "roofline", GPU, HOST, OTHER if afd.ffn_accelerator == "other" else GPU
    )


@pytest.mark.parametrize("path", list(leaves(AttentionFfnSpec.model_validate(AFD))), ids=title)
def test_every_field_of_an_ffn_apart_counts(path: tuple[Any, ...]) -> None:
    spec = AttentionFfnSpec.model_validate(AFD)
    assert {name for name, *_ in leaves(spec)} == set(AttentionFfnSpec.model_fields)
    assert counts(spec, path, [disaggregated])


#: What only attention's accelerators are asked for: laws of their kernels, host memory, the engine's host.
OF_ATTENTION = {
    ("reserved_bytes",), ("in_band_ecc",), ("peer_link", "kind"), ("host_link", "energy_j_per_byte"),
    ("host_processor",), ("multiprocessors",), ("compute_capability",),
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in AcceleratorSpec.model_fields if name not in DESCRIPTIVE])
def test_fields_of_ffn_accelerators_count(name: str) -> None:
    """What an accelerator is counts where FFNs have it, too, but for what is attention's."""
    spec = AttentionFfnSpec.model_validate(AFD)
    block = {"attention_ffn": spec.model_dump() | {"ffn_accelerator": "other"}}
    wide = {"attention_ffn": {"attention": 2, "ffn": 4, "ffn_accelerator": "other"}}
    worlds = [(pool(replicas=3, devices=each), "roofline") for each in (block, wide)]
    known = [path for path in leaves(GPU) if path[0] == name and path not in OF_ATTENTION]
    looks = [lambda card, world=world: figures(*world, GPU, HOST, card) for world in worlds]
    missing = [path for path in known if path in CARD_FIELDS and not counts(GPU, path, looks)]
    assert not missing, f"{missing} of an FFN accelerator have no effect"


DIMENSION = {"ranks": 2, "bandwidth_bytes_per_s": 50e9, "latency_s": 3e-6}
INNER = {"topology": "fully_connected", "ranks": 4, "bandwidth_bytes_per_s": 300e9, "latency_s": 1e-6}


@pytest.mark.parametrize("path", [(name,) for name in DimensionSpec.model_fields], ids=title)
def test_every_field_of_a_network_s_dimension_counts(path: tuple[Any, ...]) -> None:
    """Of the outer of two dimensions, over which eight ranks reduce and pipelines send."""
    spec = DimensionSpec.model_validate(
        {**DIMENSION, "topology": "switch", "oversubscription": 2.0, "algorithm": "ring"}
    )

    def look(outer: DimensionSpec) -> tuple[Any, ...]:
        block = {"network": {"dimensions": [INNER, outer.model_dump()]}}
        return figures(pool(tensor_parallel=8, devices=block), "roofline", GPU, HOST)

    assert counts(spec, path, [look])
