"""Societies of agents: from ``AgentWorkloadSpec`` to a ``Trace``.

``schedule`` says who calls when, ``independent``, ``interaction`` and ``diffusion`` (over ``graphs``) make one
each, ``society`` gives the calls their prompts; ``resize`` makes the same society larger or smaller.
"""

from __future__ import annotations

from hisearch.traces.generators.graphs import edge_list
from hisearch.traces.generators.resize import resized
from hisearch.traces.generators.society import generate_agents

__all__ = ["edge_list", "generate_agents", "resized"]
