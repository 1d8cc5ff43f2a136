"""Drafted tokens on vLLM's command line."""

from __future__ import annotations

from typing import Any

from hisearch.export.engines.launch import ExportError, Launch
from hisearch.specs.deployments.speculation import OWN_WEIGHTS


def vllm_speculation(launch: Launch) -> dict[str, Any] | None:
    """VLLM's ``--speculative-config``; None without drafted tokens.

    Raises:
        ExportError: no checkpoint of the head is known, without which the engine does not start.
    """
    speculation = launch.pool.engine.speculation
    if speculation is None:
        return None
    settings: dict[str, Any] = {"method": speculation.method, "num_speculative_tokens": speculation.draft_tokens}
    if speculation.method not in OWN_WEIGHTS:
        return settings
    curve = launch.model.speculation.get(speculation.method)
    weights = speculation.draft_weights or (curve.draft_weights if curve is not None else None)
    if weights is None:
        raise ExportError(
            f"pool {launch.pool.name}: {speculation.method} has weights of its own; name their checkpoint as "
            "engine.speculation.draft_weights"
        )
    return settings | {"model": weights}
