"""Accelerators by a CSV of operator latencies, by their sheet, or both."""

from __future__ import annotations

import numpy as np
import pytest
from devices_catalogue import A6000, NPU_DEVICE, PIM, ROOFLINE, SELF_PIM, compiled
from latency_catalogue import LLAMA_8B, VLLM

from hisearch.latency.devices.breakdown import by_operator
from hisearch.latency.devices.build import WorkerDevices
from hisearch.latency.devices.compose import compose
from hisearch.latency.devices.measured import read_operators
from hisearch.latency.devices.work import Load, operator_work
from hisearch.latency.sharding import Parallelism
from hisearch.latency.step_cost import bilinear
from hisearch.specs.machines.devices import DevicesSpec
from hisearch.traces.reading.errors import TraceError

HEADER = "operator,tokens,context,latency_s\n"


def profile(path):
    return ROOFLINE.model_copy(update={"estimator": "devices", "operators": str(path)})


def test_measured_operators_come_before_the_sheet(tmp_path):
    file = tmp_path / "operators.csv"
    file.write_text(HEADER + "down_proj,1,,1e-3\ndown_proj,101,,2e-3\n")
    plain, both = compiled(LLAMA_8B, A6000, VLLM), compiled(LLAMA_8B, A6000, VLLM, profile=profile(file))
    matrix = 14336 * 4096 * 2
    roofline_s = (
        np.maximum(2 * 14336 * 4096 * 51 / (154.8e12 * 0.7), (matrix + 51 * (14336 + 4096) * 2) / (768e9 * 0.8)) + 2e-6
    )
    assert both.seconds.token_s[51] - plain.seconds.token_s[51] == pytest.approx(32 * (1.5e-3 - roofline_s), rel=1e-6)


def test_attention_is_bilinear_and_goes_on(tmp_path):
    file = tmp_path / "operators.csv"
    rows = [f"decode_attention,{n},{c},{1e-6 * n + 1e-8 * c}" for n in (1, 64) for c in (0, 4096, 65536)]
    file.write_text(HEADER + "\n".join(rows) + "\n")
    law = compiled(LLAMA_8B, A6000, VLLM, profile=profile(file), max_sequences=256, max_context_tokens=200_000)
    seconds = bilinear(law.seconds.decode_s, 64, 65536, extrapolate=True)
    assert seconds == pytest.approx(32 * (64e-6 + 65536e-8))
    table = read_operators(file, 1).seconds["decode_attention"]
    assert table(np.array(128.0), np.array(100_000.0)) == pytest.approx(128e-6 + 1e-3)


def test_context_of_each_decode(tmp_path):
    """A sequence and its tokens cost what they do however many there are: exact between the points and beyond."""
    file = tmp_path / "operators.csv"
    rows = [f"decode_attention,{n},,{each},{n * (2e-6 + 1e-8 * each)}" for n in (1, 32) for each in (32, 2048)]
    file.write_text("operator,tokens,context,context_each,latency_s\n" + "\n".join(rows) + "\n")
    table = read_operators(file, 1).seconds["decode_attention"]
    for n, each in ((1, 32), (7, 500), (32, 2048), (100, 4000)):
        seconds = table(np.array(float(n)), np.array(float(n * each)))
        assert seconds == pytest.approx(n * (2e-6 + 1e-8 * each))
    file.write_text(file.read_text() + "decode_attention,1,64,,1e-6\n")
    with pytest.raises(TraceError, match="rows with context_each, and rows without"):
        read_operators(file, 1)


def test_rows_of_other_ranks_are_left_out(tmp_path):
    file = tmp_path / "operators.csv"
    file.write_text("operator,tokens,context,latency_s,tensor_parallel\nnorms,1,,1e-3,1\nnorms,1,,5e-4,2\n")
    assert read_operators(file, 2).seconds["norms"](np.array(1.0)) == 5e-4
    with pytest.raises(TraceError, match="no rows of tensor_parallel 4"):
        read_operators(file, 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("operator,tokens,latency_s\n", "operators.csv:1: no column context"),
        ("operator,tokens,context,latency_s,latency_us\n", "operators.csv:1: has both latency_s and latency_us"),
        (
            "operator,tokens,context,latency_us,energy_uj\nnorms,1,,1,1\nnorms,2,,1,\n",
            "norms has energy_uj in some of its rows only",
        ),
        (HEADER + "norms,1,,fast\n", "operators.csv:2: latency_s: expected a number, got 'fast'"),
        (HEADER + "decode_attention,1,1,1\ndecode_attention,2,2,1\n", "has no value for tokens 1 at context 2"),
    ],
)
def test_bad_files_are_refused(tmp_path, text, message):
    file = tmp_path / "operators.csv"
    file.write_text(text)
    with pytest.raises(TraceError, match=message.replace(".", r"\.")):
        read_operators(file, 1)


def by_file(file, block, device=NPU_DEVICE, **entry):
    """A worker whose device is known by ``file`` alone, or before its law."""
    devices = DevicesSpec.model_validate({"attached": {"it": {"device": "it", **entry}}, **block})
    return WorkerDevices(devices, {"it": device.model_copy(update={"operators": str(file)})})


def step_of(devices, measure):
    law = compose(devices, LLAMA_8B, A6000, ROOFLINE, Parallelism(), None, "bf16")
    n = np.array([8.0])
    load = Load(n, 0 * n, 0 * n, n, 1000 * n)
    return {share.operator: getattr(share, measure) for share in by_operator(law, load)}


BY_FILE_ALONE = {"sheet": None, "systolic": None, "pim": None, "active_w": 0.0}


def test_a_device_is_its_operators_latencies_and_joules(tmp_path):
    file = tmp_path / "device.csv"
    rows = "decode_attention,1,1000,200,40\ndecode_attention,16,1000,400,80\n"
    rows += "decode_attention,1,64000,3200,640\ndecode_attention,16,64000,6400,1280\n"
    file.write_text("operator,tokens,context,latency_us,energy_uj\n" + rows)
    devices = by_file(file, {"operators": {"decode_attention": "it"}}, NPU_DEVICE.model_copy(update=BY_FILE_ALONE))
    share = (8000 - 1000) / 63000, (8 - 1) / 15
    latency_us = 200 + 3000 * share[0] + share[1] * (200 + 3000 * share[0])
    assert step_of(devices, "seconds")["decode_attention"] == pytest.approx(32 * latency_us * 1e-6)
    assert step_of(devices, "joules")["decode_attention"] == pytest.approx(32 * latency_us * 0.2e-6)


@pytest.mark.parametrize("pim", [PIM, SELF_PIM], ids=["softmax on the accelerator", "units of its own"])
def test_measured_attention_of_pim_has_its_softmax(tmp_path, pim):
    """Counted once: what the file measured takes as long and costs as much with a law of PIM as without any."""
    file = tmp_path / "pim.csv"
    rows = "".join(f"decode_attention,{n},{c},{100 * n},{10 * n}\n" for n in (1, 64) for c in (0, 64000))
    file.write_text("operator,tokens,context,latency_us,energy_uj\n" + rows)
    block = {"operators": {"decode_attention": "it"}}
    alone = pim.model_copy(update=BY_FILE_ALONE | {"internal_j_per_byte": 0.0, "flop_j": 0.0})
    for measure in ("seconds", "joules"):
        both, measured = (step_of(by_file(file, block, device), measure) for device in (pim, alone))
        assert both == measured
        assert "softmax" not in both
    file.write_text("operator,tokens,context,latency_us,energy_uj\nlm_head,1,,10,1\n")
    assert step_of(by_file(file, block, pim), "seconds")["softmax"] > 0, "what was not measured is left to a law"


def test_a_device_s_file_comes_before_its_law_and_its_energy_too(tmp_path):
    file = tmp_path / "device.csv"
    file.write_text("operator,tokens,context,latency_us,energy_uj\ndown_proj,1,,10,5\ndown_proj,64,,10,5\n")
    block = {"operators": {"ffn": "it"}}
    plain = WorkerDevices(by_file(file, block).spec, {"it": NPU_DEVICE})
    law = compose(plain, LLAMA_8B, A6000, ROOFLINE, Parallelism(), None, "bf16")
    down = next(product for product in law.products if product.op.name == "down_proj")
    work = operator_work(down.op, down.matrix, np.array([8.0]))
    for measure, value in (("seconds", 10e-6), ("joules", 5e-6)):
        own = float(getattr(law.devices["it"], measure).cost(work)[0])
        change = step_of(by_file(file, block), measure)["ffn"] - step_of(plain, measure)["ffn"]
        assert change == pytest.approx(32 * (value - own))


@pytest.mark.parametrize(
    ("text", "entry", "message"),
    [
        ("operator,tokens,context,latency_us\ndown_proj,1,,10\n", {}, "it has no law of energy: .* need energy_j"),
        ("operator,tokens,context,latency_us,energy_uj\nlm_head,1,,1,1\n", {"count": 2}, "of one device for each"),
        ("operator,tokens,context,latency_us,energy_uj\ndown_proj,1,,1,1\n", {}, "lack gate_up_proj"),
    ],
)
def test_files_that_do_not_do_are_refused(tmp_path, text, entry, message):
    file = tmp_path / "device.csv"
    file.write_text(text)
    bare = NPU_DEVICE.model_copy(update=BY_FILE_ALONE)
    with pytest.raises(ValueError, match=message):
        step_of(by_file(file, {"operators": {"ffn": "it"}}, bare, **entry), "seconds")
