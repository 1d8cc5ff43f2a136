"""Drafted tokens of a running vLLM: its speculative config, and how many were accepted by its own counters.

``vllm:spec_decode_num_drafts`` and ``vllm:spec_decode_num_accepted_tokens_per_pos`` (v1/spec_decode/metrics.py, 0.19.1
and 0.33.0): the latter count, for each position, the drafts that were accepted up to there.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hisearch.observe.prometheus import Metrics
from hisearch.specs.models.acceptance import DRAFT_METHODS

#: Least acceptance of a position: a Deployment states none of 0.
_LEAST = 1e-4


def drafts_of(config: Any, metrics: Metrics) -> tuple[dict[str, Any] | None, str]:
    """A pool's ``engine.speculation``, and a note where what runs cannot be simulated; (None, "") without drafts.

    config: the speculative config, as a mapping or as JSON.
    """
    stated = _mapping(config)
    if not stated:
        return None, ""
    method, count = stated.get("method"), stated.get("num_speculative_tokens")
    if method not in DRAFT_METHODS or not isinstance(count, int):
        return None, f"It drafts tokens ({method}), which is not simulated: deployment.yaml has none."
    accepted = [metrics.total("vllm:spec_decode_num_drafts") or 0.0]
    for position in range(count):
        name = "vllm:spec_decode_num_accepted_tokens_per_pos"
        accepted.append(metrics.total(name, position=str(position)) or 0.0)
    if not accepted[1]:
        return None, f"It drafts {count} tokens ({method}), and has accepted none so far: deployment.yaml has none."
    chances = [now / before if before else 0.0 for before, now in pairwise(accepted)]
    drafts = {
        "method": method,
        "draft_tokens": count,
        "acceptance": [max(min(round(chance, 4), 1.0), _LEAST) for chance in chances],
    }
    weights = stated.get("model")
    own = method.startswith("eagle") and isinstance(weights, str) and "/" in weights
    return (drafts | {"draft_weights": weights} if own else drafts), ""


def _mapping(config: Any) -> dict[str, Any]:
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except ValueError:
            return {}
    return config if isinstance(config, dict) else {}
