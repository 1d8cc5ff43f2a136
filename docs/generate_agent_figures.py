"""Simulates and draws the figures of docs/agents.md (``make agents``); needs Chromium for the pictures.

Usage::

    python docs/generate_agent_figures.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import plotly.graph_objects as go
from agent_societies import AGENTS, DRAM_GIB, KINDS, POLICIES, PUBLISHED, run, ttft_s
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
        for policy, name, colour in (("lru", "HiCache", COLOURS[3]), ("distance", "distance", COLOURS[0])):
            values = [ttft_s(run(kind, policy, agents, dram_gib=DRAM_GIB)) for agents in AGENTS]
            figure.add_scatter(
                x=AGENTS, y=values, name=name, mode="lines+markers", line_color=colour, showlegend=column == 1,
                row=1, col=column,
            )  # fmt: skip
        figure.update_xaxes(title="agents", type="log", tickvals=AGENTS, row=1, col=column)
    figure.update_yaxes(title="mean TTFT (s)", row=1, col=1)
    return figure.update_layout(title="Time to first token, KV written through to 80 GB of DRAM", height=430)


def main() -> None:
    """Draw both."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        draw(speed_up(), IMAGES / "agents-speed-up.png", folder)
        draw(first_tokens(), IMAGES / "agents-first-tokens.png", folder)


if __name__ == "__main__":
    main()
