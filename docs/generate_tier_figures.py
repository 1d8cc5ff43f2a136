"""Simulates and draws the figures of docs/tiers.md; needs Chromium for the pictures.

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

from hisearch.api.deployment import SimulatedDeployment, simulate_deployment
from hisearch.api.workload import load_trace
from hisearch.specs.yaml_nodes import dump_yaml

IMAGES = Path(__file__).resolve().parent / "images"
TTFT_S = 3.0
DRAM_GIB, NVME_GIB, SHARED_GIB = (256, 352, 512), (0, 875, 1750, 3500, 7000), (250, 500, 1000, 2000, 4000)
COLOURS = ("#1f77b4", "#2ca02c", "#9467bd", "#d62728")


def simulated(workers: int, tiers: list[dict[str, Any]], trace: Any, folder: Path) -> SimulatedDeployment:
    """Workers of four H100 with gpt-oss-120b under the studies' workload and SLO."""
    pool: dict[str, Any] = {
        "accelerator": "h100-sxm",
        "tensor_parallel": 4,
        "replicas": workers,
        "engine": {"name": "sglang", "page_tokens": 64, "max_running_requests": 64},
        "tiers": tiers,
        "movement": {"prefetch": "wait_complete"} if len(tiers) > 1 else {},
    }
    # As the spaces of the two studies.
    spec = {"model": "gpt-oss-120b", "profile": "roofline", "pools": [pool], "router": {"policy": "power_of_two"}}
    envelope = {"apiVersion": "hisearch/v1", "kind": "Deployment", "metadata": {"name": "figure"}, "spec": spec}
    path = folder / "deployment.yaml"
    path.write_text(dump_yaml(envelope), encoding="utf-8")
    return simulate_deployment(path, trace, slo="coding-agent")


def agent_memory(trace: Any, folder: Path) -> go.Figure:
    """TTFT by the size of the tiers."""
    figure = make_subplots(1, 2, subplot_titles=("Two workers of 4 × H100", "Three workers of 4 × H100"))
    for column, workers in ((1, 2), (2, 3)):
        for colour, dram in zip(COLOURS, DRAM_GIB, strict=False):
            nearest = {"medium": "ddr5", "gib": dram}
            ttft_s = [
                simulated(
                    workers, [nearest, *([{"medium": "nvme-gen4", "gib": gib}] if gib else [])], trace, folder
                ).metrics["ttft_p95_s"]
                for gib in NVME_GIB
            ]
            name = f"{dram} GiB DRAM per worker"
            figure.add_scatter(
                x=NVME_GIB, y=ttft_s, name=name, mode="lines+markers", line_color=colour, showlegend=column == 1,
                row=1, col=column,
            )  # fmt: skip
        without = simulated(workers, [], trace, folder).metrics["ttft_p95_s"]
        marker = {"color": COLOURS[3], "size": 11, "symbol": "x"}
        figure.add_scatter(
            x=[0], y=[without], name="no tiers", mode="markers", marker=marker, showlegend=column == 1, row=1,
            col=column,
        )  # fmt: skip
        figure.add_hline(y=TTFT_S, line_dash="dash", line_color="#666", row=1, col=column)
        figure.update_xaxes(title="NVMe per node (GiB)", row=1, col=column)
        figure.update_yaxes(type="log", dtick=1, range=[-0.6, 2.8], row=1, col=column)
    figure.update_yaxes(title="TTFT p95 (s); dashed: the SLO", row=1, col=1)
    return figure.update_layout(title="Coding agents: time to first token by DRAM and NVMe")


def agent_pool(trace: Any, folder: Path) -> go.Figure:
    """TTFT and price of local disks and of a shared pool."""
    figure = make_subplots(1, 2, subplot_titles=("One node: two workers", "Two nodes: four workers"))
    kinds = (("nvme-gen4", "NVMe of each node", COLOURS[0], "middle left"),
             ("rdma-pool", "one pool of remote DRAM", COLOURS[3], "top right"))  # fmt: skip
    for column, workers in ((1, 2), (2, 4)):
        for medium, name, colour, place in kinds:
            runs = [
                simulated(workers, [{"medium": "ddr5", "gib": 256}, {"medium": medium, "gib": gib}], trace, folder)
                for gib in SHARED_GIB
            ]
            good = [(gib, run) for gib, run in zip(SHARED_GIB, runs, strict=True) if run.feasible]
            figure.add_scatter(
                x=[run.metrics["usd_per_hour"] for _, run in good],
                y=[run.metrics["ttft_p95_s"] for _, run in good],
                text=[f"{gib:,} GiB" for gib, _ in good],
                textposition=place,
                textfont_size=10,
                mode="lines+markers+text",
                name=name,
                line_color=colour,
                showlegend=column == 1,
                row=1,
                col=column,
            )
        figure.update_xaxes(title="USD per hour, all told", row=1, col=column)
        figure.update_yaxes(rangemode="tozero", row=1, col=column)
    figure.update_yaxes(title="TTFT p95 (s)", row=1, col=1)
    return figure.update_layout(title="Behind 256 GiB of DRAM per worker: local disks or a shared pool")


def draw(figure: go.Figure, path: Path, folder: Path) -> None:
    """A picture of 1,000 by 430 points."""
    figure.update_layout(
        template="plotly_white", font={"family": "Arial", "size": 14}, width=1000, height=430,
        margin={"l": 70, "r": 20, "t": 60, "b": 60}, legend={"orientation": "h", "y": -0.2},
    )  # fmt: skip
    page = folder / "figure.html"
    figure.write_html(page, config={"displayModeBar": False})
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1010,445"]
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
