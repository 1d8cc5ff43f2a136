"""No resource is used without being occupied, and no field of a device is without effect."""

from __future__ import annotations

import numpy as np
import pytest
from devices_catalogue import A6000, CATALOGUE, CPU, CXL, KNOWN, NPU_DEVICE, PIM, ROOFLINE, SELF_PIM, worker
from hypothesis import given, settings
from hypothesis import strategies as st
from latency_catalogue import H100, LLAMA_8B, QWEN3_30B_A3B
from pydantic import BaseModel, ValidationError

from hisearch.hardware.prices import deployment_cost
from hisearch.latency.device_memory.plan import DoesNotFit
from hisearch.latency.devices.build import DevicesRefused, WorkerDevices
from hisearch.latency.devices.compose import compose
from hisearch.latency.devices.flow import station_seconds
from hisearch.latency.devices.memory import devices_memory
from hisearch.latency.devices.work import Load
from hisearch.latency.estimators.devices import idle_w_by_component
from hisearch.latency.sharding import Parallelism
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.machines.devices import DevicesSpec


def load_of(chunk=(0, 0), decodes=()):
    new, cached = chunk
    values = (new + len(decodes), new, cached, len(decodes), sum(decodes))
    return Load(*(np.array([float(value)]) for value in values))


def law_of(devices, model=LLAMA_8B, accelerator=A6000, split=None):
    return compose(devices, model, accelerator, ROOFLINE, split or Parallelism(), None, "bf16")


def with_device(spec, **block):
    block = DevicesSpec.model_validate({"attached": {"it": {"device": "it"}}, **block})
    return WorkerDevices(block, {"it": spec})


@pytest.mark.parametrize("block", [{"kv": "it"}, {"experts": {"offload": {"device": "it", "resident": 0}}}])
def test_memory_is_read_no_faster_than_its_bandwidth(block):
    """L4: 8 decodes of 4,000 tokens in memory of 1 GB/s, whatever the link carries."""
    slow = CXL.model_copy(update={"memory_bandwidth_bytes_per_s": 1e9})
    model = QWEN3_30B_A3B if "experts" in block else LLAMA_8B
    load = load_of(decodes=[4000] * 8)
    law = law_of(with_device(slow, **block), model, H100)
    read = 8 * 4000 * law.attention.kv_bytes_per_token * model.layers
    if "experts" in block:
        fetched = [law.expert_loads.fetched_bytes(p.op, load.tokens) for p in law.products if p.op.routed]
        read = model.layers * sum(float(moved[1][0]) for moved in fetched)
    assert law.step(load)[0] >= read / 1e9


LINKED = st.fixed_dictionaries(
    {},
    optional={
        "kv": st.just("cxl"),
        "streamed": st.integers(1, 32).map(lambda n: [{"device": "cxl", "layers": n, "operators": ["projections"]}]),
        "experts": st.tuples(st.integers(0, 128), st.sampled_from([0.0, 0.5, 1.0])).map(
            lambda drawn: {"offload": {"device": "cxl", "resident": drawn[0], "predicted": drawn[1]}}
        ),
    },
)


@given(block=LINKED, n=st.integers(1, 64), each=st.integers(1, 8000), prompt=st.integers(0, 4096),
       schedule=st.sampled_from(["serial", "interleaved", "best"]))  # fmt: skip
@settings(deadline=None)
def test_a_link_carries_no_more_than_its_bandwidth(block, n, each, prompt, schedule):
    """L4: KV, streamed weights and fetched experts of a step share the one link from the device that holds them."""
    law = law_of(worker(attached=["cxl"], schedule=schedule, **block), QWEN3_30B_A3B, H100)
    load, model = load_of((prompt, 0), [each] * n), QWEN3_30B_A3B
    moved = float(law.kv == "cxl") * n * each * law.attention.kv_bytes_per_token * model.layers
    moved += sum(layers * each_bytes for layers, each_bytes, _ in law.streamed)
    for product in law.products if law.expert_loads is not None else ():
        if product.op.routed:
            jobs = load.tokens / (2.0 if schedule == "interleaved" else 1.0)
            _, now, ahead = law.expert_loads.fetched_bytes(product.op, jobs)
            moved += product.op.layers * float((now + ahead)[0])
    assert law.step(load)[0] >= moved / CXL.link.bandwidth_bytes_per_s * (1 - 1e-9)


def test_what_works_beside_a_stage_is_occupied_by_it():
    far = law_of(worker(attached=["cxl"], kv="cxl", schedule="interleaved"))
    busy = station_seconds(far.stages(load_of(decodes=[4000] * 8)))
    assert busy["link cxl accelerator"][0] == pytest.approx(8 * 4000 * 4096 / 25e9, rel=1e-3)


def slot_of(bytes_per_s):
    return A6000.model_copy(
        update={"host_link": A6000.host_link.model_copy(update={"bandwidth_bytes_per_s": bytes_per_s})}
    )


@pytest.mark.parametrize(("spec", "block"), [
    (CPU, {"operators": {"ffn": "it", "decode_attention": "it"}}), (CXL, {"kv": "it"}),
    (CXL, {"streamed": [{"device": "it", "layers": 32}]}), (PIM, {"operators": {"decode_attention": "it"}}),
])  # fmt: skip
def test_a_device_is_reached_through_the_slot_of_its_accelerator(spec, block):
    """L4: PCIe and CXL carry no more than the slot; links on the package and stated ones do not pass it."""
    load, devices = load_of((512, 0), [3000] * 16), with_device(spec, **block)
    wide, usual, narrow = (law_of(devices, accelerator=slot_of(rate)) for rate in (1e12, 25e9, 1e9))
    assert wide.step(load)[0] <= usual.step(load)[0] < narrow.step(load)[0]
    near = with_device(with_link(spec, kind="nvlink"), **block)
    assert law_of(near, accelerator=slot_of(1e9)).step(load)[0] == law_of(near).step(load)[0]
    stated = with_device(spec, **block, links=[{"between": ["accelerator", "it"], "link": spec.link.model_dump()}])
    assert law_of(stated, accelerator=slot_of(1e9)).step(load)[0] == law_of(stated).step(load)[0]


def with_link(spec, **changes):
    return spec.model_copy(update={"link": spec.link.model_copy(update=changes)})


@pytest.mark.parametrize(("kind", "shared"), [("pcie", True), ("nvlink", False)])
def test_devices_behind_one_slot_share_it(kind, shared):
    """L4: KV in one memory and streamed weights in another pass the same slot; two links of their own do not."""
    far = with_link(CXL, kind=kind)
    block = {"kv": "a", "streamed": [{"device": "b", "layers": 32, "operators": ["ffn"]}]}
    spec = DevicesSpec.model_validate({"attached": {"a": {"device": "a"}, "b": {"device": "b"}}, **block})
    law, load = law_of(WorkerDevices(spec, {"a": far, "b": far})), load_of(decodes=[4000] * 16)
    bytes_per_s = law.link("accelerator", "a").bandwidth_bytes_per_s
    kv_s = 32 * 16 * 4000 * 4096 / bytes_per_s
    weights_s = 32 * 3 * 4096 * 14336 * 2 / bytes_per_s
    took_s = law.step(load)[0]
    assert (took_s >= kv_s + weights_s) == shared
    assert took_s >= max(kv_s, weights_s)


def test_scores_cross_the_link_where_pim_has_no_softmax():
    """64 decodes of 2,000 tokens: 262 MB of scores out and as much of probabilities back, 21 ms at 25 GB/s."""
    load = load_of(decodes=[2000] * 64)
    block = {"operators": {"decode_attention": "it"}}
    own, left = (law_of(with_device(spec, **block)).step(load)[0] for spec in (SELF_PIM, PIM))
    scores = 64 * 2000 * 32 * 32
    crossing = 2 * (scores * 2 / 25e9 + 32 * PIM.link.latency_s)
    assert 2 * scores * 2 == pytest.approx(524e6, rel=1e-3)
    normalised = scores * 4 / (ROOFLINE.elementwise.bandwidth * A6000.memory_bandwidth_bytes_per_s)
    assert left - own == pytest.approx(crossing + normalised + 32 * ROOFLINE.elementwise.launch_s, rel=1e-6)
    assert law_of(with_device(PAID_PIM, **block)).step(load)[0] - own == pytest.approx(scores / 1e12)


# Every field of a device: a change of it changes a figure, or is refused.

PAID_PIM = PIM.model_copy(update={"pim": PIM.pim.model_copy(update={"softmax_scores_per_s": 1e12})})
PIM_BLOCK = {"operators": {"decode_attention": "it", "ffn": "it"}}
USED = {
    "pim": (PIM, PIM_BLOCK),
    "self_pim": (PAID_PIM, PIM_BLOCK),
    "cpu": (CPU, {"operators": {"ffn": "it", "decode_attention": "it"}}),
    "npu": (NPU_DEVICE, {"operators": {"ffn": "it"}}),
    "cxl": (CXL, {"kv": "it"}),
    "cxl-streamed": (CXL, {"streamed": [{"device": "it", "layers": 32}]}),
}


def leaves(spec, at=()):
    """Paths of all fields that hold a number or a choice, but those for the reader."""
    for name, field in type(spec).model_fields.items():
        value = getattr(spec, name)
        if name in {"provenance", "price"} or "for the reader" in (field.description or "").lower():
            continue
        if isinstance(value, BaseModel):
            yield from leaves(value, (*at, name))
        elif isinstance(value, dict):
            yield from ((*at, name, key) for key in value)
        elif isinstance(value, int | float | str):
            yield (*at, name)


def changed(spec, path):
    """Plain specs with one field made another."""
    for factor in (2, 0.5, 0.001):
        plain = spec.model_dump()
        inner = plain
        for name in path[:-1]:
            inner = inner[name]
        value = inner[path[-1]]
        if isinstance(value, str):
            inner[path[-1]] = {"heads": "requests", "cxl": "gpu"}.get(value, "cxl")
        else:
            inner[path[-1]] = type(value)(value * factor) or 1e-12
        yield plain


def figures(spec, block):
    """All that a worker with the device costs: seconds, joules, watts, memory, dollars."""
    devices = with_device(spec, **block)
    law = law_of(devices)
    loads = [load_of((2000, 0)), load_of(decodes=[3000] * 64), load_of((512, 4096), [700]), load_of(decodes=[9000])]
    seconds = [float(law.step(load)[0]) for load in loads]
    joules = [float(x[0]) for load in loads for x in law.step_joules(load).values()]
    idle = idle_w_by_component(devices, A6000, 1)
    relief = devices_memory(devices, LLAMA_8B, A6000, ROOFLINE, Parallelism(), None, "bf16")
    pool = {"accelerator": "a6000", "engine": {"name": "vllm"}, "devices": devices.spec.model_dump()}
    cost = deployment_cost(
        DeploymentSpec.model_validate({"model": "m", "pools": [pool]}), {"a6000": A6000},
        {A6000.host: CATALOGUE.get("Host", A6000.host).spec}, {}, {"it": spec},
    )  # fmt: skip
    return (*seconds, *joules, *sorted(idle.items()), relief, cost.total)


CASES = [(name, path) for name, (spec, _) in USED.items() for path in leaves(spec)]
#: Formats of operands that Llama-3.1-8B does not have.
CASES = [(name, path) for name, path in CASES if path[-1] not in {"fp32", "int8"}]


@pytest.mark.parametrize(
    ("name", "path"), CASES, ids=lambda value: value if isinstance(value, str) else ".".join(value)
)
def test_every_field_of_a_device_counts(name, path):
    """Twice as much or less of it changes seconds, joules, watts, memory or dollars, or is refused."""
    spec, block = USED[name]
    before, after = figures(spec, block), []
    for plain in changed(spec, path):
        try:
            after.append(figures(type(spec).model_validate(plain), block))
        except (ValidationError, DevicesRefused, DoesNotFit) as refusal:
            after.append(refusal)
    allowed = [each for each in after if not isinstance(each, ValidationError)]
    assert any(each != before for each in allowed or after), f"{'.'.join(path)} of {name} has no effect"


@pytest.mark.parametrize("field", ["bandwidth_bytes_per_s", "latency_s", "energy_j_per_byte"])
def test_every_field_of_a_direct_link_counts(field):
    link = {**PIM.link.model_dump(), "energy_j_per_byte": 1e-10}
    results = []
    for factor in (1.0, 0.7):
        stated = {"between": ["accelerator", "it"], "link": {**link, field: link[field] * factor}}
        results.append(figures(PIM, {"operators": {"decode_attention": "it"}, "links": [stated]}))
    assert results[0] != results[1]


def test_sharing_a_device_divides_all_of_it():
    """A quarter of a CPU: memory, rates, watts and dollars of a quarter, over a link of its own."""
    block = {"operators": {"ffn": "it"}}
    whole = law_of(with_device(CPU, **block))
    entry = {"it": {"device": "it", "shared_by": 4}}
    spec = DevicesSpec.model_validate({"attached": entry, **block})
    quarter = WorkerDevices(spec, {"it": CPU})
    load = load_of(decodes=[100] * 16)
    of_it = [station_seconds(law.stages(load)) for law in (whole, law_of(quarter))]
    sheet = CPU.sheet
    assert of_it[1]["it"][0] == pytest.approx(4 * of_it[0]["it"][0], rel=0.05 + sheet.launch_s)
    assert of_it[1]["link accelerator it"] == of_it[0]["link accelerator it"]
    assert quarter.memory_bytes("it") == CPU.memory_bytes / 4
    idle = idle_w_by_component(quarter, A6000, 1)
    assert idle["cpu"] == CPU.idle_w / 4
    with pytest.raises(DevicesRefused, match="shared_by: 1 systolic arrays do not divide among 2 accelerators"):
        law_of(WorkerDevices(
            DevicesSpec.model_validate({"attached": {"it": {"device": "it", "shared_by": 2}}}), {"it": NPU_DEVICE}
        ))  # fmt: skip


def test_joules_of_a_link_are_stated_once():
    link = {**CXL.link.model_dump(), "energy_j_per_byte": 1e-12}
    with pytest.raises(ValidationError, match="is stated as the device's link_j_per_byte"):
        type(CXL).model_validate({**CXL.model_dump(), "link": link})
    assert KNOWN["cxl"].link_j_per_byte > 0
