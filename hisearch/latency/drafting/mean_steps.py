"""Speculative decoding in mean step costs: one speculative step of several tokens becomes several steps of one token.

Notation
    d      tokens drafted for every sequence in a step, by a head that runs d times
    a      mean tokens per step and sequence
    q      layers that a draft passes through over those of the model; d. are tables of a pass (``costs.DraftCosts``)
    n, c   decoding sequences, the context that they read together

    step   = host + token_s[(d + 1) n] + sequence_s[(d + 1) n] + decode_s(n, c)         verification of the draft
           + d * (q * decode_s(n, c) + d.token_s[n] + d.sequence_s[n])                  drafting, where a head drafts
    costs of one token each: step / a
    prompts of P tokens: q * attention + d.token_s[P] + d.sequence_s[1], then d - 1 drafts of one sequence

The simulated engine makes one token per step. Its steps therefore take 1 / a of a speculative step. Means stay correct:
time per token, growth of contexts, and the decodes' cost in mixed steps. A prompt's wait for the current step is too
short, by less than a step.

Not modelled: differences of acceptance between requests, and memory for drafted tokens. A step's prompts are drafted
for as if they were a single one.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from hisearch.latency.costs import DraftCosts, StepCosts
from hisearch.latency.knots import token_knots
from hisearch.latency.many_steps import dense


class Drafts(Protocol):
    """How many tokens are drafted, and what they yield on average (see the module's notation)."""

    @property
    def draft_tokens(self) -> int:
        """Tokens drafted in a step: d."""

    @property
    def tokens_per_step(self) -> float:
        """Mean tokens per step and sequence: a."""


def with_speculation(costs: StepCosts, speculation: Drafts) -> StepCosts:
    """Costs of one-token steps that together take as long as speculative steps; ``costs.draft``: of the head, if any.

    Prompts pass through the drafting layers too. Entries of ``decode_s`` may be negative; a step's cost is not.

    Raises:
        ValueError: the costs price mixed steps or unequal contexts separately.
    """
    if costs.mixed_decode_s is not None or costs.skew_s is not None:
        raise ValueError("speculation needs costs without mixed_decode_s and skew_s")
    drafted = speculation.draft_tokens
    sequences = np.array(token_knots(costs.decode_s.shape[0]), dtype=np.int64)
    alone = dense(costs.token_s, sequences) + dense(costs.sequence_s, sequences)
    host = costs.host_s + costs.host_per_sequence_s * sequences
    checked = dense(costs.token_s, (drafted + 1) * sequences) + dense(costs.sequence_s, (drafted + 1) * sequences)
    step, share, draft = (host + checked)[:, None], 0.0, costs.draft
    if draft is not None:
        step += drafted * (dense(draft.token_s, sequences) + dense(draft.sequence_s, sequences))[:, None]
        share = draft.share
    step = step + costs.decode_s * (1.0 + drafted * share)
    decode = step / speculation.tokens_per_step - (host + alone)[:, None]
    decode[0, :] = 0.0
    floor = None if costs.floor is None else costs.floor.scaled(1.0 / speculation.tokens_per_step, 1.0)
    if floor is not None:
        # Graphs hold the tokens that a sequence computes in a step, of which it makes one here.
        floor = floor._replace(graph_tokens=floor.graph_tokens // (1 + drafted))
    costs = costs._replace(decode_s=np.ascontiguousarray(decode), floor=floor, draft=None)
    return costs if draft is None or not drafted else _drafted_prompts(costs, drafted, draft)


def _drafted_prompts(costs: StepCosts, drafted: int, draft: DraftCosts) -> StepCosts:
    """``costs`` with the drafter's passes over prompts, and its further drafts behind them."""
    each_s = float(draft.sequence_s[1])
    passes = draft.token_s + each_s + (drafted - 1) * (float(draft.token_s[1]) + each_s)
    passes[0] = 0.0
    if costs.prompt_s is not None:
        passes += dense(costs.prompt_s, np.arange(len(passes)))
    return costs._replace(prompt_s=passes, chunk_rate=costs.chunk_rate * (1.0 + draft.share))
