"""A worker's drafted tokens."""

from __future__ import annotations

from typing import NamedTuple

from hisearch.specs.deployments.engine import EngineSpec
from hisearch.specs.deployments.engine_rules import rules_in_force
from hisearch.specs.deployments.speculation import HEADS, SpeculationSpec, acceptance_note
from hisearch.specs.models.model import ModelSpec


class SpeculationPlan(NamedTuple):
    """Speculative decoding as kernels have it.

    draft_tokens: drafted for each decoding request in a step, at least 1.
    lookahead_tokens: for which pages are taken behind those of a step, under TensorRT-LLM behind the prompt: those that
        the drafter writes.
    reads_next_token: whether the drafter's KV of a place depends on the token behind it (EAGLE, MTP), which limits
        what hits may be; TensorRT-LLM does not ask.
    accepted: probability that the first 1, 2, … drafted tokens are all accepted, not rising; as many as are drafted.
    seed: of the draws.
    note: what the acceptance rests on; "" where nobody asks.
    """

    draft_tokens: int
    lookahead_tokens: int
    reads_next_token: bool
    accepted: tuple[float, ...]
    seed: int = 0
    note: str = ""

    @property
    def tokens_per_step(self) -> float:
        """Mean tokens that a sequence makes in a step."""
        return 1.0 + sum(self.accepted)


def plan_speculation(engine: EngineSpec, model: ModelSpec) -> SpeculationPlan | None:
    """The plan of an engine's speculation; None without one.

    Raises:
        KeyedError: the acceptance is not known (``SpeculationSpec.accepted_by_position``).
    """
    speculation = engine.speculation
    if speculation is None:
        return None
    headed = speculation.method in HEADS
    return SpeculationPlan(
        speculation.draft_tokens,
        _lookahead_tokens(engine, speculation),
        headed and engine.name != "trtllm",
        speculation.accepted_by_position(model),
        speculation.seed,
        acceptance_note(speculation, model),
    )


def _lookahead_tokens(engine: EngineSpec, speculation: SpeculationSpec) -> int:
    """See ``SpeculationPlan.lookahead_tokens``.

    TensorRT-LLM: ``get_num_extra_kv_tokens`` of ``_torch/speculative/utils.py``.
    """
    if speculation.method not in HEADS:
        return 0
    if engine.name != "trtllm":
        return speculation.draft_tokens
    extends = speculation.method != "mtp" or rules_in_force("trtllm", engine.version)["extends_mtp"]
    return speculation.draft_tokens - 1 if extends else 0
