"""Drafted tokens on engines' command lines."""

from __future__ import annotations

from typing import Any

from hisearch.export.engines.launch import ExportError, Launch
from hisearch.specs.deployments.speculation import OWN_WEIGHTS

#: SGLang's names of the methods.
_ALGORITHMS = {"mtp": "NEXTN", "eagle": "EAGLE", "eagle3": "EAGLE3", "ngram": "NGRAM"}


def vllm_speculation(launch: Launch) -> dict[str, Any] | None:
    """VLLM's ``--speculative-config``; None without drafted tokens.

    Raises:
        ExportError: no checkpoint of the head is known, without which the engine does not start.
    """
    speculation = launch.pool.engine.speculation
    if speculation is None:
        return None
    settings: dict[str, Any] = {"method": speculation.method, "num_speculative_tokens": speculation.draft_tokens}
    weights = _head_weights(launch)
    return settings if weights is None else settings | {"model": weights}


def sglang_algorithm(launch: Launch) -> str | None:
    """SGLang's ``--speculative-algorithm``; None without drafted tokens."""
    speculation = launch.pool.engine.speculation
    return None if speculation is None else _ALGORITHMS[speculation.method]


def sglang_head(launch: Launch) -> str | None:
    """``--speculative-draft-model-path``: a head's own weights; errors as of ``vllm_speculation``.

    A model's own layer of multi-token prediction is in the model's checkpoint, which is the default.
    """
    return _head_weights(launch)


def sglang_drafts(launch: Launch) -> int | None:
    """``--speculative-num-draft-tokens``, the tokens that a step checks: the newest and the drafts."""
    speculation = launch.pool.engine.speculation
    return None if speculation is None else speculation.draft_tokens + 1


def sglang_steps(launch: Launch) -> int | None:
    """``--speculative-num-steps`` of a head, which drafts a token at a time."""
    speculation = launch.pool.engine.speculation
    return None if speculation is None or speculation.method == "ngram" else speculation.draft_tokens


def sglang_branches(launch: Launch) -> int | None:
    """``--speculative-eagle-topk``: one draft behind another, no tree of them."""
    return None if sglang_steps(launch) is None else 1


def sglang_breadth(launch: Launch) -> int | None:
    """``--speculative-ngram-max-bfs-breadth``: likewise of n-grams."""
    speculation = launch.pool.engine.speculation
    return 1 if speculation is not None and speculation.method == "ngram" else None


def _head_weights(launch: Launch) -> str | None:
    """Checkpoint of the head; None where there is none of its own."""
    speculation = launch.pool.engine.speculation
    if speculation is None or speculation.method not in OWN_WEIGHTS:
        return None
    curve = launch.model.speculation.get(speculation.method)
    weights = speculation.draft_weights or (curve.draft_weights if curve is not None else None)
    if weights is None:
        raise ExportError(
            f"pool {launch.pool.name}: {speculation.method} has weights of its own; name their checkpoint as "
            "engine.speculation.draft_weights"
        )
    return weights
