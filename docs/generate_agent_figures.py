"""Draws the figure of docs/agents.md from runs of its two studies; needs Chromium.

Usage::

    python docs/generate_agent_figures.py AGENT_SOCIETY_RUN AGENT_SOCIETY_PLAIN_RUN
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
from generate_tier_figures import COLOURS, IMAGES, draw
from plotly.subplots import make_subplots

POLICIES = ("lru", "queued", "duration", "steps", "distance")
#: One for each policy beside lru.
LINES = dict(zip(POLICIES[1:], (*COLOURS[1:3], "#888888", COLOURS[0]), strict=True))


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
    parser.add_argument("runs", nargs=2, type=Path, help="run folders of agent-society and agent-society-plain")
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as name:
        draw(studies(runs), IMAGES / "agents-study.png", Path(name))


if __name__ == "__main__":
    main()
