"""Attention and FFN on accelerators of their own, against micro-batches event by event."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
from devices_catalogue import ROOFLINE, SELF_PIM, compiled, worker
from event_simulation import makespan_s
from latency_catalogue import A100, H100, LLAMA_70B, QWEN3_30B_A3B, VLLM
from pydantic import ValidationError

from hisearch.latency.device_memory.plan import DoesNotFit
from hisearch.latency.devices.build import DevicesRefused, WorkerDevices
from hisearch.latency.devices.compose import compose
from hisearch.latency.devices.flow import overlapped_s, station_seconds
from hisearch.latency.devices.memory import devices_memory
from hisearch.latency.devices.work import Load
from hisearch.latency.parameters import weight_bytes_per_rank
from hisearch.latency.sharding import Parallelism
from hisearch.latency.step_cost import decode_step_seconds


def afd(model=LLAMA_70B, tp=4, ffn_accelerator=None, **block):
    devices = worker(attention_ffn=block)
    devices = WorkerDevices(devices.spec, {}, ffn_accelerator)
    return compose(devices, model, H100, ROOFLINE, Parallelism(tensor=tp), None, "bf16")


def decodes(n, each):
    values = (n, 0, 0, n, n * each)
    return Load(*(np.array([float(value)]) for value in values))


@pytest.mark.parametrize("model", [LLAMA_70B, QWEN3_30B_A3B], ids=lambda m: m.huggingface_id)
@pytest.mark.parametrize(("attention", "ffn"), [(1, 4), (2, 4), (4, 4), (8, 4)])
@pytest.mark.parametrize("micro_batches", [1, 2, 3])
def test_a_step_event_by_event(model, attention, ffn, micro_batches):
    law = afd(model, attention=attention, ffn=ffn, micro_batches=micro_batches)
    load = decodes(96, 2000)
    stages = [(s.station, float(s.seconds[0])) for s in law.stages(load.part(float(micro_batches)))]
    # Attention's norms and products before the FFN, and the next layer's after it, are one visit.
    first = stages.index(next(s for s in stages if s[0] == "link to ffn"))
    attention_visit = ("accelerator", sum(t for name, t in stages if name == "accelerator"))
    round_ = [attention_visit, *stages[first:]]
    assert all(name != "accelerator" for name, _ in stages[first:])
    expected = makespan_s(_merged(round_) * model.layers, [1.0] * micro_batches)
    assert law.step(load)[0] == pytest.approx(expected + law.collectives.embedding(load.tokens)[0], rel=1e-9)


def _merged(steps):
    """Visits to one station in a row as one."""
    visits = []
    for name, seconds in steps:
        if visits and visits[-1][0] == name:
            visits[-1] = (name, visits[-1][1] + seconds)
        else:
            visits.append((name, seconds))
    return visits


def test_transfers_count_the_busier_side():
    law = afd(attention=4, ffn=2, tp=4, link={"kind": "roce", "bandwidth_bytes_per_s": 50e9, "latency_s": 5e-6})
    tokens, hidden = np.array([64.0]), 64 * 8192 * 2
    # Every token goes to both FFN accelerators: out of 4 links a worker, into one of each FFN accelerator for all 4.
    assert law.afd.there(tokens, routed=False).seconds[0] == pytest.approx(5e-6 + 4 * hidden / 50e9)
    assert law.afd.back(tokens, routed=False).seconds[0] == pytest.approx(5e-6 + 4 * hidden / 2 / 50e9)


def test_ping_pong_hides_the_shorter_side():
    single, double = (afd(attention=4, ffn=4, micro_batches=k).step(decodes(256, 4000))[0] for k in (1, 2))
    assert double < single
    assert double > single / 2


def test_the_best_ratio_is_found_in_the_middle():
    """Tokens per accelerator: too few FFN accelerators make attention wait, too many wait themselves."""
    per_accelerator = []
    for ffn in (1, 2, 4, 8, 16, 32):
        step_s = afd(attention=4, tp=4, ffn=ffn).step(decodes(128, 8000))[0]
        per_accelerator.append(4 * 128 / step_s / (16 + ffn))
    best = int(np.argmax(per_accelerator))
    assert 0 < best < 5


def test_joules_and_idle_power_count_a_share_of_the_ffn():
    devices = WorkerDevices(worker(attention_ffn={"attention": 4, "ffn": 2}).spec, {}, A100)
    costs = compiled(LLAMA_70B, H100, VLLM, devices, tp=4)
    assert costs.idle_w_by_component == {"accelerator": 4 * H100.idle_w, "ffn": 0.5 * A100.idle_w}
    assert decode_step_seconds(costs.components["ffn"], 64, 6400) > 0
    assert set(costs.components) == {"accelerator", "ffn", "link"}


def test_memory_of_both_sides():
    spec = worker(attention_ffn={"attention": 2, "ffn": 4})
    relief = devices_memory(spec, LLAMA_70B, H100, ROOFLINE, Parallelism(tensor=4), None, "bf16")
    ffn = 80 * 3 * 8192 * 28672 * 2 / 4
    assert relief.weights_bytes == pytest.approx(ffn)
    assert relief.weights_bytes < weight_bytes_per_rank(LLAMA_70B, 4, "bf16")
    with pytest.raises(DoesNotFit, match=r"FFN weights of 105\.00 GiB do not fit on each of 1 FFN accel"):
        devices_memory(
            worker(attention_ffn={"attention": 2, "ffn": 1}), LLAMA_70B, H100, ROOFLINE, Parallelism(tensor=4), None,
            "bf16",
        )  # fmt: skip


def test_what_is_refused():
    with pytest.raises(DevicesRefused, match=r"attention_ffn.ffn: .*does not divide"):
        afd(attention=2, ffn=3)
    with pytest.raises(DevicesRefused, match="tensor parallelism alone"):
        compose(
            worker(attention_ffn={"attention": 1, "ffn": 2}), LLAMA_70B, H100, ROOFLINE,
            Parallelism(tensor=2, pipeline=2), None, "bf16",
        )  # fmt: skip
    cxl = {"attached": ["cxl"]}
    for block, what in (
        ({"schedule": "best"}, "schedule"),
        ({"operators": {"ffn": "accelerator"}}, "ffn of operators"),
        ({"attached": ["pim"], "others": "pim"}, "others"),
        ({"mapping": "greedy"}, "mapping"),
        (cxl | {"streamed": [{"device": "cxl", "layers": 2}]}, "streamed"),
        (cxl | {"experts": {"offload": {"device": "cxl", "resident": 2}}}, "experts.offload"),
    ):
        with pytest.raises(ValidationError, match=f"goes without {what}: "):
            worker(**block, attention_ffn={"attention": 1, "ffn": 1})


class TestAttentionOnPim:
    """Attention of decodes on PIM beside each attention accelerator, the FFN on accelerators of its own."""

    BLOCK: ClassVar[dict[str, object]] = {
        "attached": ["self_pim"],
        "operators": {"decode_attention": "self_pim"},
        "attention_ffn": {"attention": 2, "ffn": 4, "micro_batches": 2},
    }

    def law(self, **more):
        return compose(worker(**self.BLOCK | more), LLAMA_70B, H100, ROOFLINE, Parallelism(tensor=4), None, "bf16")

    def test_the_layer_is_attention_there_and_the_rest_as_it_was(self):
        law, plain = self.law(), afd(attention=2, ffn=4, micro_batches=2)
        load = decodes(64, 2000)
        ours, theirs = (station_seconds(each.stages(load)) for each in (law, plain))
        for station in ("ffn", "link to ffn", "link from ffn"):
            assert ours[station] == theirs[station]
        attention = float(plain._decode(load, "seconds")[0]) / 80
        assert ours["accelerator"] == pytest.approx(theirs["accelerator"] - attention)
        assert ours["self_pim"] == pytest.approx(law._decode(load, "seconds")[0] / 80)
        assert ours["link accelerator self_pim"] > 0
        assert ours["link self_pim accelerator"] > 0

    def test_micro_batches_keep_all_stations_busy(self):
        law = self.law()
        load = decodes(64, 2000)
        stages = law.stages(load.part(2.0))
        expected = overlapped_s(stages, 80, 2.0) + law.collectives.embedding(load.tokens)
        assert law.step(load) == pytest.approx(expected)

    def test_kv_lies_there(self):
        relief = devices_memory(worker(**self.BLOCK), LLAMA_70B, H100, ROOFLINE, Parallelism(tensor=4), None, "bf16")
        assert relief.kv_space_bytes == pytest.approx(0.95 * SELF_PIM.memory_bytes)
        assert relief.weights_bytes == pytest.approx(80 * 3 * 8192 * 28672 * 2 / 4)

    def test_each_component_has_its_joules(self):
        costs = compiled(LLAMA_70B, H100, VLLM, worker(**self.BLOCK), tp=4)
        assert set(costs.components) == {"accelerator", "pim", "ffn", "link"}
        plain = compiled(LLAMA_70B, H100, VLLM, worker(attention_ffn=self.BLOCK["attention_ffn"]), tp=4)
        joules, before = (
            {name: decode_step_seconds(each.components[name], 64, 64 * 2000) for name in each.components}
            for each in (costs, plain)
        )
        assert joules["pim"] > 0
        assert joules["ffn"] == pytest.approx(before["ffn"])
        assert joules["accelerator"] < before["accelerator"]
