"""Computes the tables and figures of docs/hardware.md and its note; pictures need Chromium.

Usage::

    python docs/generate_hardware.py            # prints the tables
    python docs/generate_hardware.py --write    # writes them into the page, and draws the figures
    python docs/generate_hardware.py --check    # whether the quick ones stand there as they come out (a quarter minute)
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import plotly.graph_objects as go
from hardware_page import (
    IMAGES,
    PIM_BLOCK,
    SCHEDULES,
    decode_s,
    draw,
    law,
    simulated,
    striped,
    table,
    write,
)
from hardware_published import gpu_and_pim, npu_and_pim, pulses, runs, tpu

from hisearch.api.deployments.workload import load_trace
from hisearch.hardware.topology import Network
from hisearch.latency.devices.breakdown import by_operator
from hisearch.latency.devices.work import Load
from hisearch.latency.sharding import Parallelism
from hisearch.score.capacity import capacity
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.devices import NetworkSpec
from hisearch.specs.machines.hardware import LinkSpec
from hisearch.specs.machines.laws import CollectiveCurve

NVLINK = {
    "between": ["accelerator", "pim"],
    "link": {"kind": "nvlink", "bandwidth_bytes_per_s": 450e9, "latency_s": 2e-6},
}


def operators() -> str:
    """A step of 256 decodes, operator by operator, on the GPU alone and with PIM."""
    n = np.array([256.0])
    load = Load(n, 0 * n, 0 * n, n, n * 384)
    blocks: dict[str, dict[str, Any]] = {"GPU": {}, "GPU + PIM": PIM_BLOCK}
    shares_by_system = {
        name: {share.operator: share for share in by_operator(law("llama-3.1-8b", "a6000", Parallelism(), block), load)}
        for name, block in blocks.items()
    }
    rows = []
    for operator in shares_by_system["GPU + PIM"]:
        cells = [operator]
        for shares in shares_by_system.values():
            share = shares.get(operator)
            cells += ["", "", ""] if share is None else [
                share.device, f"{share.seconds * 1e3:.2f}", f"{share.joules / 256 * 1e3:.2f}"
            ]  # fmt: skip
        rows.append(cells)
    head = ("256 decodes of 384 tokens", "GPU: device", "ms", "mJ/token", "GPU + PIM: device", "ms", "mJ/token")
    return table(head, rows)


def crossover() -> tuple[str, go.Figure]:
    """Decode throughput by batch, 384 tokens of context each."""
    batches = (16, 32, 64, 128, 192, 256, 320, 384, 512, 768, 1024)
    workers = {"GPU": law("llama-3.1-8b", "a6000", Parallelism(), {})}
    for schedule in SCHEDULES[:2]:
        workers[f"GPU + PIM, {schedule}"] = law(
            "llama-3.1-8b", "a6000", Parallelism(), {**PIM_BLOCK, "schedule": schedule}
        )
    rates = {name: [n / decode_s(worker, n, 384) for n in batches] for name, worker in workers.items()}
    rows = [[name, *(f"{rate:,.0f}" for rate in tokens_per_s)] for name, tokens_per_s in rates.items()]
    figure = go.Figure()
    for name, tokens_per_s in rates.items():
        figure.add_scatter(x=batches, y=tokens_per_s, name=name, mode="lines+markers")
    figure.update_xaxes(title="decodes in a step", type="log")
    figure.update_yaxes(title="tokens per second", rangemode="tozero")
    figure.update_layout(title="Llama-3.1-8B on an A6000, 384 tokens of context each")
    return table(("tokens/s at", *(str(n) for n in batches)), rows), figure


def shared_cache() -> str:
    """Two workers with a host cache each, or one that they share: memory used and hit rates."""
    trace, rows = load_trace("chat-multiturn"), []
    for name, gib, scope in (("none", 0, "node"), ("128 GiB each", 128, "worker"), ("256 GiB shared", 256, "node")):
        pool = {
            "accelerator": "h100-sxm", "replicas": 2, "engine": {"name": "vllm", "memory_fraction": 0.5},
            "movement": {"kv_connector": "lmcache"},
            "tiers": [{"medium": "ddr5", "gib": gib, "scope": scope}] if gib else [],
        }  # fmt: skip
        spec = {"model": "llama-3.1-8b", "profile": "roofline", "pools": [pool], "router": {"policy": "round_robin"}}
        run = simulated(spec, trace, load=0.4)
        requests = run.result.requests
        prompts = float(requests.input_tokens.sum())
        hits = [float(getattr(requests, f).sum()) / prompts for f in ("hit_tokens", "host_hit_tokens")]
        peaks = " / ".join(f"{peak / run.result.kv_capacity_tokens:.0%}" for peak in run.result.workers.peak_kv_tokens)
        rows.append([name, peaks, f"{hits[0]:.1%}", f"{hits[1]:.1%}", f"{run.metrics['ttft_p99_s']:.2f}"])
    head = ("host cache", "peak use of KV memory", "prompt tokens found in it", "and in the host cache", "TTFT p99, s")
    return table(head, rows)


def networks() -> str:
    """One step of 2,048 devices in several mixes."""
    network = {
        "dimensions": [
            {"topology": "switch", "ranks": 8, "bandwidth_bytes_per_s": 450e9, "latency_s": 1e-6},
            {"topology": "switch", "ranks": 32, "bandwidth_bytes_per_s": 50e9, "latency_s": 3e-6,
             "oversubscription": 2.0},
            {"topology": "ring", "ranks": 8, "bandwidth_bytes_per_s": 25e9, "latency_s": 5e-6},
        ]
    }  # fmt: skip
    gpt3 = ((32, 1), (1, 32), (8, 8), (8, 32), (32, 32))
    mixes = (
        *(("gpt3-175b", Parallelism(tensor=tensor, pipeline=pipeline)) for tensor, pipeline in gpt3),
        ("deepseek-v3", Parallelism(tensor=1, attention_data=256, expert=256, pipeline=8)),
        ("deepseek-v3", Parallelism(tensor=8, attention_data=32, expert=256, pipeline=8)),
    )
    rows = []
    for model, split in mixes:
        worker = law(model, "h100-sxm", split, {"network": network})
        step_s = decode_s(worker, 32, 1024)
        n = np.array([32.0])
        shared = float(worker.collectives.layer(n)[0]) * worker.model.layers
        shared += float(worker.collectives.embedding(n)[0])
        copies = 2048 // split.ranks
        rate = 32 * split.attention_data * split.pipeline * copies / step_s
        rows.append([
            model, f"TP {split.tensor}, PP {split.pipeline}, DP attention {split.attention_data}, EP {split.expert}",
            f"{copies}", f"{step_s * 1e3:.1f}", f"{shared / step_s:.0%}", f"{rate:,.0f}",
        ])  # fmt: skip
    head = (
        "model", "mix", "workers", "pass of 32 decodes, ms", "of it on the network", "tokens/s, 2,048 devices",
    )  # fmt: skip
    return table(head, rows)


def switched_s(kind: str, algorithm: str, curve: CollectiveCurve, link: LinkSpec, attained: float) -> Any:
    """Seconds of a collective by the law of a switch, at the payloads of a measured curve."""
    network = Network.of(
        NetworkSpec.model_validate(
            {
                "dimensions": [{
                    "topology": "switch", "ranks": curve.ranks, "bandwidth_bytes_per_s": link.bandwidth_bytes_per_s,
                    "latency_s": link.latency_s / 2, "algorithm": algorithm,
                }]
            }
        ),
        attained,
    )  # fmt: skip
    run = network.all_reduce_s if kind == "all_reduce" else network.all_gather_s
    return run(np.array(curve.payload_bytes), curve.ranks)


def collectives() -> str:
    """Laws of a switch against measured collectives of eight ranks; what a start takes is that of two ranks."""
    catalogue, rows = Catalogue(), []
    for kind, algorithm in itertools.product(("all_reduce", "all_gather"), ("ring", "halving_doubling", "direct")):
        cells = [kind.replace("_", "-"), algorithm]
        for name in ("a100-80gb", "h100-sxm", "h200", "b200"):
            profile = catalogue.get("LatencyProfile", f"vllm-{name}").spec
            link, attained = catalogue.get("Accelerator", name).spec.peer_link, profile.all_reduce.bandwidth
            curves = {curve.ranks: curve for curve in getattr(profile.laws.collectives, kind)}
            start_s = curves[2].seconds[0] - switched_s(kind, algorithm, curves[2], link, attained)[0]
            payload, measured = np.array(curves[8].payload_bytes), np.array(curves[8].seconds)
            error = 100 * ((switched_s(kind, algorithm, curves[8], link, attained) + start_s) / measured - 1)
            small, large = (np.median(error[where]) for where in (payload <= 65536, payload >= 16e6))
            cells.append(f"{small:+.0f} % / {large:+.0f} %")
        rows.append(cells)
    return table(("eight ranks", "algorithm", "A100", "H100", "H200", "B200"), rows)


def attention_ffn() -> str:
    """Decode throughput per accelerator with attention and FFN apart, by their ratio, beside both together."""
    rows = []
    for model, tensor, context in (("llama-3.1-70b", 4, 8192), ("qwen3-235b-a22b", 4, 8192)):
        together = law(model, "h100-sxm", Parallelism(tensor=4), {})
        alone = 64 / decode_s(together, 64, context) / 4
        cells = []
        for ffn in (4, 8, 16, 32):
            block = {"attention_ffn": {"attention": 4, "ffn": ffn, "micro_batches": 3}}
            disaggregated = law(model, "h100-sxm", Parallelism(tensor=tensor), block)
            sequences = 4 * 128
            cells.append(f"{sequences / decode_s(disaggregated, 128, context) / (4 * tensor + ffn):,.0f}")
        rows.append([model, f"{alone:,.0f}", *cells])
    head = ("tokens/s per H100", "together, 64 decodes on 4", *(f"4 × 4 attention, {n} FFN" for n in (4, 8, 16, 32)))
    return table(head, rows)


def offloaded_experts() -> str:
    """Steps of a model whose experts lie in CXL memory or with the host's CPU."""
    rows = []
    for name, device, more in (
        ("fetched over CXL 3, lru", "cxl3-memory", {}),
        ("and half of them foreseen", "cxl3-memory", {"predicted": 0.5}),
        ("run by the host's CPU", "host-cpu-amx", {"run": "there"}),
    ):
        cells = []
        for resident in (16, 32, 64, 96):
            offload = {"device": "far", "resident": resident, **more}
            block = {"attached": {"far": {"device": device}},
                     "experts": {"routing": {"kind": "zipf", "exponent": 0.8}, "offload": offload}}  # fmt: skip
            worker = law("qwen3-30b-a3b", "l40s", Parallelism(), block)
            cells += [f"{decode_s(worker, 1, 4096) * 1e3:.0f} / {decode_s(worker, 32, 4096) * 1e3:.0f}"]
        rows.append([name, *cells])
    return table(("step of 1 / 32 decodes, ms", *(f"{n} of 128 resident" for n in (16, 32, 64, 96))), rows)


def tokens_per_dollar() -> tuple[str, go.Figure]:
    """What PIM, CXL memory or one more worker buys a deployment for long-context chat."""
    trace = load_trace("mooncake-like")
    tokens = float((trace.arrays.input_tokens + trace.arrays.output_tokens).sum())
    span_s = float(np.nanmax(trace.arrays.arrival_s) - np.nanmin(trace.arrays.arrival_s))
    tier = [{"medium": "cxl-dram", "gib": 512, "scope": "worker"}]
    variants: tuple[tuple[str, int, dict[str, Any]], ...] = (
        ("7 workers of 4 × H100", 7, {}),
        ("one worker more", 8, {}),
        ("512 GiB of CXL behind each worker", 7, {"tiers": tier}),
        ("6 workers with as much CXL", 6, {"tiers": tier}),
        ("7 workers, HBM2-PIM beside each H100, a channel for each head", 7,
         {"devices": {**PIM_BLOCK, "schedule": "best"}}),
        ("the same, each head striped over 4 channels", 7, {"devices": striped("hbm2-pim", 4)}),
        ("over 16 channels", 7, {"devices": striped("hbm2-pim", 16)}),
        ("and on NVLink", 7, {"devices": {**striped("hbm2-pim", 16), "links": [NVLINK]}}),
        ("LPDDR5-PIM attached to each H100, over 4 channels", 7, {"devices": striped("lpddr5-pim", 4)}),
        ("KV cache in CXL memory", 7, {"devices": {"attached": {"cxl": {"device": "cxl2-memory"}}, "kv": "cxl"}}),
    )  # fmt: skip
    rows, names, values = [], [], []
    for name, replicas, more in variants:
        pool = {
            "accelerator": "h100-sxm", "tensor_parallel": 4, "replicas": replicas, "weight_dtype": "fp8",
            "engine": {"name": "vllm", "max_running_requests": 256}, **more,
        }  # fmt: skip
        router = {"policy": "cache_aware", "balance_abs_threshold": 16, "balance_rel_threshold": 1.1}
        spec = {"model": "llama-3.1-70b", "profile": "auto", "pools": [pool], "router": router}

        def at(load: float, spec: dict[str, Any] = spec) -> Any:
            return simulated(spec, trace, slo="long-context-chat", load=load).score

        largest = capacity(at, relative_tolerance=0.02)
        run = simulated(spec, trace, slo="long-context-chat")
        usd = run.cost.total
        value = tokens * 3600 / span_s * largest.load / usd / 1e6
        names.append(name)
        values.append(value)
        rows.append([
            name, f"${usd:.2f}", f"{run.metrics['ttft_p99_s']:.1f}", f"{run.metrics['tpot_p99_s'] * 1e3:.0f}",
            f"{largest.load:.2f}", f"{value:.2f}",
        ])  # fmt: skip
    figure = go.Figure(go.Bar(x=values, y=names, orientation="h"))
    figure.update_xaxes(title="million tokens served within the SLO per dollar")
    figure.update_yaxes(autorange="reversed")
    figure.update_layout(title="Llama-3.1-70B for long-context chat")
    head = ("", "USD/hour", "TTFT p99, s", "TPOT p99, ms", "load within the SLO", "million tokens per dollar")
    return table(head, rows), figure


SECTIONS: dict[str, Callable[[], str | tuple[str, go.Figure]]] = {
    "runs": runs,
    "gpu-pim": gpu_and_pim,
    "operators": operators,
    "crossover": crossover,
    "npu-pim": npu_and_pim,
    "tpu": tpu,
    "pulses": pulses,
    "shared-cache": shared_cache,
    "networks": networks,
    "collectives": collectives,
    "attention-ffn": attention_ffn,
    "offloaded-experts": offloaded_experts,
    "tokens-per-dollar": tokens_per_dollar,
}


#: Tables that need neither traces of the artifact nor a search for a load.
QUICK = (
    "operators", "crossover", "npu-pim", "shared-cache", "networks", "collectives", "attention-ffn",
    "offloaded-experts",
)  # fmt: skip


def main() -> None:
    """Compute what is asked for, print it, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*SECTIONS, []], help="tables; all where none is named")
    parser.add_argument("--write", action="store_true", help="into docs/hardware.md, with its figures")
    parser.add_argument("--check", action="store_true", help="1 unless the quick tables stand on the page")
    options = parser.parse_args()
    if options.check:
        made_of = {name: SECTIONS[name]() for name in QUICK}
        texts = {name: made[0] if isinstance(made, tuple) else made for name, made in made_of.items()}
        changed = [name for name, text in texts.items() if not write(name, text, only_check=True)]
        raise SystemExit(f"not as written: {', '.join(changed)}; run with --write" if changed else 0)
    for name in options.names or SECTIONS:
        made = SECTIONS[name]()
        text, figure = made if isinstance(made, tuple) else (made, None)
        print(f"{name}\n\n{text}\n")
        if options.write:
            write(name, text)
            if figure is not None:
                draw(figure, IMAGES / f"hardware-{name}.png")


if __name__ == "__main__":
    main()
