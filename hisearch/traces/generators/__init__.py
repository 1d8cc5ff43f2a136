"""Populations of agents: from ``AgentWorkloadSpec`` to a ``Trace``.

``schedule`` defines who calls when; ``independent``, ``interaction`` and ``diffusion`` (over ``graphs``) each make
one. ``population`` gives the calls their prompts; ``resize`` makes the same population larger or smaller.

Imports ``reading`` and modules of ``traces``.
"""

from __future__ import annotations

from hisearch.traces.generators.graphs import edge_list
from hisearch.traces.generators.population import generate_agents
from hisearch.traces.generators.resize import resized

__all__ = ["edge_list", "generate_agents", "resized"]
