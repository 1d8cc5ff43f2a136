"""Drafted tokens on engines' command lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hisearch.export.engines.launch import ExportError, Launch
from hisearch.specs.deployments.speculation import OWN_WEIGHTS, SpeculationSpec
from hisearch.specs.models.acceptance import DraftMethodName

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


#: TensorRT-LLM's: type of the section, and where it says how many tokens are drafted. EAGLE's heads are those of the
#: third version, part of the model's own step (``eagle3_one_model``, its default).
_SECTIONS: dict[DraftMethodName, tuple[str, str]] = {
    "mtp": ("MTP", "num_nextn_predict_layers"),
    "eagle3": ("Eagle", "max_draft_len"),
    "ngram": ("NGram", "max_draft_len"),
}
#: ``max_matching_ngram_size`` of TensorRT-LLM's later releases; 1.1's default of 0 finds nothing.
_MATCHED_TOKENS = 2


def trtllm_speculation(launch: Launch) -> dict[str, Any] | None:
    """TensorRT-LLM's ``speculative_config``, as ``vllm_speculation``.

    Source: ``llmapi/llm_args.py`` (MTPDecodingConfig, EagleDecodingConfig, NGramDecodingConfig; 1.1, 1.3).
    """
    speculation = launch.pool.engine.speculation
    if speculation is None:
        return None
    kind, count = _SECTIONS[speculation.method]
    settings: dict[str, Any] = {"decoding_type": kind, count: speculation.draft_tokens}
    if speculation.method == "ngram":
        return settings | {"max_matching_ngram_size": _MATCHED_TOKENS}
    weights = _head_weights(launch)
    return settings if weights is None else settings | {"speculative_model_dir": weights}


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


def _of_drafts(value_of: Callable[[SpeculationSpec], Any]) -> Callable[[Launch], Any]:
    """A value of the section speculation; None without drafted tokens."""
    return lambda launch: None if launch.pool.engine.speculation is None else value_of(launch.pool.engine.speculation)


#: Flag -> value, of SGLang.
SGLANG_TABLE: tuple[tuple[str, Callable[[Launch], Any]], ...] = (
    ("--speculative-algorithm", _of_drafts(lambda drafts: _ALGORITHMS[drafts.method])),
    # A model's own layer of multi-token prediction is in the model's checkpoint, which is the default.
    ("--speculative-draft-model-path", _head_weights),
    # A head drafts a token at a time: one draft behind another, no tree of them. Likewise n-grams.
    ("--speculative-num-steps", _of_drafts(lambda drafts: None if drafts.method == "ngram" else drafts.draft_tokens)),
    ("--speculative-eagle-topk", _of_drafts(lambda drafts: None if drafts.method == "ngram" else 1)),
    # The tokens that a step checks: the newest and the drafts.
    ("--speculative-num-draft-tokens", _of_drafts(lambda drafts: drafts.draft_tokens + 1)),
    ("--speculative-ngram-max-bfs-breadth", _of_drafts(lambda drafts: 1 if drafts.method == "ngram" else None)),
)
