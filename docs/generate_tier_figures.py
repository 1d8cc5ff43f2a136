"""Simulates and draws the figures of docs/notes/2026-11-cache-tiers.md; needs Chromium for the pictures.

Usage::

    python docs/generate_tier_figures.py
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from hisearch.api.deployments.deployment import SimulatedDeployment, simulate_deployment
from hisearch.api.deployments.workload import load_trace
from hisearch.specs.yaml_nodes import dump_yaml

IMAGES = Path(__file__).resolve().parent / "images"
TTFT_S, TPOT_S = 3.0, 0.03  # the SLO
WORKERS = (4, 5)  # two nodes, and two and a half
DRAM_GIB, NVME_GIB, SHARED_GIB = (256, 352, 512), (0, 875, 1750, 3500, 7000), (500, 1000, 2000, 4000, 8000)
COLOURS = ("#1f77b4", "#2ca02c", "#9467bd", "#d62728")
BY_PREFIX = {"policy": "cache_aware", "cache_threshold": 0.5, "balance_abs_threshold": 16, "balance_rel_threshold": 1.1}
BY_LOAD = {"policy": "power_of_two"}


def simulated(
    workers: int, tiers: list[dict[str, Any]], trace: Any, folder: Path, router: dict[str, Any] = BY_PREFIX
) -> SimulatedDeployment:
    """Workers of four H100 with gpt-oss-120b under the studies' workload and SLO; prints what came out."""
    pool: dict[str, Any] = {
        "accelerator": "h100-sxm",
        "tensor_parallel": 4,
        "replicas": workers,
        "engine": {"name": "sglang", "page_tokens": 64, "max_running_requests": 64},
        "tiers": tiers,
        "movement": {"prefetch": "wait_complete"} if len(tiers) > 1 else {},
    }
    spec = {"model": "gpt-oss-120b", "pools": [pool], "router": router}
    envelope = {"apiVersion": "hisearch/v1", "kind": "Deployment", "metadata": {"name": "figure"}, "spec": spec}
    path = folder / "deployment.yaml"
    path.write_text(dump_yaml(envelope), encoding="utf-8")
    run = simulate_deployment(path, trace, slo="coding-agent")
    figures = run.metrics
    chain = " + ".join(f"{tier['gib']:,} GiB {tier['medium']}" for tier in tiers)
    print(
        f"{workers} workers, {chain or 'no tiers'}, {router['policy']}: "
        f"hits {figures['hit_rate']:.1%}, TTFT p95 {figures['ttft_p95_s']:.2f} s, "
        f"TPOT p95 {figures['tpot_p95_s'] * 1e3:.1f} ms, ${figures['usd_per_hour']:.2f}/h"
    )
    return run


def agent_memory(trace: Any, folder: Path) -> go.Figure:
    """TTFT and TPOT by the size of the tiers."""
    titles = [f"{workers} workers of 4 × H100" for workers in WORKERS]
    figure = make_subplots(2, 2, column_titles=titles, shared_xaxes=True, vertical_spacing=0.08)
    terms = ((1, "ttft_p95_s", 1.0, TTFT_S, "TTFT p95 (s)"), (2, "tpot_p95_s", 1e3, TPOT_S, "TPOT p95 (ms)"))
    for column, workers in enumerate(WORKERS, 1):
        lines = [
            (f"{dram} GiB DRAM per worker", colour, NVME_GIB,
             [[{"medium": "ddr5", "gib": dram}, *([{"medium": "nvme-gen4", "gib": gib}] if gib else [])]
              for gib in NVME_GIB])
            for colour, dram in zip(COLOURS, DRAM_GIB, strict=False)
        ]  # fmt: skip
        for name, colour, sizes_gib, chains in [*lines, ("no tiers", COLOURS[3], (0,), [[]])]:
            runs = [simulated(workers, chain, trace, folder) for chain in chains]
            for row, metric, scale, _, _ in terms:
                figure.add_scatter(
                    x=sizes_gib, y=[run.metrics[metric] * scale for run in runs], name=name,
                    mode="lines+markers" if len(runs) > 1 else "markers", line_color=colour,
                    marker={"size": 11, "symbol": "x"} if len(runs) == 1 else {},
                    showlegend=row == column == 1, row=row, col=column,
                )  # fmt: skip
        for row, _, scale, bound, _ in terms:
            figure.add_hline(y=bound * scale, line_dash="dash", line_color="#666", row=row, col=column)
            figure.update_yaxes(range=[0, 4 if bound == TTFT_S else 60], row=row, col=column)
        figure.update_xaxes(title="NVMe per node (GiB)", row=2, col=column)
    for row, _, _, _, title in terms:
        figure.update_yaxes(title=title, row=row, col=1)
    return figure.update_layout(title="Coding agents: latency by DRAM and NVMe (dashed: the SLO)", height=560)


def agent_pool(trace: Any, folder: Path) -> go.Figure:
    """TPOT and price by size of local disks and of a shared pool, each with the router that suits it better."""
    figure = make_subplots(1, 2, subplot_titles=[f"{workers} workers of 4 × H100" for workers in WORKERS])
    kinds = (("nvme-gen4", "NVMe of each node", COLOURS[0], "top center"),
             ("rdma-pool", "one pool of remote DRAM", COLOURS[3], "bottom center"))  # fmt: skip
    for column, workers in enumerate(WORKERS, 1):
        for medium, name, colour, place in kinds:
            chains = [[{"medium": "ddr5", "gib": 256}, {"medium": medium, "gib": gib}] for gib in SHARED_GIB]
            runs = [
                min(
                    (simulated(workers, chain, trace, folder, router) for router in (BY_PREFIX, BY_LOAD)),
                    key=lambda run: run.metrics["tpot_p95_s"],
                )
                for chain in chains
            ]
            figure.add_scatter(
                x=SHARED_GIB,
                y=[run.metrics["tpot_p95_s"] * 1e3 for run in runs],
                text=[f"${run.metrics['usd_per_hour']:.0f}/h" for run in runs],
                textposition=place,
                textfont_size=11,
                mode="lines+markers+text",
                name=name,
                line_color=colour,
                showlegend=column == 1,
                row=1,
                col=column,
            )
        figure.add_hline(y=TPOT_S * 1e3, line_dash="dash", line_color="#666", row=1, col=column)
        figure.update_xaxes(
            title="GiB of each node, or of the pool", type="log", tickvals=SHARED_GIB, row=1, col=column
        )
        figure.update_yaxes(range=[10, 45], row=1, col=column)
    figure.update_yaxes(title="TPOT p95 (ms); dashed: the SLO", row=1, col=1)
    return figure.update_layout(title="Behind 256 GiB of DRAM per worker: local disks or a shared pool", height=430)


def draw(figure: go.Figure, path: Path, folder: Path) -> None:
    """A picture of 1,000 points' width."""
    figure.update_layout(
        template="plotly_white", font={"family": "Arial", "size": 14}, width=1000,
        margin={"l": 70, "r": 20, "t": 60, "b": 60}, legend={"orientation": "h", "y": -0.2},
    )  # fmt: skip
    page = folder / "figure.html"
    figure.write_html(page, config={"displayModeBar": False})
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--window-size=1010,{figure.layout.height + 15}",
    ]
    command = ["chromium", *options, "--virtual-time-budget=4000", f"--screenshot={path}", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True)


def main() -> None:
    """Simulate and draw both."""
    trace = load_trace("coding-agent")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        draw(agent_memory(trace, folder), IMAGES / "tiers-agent-memory.png", folder)
        draw(agent_pool(trace, folder), IMAGES / "tiers-agent-pool.png", folder)


if __name__ == "__main__":
    main()
