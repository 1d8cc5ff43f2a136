"""Break-evens: of step times by trial, of prices by arithmetic, and single settings."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hisearch.hardware.price_book import PriceBook
from hisearch.score.terms import TermCheck
from hisearch.search.confidence.assessment import Assessor
from hisearch.search.confidence.changes import StepChange
from hisearch.search.confidence.conclusion_words import format_step
from hisearch.search.confidence.step_sensitivity import (
    MAX_ALTERNATIVES,
    MOST_FACTOR,
    SCALED,
    SIMULATIONS,
    TOLERANCE,
    BreakEven,
    Instead,
    break_even,
    instead_of,
    step_break_even,
)
from hisearch.search.confidence.uncertainty import REGIMES
from hisearch.search.model.deployments import describe
from hisearch.search.model.job import Evaluation, Job
from hisearch.search.model.trial import Trial
from hisearch.search.select.other_hardware import hardware_kind, other_hardware
from hisearch.search.select.price_sensitivity import Checked, PriceBreakEven, price_break_evens
from hisearch.search.select.setting_sensitivity import single_changes
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.deployments.tiers import MovementSpec, TierSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.devices import DevicesSpec
from tests.search.fakes import FakeEvaluator, make_deployment, make_problem, make_trial
from tests.search.test_confidence import Known, uncertainty


def value(tpot_s: float) -> Evaluation:
    check = TermCheck("tpot_p99", tpot_s, 0.05)
    return Evaluation({"tpot_p99_s": tpot_s}, (check,), check.holds)


@given(st.floats(0.0251, 0.0499), st.floats(0.5, 4.0))
def test_a_break_even_is_bracketed_by_what_was_simulated(nominal_s: float, power: float) -> None:
    bracket = break_even("decode", lambda factor: value(nominal_s * factor**power), nominal_s / 0.05 - 1)
    truth = (0.05 / nominal_s) ** (1 / power)
    if truth >= MOST_FACTOR:
        assert (bracket.holds, bracket.missed, bracket.simulations) == (MOST_FACTOR, None, 1)
        return
    assert bracket.holds is not None
    assert bracket.missed is not None
    assert bracket.holds <= truth * (1 + 1e-12)
    assert truth <= bracket.missed * (1 + 1e-12)
    assert bracket.simulations <= SIMULATIONS
    if bracket.simulations < SIMULATIONS:
        assert bracket.missed <= bracket.holds * (1 + TOLERANCE) * (1 + 1e-12)
    assert bracket.missed / bracket.holds < 1.012
    assert bracket.term == "tpot_p99"


@given(st.floats(0.0501, 0.2))
def test_how_much_faster_it_would_have_to_be(nominal_s: float) -> None:
    bracket = break_even("all steps", lambda factor: value(nominal_s * factor), nominal_s / 0.05 - 1, slower=False)
    if nominal_s / MOST_FACTOR > 0.05:
        assert (bracket.holds, bracket.missed) == (None, 1 / MOST_FACTOR)
        return
    assert bracket.holds is not None
    assert bracket.missed is not None
    assert bracket.holds <= 0.05 / nominal_s * (1 + 1e-12)
    assert 0.05 / nominal_s <= bracket.missed * (1 + 1e-12)
    assert bracket.missed / bracket.holds < 1.012


def test_each_kind_of_step_is_scaled_by_itself() -> None:
    def what_if(deployment: DeploymentSpec, factors, load: float) -> Evaluation:  # type: ignore[no-untyped-def]
        assert load == 1.0
        return value(0.03 * factors.get("decode", 1.0) + 0.01 * factors.get("prefill", 1.0))

    best = make_trial(0, 1.0, 5.0, 4.0, tpot_s=0.04)
    assessor = Assessor(uncertainty(8), Known(), what_if=what_if)
    by_kind = {what: step_break_even(assessor, best, what) for what in SCALED}
    truth = {"all steps": 1.25, "prefill": 2.0, "decode": 4 / 3}
    for what, factor in truth.items():
        assert by_kind[what].holds == pytest.approx(factor, rel=0.02)
    assert by_kind["host work"].missed is None
    assert set(SCALED["all steps"]) == set(REGIMES)


def evaluate(deployment: DeploymentSpec, load: float = 1.0) -> Evaluation:
    return FakeEvaluator()(Job(1, deployment, load=load))


def feasible_trials(*deployments: DeploymentSpec) -> list[Trial]:
    return [evaluate(deployment).trial(number, Job(1, deployment)) for number, deployment in enumerate(deployments)]


def test_the_cheapest_that_holds_is_named_instead() -> None:
    problem = make_problem()
    candidates = [make_deployment("fast", 6), make_deployment("dear", 6), make_deployment("fast", 9)]
    trials = feasible_trials(*candidates)
    assert all(trial.feasible for trial in trials)
    looked_at: list[DeploymentSpec] = []

    def heavier(deployment: DeploymentSpec) -> Evaluation:
        looked_at.append(deployment)
        return evaluate(deployment, 1.35)

    assert not heavier(candidates[0]).feasible
    alternative = instead_of(problem, trials, trials[0], heavier, "ttft_p99")
    assert alternative is not None
    # Brute force over more replicas and what was simulated.
    sizes = [make_deployment("fast", count) for count in range(7, 10)] + candidates[1:]
    holding = [problem.planner.usd_per_hour(spec) for spec in sizes if evaluate(spec, 1.35).feasible]
    assert problem.planner.usd_per_hour(alternative.deployment) == min(holding)
    prices = [problem.planner.usd_per_hour(spec) for spec in looked_at[1:]]
    assert prices == sorted(prices)
    assert alternative.simulations <= MAX_ALTERNATIVES


def test_nothing_is_named_where_nothing_holds() -> None:
    trials = feasible_trials(make_deployment("fast", 6))
    assert (
        instead_of(make_problem(), trials, trials[0], lambda _: evaluate(make_deployment("slow", 1)), "ttft_p99")
        is None
    )


@cache
def book() -> PriceBook:
    catalogue = Catalogue()
    spec = {name: catalogue.get("Accelerator", name).spec for name in ("h100-sxm", "h200", "l40s")}
    medium = catalogue.get("Medium", "ddr5").spec
    hosts = {accelerator.host: catalogue.get("Host", accelerator.host).spec for accelerator in spec.values()}
    return PriceBook(spec, hosts, {"ddr5": medium})


def priced(number: int, accelerator: str, replicas: int, prices: PriceBook) -> Trial:
    deployment = make_deployment(accelerator, replicas)
    return make_trial(number, 1.0, 5.0, prices.cost(deployment), accelerator=accelerator, replicas=replicas)


@given(st.lists(st.tuples(st.sampled_from(["h100-sxm", "h200", "l40s"]), st.integers(1, 9)), min_size=2, max_size=8))
def test_beyond_a_price_s_break_even_the_answer_is_another_one(kinds: list[tuple[str, int]]) -> None:
    prices = book()
    trials = [priced(number, name, count, prices) for number, (name, count) in enumerate(kinds)]
    best = min(trials, key=lambda trial: (trial.metrics["usd_per_hour"], trial.number))
    crossings = price_break_evens(prices, trials, best)

    def least(item: str, usd: float) -> float:
        other = prices.at({item: usd})
        return min(other.cost(trial.deployment) for trial in trials)

    for crossing in crossings:
        away = 1.001 if crossing.dearer else 0.999
        ours = best.deployment
        assert crossing.dearer == (crossing.usd >= crossing.now_usd) or crossing.usd == crossing.now_usd
        before, after = prices.at({crossing.item: crossing.usd / away}), prices.at({crossing.item: crossing.usd * away})
        assert (
            before.cost(ours) == pytest.approx(least(crossing.item, crossing.usd / away))
            or crossing.usd == crossing.now_usd
        )
        assert after.cost(ours) > after.cost(crossing.trial.deployment)
    named = {(crossing.item, crossing.dearer) for crossing in crossings}
    for price in prices.prices():
        if price.item in {"h100-sxm", "h200", "l40s"} and (price.item, True) not in named:
            assert prices.at({price.item: 50 * price.usd}).cost(best.deployment) == pytest.approx(
                least(price.item, 50 * price.usd)
            )


@given(
    st.lists(st.tuples(st.sampled_from(["h100-sxm", "h200"]), st.integers(1, 9)), min_size=2, max_size=8),
    st.sets(st.integers(0, 7)),
    st.integers(0, 4),
)
def test_a_price_s_break_even_passes_over_what_will_not_do(
    kinds: list[tuple[str, int]], unlikely: set[int], most: int
) -> None:
    prices = book()
    trials = [priced(number, name, count, prices) for number, (name, count) in enumerate(kinds)]
    best = min(trials, key=lambda trial: (trial.metrics["usd_per_hour"], trial.number))

    def check(trial: Trial) -> Checked:
        return Checked(0 if trial.number in unlikely else 8, 8, may_do=trial.number not in unlikely)

    crossings = price_break_evens(prices, trials, best, check=check)
    likely = [trial for trial in trials if trial.number not in unlikely]
    plain = price_break_evens(prices, likely if best in likely else [best, *likely], best)

    def numbers(break_evens: list[PriceBreakEven]) -> list[tuple[str, bool, float, int]]:
        return [(c.item, c.dearer, c.usd, c.trial.number) for c in break_evens]

    assert numbers(crossings) == numbers(plain)
    assert all(crossing.checked == Checked(8, 8, may_do=True) for crossing in crossings)
    assert price_break_evens(prices, trials, best, check=check, most=most) == crossings[:most]


@given(
    st.lists(
        st.tuples(st.sampled_from(["h100-sxm", "h200", "l40s"]), st.integers(1, 9), st.booleans()),
        min_size=2, max_size=10,
    )
)  # fmt: skip
def test_other_hardware_wins_up_to_its_price_and_not_above(kinds: list[tuple[str, int, bool]]) -> None:
    prices = book()
    trials = [
        replace(priced(number, name, count, prices), feasible=feasible)
        for number, (name, count, feasible) in enumerate(kinds)
    ]
    meeting = [trial for trial in trials if trial.feasible]
    assume(meeting)
    best = min(meeting, key=lambda trial: (trial.metrics["usd_per_hour"], trial.number))
    compared = other_hardware(prices, trials, best)
    own = hardware_kind(best.deployment)
    assert {other.hardware for other in compared} == {hardware_kind(trial.deployment) for trial in trials} - {own}
    for other in compared:
        of_kind = [trial for trial in meeting if hardware_kind(trial.deployment) == other.hardware]
        assert other.trial.feasible == bool(of_kind)
        if other.win_usd is None:
            continue
        assert other.trial is min(of_kind, key=lambda trial: (trial.metrics["usd_per_hour"], trial.number))
        for usd, wins in ((0.999 * other.win_usd, True), (1.001 * other.win_usd, False)):
            at = prices.at({other.item: usd})
            assert (min(at.cost(trial.deployment) for trial in of_kind) < at.cost(best.deployment)) == wins


def test_attached_devices_have_a_price_to_win_at() -> None:
    """Ten workers of 2.70 an hour, or nine with PIM of 0.60: it wins at 0.30."""

    def at_price(spec: Any, usd: float) -> Any:
        return spec.model_copy(update={"price": spec.price.model_copy(update={"usd_per_hour": usd})})

    card = Catalogue().get("Accelerator", "h100-sxm").spec
    pim = Catalogue().get("Device", "hbm2-pim").spec
    prices = replace(
        book(),
        accelerators={
            "h100-sxm": card.model_copy(update={"price": card.price.model_copy(update={"usd_per_hour": 2.7})})
        },
        devices={"hbm2-pim": at_price(pim, 0.6)},
    )
    attached = DevicesSpec.model_validate(
        {"attached": {"pim": {"device": "hbm2-pim"}}, "operators": {"decode_attention": "pim"}}
    )
    plain = make_deployment("h100-sxm", 10)
    pool = plain.pools[0].model_copy(update={"replicas": 9, "devices": attached})
    deployments = (plain, plain.model_copy(update={"pools": [pool]}))
    trials = [
        replace(make_trial(number, 1.0, 5.0, prices.cost(deployment)), deployment=deployment)
        for number, deployment in enumerate(deployments)
    ]
    (other,) = other_hardware(prices, trials, trials[0])
    assert other.hardware == "h100-sxm with 1 hbm2-pim (decode_attention)"
    assert (other.item, other.now_usd) == ("hbm2-pim", 0.6)
    assert other.win_usd == pytest.approx(0.3)
    # What misses the SLO has its item too, so that the bandwidth is found at which it would not.
    slice_of = replace(trials[1], number=2, slice_fraction=0.5)
    (missed,) = other_hardware(prices, [trials[0], replace(trials[1], feasible=False), slice_of], trials[0])
    assert (missed.item, missed.now_usd, missed.win_usd) == ("hbm2-pim", 0.6, None)
    assert (other.trials, missed.trials) == (1, 2)


def test_trials_that_differ_in_one_thing_are_found() -> None:
    plain = make_deployment("fast", 4)
    pool = plain.pools[0]
    engine = pool.engine.model_copy(update={"chunk_tokens": 2048})
    other_chunk = plain.model_copy(update={"pools": [pool.model_copy(update={"engine": engine})]})
    aware = plain.model_copy(update={"router": plain.router.model_copy(update={"policy": "cache_aware"})})
    both = other_chunk.model_copy(update={"router": aware.router})
    trials = feasible_trials(plain, other_chunk, aware, both, make_deployment("fast", 5))
    changes = {
        (change.name, change.ours, change.instead): change.trial.number for change in single_changes(trials, trials[0])
    }
    assert changes == {
        ("chunk_tokens", "8192", "2048"): 1,
        ("router", plain.router.policy, "cache_aware"): 2,
        ("replicas", "4", "5"): 4,
    }
    margins = [change.trial.worst_margin for change in single_changes(trials, trials[0])]
    assert margins == sorted(margins)
    assert not math.isnan(margins[0])


def test_of_a_number_the_nearest_smaller_and_larger_values_count() -> None:
    plain = make_deployment("fast", 4)
    trials = feasible_trials(plain, *(make_deployment("fast", replicas) for replicas in (1, 7, 5, 3, 2, 5)))
    instead = {change.instead: change.trial.number for change in single_changes(trials, trials[0])}
    assert instead == {"3": 4, "5": 3}


def test_cache_tiers_that_differ_are_said_as_stores() -> None:
    plain = make_deployment("fast", 4)
    dram = TierSpec(medium="ddr5", gib=256, scope="worker")
    disk = TierSpec(medium="nvme-gen4", gib=875, scope="node")

    def tiered(tiers: list[TierSpec], **movement: str) -> DeploymentSpec:
        update = {"tiers": tiers, "movement": MovementSpec.model_validate(movement)}
        return plain.model_copy(update={"pools": [plain.pool.model_copy(update=update)]})

    both = tiered([dram, disk])
    trials = feasible_trials(
        both, plain, tiered([dram], write_policy="write_back"), tiered([dram, disk], prefetch="timeout")
    )
    changes = {
        change.trial.number: (change.name, change.ours, change.instead) for change in single_changes(trials, trials[0])
    }
    stores = "256 GiB ddr5 per worker, 875 GiB nvme-gen4 per node"
    assert changes == {
        1: ("cache tiers", stores, "none"),
        2: ("cache tiers", f"{stores}, write_policy write_through", "256 GiB ddr5 per worker, write_policy write_back"),
        3: ("prefetch", "best_effort", "timeout"),
    }


def test_what_reads_like_the_recommendation_is_named_by_what_differs() -> None:
    ours = make_deployment("fast", 4)
    engine = ours.pool.engine.model_copy(update={"memory_fraction": 0.8})
    other = ours.model_copy(update={"pools": [ours.pool.model_copy(update={"engine": engine})]})
    best = feasible_trials(ours)[0]
    where = BreakEven("prefill", 1.017, 1.018, "tpot_p99", 4)

    def format_needed(instead: DeploymentSpec) -> str:
        return format_step(StepChange(where, Instead(instead, 24.5, 1)), best)

    was = ours.pool.engine.memory_fraction
    assert format_needed(other).endswith(
        f"; then the same with memory fraction 0.8 instead of {was} is needed, at $24.50 per hour."
    )
    wider = make_deployment("fast", 5)
    assert format_needed(wider).endswith(f"; then {describe(wider)} is needed, at $24.50 per hour.")
