"""Drafted tokens of a running SGLang: its arguments, and how many were accepted on average by its own gauge.

``sglang:spec_accept_length`` (observability/metrics_collector.py, 0.5.23): mean tokens of a sequence and step, since
the last report. It is no distribution: every position is taken to be accepted alike, given that all before it were.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hisearch.observe.prometheus import Metrics
from hisearch.specs.deployments.speculation import simulates_drafts

#: Algorithms that are simulated, as chains of drafts; NEXTN, the model's own layer, is resolved to EAGLE.
_METHODS = {"NEXTN": "mtp", "EAGLE": "eagle", "EAGLE3": "eagle3", "NGRAM": "ngram"}
#: Settings beside which drafts are not simulated.
_CONFLICTING = ("enable_mixed_chunk", "enable_priority_scheduling", "enable_dp_attention")
#: Least acceptance of a position: a Deployment states none of 0.
_LEAST = 1e-4
_HALVINGS = 40


def drafts_of(arguments: Mapping[str, Any], metrics: Metrics) -> tuple[dict[str, Any] | None, str]:
    """A pool's ``engine.speculation``, and a note where what runs cannot be simulated; (None, "") without drafts.

    arguments: the server's, as resolved.
    """
    algorithm = arguments.get("speculative_algorithm")
    if not algorithm:
        return None, ""
    method, checked = _METHODS.get(str(algorithm).upper()), arguments.get("speculative_num_draft_tokens")
    branches = "speculative_ngram_max_bfs_breadth" if method == "ngram" else "speculative_eagle_topk"
    if method is None or not isinstance(checked, int) or checked < 2:
        return None, f"It drafts tokens ({algorithm}), which is not simulated: deployment.yaml has none."
    if arguments.get(branches) not in (None, 1):
        return None, f"It drafts trees of tokens ({branches} {arguments[branches]}), which are not simulated."
    version = str(arguments.get("version", ""))
    conflicting = [name for name in _CONFLICTING if arguments.get(name)]
    if conflicting or not simulates_drafts(version):
        where = f"beside {conflicting[0]}" if conflicting else f"of release {version}"
        return None, f"It drafts tokens ({algorithm}), which {where} is not simulated: deployment.yaml has none."
    head = arguments.get("speculative_draft_model_path")
    if method == "eagle" and head in (None, arguments.get("model_path")):
        method, head = "mtp", None
    lengths = metrics.values("sglang:spec_accept_length")
    if not lengths or max(lengths) <= 1.0:
        return None, f"It drafts {checked - 1} tokens ({method}), and tells of none accepted: deployment.yaml has none."
    drafts = {
        "method": method,
        "draft_tokens": checked - 1,
        "acceptance": [round(_chance(max(lengths), checked - 1), 4)] * (checked - 1),
    }
    note = (
        f"Drafts: SGLang tells {max(lengths):.2f} tokens a step on average; positions are taken to be accepted alike."
    )
    own = method in ("eagle", "eagle3") and isinstance(head, str) and "/" in head
    return (drafts | {"draft_weights": head} if own else drafts), note


def _chance(length: float, count: int) -> float:
    """p, of which 1 + p + … + p^count is ``length``."""
    low, high = _LEAST, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if sum(middle**place for place in range(count + 1)) < length:
            low = middle
        else:
            high = middle
    return high
