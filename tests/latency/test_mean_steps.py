"""Speculative decoding on average: against the formula, step by step, and where it changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.latency.costs import DraftCosts, StepCosts
from hisearch.latency.drafting.mean_steps import with_speculation
from hisearch.latency.knots import knots_up_to
from hisearch.latency.step_cost import decode_step_seconds, dense_lookup, law_costs, step_seconds
from hisearch.simulate.plans.speculation_plan import SpeculationPlan

LAYERS = 40
KNOTS = [int(n) for n in knots_up_to(64)]


def costs(step_s: float = 1e-3, per_token_s: float = 2e-5) -> StepCosts:
    """A law with a LM head and attention that grows with the sequences and their context."""
    sequences, context = knots_up_to(64)[:, None], knots_up_to(100_000)[None, :]
    return law_costs(step_s, per_token_s, 1e-9)._replace(
        host_per_sequence_s=3e-6,
        token_s=np.concatenate(([0.0], 4e-4 + per_token_s * np.arange(1, 200))),
        sequence_s=np.concatenate(([0.0], 1e-4 + 1e-6 * np.arange(1, 65))),
        decode_s=np.where(sequences > 0, 1e-4 + 1e-6 * sequences + 2e-9 * context, 0.0),
    )


def drafts(draft_tokens: int, accepted: float) -> SpeculationPlan:
    """Drafts of which a share ``accepted`` is, of those behind accepted ones."""
    return SpeculationPlan(
        draft_tokens, draft_tokens, True, tuple(accepted**k for k in range(1, draft_tokens + 1))
    )  # fmt: skip


def with_head(plain: StepCosts, draft_tokens: int) -> StepCosts:
    """``plain`` with a head of one layer, whose LM head takes half as long."""
    return plain._replace(draft=DraftCosts(draft_tokens, 1 / LAYERS, plain.token_s / LAYERS, plain.sequence_s / 2))


@given(drafted=st.integers(1, 4), accepted=st.floats(0.0, 1.0))
def test_a_step_makes_the_first_token_and_those_drafted_ones_that_follow_accepted_ones(
    drafted: int, accepted: float
) -> None:
    """The chain ends at the first that is refused: counted over all outcomes with their probabilities."""
    made = sum((k + 1) * accepted**k * (1.0 - accepted) for k in range(drafted)) + (drafted + 1) * accepted**drafted
    assert drafts(drafted, accepted).tokens_per_step == pytest.approx(made)


@given(
    drafted=st.integers(1, 3),
    accepted=st.floats(0.0, 1.0),
    n=st.sampled_from(KNOTS[1:]),
    context=st.integers(1, 100_000),
)
def test_a_decode_step_is_its_share_of_a_speculative_one(drafted: int, accepted: float, n: int, context: int) -> None:
    plain, speculation = costs(), drafts(drafted, accepted)
    attention = decode_step_seconds(plain, n, context) - decode_step_seconds(
        plain._replace(decode_s=0.0 * plain.decode_s), n, context
    )
    many = (drafted + 1) * n
    checked = dense_lookup(plain.token_s, many) + dense_lookup(plain.sequence_s, many) + attention
    drafting = (dense_lookup(plain.token_s, n) + attention) / LAYERS + dense_lookup(plain.sequence_s, n) / 2
    step_s = plain.host_s + plain.host_per_sequence_s * n + checked + drafted * drafting
    seconds = decode_step_seconds(with_speculation(with_head(plain, drafted), speculation), n, context)
    assert seconds == pytest.approx(step_s / speculation.tokens_per_step, rel=1e-9)


@given(drafted=st.integers(1, 3), n=st.sampled_from(KNOTS[1:]), context=st.integers(1, 100_000))
def test_drafts_without_a_head_cost_their_verification_alone(drafted: int, n: int, context: int) -> None:
    plain, speculation = costs(), drafts(drafted, 0.5)
    seconds = decode_step_seconds(with_speculation(plain, speculation), n, context)
    more = (drafted + 1) * n
    verified = decode_step_seconds(plain, n, context)
    for table in (plain.token_s, plain.sequence_s):
        verified += dense_lookup(table, more) - dense_lookup(table, n)
    assert seconds == pytest.approx(verified / speculation.tokens_per_step, rel=1e-9)


@given(new=st.integers(1, 150), cached=st.integers(0, 5000), accepted=st.floats(0.0, 1.0))
def test_prompts_pass_through_the_drafting_layer_once_and_are_drafted_for(
    new: int, cached: int, accepted: float
) -> None:
    plain = costs()
    share, sample_s = 1 / LAYERS, float(plain.sequence_s[1]) / 2
    attention = new * (cached + (new + 1) / 2) * float(plain.chunk_rate[0, 0])
    first = share * (float(plain.token_s[new]) + attention) + sample_s
    later = share * float(plain.token_s[1]) + sample_s
    speculative = with_speculation(with_head(plain, 3), drafts(3, accepted))
    expected = step_seconds(plain, [(new, cached)], []) + first + 2 * later
    assert step_seconds(speculative, [(new, cached)], []) == pytest.approx(expected, rel=1e-9)


@given(new=st.integers(1, 150), cached=st.integers(0, 5000))
def test_prompts_are_computed_as_before_without_a_drafting_layer(new: int, cached: int) -> None:
    plain = costs()
    speculative = with_speculation(plain, drafts(3, 0.5))
    assert step_seconds(speculative, [(new, cached)], []) == step_seconds(plain, [(new, cached)], [])


def test_nothing_drafted_changes_nothing() -> None:
    plain = costs()
    assert np.allclose(with_speculation(with_head(plain, 0), drafts(0, 0.6)).decode_s, plain.decode_s, atol=1e-15)


def test_what_is_refused_costs_time_and_what_is_accepted_saves_it() -> None:
    steps = [
        decode_step_seconds(with_speculation(with_head(costs(), 3), drafts(3, p)), 8, 8000) for p in (0.0, 0.5, 1.0)
    ]
    assert steps[0] > decode_step_seconds(costs(), 8, 8000) > steps[2]
    assert steps == sorted(steps, reverse=True)


def test_costs_that_tell_more_of_decodes_are_refused() -> None:
    with pytest.raises(ValueError, match="without mixed_decode_s and skew_s"):
        with_speculation(costs()._replace(skew_s=np.zeros(2)), drafts(1, 0.6))
