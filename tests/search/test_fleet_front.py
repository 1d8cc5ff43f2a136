"""Combined fronts of several models equal the front of all combinations."""

import itertools
import math

import moocore
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.score.terms import TermCheck
from hisearch.search.model.trial import Trial, is_maximised, metric_of
from hisearch.search.select.fleet_front import Combination, cheapest, combine, figure_of
from hisearch.search.select.pareto import front
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.studies.study import LimitSpec
from tests.kernels.systems import examples

DEPLOYMENT = DeploymentSpec.model_validate(
    {"model": "m", "pools": [{"accelerator": "h100-sxm", "engine": {"name": "vllm"}}]}
)
#: One axis for each rule that combines figures: largest, sum, sum, weighted mean, smallest.
AXES = ("ttft_p99", "goodput", "usd_per_hour", "joules_per_token", "capacity")


def trial(number: int, values: dict[str, float], margin: float = 0.5) -> Trial:
    checks = (TermCheck("ttft_p99", 1.0 - margin, 1.0),)
    return Trial(number, 3, DEPLOYMENT, {}, {metric_of(k): v for k, v in values.items()}, checks, True)


@st.composite
def studies(draw: st.DrawFn) -> tuple[list[list[Trial]], tuple[str, ...], list[float]]:
    """All deployments of two or three models, on a coarse grid so that many are equal, and axes to judge them by."""
    others = draw(
        st.lists(st.sampled_from([a for a in AXES if a != "usd_per_hour"]), min_size=1, max_size=3, unique=True)
    )
    axes = (*others, "usd_per_hour")
    values = st.fixed_dictionaries({name: st.integers(1, 5).map(float) for name in axes})
    models = draw(st.lists(st.lists(values, min_size=1, max_size=7), min_size=2, max_size=3))
    trials = [[trial(k, point) for k, point in enumerate(model)] for model in models]
    return trials, axes, draw(st.lists(st.integers(1, 9).map(float), min_size=len(models), max_size=len(models)))


def figures(trials: tuple[Trial, ...], axes: tuple[str, ...], tokens: list[float]) -> tuple[float, ...]:
    return tuple(figure_of(name, [t.objective(name) for t in trials], tokens) for name in axes)


def signed(points: list[tuple[float, ...]], axes: tuple[str, ...]) -> np.ndarray:
    return np.array(points) * [-1.0 if is_maximised(name) else 1.0 for name in axes]


@examples(300)
@given(studies())
def test_fronts_combine_to_the_front_of_every_combination(
    question: tuple[list[list[Trial]], tuple[str, ...], list[float]],
) -> None:
    """The slow reference: the front of all deployments of each model with all of every other."""
    models, axes, tokens = question
    every = [figures(trials, axes, tokens) for trials in itertools.product(*models)]
    expected = {every[k] for k in np.flatnonzero(moocore.is_nondominated(signed(every, axes), keep_weakly=True))}
    combinations = combine([front(model, axes) for model in models], axes, tokens)
    np.testing.assert_allclose(
        sorted(tuple(combination.figures.values()) for combination in combinations), sorted(expected), rtol=1e-12
    )
    assert all(
        figures(combination.trials, axes, tokens) == tuple(combination.figures.values()) for combination in combinations
    )


@examples(200)
@given(studies(), st.integers(2, 14), st.integers(2, 14))
def test_the_cheapest_within_limits_on_axes_is_that_of_every_combination(
    question: tuple[list[list[Trial]], tuple[str, ...], list[float]], usd: int, other: int
) -> None:
    models, axes, tokens = question
    bound = {"at_least" if is_maximised(axes[0]) else "at_most": float(other)}
    limits = {"usd_per_hour": LimitSpec(at_most=float(usd)), axes[0]: LimitSpec.model_validate(bound)}
    every = [Combination(t, dict(zip(axes, figures(t, axes, tokens), strict=True))) for t in itertools.product(*models)]
    prices = [combination.figures["usd_per_hour"] for combination in every if combination.within(limits)]
    best = cheapest(combine([front(model, axes) for model in models], axes, tokens), limits)
    if not prices:
        assert best is None
        return
    assert best is not None
    assert best.within(limits)
    assert best.figures["usd_per_hour"] == pytest.approx(min(prices))


def test_what_is_undefined_of_a_model_does_not_count() -> None:
    """TPOT of requests with one output token."""
    assert figure_of("tpot_p99", [math.nan, 0.02], [1.0, 1.0]) == 0.02
    assert math.isnan(figure_of("tpot_p99", [math.nan, math.nan], [1.0, 1.0]))


def test_what_is_undefined_of_a_model_does_not_drop_its_deployment() -> None:
    """The combined minimum is the other model's, on minimised and on maximised axes."""
    axes = ("capacity", "usd_per_hour")
    unknown, least = (trial(k, {"capacity": c, "usd_per_hour": 2.0}) for k, c in enumerate((math.nan, 5.0)))
    other = trial(2, {"capacity": 9.0, "usd_per_hour": 1.0})
    (combination,) = combine([[unknown, least], [other]], axes, [1.0, 1.0])
    assert combination.trials == (unknown, other)
    axes = ("tpot_p99", "usd_per_hour")
    unknown, most = (trial(k, {"tpot_p99": t, "usd_per_hour": 2.0}) for k, t in enumerate((math.nan, 0.05)))
    other = trial(2, {"tpot_p99": 0.02, "usd_per_hour": 1.0})
    (combination,) = combine([[unknown, most], [other]], axes, [1.0, 1.0])
    assert combination.trials == (unknown, other)


def test_a_model_without_deployments_leaves_none_of_the_whole() -> None:
    only = trial(0, {"ttft_p99": 1.0, "usd_per_hour": 1.0})
    assert combine([[only], []], ("ttft_p99", "usd_per_hour"), [1.0, 1.0]) == ()


def test_of_equally_cheap_ones_the_widest_margin_is_taken() -> None:
    axes = ("ttft_p99", "usd_per_hour")
    fast, slow = (
        trial(k, {"ttft_p99": t, "usd_per_hour": 1.0}, m) for k, (t, m) in enumerate([(1.0, 0.1), (2.0, 0.9)])
    )
    combinations = [
        Combination((candidate,), dict(zip(axes, figures((candidate,), axes, [1.0]), strict=True)))
        for candidate in (fast, slow)
    ]
    best = cheapest(combinations, {})
    assert best is not None
    assert best.trials == (slow,)
