"""Tables of docs/hardware.md that hold our figures against LLMServingSim's and NeuPIMs' own.

Published figures are those of the papers' artifacts (github casys-kaist/LLMServingSim, evaluation/, at e0f4911, MIT;
Heo et al., "NeuPIMs", ASPLOS 2024), on the artifact's own traces. Most are simulations of a peer, and called so. Power
of the server's parts is that of the artifact's configuration files, which were set to the measured server.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
from hardware_page import CATALOGUE, PIM_BLOCK, artifact, artifact_path, decode_s, law, simulated, table

from hisearch.api.measured.score import validate_runs
from hisearch.api.measured.series import tokens_per_second
from hisearch.cli.views.runs import errors_of
from hisearch.latency.sharding import Parallelism
from hisearch.score.energy import energy_parts
from hisearch.score.watts import watts_series
from hisearch.specs.yaml_nodes import dump_yaml

#: Energy by component, as the publication names and orders them.
COMPONENTS = ("rest", "accelerators", "cpu", "dram", "links", "nics", "storage")

#: J of the server over three pulses of ten requests, by ``COMPONENTS``, as LLMServingSim 2 simulates them; W at work,
#: idle and in standby, measured.
PULSES = {
    1: ((30081, 17453, 14822, 2198, 687, 1538, 810), (690, 446, 381)),
    2: ((21431, 25482, 17314, 2091, 654, 1464, 771), (925, 528, 406)),
}


def server(slots: int, rest_w: float, dram_w: float, waiting_cpu_w: float = 97.5) -> dict[str, Any]:
    """The server of the publication: W of its parts; its CPUs draw 132.5 W at work."""
    parts = {"cpu_w": waiting_cpu_w, "dram_w": dram_w, "links_w": 5.0, "nics_w": 11.2, "storage_w": 5.9}
    return {
        "accelerators": slots, "dram": "ddr5", "dram_bytes": 274877906944.0, "cpu_active_w": 132.5 - waiting_cpu_w,
        "base_w": rest_w + sum(parts.values()), "base_parts": parts,
        "price": {"usd_per_hour": 0.0, "evidence": "assumed", "as_of": "2026-11-01", "source": "none"},
        "provenance": {"source": "github casys-kaist/LLMServingSim, evaluation", "as_of": "2026-11-01"},
    }  # fmt: skip


#: LLMServingSim 2's simulation: tokens of the second after the last prompt, s of the run, J/token of the server.
GPU_AND_PIM = {
    "GPU": (3328, 52.4, 0.282),
    "GPU + PIM, serial": (4744, 45.5, 0.246),
    "GPU + PIM, interleaved": (4608, 52.8, 0.283),
}


def gpu_and_pim() -> str:
    """Llama-3.1-8B on an A6000 with PIM and without: the artifact's 256 requests of 128 in and 512 out."""
    trace = artifact("fixed_128_512")
    near = {"between": ["accelerator", "pim"],
            "link": {"kind": "nvlink", "bandwidth_bytes_per_s": 112e9, "latency_s": 0.0}}  # fmt: skip
    blocks: dict[str, dict[str, Any] | None] = {
        "GPU": None,
        "GPU + PIM, serial": {**PIM_BLOCK, "links": [near]},
        "GPU + PIM, interleaved": {**PIM_BLOCK, "links": [near], "schedule": "interleaved"},
        "the better of the two, step by step": {**PIM_BLOCK, "links": [near], "schedule": "best"},
        "serial, PIM on the PCIe slot": PIM_BLOCK,
    }
    figures = {}
    for name, block in blocks.items():
        pool = {
            "accelerator": "a6000", "host": "./host.yaml", "devices": block,
            "engine": {"name": "vllm", "max_running_requests": 256, "chunk_tokens": 2048, "enforce_eager": True},
        }  # fmt: skip
        spec = {"model": "llama-3.1-8b", "profile": "roofline", "pools": [pool]}
        # PIM takes the place of the server's main memory.
        host = server(1, 219.0, 32.0 if block is None else 0.0)
        run = simulated(spec, trace, host=host, log=True)
        prompts_done_s = float(np.nanmax(run.result.requests.first_token_s))
        rate = float(tokens_per_second(run, np.array([prompts_done_s + 1.0]))[0])
        figures[name] = (rate, run.result.makespan_s, energy_parts(run.result).total_j / (256 * 512))
    rows = []
    for name, ours in figures.items():
        cells = [name]
        for index, form in enumerate((",.0f", ".1f", ".3f")):
            cells.append(f"{ours[index]:{form}} ({ours[index] / figures['GPU'][index]:.2f})")
            if name in GPU_AND_PIM:
                own, first = GPU_AND_PIM[name][index], GPU_AND_PIM["GPU"][index]
                cells[-1] += f" / {own:{form}} ({own / first:.2f})"
        rows.append(cells)
    head = (
        "ours / LLMServingSim 2, simulated (of GPU)", "tokens of the second after the last prompt",
        "run at 10 requests/s, s", "J/token, server",
    )  # fmt: skip
    return table(head, rows)


def npu_and_pim() -> str:
    """Four NeuPIMs-like NPUs with PIM and without, over parallelism mixes; 256 requests of three lengths."""
    rows = []
    inside = {**PIM_BLOCK, "attached": {"pim": {"device": "npu-hbm-pim"}}}
    lengths = (("Alpaca", 12 + 56 / 2), ("ShareGPT", 80 + 296 / 2), ("1,024 tokens", 1024.0))
    for split in (Parallelism(tensor=4), Parallelism(tensor=2, pipeline=2), Parallelism(pipeline=4)):
        for name, context in lengths:
            alone, serial, halves = (
                256 / decode_s(law("gpt3-6.7b", "npu-8x128x128", split, block), 256 / split.pipeline, context)
                for block in ({}, inside, {**inside, "schedule": "interleaved"})
            )
            best = max(serial, halves)
            rows.append([
                f"TP {split.tensor}, PP {split.pipeline}", name, f"{alone:,.0f}", f"{serial:,.0f}", f"{halves:,.0f}",
                f"{best / alone:.2f}", f"{best / serial:.2f}",
            ])  # fmt: skip
    head = (
        "4 NPUs", "requests", "NPU, tokens/s", "+ PIM, serial", "+ PIM, interleaved", "better of the two: of NPU",
        "of serial",
    )  # fmt: skip
    return table(head, rows)


#: Decode attention of Llama-3.1-8B measured on a TPU v6e, us of a layer: by tokens of each decode, for DECODES of them
#: (llm_profile/perf_models/TPU-v6e-1, decode_attn_trace.csv, means, at 9e3f0ec).
DECODES = (1, 8, 32, 64, 96)
TPU_ATTENTION_US = {
    32: (6.31, 24.20, 90.98, 179.32, 267.73),
    160: (8.22, 39.39, 151.85, 248.60, 370.43),
    1984: (32.56, 161.66, 636.00, 1268.70, 1901.60),
}


def measured_profile(folder: Path) -> str:
    """A profile that has that attention, and the roofline for the rest; its path."""
    rows = [
        f"decode_attention,{decodes},,{each},{us * 1e-6}"
        for each, times_us in TPU_ATTENTION_US.items()
        for decodes, us in zip(DECODES, times_us, strict=True)
    ]
    (folder / "operators.csv").write_text("\n".join(["operator,tokens,context,context_each,latency_s", *rows]) + "\n")
    spec = CATALOGUE.get("LatencyProfile", "roofline").spec.model_dump(mode="json", exclude_defaults=True)
    spec |= {"estimator": "devices", "operators": str(folder / "operators.csv")}
    envelope = {"apiVersion": "hisearch/v1", "kind": "LatencyProfile", "metadata": {"name": "tpu"}, "spec": spec}
    (folder / "tpu.yaml").write_text(dump_yaml(envelope), encoding="utf-8")
    return str(folder / "tpu.yaml")


def tpu() -> str:
    """The artifact's 300 requests of ShareGPT at 10 a second on one TPU v6e."""
    trace = artifact("sharegpt_300_llama")
    rows = [["TPU v6e, measured", "1,900", "57", "30.0"], ["LLMServingSim 2, simulated", "1,895", "48", "29.9"]]
    with tempfile.TemporaryDirectory() as folder:
        measured = measured_profile(Path(folder))
        for name, accelerator, profile in (
            ("ours, by its sheet and 15 points of the same artifact (set here)", "tpu-v6e", measured),
            ("ours, by its sheet", "tpu-v6e", "roofline"),
            ("ours, RTX A6000", "a6000", "roofline"),
            ("ours, H100", "h100-sxm", "auto"),
        ):
            pool = {"accelerator": accelerator, "engine": {"name": "vllm", "chunk_tokens": 2048}}
            run = simulated({"model": "llama-3.1-8b", "profile": profile, "pools": [pool]}, trace)
            requests = run.result.requests
            rate = float(requests.output_tokens.sum()) / run.result.makespan_s
            first = requests.first_token_s - requests.arrival_s
            each = (requests.finish_s - requests.first_token_s) / np.maximum(requests.output_tokens - 1, 1)
            rows.append([name, f"{rate:,.0f}", f"{np.mean(first) * 1e3:.0f}", f"{np.mean(each) * 1e3:.1f}"])
    return table(("one chip", "output tokens/s", "mean TTFT, ms", "mean TPOT, ms"), rows)


def pulses() -> tuple[str, go.Figure]:
    """Power of a server over three pulses of load, 60 s apart, by component and by state."""
    trace = artifact("pulse_10x3")
    rows, figure = [], go.Figure()
    # The publication has other figures for the same server with one GPU in use and with two.
    for ranks, rest_w, waiting_cpu_w in ((1, 219.0, 97.5), (2, 164.0, 132.5)):
        pool = {
            "accelerator": "a6000", "tensor_parallel": ranks, "host": "./host.yaml",
            "engine": {"name": "vllm", "chunk_tokens": 2048, "enforce_eager": True},
        }  # fmt: skip
        spec = {"model": "llama-3.1-8b", "profile": "roofline", "pools": [pool]}
        run = simulated(spec, trace, host=server(ranks, rest_w, 16.0, waiting_cpu_w), log=True)
        series = watts_series(run.result, run.plan.costs.joules, 1.0)
        watts = (series["accelerators_w"] + series["host_w"]).to_numpy()
        # Past the rise of a pulse, 8 s after its last step, and before the next one.
        idle = int(run.result.log.steps["end_s"][run.result.log.steps["end_s"] < 61].max() - 1.0) + 8
        states = (float(np.median(watts[2:5])), watts[idle], watts[57])
        parts = {name.removesuffix("_j"): joules for name, joules in asdict(energy_parts(run.result)).items()}
        published, measured = PULSES[ranks]
        whole = sum(parts.values())
        ours = [f"{parts[name]:,.0f}" for name in COMPONENTS] + [f"{whole:,.0f}", *(f"{w:.0f}" for w in states)]
        theirs = [f"{joules:,}" for joules in published] + [f"{sum(published):,}", *(str(w) for w in measured)]
        rows.append([f"TP {ranks}", *(f"{a} / {b}" for a, b in zip(ours, theirs, strict=True))])
        figure.add_scatter(x=series["time_s"], y=watts, name=f"TP {ranks}, server", mode="lines")
        figure.add_scatter(
            x=series["time_s"], y=series["accelerators_w"], name=f"TP {ranks}, accelerators", mode="lines",
            line_dash="dot",
        )  # fmt: skip
    figure.update_xaxes(title="seconds")
    figure.update_yaxes(title="W", rangemode="tozero")
    figure.update_layout(title="Three pulses of load, 60 s apart: Llama-3.1-8B on RTX A6000")
    return table(
        (
            "J, ours / peer's simulation; W, ours / measured",
            *COMPONENTS,
            "all",
            "W at work",
            "idle",
            "standby",
        ),
        rows,
    ), figure


def runs() -> str:
    """Measured runs of vLLM on A6000: every figure that was measured, marked where it set a constant."""
    listed = Path(__file__).with_name("measured-runs") / "llmservingsim2" / "runs.yaml"
    rows = []
    for score in validate_runs(artifact_path("pulse_10x3").parents[1], listed):
        for name, figure in score.figures.items():
            error, by_second = (text.replace("−", "-") for text in errors_of(figure)[:2])
            digits = 1 if figure.unit.startswith("%") else 0
            measured, ours = (f"{value:,.{digits}f}" for value in (figure.measured, figure.simulated))
            error += ", set here" if figure.set_here else ""
            if name == "throughput" and figure.median_error is None:
                by_second = "not compared"
            rows.append([score.id, f"{name}, {figure.unit}", measured, ours, error, by_second])
    return table(("run", "figure", "measured", "simulated", "error", "by second, median"), rows)
