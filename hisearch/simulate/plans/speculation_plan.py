"""Drafted tokens of a worker's engine, with the acceptance that its model has."""

from __future__ import annotations

from dataclasses import dataclass

from hisearch.specs.deployments.speculation import HEADS, SpeculationSpec, acceptance_note
from hisearch.specs.models.model import ModelSpec


@dataclass(frozen=True)
class SpeculationPlan:
    """Drafted tokens of every decoding sequence in a step.

    draft_tokens: k. accepted_by_position: for each position, the probability that all drafts up to it are accepted,
        shape (k,), not increasing. lookahead_tokens: KV slots that the engine reserves beyond a step's tokens, for what
        the head drafts. drops_last_page: whether a prefix hit leaves out its last page, of whose hidden states the head
        needs those that no cache holds (vLLM 0.19.1, ``v1/core/single_type_kv_cache_manager.py:
        FullAttentionManager.find_longest_cache_hit``, use_eagle). seed: of the draws. layers_per_draft: layers of the
        head that a draft passes through; 0 where no head drafts. model_layers: of the model. note: what the acceptance
        rests on.
    """

    draft_tokens: int
    accepted_by_position: tuple[float, ...]
    lookahead_tokens: int
    drops_last_page: bool
    seed: int
    layers_per_draft: int
    model_layers: int
    note: str

    @property
    def tokens_per_step(self) -> float:
        """Mean tokens that a sequence makes in a step."""
        return 1.0 + sum(self.accepted_by_position)


def plan_speculation(speculation: SpeculationSpec | None, model: ModelSpec) -> SpeculationPlan | None:
    """The plan of an engine's speculation; None without one.

    Several multi-token-prediction layers draft a position each; an EAGLE head's are passed through in turn.

    Raises:
        KeyedError: the acceptance is not known (``SpeculationSpec.accepted_by_position``).
    """
    if speculation is None:
        return None
    headed = speculation.method in HEADS
    return SpeculationPlan(
        draft_tokens=speculation.draft_tokens,
        accepted_by_position=speculation.accepted_by_position(model),
        lookahead_tokens=speculation.draft_tokens if headed else 0,
        drops_last_page=headed,
        seed=speculation.seed,
        layers_per_draft=min(speculation.head_layers, 1) if speculation.method == "mtp" else speculation.head_layers,
        model_layers=model.layers,
        note=acceptance_note(speculation, model),
    )
