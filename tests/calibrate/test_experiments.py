"""Experiments on a server whose law is known: what they tell of steps, and which come next."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hisearch.calibrate.served.experiments import (
    SPAN,
    Bounds,
    Share,
    candidates,
    first_ones,
    front_end_of,
    log_of,
    next_experiments,
    steps_of,
)
from hisearch.calibrate.step_fit import fit_steps
from hisearch.observe.driver import Engine, Experiment, Outcome, Timed

BOUNDS = Bounds(chunk_tokens=1024, running=16, context_tokens=4096, kv_tokens=40_000)
#: Before and behind the server's own stamps, and between these and its engine.
OUTSIDE_S, INSIDE_S = 3e-3, 4e-3
#: A burst's requests but the first wait for its step before the engine counts their queue.
WAIT_S = 20e-3


def step_s(shares: Sequence[Share]) -> float:
    """Seconds of a step by a law of the fitted form."""
    tokens = sum(new for new, _, _ in shares)
    pairs = sum(new * (cached + (new + 1) / 2) for new, cached, decode in shares if not decode)
    context = sum(cached + 1 for _, cached, decode in shares if decode)
    return 4e-3 + 2e-4 * len(shares) + 3e-5 * tokens + 2e-8 * pairs + 4e-7 * context


def serve(experiment: Experiment) -> Outcome:
    """An engine that prefills all prompts in one step, and a client that sees tokens a little later."""
    lengths = [experiment.cached + length for length in experiment.prompts]
    count = len(lengths)
    prefill_s = step_s([(length, experiment.cached, False) for length in experiment.prompts])
    waited_s = WAIT_S if count > 1 else 0.0
    now = OUTSIDE_S + INSIDE_S + waited_s + prefill_s
    tokens = [(now, 1)]
    late: Timed | None = None
    for made in range(1, experiment.outputs):
        shares: list[Share] = [(1, length + made, True) for length in lengths]
        if experiment.late and made == 2 * SPAN:
            late = Timed(now - OUTSIDE_S, ((now, experiment.outputs),))
            shares.append((experiment.late, 0, False))
        now += step_s(shares)
        tokens.append((now, made + 1))
    timed = Timed(0.0, tuple(tokens))
    first_s, end_s = count * (tokens[0][0] - OUTSIDE_S), count * (now - OUTSIDE_S)
    engine = Engine(
        queue_s=0.0, prefill_s=count * prefill_s, decode_s=(count + (late is not None)) * (now - tokens[0][0]),
        first_s=first_s, end_s=end_s, late_first_s=0.0, prompt_tokens=sum(lengths),
        hit_tokens=count * experiment.cached,
    )  # fmt: skip
    return Outcome(experiment, (timed,) * count, late, engine)


@pytest.mark.parametrize("experiment", candidates(BOUNDS)[::7])
def test_steps_are_those_that_the_engine_made(experiment: Experiment) -> None:
    steps = steps_of(serve(experiment), BOUNDS.chunk_tokens)
    assert steps
    for step in steps:
        assert step.latency_s == pytest.approx(step_s(step.shares), rel=0.05), step.shares


def test_a_late_prompt_is_told_apart_from_decodes() -> None:
    steps = steps_of(serve(Experiment((200,) * 4, 24, late=700)), BOUNDS.chunk_tokens)
    (mixed,) = [step for step in steps if any(not decode for _, _, decode in step.shares)]
    assert mixed.latency_s == pytest.approx(step_s(mixed.shares), rel=0.01)


def test_tokens_that_come_in_a_bunch_are_no_steps() -> None:
    outcome = serve(Experiment((100,) * 4, 24))
    whole = outcome.requests[0].tokens
    # A client that slept until the 16th token.
    slept = tuple((max(at_s, whole[15][0]), number) for at_s, number in whole)
    late = outcome._replace(requests=(Timed(0.0, slept),) * 4)
    assert all(step.latency_s > step_s(step.shares) / 4 for step in steps_of(late, BOUNDS.chunk_tokens))


def test_a_prompt_that_was_cut_is_no_step() -> None:
    steps = steps_of(serve(Experiment((2000,), 9)), BOUNDS.chunk_tokens)
    assert all(decode for step in steps for _, _, decode in step.shares)


def test_what_a_client_of_one_request_waits_beside_the_engine_is_the_front_end() -> None:
    sample = front_end_of(serve(Experiment((300,), 24)))
    assert sample.is_alone
    assert sample.prompt_tokens == 300
    assert sample.first_s == pytest.approx(OUTSIDE_S + INSIDE_S)
    assert sample.last_s == pytest.approx(OUTSIDE_S + INSIDE_S)


def test_a_wait_for_a_running_step_is_none_of_the_front_end() -> None:
    sample = front_end_of(serve(Experiment((300,) * 3, 24)))
    assert (sample.requests, sample.concurrent, sample.is_alone) == (3, 0, False)
    assert sample.first_s == pytest.approx(OUTSIDE_S)
    assert sample.last_s == pytest.approx(OUTSIDE_S)


def test_a_late_request_is_timed_beside_the_streams_of_others() -> None:
    sample = front_end_of(serve(Experiment((200,) * 4, 24, late=700)))
    assert (sample.requests, sample.concurrent, sample.is_alone) == (1, 4, False)
    assert sample.first_s == pytest.approx(OUTSIDE_S)
    assert sample.last_s is None


def test_the_law_is_found_by_the_experiments_that_are_chosen() -> None:
    steps = [step for each in first_ones(BOUNDS) * 2 for step in steps_of(serve(each), BOUNDS.chunk_tokens)]
    law = fit_steps(log_of(steps)).law
    chosen = next_experiments(law, steps, BOUNDS, 8)
    assert len(chosen) == 8
    assert set(chosen) <= set(candidates(BOUNDS))
    more = [*steps, *(step for each in chosen for step in steps_of(serve(each), BOUNDS.chunk_tokens))]
    fit = fit_steps(log_of(more))
    assert fit.errors["prefill"].median < 0.03
    assert fit.errors["decode"].median < 0.01


def test_no_experiment_is_beyond_the_bounds() -> None:
    for experiment in candidates(BOUNDS):
        longest = experiment.cached + max(experiment.prompts) + experiment.outputs
        assert longest < BOUNDS.context_tokens
        assert len(experiment.prompts) + bool(experiment.late) <= BOUNDS.running
        assert sum(experiment.prompts) + experiment.late < BOUNDS.kv_tokens
    kinds = {(len(each.prompts) > 1, bool(each.cached), bool(each.late)) for each in candidates(BOUNDS)}
    assert len(kinds) == 5
