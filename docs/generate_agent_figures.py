"""Simulates and draws the figures of docs/agents.md (``make agents``); needs Chromium for the pictures.

Usage::

    python docs/generate_agent_figures.py [--runs AGENT_SOCIETY_RUN AGENT_SOCIETY_PLAIN_RUN]

With run folders of the two studies it draws what they tried instead.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
from agent_populations import AGENTS, DRAM_GIB, KINDS, POLICIES, PUBLISHED, run, ttft_s
from generate_tier_figures import COLOURS, IMAGES, draw
from plotly.subplots import make_subplots

#: One for each policy beside lru.
LINES = dict(zip(POLICIES[1:], (*COLOURS[1:3], "#888888", COLOURS[0]), strict=True))


def speed_up() -> go.Figure:
    """Over lru, by number of agents; with KV in host memory dashed, and the published peaks dotted."""
    figure = make_subplots(1, len(KINDS), subplot_titles=KINDS, shared_yaxes=True)
    for column, kind in enumerate(KINDS, 1):
        base = {agents: run(kind, "lru", agents).makespan_s for agents in AGENTS}
        for policy, colour in LINES.items():
            ratios = [base[agents] / run(kind, policy, agents).makespan_s for agents in AGENTS]
            figure.add_scatter(
                x=AGENTS, y=ratios, name=policy, mode="lines+markers", line_color=colour, showlegend=column == 1,
                row=1, col=column,
            )  # fmt: skip
        ratios = [base[agents] / run(kind, "distance", agents, dram_gib=DRAM_GIB).makespan_s for agents in AGENTS]
        figure.add_scatter(
            x=AGENTS, y=ratios, name="distance, KV in DRAM", mode="lines+markers", line_color=COLOURS[3],
            line_dash="dash", showlegend=column == 1, row=1, col=column,
        )  # fmt: skip
        figure.add_hline(
            PUBLISHED[kind],
            line_dash="dot",
            line_color="#888888",
            annotation_text="published peak",
            annotation_position="top left",
            row=1,
            col=column,
        )
        figure.update_xaxes(title="agents", type="log", tickvals=AGENTS, row=1, col=column)
    figure.update_yaxes(title="speed-up over lru", row=1, col=1)
    return figure.update_layout(
        title="Qwen2.5-7B on one H100, a quarter of the agents resident, at most 125", height=430
    )


def first_tokens() -> go.Figure:
    """Mean TTFT with KV in host memory."""
    figure = make_subplots(1, len(KINDS), subplot_titles=KINDS, shared_yaxes=True)
    for column, kind in enumerate(KINDS, 1):
        for policy, name, colour in (
            ("by_slot", "HiCache, adapters by slot", COLOURS[2]),
            ("lru", "HiCache, adapters by last use", COLOURS[3]),
            ("distance", "distance", COLOURS[0]),
        ):
            values = [ttft_s(run(kind, policy, agents, dram_gib=DRAM_GIB)) for agents in AGENTS]
            figure.add_scatter(
                x=AGENTS, y=values, name=name, mode="lines+markers", line_color=colour, showlegend=column == 1,
                row=1, col=column,
            )  # fmt: skip
        figure.update_xaxes(title="agents", type="log", tickvals=AGENTS, row=1, col=column)
    figure.update_yaxes(title="mean TTFT (s)", row=1, col=1)
    return figure.update_layout(title="Time to first token, KV written through to 80 GB of DRAM", height=430)


#: What a study tried, by accelerator and host memory: marker and whether it is filled.
MARKERS = {
    ("h100-sxm", False): "circle-open",
    ("h100-sxm", True): "circle",
    ("h200", False): "square-open",
    ("h200", True): "square",
}
NAMES = {"h100-sxm": "H100", "h200": "H200"}


def _tried(folder: Path) -> pd.DataFrame:
    """Deployments of a run that were simulated on the whole trace: policy, accelerator, host memory, figures."""
    trials = pd.read_parquet(folder / "trials.parquet")
    trials = trials[(trials["slice_fraction"] == 1.0) & (trials["load"] == 1.0)]
    pools = [json.loads(text)["pools"][0] for text in trials["deployment"]]
    return trials.assign(
        policy=[(pool.get("agents") or {}).get("policy", "lru") for pool in pools],
        accelerator=[pool["accelerator"] for pool in pools],
        dram=[bool(pool.get("tiers")) for pool in pools],
    )


def studies(runs: list[Path]) -> go.Figure:
    """Agents per accelerator and the price of an hour of one, of all that the two studies tried."""
    figure = make_subplots(1, 2, subplot_titles=("an adapter of rank 64 each", "no adapters"))
    colours = {"lru": COLOURS[3], **LINES}
    for column, folder in enumerate(runs, 1):
        tried = _tried(folder)
        for (accelerator, dram), marker in MARKERS.items():
            for policy, colour in colours.items():
                mine = tried[
                    (tried["accelerator"] == accelerator) & (tried["dram"] == dram) & (tried["policy"] == policy)
                ]
                figure.add_scatter(
                    x=mine["agents_per_accelerator"], y=1e3 * mine["usd_per_agent_hour"], mode="markers",
                    marker={"symbol": marker, "color": colour, "size": 9}, showlegend=False, row=1, col=column,
                )  # fmt: skip
        figure.update_xaxes(title="agents per GPU", row=1, col=column)
    for policy, colour in colours.items():
        figure.add_scatter(x=[None], y=[None], mode="markers", marker_color=colour, name=policy)
    for (accelerator, dram), marker in MARKERS.items():
        name = f"{NAMES[accelerator]}, KV in DRAM" if dram else NAMES[accelerator]
        figure.add_scatter(x=[None], y=[None], mode="markers", marker={"symbol": marker, "color": "#666"}, name=name)
    figure.update_yaxes(title="USD per 1,000 agent-hours", row=1, col=1)
    return figure.update_layout(title="What the two studies tried", height=470)


def main() -> None:
    """Draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", nargs=2, type=Path, help="run folders of agent-society and agent-society-plain")
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if runs:
            draw(studies(runs), IMAGES / "agents-study.png", folder)
            return
        draw(speed_up(), IMAGES / "agents-speed-up.png", folder)
        draw(first_tokens(), IMAGES / "agents-first-tokens.png", folder)


if __name__ == "__main__":
    main()
